//! Live resize: the tables of a running gateway grow and shrink under load.
//!
//! The workers and rings are those of the gateway, on threads of their own. A thousand established
//! flows send numbered packets at a steady pace. New flows open as fast as the workers take them,
//! while `nf_conntrack_max` is raised step by step. Then an operator deletes half of them, and the
//! others expire, all at once.

mod load;
mod stalls;

use std::sync::Arc;
use std::time::{Duration, Instant};

use ::conntrack::{Changes, Filter};
use engine::{Config, Gateway, PortSetup, SteerError, WorkerCount};
use flow::HashKey;
use serde::Serialize;

use self::load::{ESTABLISHED, In, Out, Shared};
use crate::Error;

/// Each step of growth multiplies the connections by this.
const STEP: u32 = 4;
/// Room in `nf_conntrack_max` above the connections of a step: connections that workers have leased
/// and do not use count as well.
const SLACK: u64 = 8192;
/// Clients of every other new flow, and of no established one.
const HALF: &str = "198.19.0.0/16";
/// The timeout that an operator gives the connections, in seconds.
const TIME_LEFT_S: u32 = 2;
/// Time after which the gateway counts as stuck.
const PATIENCE: Duration = Duration::from_secs(60);

/// The phases of a run, in order.
const PHASES: [&str; 5] = ["before", "growth", "flush", "expiry", "after"];

/// The result.
#[derive(Clone, Debug, Serialize)]
pub struct LiveResize {
    /// Connections at the beginning and at the end.
    pub from: u32,
    /// Connections when there were the most.
    pub to: u32,
    /// Packets that did not come out; a run that loses one ends with an error.
    pub lost: u64,
    /// Packets of established flows that were not the next of their flow; the same.
    pub out_of_order: u64,
    /// The longest time from a packet's due time to its way out, microseconds, in all phases. It
    /// includes everything else that the machine does.
    pub worst_stall_us: f64,
    /// CPU time of the longest turn of a worker, microseconds, in all phases.
    pub worst_turn_us: f64,
    /// Connections opened per second while the tables grew.
    pub opened_per_s: f64,
    /// The figures of each phase.
    pub phases: Vec<Phase>,
}

/// A part of the run.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Phase {
    /// Its name.
    pub name: &'static str,
    /// Its length, in seconds.
    pub seconds: f64,
    /// Packets of established flows.
    pub packets: u64,
    /// Half of them took at most this, in microseconds.
    pub median_us: f64,
    /// One in a thousand took longer than this, in microseconds.
    pub p999_us: f64,
    /// The longest of them took this, in microseconds.
    pub worst_stall_us: f64,
    /// CPU time of the longest turn of a worker, in microseconds.
    pub worst_turn_us: f64,
    /// The part of a CPU that the workers got.
    pub cpu_share: f64,
}

/// Grows a gateway's tables to `to` connections and shrinks them again. Before and after, nothing
/// changes for `rest`.
pub fn measure(
    to: u32,
    workers: usize,
    cpus: &[usize],
    rest: Duration,
) -> Result<LiveResize, Error> {
    let shared = Arc::new(Shared::new(PHASES.len()));
    let mut run = Run {
        gateway: start(&shared, workers, cpus)?,
        shared,
        to,
        phases: Vec::new(),
        begun: Instant::now(),
    };
    run.wait("establish flows", |run| Ok(run.shared.is_established()))?;
    run.enter(0);
    std::thread::sleep(rest);
    run.enter(1);
    run.grow()?;
    run.enter(2);
    run.flush()?;
    run.enter(3);
    run.expire()?;
    run.enter(4);
    std::thread::sleep(rest);
    run.finish()
}

fn start(shared: &Arc<Shared>, workers: usize, cpus: &[usize]) -> Result<Gateway, Error> {
    let mut config = Config::new(HashKey(0x7265_7369_7a65, 0x6c69_7665));
    config.workers = WorkerCount::fixed(workers)?;
    // From here on the limit only grows. Connections that a worker has leased under a higher limit
    // and not given back yet are not available to others.
    let room = u64::from(ESTABLISHED) + SLACK;
    config.settings.set("nf_conntrack_max", room).map_err(|error| wrong(error.to_string()))?;
    let ports = vec![
        PortSetup { rx_queues: workers, ..PortSetup::new("in", In(shared.clone())) },
        PortSetup { rx_queues: 0, ..PortSetup::new("out", Out(shared.clone())) },
    ];
    let usable = cpus.to_vec();
    Ok(Gateway::start_on(config, ports, Box::new(move || usable.clone()))?)
}

fn wrong(problem: String) -> Error {
    Error::Wrong { benchmark: "conntrack, live resize", problem }
}

struct Run {
    gateway: Gateway,
    shared: Arc<Shared>,
    to: u32,
    /// Lengths of the phases that are over; `begun` is the start of the current one.
    phases: Vec<f64>,
    begun: Instant,
}

impl Run {
    fn enter(&mut self, phase: usize) {
        if phase > 0 {
            self.phases.push(self.begun.elapsed().as_secs_f64());
        }
        self.shared.enter(phase);
        self.begun = Instant::now();
    }

    /// Waits for the gateway. A packet that it drops meanwhile would never come.
    fn wait(&self, what: &str, ready: impl Fn(&Self) -> Result<bool, Error>) -> Result<(), Error> {
        let begun = Instant::now();
        while !ready(self)? {
            if begun.elapsed() > PATIENCE {
                return Err(wrong(format!("it took too long to {what}: {}", self.losses())));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// A description of packets that did not come out.
    fn losses(&self) -> String {
        let [produced, taken, out_of_order] = self.shared.books();
        let dropped = self.gateway.recent_drops().unwrap_or_default();
        let why: Vec<String> = dropped
            .iter()
            .map(|dropped| {
                format!("worker {}: {} {}", dropped.worker.0, dropped.summary, dropped.why)
            })
            .collect();
        format!("{produced} packets in, {taken} out, {out_of_order} out of order; dropped: {why:?}")
    }

    fn set_room(&self, connections: u32) -> Result<(), Error> {
        let room = u64::from(connections) + SLACK;
        let set = self.gateway.set_tunable("nf_conntrack_max", room);
        set.map_err(|error| wrong(error.to_string()))
    }

    fn count(&self) -> Result<u64, Error> {
        Ok(self.gateway.connection_count().map_err(SteerError::from)?)
    }

    fn grow(&self) -> Result<(), Error> {
        let mut connections = ESTABLISHED;
        while connections < self.to {
            connections = self.to.min(connections * STEP);
            self.set_room(connections)?;
            self.shared.allow(connections - ESTABLISHED);
            let opened = |run: &Self| Ok(run.shared.opened() == connections - ESTABLISHED);
            self.wait(&format!("grow to {connections} connections"), opened)?;
        }
        let count = self.count()?;
        if count != u64::from(self.to) {
            return Err(wrong(format!("{count} connections in place of {}", self.to)));
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), Error> {
        let filter = Filter { source: HALF.parse().ok(), ..Filter::default() };
        let deleted = self.gateway.delete_connections(&filter).map_err(SteerError::from)?;
        let expected = u64::from(self.to - ESTABLISHED) / 2;
        if deleted != expected {
            return Err(wrong(format!("{deleted} connections were deleted, not {expected}")));
        }
        Ok(())
    }

    /// The established flows have a packet each 10 ms, which resets their timeout.
    fn expire(&self) -> Result<(), Error> {
        let changes = Changes { timeout_s: Some(TIME_LEFT_S), ..Changes::default() };
        let all = Filter::default();
        self.gateway.update_connections(&all, changes).map_err(SteerError::from)?;
        self.wait("shrink", |run| Ok(run.count()? == u64::from(ESTABLISHED)))?;
        self.set_room(ESTABLISHED)
    }

    fn finish(mut self) -> Result<LiveResize, Error> {
        self.phases.push(self.begun.elapsed().as_secs_f64());
        self.shared.end();
        self.wait("end", |run| {
            let [produced, taken, _] = run.shared.books();
            Ok(produced == taken)
        })?;
        let losses = self.losses();
        let Self { gateway, shared, to, phases: seconds, .. } = self;
        let totals = gateway.stop()?.totals();
        let [produced, taken, out_of_order] = shared.books();
        let (dropped, [opened, ..]) = (totals.dropped_total(), totals.classes);
        if [produced, totals.transmitted] != [taken; 2] || dropped + out_of_order > 0 {
            return Err(wrong(losses));
        }
        // No connection was lost and opened again by a packet in its middle.
        if opened != u64::from(to) {
            return Err(wrong(format!("{opened} connections were opened in place of {to}")));
        }
        let phases: Vec<Phase> =
            (0..).zip(&seconds).map(|(at, &s)| phase(&shared, at, s)).collect();
        let worst = |figure: fn(&Phase) -> f64| phases.iter().map(figure).fold(0.0, f64::max);
        Ok(LiveResize {
            from: ESTABLISHED,
            to,
            lost: produced - taken,
            out_of_order,
            worst_stall_us: worst(|phase| phase.worst_stall_us),
            worst_turn_us: worst(|phase| phase.worst_turn_us),
            opened_per_s: f64::from(to - ESTABLISHED) / seconds[1],
            phases,
        })
    }
}

fn phase(shared: &Shared, at: usize, seconds: f64) -> Phase {
    let stalls = shared.stalls(at);
    let microseconds = |ns: u64| ns as f64 / 1e3;
    Phase {
        name: PHASES[at],
        seconds,
        packets: stalls.packets(),
        median_us: microseconds(stalls.quantile_ns(0.5)),
        p999_us: microseconds(stalls.quantile_ns(0.999)),
        worst_stall_us: microseconds(stalls.worst_ns()),
        worst_turn_us: microseconds(stalls.worst_turn_ns()),
        cpu_share: stalls.cpu_share(),
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
