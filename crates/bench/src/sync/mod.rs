//! State sync: the cost of a peer for packets, and what the peer gets.
//!
//! A *node* has one or two workers with 1 M connections and a sync thread, and sends to a standby over
//! sockets on the loopback interface. Workers track packets as in [`conntrack`](crate::conntrack).
//! Dirty lists, rings, records, frames, encryption and the standby are the gateway's. The standby is a
//! whole gateway on one thread, and its CPU time counts apart.
//!
//! A rate is that of the whole node: its units over the CPU time of workers and sync thread, the
//! system's work for them included, times the number of workers. A turn ends when the peer has
//! acknowledged everything, so nothing is left for the next one.
//!
//! The rivals hand changes to the sync thread as pf does: through a central lock, a ring (the
//! experiment of 2018), or locked buckets (its sequel). Their records, keys and sockets are the same.

mod clock;
mod ends;
mod hub;
mod lane;
mod load;
mod node;
mod report;
mod rivals;
mod staleness;

use std::time::{Duration, Instant};

use self::node::{Design, Node, Outcome, Population, Until};
pub use self::report::{Conntrackd, Report};
use self::report::{Join, Series};
pub use self::staleness::Staleness;
use crate::measure;
use crate::traffic::Payload;
use crate::{Error, Options};

/// A request of 100 bytes, a response of 1000.
const PAYLOAD: Payload = [100, 1000];
/// Packets of a batch, as of a worker.
const BATCH: usize = 64;
/// A limit of connections that is never reached.
const ENOUGH: u64 = 1 << 32;
/// The unit in which connections become due.
const TICK: Duration = Duration::from_nanos(1 << 29);
/// The default refresh in ticks.
const REFRESH_TICKS: u32 = 18;
/// Draws of Zipf's law for each lane.
const DRAWS: usize = 1 << 21;

fn wrong(problem: impl Into<String>) -> Error {
    Error::Wrong { benchmark: "sync", problem: problem.into() }
}

/// The size of a run.
#[derive(Clone, Copy, Debug)]
struct Scale {
    connections: u32,
    rounds: usize,
    turn: Duration,
    /// Time that passes before each turn, so that connections become due in short turns too.
    skip: Duration,
    staleness: Duration,
}

impl Scale {
    const fn of(options: Options) -> Self {
        match options.quick {
            true => Self {
                connections: 20_000,
                rounds: 2,
                turn: Duration::from_millis(60),
                skip: TICK,
                staleness: Duration::from_millis(900),
            },
            false => Self {
                connections: 1_000_000,
                rounds: 10,
                turn: TICK,
                skip: Duration::ZERO,
                staleness: Duration::from_secs(10),
            },
        }
    }
}

/// Nodes that are measured in turns.
struct Field<'a> {
    nodes: Vec<Node>,
    scale: Scale,
    cpus: &'a [usize],
}

impl<'a> Field<'a> {
    fn new(
        designs: &[Design],
        lanes: usize,
        population: Population,
        scale: Scale,
        cpus: &'a [usize],
    ) -> Result<Self, Error> {
        let nodes = designs.iter().map(|&design| Node::new(design, lanes, population));
        Ok(Self { nodes: nodes.collect::<Result<_, _>>()?, scale, cpus })
    }

    fn node(&mut self, design: Design) -> Result<&mut Node, Error> {
        let found = self.nodes.iter_mut().find(|node| node.design == design);
        found.ok_or_else(|| wrong("a design is missing"))
    }

    /// Runs all nodes in turns. The first round does not count.
    fn measure(&mut self, is_peer_dead: bool) -> Result<Series, Error> {
        let mut series = Series::default();
        for round in 0..=self.scale.rounds {
            for node in &mut self.nodes {
                node.skip(self.scale.skip);
                let outcome = node.run(Until::Worked(self.scale.turn), self.cpus, is_peer_dead)?;
                if round > 0 {
                    series.entry(node.design).or_insert_with(Vec::new).push(outcome);
                }
            }
        }
        Ok(series)
    }

    fn set_refresh(&mut self, refresh: Duration) {
        self.nodes.iter_mut().for_each(|node| node.set_refresh(refresh));
    }

    /// Lets the standby of the gateway's design get all connections while the workers work.
    fn join(&mut self) -> Result<Join, Error> {
        let (cpus, turn) = (self.cpus, self.scale.turn);
        let mut alone = || -> Result<Outcome, Error> {
            self.node(Design::NoSync)?.run(Until::Worked(turn), cpus, false)
        };
        let before = [alone()?, alone()?];
        let began = Instant::now();
        let joined = self.node(Design::Stateway)?.run(Until::Level, cpus, false)?;
        let seconds = began.elapsed().as_secs_f64();
        let mut alone = || -> Result<Outcome, Error> {
            self.node(Design::NoSync)?.run(Until::Worked(turn), cpus, false)
        };
        let after = alone()?;
        let rates = [before[1], after].map(|outcome| outcome.turn().rate);
        Ok(Join {
            seconds,
            node_seconds: joined.node.as_secs_f64(),
            active_ratio: joined.turn().rate / f64::midpoint(rates[0], rates[1]),
            records: joined.received,
            apply_per_s: joined.received as f64 * 1e9 / joined.standby_ns.max(1) as f64,
        })
    }
}

const REFRESH: Duration = ::conntrack::Replication::REFRESH;
const EACH_SECOND: Duration = Duration::from_secs(1);
const PAIR: [Design; 2] = [Design::NoSync, Design::Stateway];
const ALL: [Design; 6] = [
    Design::ForwardOnly,
    Design::NoSync,
    Design::Stateway,
    Design::CentralLock,
    Design::Ring,
    Design::LockedBuckets,
];

/// Measures state sync in some minutes, or some seconds if quick.
///
/// # Errors
/// [`Error`] when a packet was refused, or a thread, a socket or a gateway failed.
pub fn run(options: Options) -> Result<Report, Error> {
    let scale = Scale::of(options);
    let cpus = measure::cpus()?;
    let most = cpus.len().min(2);
    let mut report = Report::begin(options, scale.connections, most);
    for lanes in (1..=most).rev() {
        established(lanes, most, scale, &cpus, &mut report)?;
    }
    changing(most, scale, &cpus, &mut report)?;
    report.stale(staleness::measure(scale.connections, scale.staleness)?);
    Ok(report)
}

fn established(
    lanes: usize,
    most: usize,
    scale: Scale,
    cpus: &[usize],
    report: &mut Report,
) -> Result<(), Error> {
    let population = Population::Established(scale.connections);
    let mut field = Field::new(&ALL, lanes, population, scale, cpus)?;
    let off = field.node(Design::NoSync)?.memory_bytes();
    let join = field.join()?;
    for node in &mut field.nodes {
        node.join(cpus, REFRESH)?;
    }
    report.established(lanes, &field.measure(false)?);
    let on = field.node(Design::Stateway)?.memory_bytes();
    if lanes < most {
        return Ok(());
    }
    report.joined(join);
    report.memory([off, on].map(|bytes| bytes as f64 / f64::from(scale.connections)));
    field.nodes.retain(|node| PAIR.contains(&node.design));
    field.set_refresh(EACH_SECOND);
    // A connection that is told every second is due in every other tick.
    let Scale { rounds, turn, .. } = scale;
    field.scale = Scale { rounds: rounds / 2, turn: 2 * turn, ..scale };
    report.ratio("established_1s", &field.measure(false)?);
    field.scale = scale;
    field.set_refresh(REFRESH);
    report.ratio("dead_peer", &field.measure(true)?);
    for node in &mut field.nodes {
        node.join(cpus, REFRESH)?;
        for lane in &mut node.lanes {
            lane.change_load(|load| load.skewed(DRAWS));
        }
    }
    report.ratio("zipf", &field.measure(false)?);
    Ok(())
}

fn changing(lanes: usize, scale: Scale, cpus: &[usize], report: &mut Report) -> Result<(), Error> {
    let population = Population::Changing(scale.connections);
    let mut field = Field::new(&PAIR, lanes, population, scale, cpus)?;
    for node in &mut field.nodes {
        node.join(cpus, REFRESH)?;
    }
    report.ratio("new", &field.measure(false)?);
    report.lost(field.node(Design::Stateway)?.differences()?);
    Ok(())
}

#[cfg(test)]
#[path = "run_tests.rs"]
mod tests;
