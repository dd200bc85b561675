//! `stateway bench policy`: the policies of the gateway's devices beside each other, with real TCP
//! connections over veth.
//!
//! One gateway changes its policy from turn to turn. So policies meet the same lab, the same memory
//! and nearly the same moment. MIX has a gateway of its own beside it, because queues for each service
//! are opened at the start.

mod delay;
mod overload;
mod plot;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Context;
use bench::{Machine, Noise, Spread};
use engine::Policy;
use lab::{
    Gateway, Lab, Placement, Stateway, StatewaySpec, Transactions, TransactionsReport,
    TransactionsSpec, transactions,
};
use serde_json::{Value, json};

use self::delay::Delays;
use self::overload::{Overload, Pair};
use super::spinner;
use crate::print::{Align, Output, Table};

/// Its name on the command line.
pub const NAME: &str = "policy";

/// Numbers of connections.
const COUNTS: [u16; 5] = [1, 12, 24, 48, 96];
/// Sixths of them that are latency-first.
const MIXES: [u16; 5] = [0, 2, 3, 4, 6];
/// The number of connections behind the figures of each policy.
const USUAL: u16 = 24;
/// The gateway's CPU in [`Placement::split`].
const GATEWAY_CPU: u32 = 0;
/// The part of the score that latency has.
const LATENCY_WEIGHT: f64 = 0.5;
/// Rounds at most in which delays are measured against the load.
const DELAY_ROUNDS: usize = 3;
/// Silence before the CPU time of a worker that waits is measured.
const SILENCE: Duration = Duration::from_secs(1);

/// Reason for a key of the overload that has no value.
const NO_OVERLOAD: &str = "in no round more came than the gateway can carry";

/// A load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Cell {
    connections: u16,
    /// The number of them that are latency-first.
    latency: u16,
}

/// The reports of one round, by policy and load.
type Round = BTreeMap<(&'static str, Cell), TransactionsReport>;

impl Cell {
    /// So many connections, of which so many sixths are latency-first.
    const fn new(connections: u16, mix: u16) -> Self {
        Self { connections, latency: (connections * mix + 3) / 6 }
    }

    fn all() -> BTreeSet<Self> {
        let of = |connections| MIXES.map(|mix| Self::new(connections, mix));
        COUNTS.into_iter().flat_map(of).collect()
    }

    /// True if a policy meets this load. Those that serve one purpose meet the loads of that
    /// purpose, and all meet the usual ones.
    fn is_for(self, policy: Policy) -> bool {
        let usual = [Self::new(USUAL, 0), Self::new(USUAL, 6)];
        match policy {
            Policy::None | Policy::Mix => true,
            Policy::Bulk | Policy::Cpu => self.latency == 0 || usual.contains(&self),
            Policy::Latency => self.latency == self.connections || usual.contains(&self),
        }
    }
}

/// Measures the policies. With a name, draws the delay against the load into a file (SVG).
pub fn run(
    quick: bool,
    json: bool,
    plotted: Option<&Path>,
    out: &mut Output,
) -> anyhow::Result<()> {
    let binary = std::env::current_exe().context("the path of this program is unknown")?;
    let machine = Machine::here();
    out.line(&machine)?;
    let (rounds, warm_up, time) = if quick { (1, 100, 200) } else { (7, 400, 1000) };
    let [warm_up, time] = [warm_up, time].map(Duration::from_millis);
    let spec = StatewaySpec::new(binary.clone(), 1);
    let more =
        format!("[[selector]]\nservice = \"latency\"\nport = {}\n", TransactionsSpec::LATENCY_PORT);
    let mix = StatewaySpec { interface: "policy = \"mix\"\n".to_owned(), more, ..spec.clone() };
    let lab = |spec| Lab::new(Gateway::Stateway(spec), Placement::split());
    let (none, mix) = (lab(spec)?, lab(mix)?);
    let labs = Pair { none: &none, mix: &mix };
    let spinner = spinner("TCP transactions under each policy");
    let closed: Result<Vec<Round>, _> =
        (0..rounds).map(|_| round(labs, &binary, warm_up, time)).collect();
    let closed = closed?;
    let idle_cpu = idle_cpu(labs.none, if quick { 1 } else { 5 })?;
    spinner.set_message("More than the gateway can carry");
    let overload = overload(labs, &binary, rounds, 2 * time)?;
    spinner.set_message("Delays against the load");
    let begin = |policy| set_policy(gateway(labs.of(policy))?, policy);
    let turns = (rounds.min(DELAY_ROUNDS), time / 2);
    let delays = delay::measure(labs, &binary, overload.capacity, turns, begin)?;
    spinner.finish_and_clear();
    let findings = Findings { rounds: &closed, overload: &overload, delays: &delays };
    findings.print(idle_cpu, out)?;
    if let Some(file) = plotted {
        plot::write(file, &delays.loads)?;
        out.line(format_args!("plot: {}", file.display()))?;
    }
    if !json {
        return Ok(());
    }
    let mut object = findings.to_json(idle_cpu);
    object["machine"] = json!(machine);
    object["quick"] = json!(quick);
    out.json(&object)
}

/// Puts each load on a gateway under each policy in turn.
fn round(
    labs: Pair<'_>,
    binary: &Path,
    warm_up: Duration,
    time: Duration,
) -> anyhow::Result<Round> {
    let mut round = Round::new();
    for cell in Cell::all() {
        for policy in Policy::ALL.into_iter().filter(|policy| cell.is_for(*policy)) {
            let lab = labs.of(policy);
            set_policy(gateway(lab)?, policy)?;
            let report = transactions(
                lab,
                &TransactionsSpec {
                    program: binary.to_path_buf(),
                    bulk: cell.connections - cell.latency,
                    latency: cell.latency,
                    warm_up,
                    time,
                    gateway_cpu: GATEWAY_CPU,
                },
            )?;
            round.insert((policy.name(), cell), report);
        }
    }
    Ok(round)
}

/// Finds out what the gateway can carry without a policy, and offers more to both.
fn overload(
    labs: Pair<'_>,
    binary: &Path,
    rounds: usize,
    time: Duration,
) -> anyhow::Result<Overload> {
    set_policy(gateway(labs.none)?, Policy::None)?;
    let capacity = overload::capacity(labs.none, binary)?;
    let rounds = (0..rounds).map(|_| overload::round(labs, binary, capacity, time));
    Ok(Overload { capacity, rounds: rounds.collect::<Result<_, _>>()? })
}

fn gateway(lab: &Lab) -> anyhow::Result<&Stateway> {
    lab.stateway().context("the lab has no Stateway")
}

fn set_policy(gateway: &Stateway, policy: Policy) -> anyhow::Result<()> {
    for device in ["lan0", "wan0"] {
        gateway.command(&["policy", "set", device, policy.name()]).check()?;
    }
    Ok(())
}

/// Part of a CPU that the gateway takes under LATENCY a second after the last packet.
fn idle_cpu(lab: &Lab, seconds: u64) -> anyhow::Result<f64> {
    let gateway = gateway(lab)?;
    set_policy(gateway, Policy::Latency)?;
    sleep(SILENCE);
    let (before, began) = (gateway.cpu_time()?, Instant::now());
    sleep(Duration::from_secs(seconds));
    Ok((gateway.cpu_time()? - before).as_secs_f64() / began.elapsed().as_secs_f64())
}

/// Figures out of the reports of all rounds.
struct Findings<'a> {
    rounds: &'a [Round],
    overload: &'a Overload,
    delays: &'a Delays,
}

impl Findings<'_> {
    /// The spread of a figure over the rounds.
    fn spread(&self, of: impl Fn(&Round) -> Option<f64>) -> Option<Spread> {
        let figures: Vec<f64> = self.rounds.iter().filter_map(of).collect();
        (!figures.is_empty()).then(|| Spread::of(figures))
    }

    /// The mean, over the numbers of connections, of a figure of one policy over that of another.
    fn ratio(
        &self,
        [of, to]: [Policy; 2],
        mix: u16,
        figure: impl Fn(&TransactionsReport) -> Option<f64>,
    ) -> Option<Spread> {
        self.spread(|round| {
            let ratios = COUNTS.iter().filter_map(|&connections| {
                let figure = |policy: Policy| {
                    figure(round.get(&(policy.name(), Cell::new(connections, mix)))?)
                };
                Some(figure(of)? / figure(to)?)
            });
            mean(ratios)
        })
    }

    /// The parts of the score of MIX beside NONE with one mix of connections: latency and
    /// throughput.
    fn terms(&self, mix: u16) -> [Option<Spread>; 2] {
        let latency = self.ratio([Policy::None, Policy::Mix], mix, |it| it.latency.p50_us);
        let rate =
            |it: &TransactionsReport| Some(it.bulk.count / it.seconds).filter(|rate| *rate > 0.0);
        [latency, self.ratio([Policy::Mix, Policy::None], mix, rate)]
    }

    fn summary(&self) -> BTreeMap<&'static str, Option<Spread>> {
        use Policy::{Bulk, Cpu, Latency, None};
        let rate = |it: &TransactionsReport| Some(it.rate());
        let cpu = |it: &TransactionsReport| Some(it.cpu_of_transaction());
        let below = |ratio: Option<Spread>| {
            let Spread { median, min, max } = ratio?;
            Some(Spread { median: 1.0 - median, min: 1.0 - max, max: 1.0 - min })
        };
        let figures = [
            ("bulk_over_none", self.ratio([Bulk, None], 0, rate)),
            ("cpu_over_none", self.ratio([Cpu, None], 0, rate)),
            ("cpu_saving_vs_bulk", below(self.ratio([Cpu, Bulk], 0, cpu))),
            ("latency_reduction", below(self.ratio([Latency, None], 6, |it| it.latency.p50_us))),
        ];
        figures.into_iter().chain(self.overload.summary()).collect()
    }

    fn score(&self) -> Option<f64> {
        mean(MIXES.into_iter().filter_map(|mix| score(self.terms(mix))))
    }

    /// The figures of a policy under the usual loads.
    fn of_policy(&self, policy: Policy) -> Value {
        let at = |mix, figure: &dyn Fn(&TransactionsReport) -> Option<f64>| {
            let key = (policy.name(), Cell::new(USUAL, mix));
            self.spread(|round| figure(round.get(&key)?)).map(|spread| spread.median)
        };
        json!({
            "p50_us": at(6, &|it| it.latency.p50_us),
            "p99_us": at(6, &|it| it.latency.p99_us),
            "mpps": at(0, &|it| Some(it.packets / it.seconds / 1e6)),
            "cpu_ns_per_packet": at(0, &|it| Some(it.gateway_cpu_seconds / it.packets * 1e9)),
        })
    }

    /// The share that the thread of both ends had of its CPU in the worst turn.
    fn cpu_share(&self) -> f64 {
        let reports = self.rounds.iter().flat_map(BTreeMap::values);
        let others = self.overload.cpu_share().min(self.delays.cpu_share());
        reports.map(|report| report.cpu_share).fold(others, f64::min)
    }

    fn cells(&self) -> Vec<Value> {
        let Some(first) = self.rounds.first() else { return Vec::new() };
        let cell = |(policy, cell): &(&'static str, Cell)| {
            let figure = |of: &dyn Fn(&TransactionsReport) -> Option<f64>| {
                self.spread(|round| of(round.get(&(*policy, *cell))?))
            };
            let kind = |of: fn(&TransactionsReport) -> Transactions| {
                json!({
                    "transactions_s": figure(&|it| Some(of(it).count / it.seconds)),
                    "p50_us": figure(&|it| of(it).p50_us),
                    "p99_us": figure(&|it| of(it).p99_us),
                })
            };
            json!({
                "policy": policy,
                "connections": cell.connections,
                "latency_first": cell.latency,
                "bulk": kind(|it| it.bulk),
                "latency": kind(|it| it.latency),
                "mpps": figure(&|it| Some(it.packets / it.seconds / 1e6)),
                "cpu_us_per_transaction": figure(&|it| Some(it.cpu_of_transaction() * 1e6)),
                "gateway_cpu": figure(&|it| Some(it.gateway_cpu_seconds / it.seconds)),
            })
        };
        first.keys().map(cell).collect()
    }

    fn to_json(&self, idle_cpu: f64) -> Value {
        let mut object = json!({
            "schema": control::SCHEMA,
            "setup": "veth",
            "rounds": self.rounds.len(),
            "cpu_share": self.cpu_share(),
            "quiet": Noise::of(self.cpu_share()).is_none(),
            "idle_cpu": idle_cpu,
            "mix_score": self.score(),
            "cells": self.cells(),
            "open_loop": self.overload.to_json(),
            "delay": self.delays.to_json(),
            "memory": Value::Null,
            "missing": { "memory": "the policies of a gateway in memory are not measured yet" },
        });
        for policy in Policy::ALL {
            object["policies"][policy.name()] = self.of_policy(policy);
        }
        for (key, spread) in self.summary() {
            object[key] = json!(spread.map(|spread| spread.median));
            object["spread"][key] = json!(spread);
            if spread.is_none() {
                object["missing"][key] = json!(NO_OVERLOAD);
            }
        }
        for mix in MIXES {
            let [latency, throughput] = self.terms(mix);
            object["mix_terms"][format!("{mix}/6")] = json!({
                "latency": latency,
                "throughput": throughput,
                "score": score([latency, throughput]),
            });
        }
        object
    }

    fn print(&self, idle_cpu: f64, out: &mut Output) -> anyhow::Result<()> {
        let usual = format!("{USUAL} connections, all latency-first or all throughput-first");
        out.line("")?;
        out.title(&usual)?;
        let columns = ["p50_us", "p99_us", "mpps", "cpu_ns_per_packet"];
        let titles = ["p50 us", "p99 us", "Mpackets/s", "CPU ns/packet"];
        let titles: Vec<_> = titles.map(|title| (title, Align::Right)).to_vec();
        let mut table = Table::new(&[&[("policy", Align::Left)], &titles[..]].concat());
        for policy in Policy::ALL {
            let figures = self.of_policy(policy);
            let cell =
                |key: &&str| figures[key].as_f64().map_or("-".into(), |it| format!("{it:.3}"));
            table.row([vec![policy.to_string()], columns.iter().map(cell).collect()].concat());
        }
        table.print(out)?;
        out.line("")?;
        let mut table = Table::new(&[
            ("figure", Align::Left),
            ("median", Align::Right),
            ("lowest", Align::Right),
            ("highest", Align::Right),
        ]);
        for (key, spread) in self.summary() {
            let figure = |of: fn(Spread) -> f64| {
                spread.map_or("-".to_owned(), |spread| format!("{:.3}", of(spread)))
            };
            table.row([
                key.to_owned(),
                figure(|it| it.median),
                figure(|it| it.min),
                figure(|it| it.max),
            ]);
        }
        table.print(out)?;
        let score = self.score().map_or("-".to_owned(), |score| format!("{score:.3}"));
        out.line(format_args!("mix_score {score}, idle_cpu {idle_cpu:.4}"))?;
        self.delays.print(out)?;
        if let Some(noise) = Noise::of(self.cpu_share()) {
            out.line(noise)?;
        }
        out.flush()
    }
}

/// The weighted score; where one part is missing, the other.
fn score([latency, throughput]: [Option<Spread>; 2]) -> Option<f64> {
    match [latency, throughput].map(|part| part.map(|spread| spread.median)) {
        [Some(latency), Some(throughput)] => {
            Some(latency * LATENCY_WEIGHT + throughput * (1.0 - LATENCY_WEIGHT))
        }
        [Some(one), None] | [None, Some(one)] => Some(one),
        [None, None] => None,
    }
}

fn mean(figures: impl Iterator<Item = f64>) -> Option<f64> {
    let figures: Vec<f64> = figures.collect();
    (!figures.is_empty()).then(|| figures.iter().sum::<f64>() / figures.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A report of so many transactions a second, each so many microseconds.
    fn report(rate: f64, p50_us: f64, cell: Cell) -> TransactionsReport {
        let latency = f64::from(cell.latency) / f64::from(cell.connections);
        let kind = |part: f64| Transactions {
            count: rate * part,
            p50_us: (part > 0.0).then_some(p50_us),
            p99_us: (part > 0.0).then_some(2.0 * p50_us),
        };
        TransactionsReport {
            seconds: 1.0,
            bulk: kind(1.0 - latency),
            latency: kind(latency),
            packets: 2.0 * rate,
            gateway_cpu_seconds: 1.0,
            cpu_share: 1.0,
        }
    }

    #[test]
    fn figures_are_ratios_of_the_same_round() {
        let figures = |policy| match policy {
            Policy::None => (100.0, 40.0),
            Policy::Bulk => (130.0, 60.0),
            Policy::Cpu => (125.0, 80.0),
            Policy::Latency => (100.0, 10.0),
            Policy::Mix => (100.0, 20.0),
        };
        let round = |noise: f64| -> Round {
            let with = |cell: Cell, policy: Policy| {
                let (rate, p50) = figures(policy);
                ((policy.name(), cell), report(rate * noise, p50 / noise, cell))
            };
            let of = |cell: Cell| {
                let policies = Policy::ALL.into_iter().filter(move |it| cell.is_for(*it));
                policies.map(move |policy| with(cell, policy))
            };
            Cell::all().into_iter().flat_map(of).collect()
        };
        let rounds = [round(1.0), round(0.5), round(2.0)];
        let overload = Overload { capacity: 1.0, rounds: Vec::new() };
        let delays = Delays::default();
        let json = Findings { rounds: &rounds, overload: &overload, delays: &delays }.to_json(0.01);
        let figure = |key: &str| (json[key].as_f64().unwrap() * 1000.0).round();
        assert_eq!(figure("bulk_over_none"), 1300.0);
        assert_eq!(figure("cpu_over_none"), 1250.0);
        assert_eq!(figure("cpu_saving_vs_bulk"), -40.0);
        assert_eq!(figure("latency_reduction"), 750.0);
        // Four of the five mixes have a latency term of 2, four a throughput term of 1.
        assert_eq!(figure("mix_score"), 1500.0);
        assert_eq!(json["policies"]["latency"]["p50_us"], 10.0);
        for key in ["memory", "mix_bulk_loss"] {
            assert_eq!(json[key], Value::Null);
            assert!(json["missing"][key].is_string(), "{key}");
        }
        assert_eq!(json["mix_terms"]["0/6"]["score"], 1.0);
        assert_eq!(json["mix_terms"]["6/6"]["score"], 2.0);
    }

    #[test]
    fn every_policy_meets_the_usual_loads() {
        for policy in Policy::ALL {
            let usual = [0, 6].map(|mix| Cell::new(USUAL, mix));
            assert!(usual.iter().all(|cell| cell.is_for(policy)), "{policy}");
        }
        let thirds = MIXES.map(|mix| Cell::new(12, mix).latency);
        assert_eq!(thirds, [0, 4, 6, 8, 12]);
    }
}
