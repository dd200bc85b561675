//! The delay of probes under each policy, against the load and against the pause between probes.

use std::path::Path;
use std::time::{Duration, Instant};

use bench::Spread;
use engine::Policy;
use lab::{Lab, OpenLoopSpec, open_loop};
use serde_json::{Value, json};

use super::overload::Pair;
use crate::print::{Align, Output, Table};

/// Offered bulk frames over those that the gateway can carry without a policy.
const LOADS: [f64; 7] = [0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 1.2];
/// Probes a second under these loads.
const PROBES: u32 = 1000;
/// Pauses between probes without a load, microseconds.
const PAUSES: [u32; 5] = [10, 100, 1000, 10_000, 100_000];
/// Probes that a turn without a load waits for, where that takes longer than other turns.
const LEAST_PROBES: u32 = 20;
/// Time of traffic before the time that counts.
const WARM_UP: Duration = Duration::from_millis(200);

/// The result of a turn, or the medians of those of one policy with one load or pause.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    pub policy: Policy,
    /// The load, or the pause in microseconds.
    pub at: f64,
    pub p50_us: Option<f64>,
    pub p99_us: Option<f64>,
    /// Part of a CPU that the gateway's process took.
    pub cpu: f64,
}

/// The result of all turns.
#[derive(Clone, Debug, Default)]
pub struct Delays {
    pub loads: Vec<Point>,
    pub pauses: Vec<Point>,
    cpu_share: f64,
}

/// Measures all policies by turns, `rounds` times. `begin` sets the policy of the lab that has it.
pub fn measure(
    labs: Pair<'_>,
    binary: &Path,
    capacity: f64,
    (rounds, time): (usize, Duration),
    begin: impl Fn(Policy) -> anyhow::Result<()>,
) -> anyhow::Result<Delays> {
    let (mut loads, mut pauses, mut cpu_share) = (Vec::new(), Vec::new(), 1.0_f64);
    let mut turn = |lab: &Lab, spec: &OpenLoopSpec, place| {
        let (point, share) = turn(lab, spec, place)?;
        cpu_share = cpu_share.min(share);
        anyhow::Ok(point)
    };
    for _ in 0..rounds {
        for policy in Policy::ALL {
            begin(policy)?;
            let lab = labs.of(policy);
            for load in LOADS {
                let rate = (load * capacity).max(1.0) as u32;
                let spec = spec(binary, (rate, PROBES), time);
                loads.push(turn(lab, &spec, (policy, load))?);
            }
            for pause in PAUSES {
                let time = time.max(Duration::from_micros((LEAST_PROBES * pause).into()));
                let spec = spec(binary, (1, 1_000_000 / pause), time);
                pauses.push(turn(lab, &spec, (policy, pause.into()))?);
            }
        }
    }
    Ok(Delays { loads: medians(&loads), pauses: medians(&pauses), cpu_share })
}

fn spec(binary: &Path, (rate, probes): (u32, u32), time: Duration) -> OpenLoopSpec {
    OpenLoopSpec { program: binary.to_path_buf(), rate, probes, warm_up: WARM_UP, time }
}

/// One turn, and the share that the thread of both ends had of its CPU.
fn turn(
    lab: &Lab,
    spec: &OpenLoopSpec,
    (policy, at): (Policy, f64),
) -> anyhow::Result<(Point, f64)> {
    let gateway = super::gateway(lab)?;
    let (before, began) = (gateway.cpu_time()?, Instant::now());
    let report = open_loop(lab, spec)?;
    let cpu = (gateway.cpu_time()? - before).as_secs_f64() / began.elapsed().as_secs_f64();
    let lab::OpenLoopReport { p50_us, p99_us, cpu_share, .. } = report;
    Ok((Point { policy, at, p50_us, p99_us, cpu }, cpu_share))
}

/// The medians of turns with the same policy and load, in the order of the first of them.
fn medians(turns: &[Point]) -> Vec<Point> {
    let mut points: Vec<Point> = Vec::new();
    for &Point { policy, at, .. } in turns {
        let is_same = |point: &&Point| (point.policy, point.at) == (policy, at);
        if points.iter().any(|point| is_same(&point)) {
            continue;
        }
        let median = |figure: &dyn Fn(&Point) -> Option<f64>| {
            let figures: Vec<f64> = turns.iter().filter(is_same).filter_map(figure).collect();
            (!figures.is_empty()).then(|| Spread::of(figures).median)
        };
        points.push(Point {
            policy,
            at,
            p50_us: median(&|turn| turn.p50_us),
            p99_us: median(&|turn| turn.p99_us),
            cpu: median(&|turn| Some(turn.cpu)).unwrap_or_default(),
        });
    }
    points
}

impl Delays {
    /// The share that the thread of both ends had of its CPU in the worst turn.
    pub fn cpu_share(&self) -> f64 {
        self.cpu_share
    }

    pub fn to_json(&self) -> Value {
        let all = |points: &[Point], key: &str| -> Vec<Value> {
            let point = |point: &Point| {
                let Point { policy, at, p50_us, p99_us, cpu } = point;
                json!({
                    "policy": policy.name(), key: at, "p50_us": p50_us, "p99_us": p99_us,
                    "gateway_cpu": cpu,
                })
            };
            points.iter().map(point).collect()
        };
        json!({
            "loads": all(&self.loads, "load"),
            "pauses": all(&self.pauses, "pause_us"),
        })
    }

    pub fn print(&self, out: &mut Output) -> anyhow::Result<()> {
        let delays = |point: &Point| {
            let figure = |it: Option<f64>| it.map_or("-".to_owned(), |it| format!("{it:.0}"));
            format!("{} / {}", figure(point.p50_us), figure(point.p99_us))
        };
        let delays_and_cpu =
            |point: &Point| format!("{}, {:.0} %", delays(point), point.cpu * 100.0);
        let load = |at: f64| format!("{:.0} %", at * 100.0);
        let pause = |at: f64| format!("{at} us");
        out.line("")?;
        out.title("delay of probes under a load, p50 / p99 us")?;
        table(&self.loads, load, delays, out)?;
        out.line("")?;
        out.title("delay of probes that come alone, p50 / p99 us, and CPU time of the gateway")?;
        table(&self.pauses, pause, delays_and_cpu, out)
    }
}

/// A row for each load or pause, a column for each policy.
fn table(
    points: &[Point],
    name: impl Fn(f64) -> String,
    cell: impl Fn(&Point) -> String,
    out: &mut Output,
) -> anyhow::Result<()> {
    let columns = Policy::ALL.map(|policy| (policy.name(), Align::Right));
    let mut table = Table::new(&[&[("", Align::Right)], &columns[..]].concat());
    let mut rows: Vec<f64> = points.iter().map(|point| point.at).collect();
    rows.sort_by(f64::total_cmp);
    rows.dedup();
    for at in rows {
        let of = |policy: Policy| {
            let found = points.iter().find(|point| (point.policy, point.at) == (policy, at));
            found.map_or("-".to_owned(), &cell)
        };
        table.row([vec![name(at)], Policy::ALL.map(of).to_vec()].concat());
    }
    table.print(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_is_the_median_of_its_turns() {
        let turn = |policy, at, p50: f64| Point {
            policy,
            at,
            p50_us: Some(p50),
            p99_us: (p50 > 1.0).then_some(2.0 * p50),
            cpu: p50 / 100.0,
        };
        let turns = [
            turn(Policy::None, 0.5, 3.0),
            turn(Policy::Mix, 0.5, 9.0),
            turn(Policy::None, 0.5, 1.0),
            turn(Policy::None, 0.5, 2.0),
        ];
        let point = |policy, p50_us: f64, p99_us: f64| Point {
            policy,
            at: 0.5,
            p50_us: Some(p50_us),
            p99_us: Some(p99_us),
            cpu: p50_us / 100.0,
        };
        assert_eq!(medians(&turns), [point(Policy::None, 2.0, 5.0), point(Policy::Mix, 9.0, 18.0)]);
    }
}
