//! The result for people and for programs.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::node::{Design, Outcome};
use super::staleness::Staleness;
use crate::measure::{Findings, Turn, rates, ratios};
use crate::table::{Cell, Table};
use crate::{Machine, Options, Spread};

/// The turns of each design.
pub type Series = BTreeMap<Design, Vec<Outcome>>;

/// A standby gets all connections while the workers work.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Join {
    /// Passed time, seconds.
    pub seconds: f64,
    /// The same by the CPU time of a worker: less than `seconds` if other programs had the CPUs.
    pub node_seconds: f64,
    /// The rate of the node meanwhile, over that of a node without a peer.
    pub active_ratio: f64,
    /// Records that the standby took.
    pub records: u64,
    /// Records that the standby takes per second of its CPU time.
    pub apply_per_s: f64,
}

/// Memory of a connection, bytes.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Memory {
    /// Without a peer.
    pub off: f64,
    /// With one.
    pub on: f64,
}

/// One load.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Row {
    /// Units per second of the node's CPU time, by design.
    pub per_s: BTreeMap<&'static str, Spread>,
    /// The same over that without a peer.
    pub ratio: BTreeMap<&'static str, Spread>,
    /// Records in a million units, by design.
    pub records_per_million: BTreeMap<&'static str, f64>,
    /// CPU time of the sync thread over that of the workers, by design.
    pub sync_share: BTreeMap<&'static str, f64>,
    /// Records that a second of the sync thread's CPU time sends.
    pub records_per_s: f64,
    /// Records that a second of the standby's CPU time takes.
    pub apply_per_s: f64,
}

/// The result.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    schema: u32,
    benchmark: &'static str,
    /// The machine that was measured.
    pub machine: Machine,
    /// True for a run that only shows that everything works.
    pub quick: bool,
    /// The meaning of a second in these figures.
    pub clock: &'static str,
    /// The smallest part of a CPU that a worker had; 1 on a quiet machine.
    pub cpu_share: f64,
    /// Connections of a node.
    pub connections: u32,
    /// Workers of a node, if nothing else is said.
    pub workers: usize,
    /// Packets of established connections, millions per second.
    pub mpps: BTreeMap<&'static str, f64>,
    /// The same with one worker.
    pub mpps_1_worker: BTreeMap<&'static str, f64>,
    /// Rate with a peer over that without one, by load.
    pub ratio_on_off: BTreeMap<&'static str, f64>,
    /// Records that a second of the sync thread's CPU time sends, while each connection is refreshed
    /// every second.
    pub records_per_s: f64,
    /// Time until the standby has made a change, which 99 % of the changes keep, milliseconds.
    pub staleness_p99_ms: f64,
    /// The same in more detail.
    pub staleness: Staleness,
    /// Connections that differ afterwards.
    pub lost: u64,
    /// Memory of a connection, bytes.
    pub bytes_per_connection: Memory,
    /// Records that a second of the standby's CPU time takes, in the same run as `records_per_s`.
    pub apply_per_s: f64,
    /// A standby gets all connections.
    pub join: Join,
    /// Debian's conntrackd between two gateways of the kernel; this benchmark runs in memory, so
    /// who runs it adds them.
    pub conntrackd: Option<Conntrackd>,
    /// Why there is nothing about conntrackd.
    pub conntrackd_reason: Option<String>,
    /// Everything that was measured, by load.
    pub loads: BTreeMap<String, Row>,
}

/// Debian's conntrackd between two gateways of the kernel.
#[derive(Clone, Debug, Serialize)]
pub struct Conntrackd {
    /// The rate of packets of established connections with conntrackd over that without.
    pub established: f64,
    /// The same of packets that open connections.
    pub new: f64,
    /// Connections that the standby does not have after the active gateway has died.
    pub missing: u32,
    /// The number of those that were opened just before.
    pub opened: u32,
    /// The two rates, over the rounds.
    pub spread: BTreeMap<&'static str, Spread>,
}

impl fmt::Display for Conntrackd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { established, new, missing, opened, .. } = self;
        write!(
            f,
            "conntrackd between two kernels: established {established:.2}, new {new:.2} of "
        )?;
        write!(f, "the rate without; {missing} of {opened} connections missing after kill -9")
    }
}

impl Report {
    pub(super) fn begin(options: Options, connections: u32, workers: usize) -> Self {
        Self {
            schema: 1,
            benchmark: "sync",
            machine: Machine::here(),
            quick: options.quick,
            clock: "CPU time of the sending node: workers and sync thread, system time included",
            cpu_share: 1.0,
            connections,
            workers,
            mpps: BTreeMap::new(),
            mpps_1_worker: BTreeMap::new(),
            ratio_on_off: BTreeMap::new(),
            records_per_s: 0.0,
            staleness_p99_ms: 0.0,
            staleness: Staleness::default(),
            lost: 0,
            bytes_per_connection: Memory::default(),
            apply_per_s: 0.0,
            join: Join::default(),
            conntrackd: None,
            conntrackd_reason: Some("this run was in memory alone".to_owned()),
            loads: BTreeMap::new(),
        }
    }

    pub(super) fn established(&mut self, lanes: usize, series: &Series) {
        let medians = series
            .iter()
            .map(|(design, outcomes)| (design.name(), rates(&turns(outcomes)).scaled(1e-6).median));
        let medians = medians.collect();
        if lanes == self.workers {
            self.mpps = medians;
            self.ratio("established", series);
        } else {
            self.mpps_1_worker = medians;
            self.add("established, 1 worker", series);
        }
    }

    pub(super) fn ratio(&mut self, load: &'static str, series: &Series) {
        self.add(load, series);
        let row = &self.loads[load];
        if let Some(ratio) = row.ratio.get(Design::Stateway.name()) {
            self.ratio_on_off.insert(load, ratio.median);
        }
        if load == "established_1s" {
            (self.records_per_s, self.apply_per_s) = (row.records_per_s, row.apply_per_s);
        }
    }

    fn add(&mut self, load: &str, series: &Series) {
        let mut row = Row::default();
        let off = series.get(&Design::NoSync).map(|outcomes| turns(outcomes));
        for (design, outcomes) in series {
            let name = design.name();
            let mine = turns(outcomes);
            row.per_s.insert(name, rates(&mine));
            if let Some(off) = &off {
                row.ratio.insert(name, ratios(&mine, off));
            }
            let sum = |part: fn(&Outcome) -> u64| outcomes.iter().map(part).sum::<u64>() as f64;
            let (units, lanes, sync) =
                (sum(|it| it.units), sum(|it| it.lanes_ns), sum(|it| it.sync_ns));
            let (sent, received, standby) =
                (sum(|it| it.sent), sum(|it| it.received), sum(|it| it.standby_ns));
            row.records_per_million.insert(name, sent * 1e6 / units.max(1.0));
            row.sync_share.insert(name, sync / lanes.max(1.0));
            if *design == Design::Stateway {
                row.records_per_s = sent * 1e9 / sync.max(1.0);
                row.apply_per_s = received * 1e9 / standby.max(1.0);
            }
            let least = mine.iter().map(|turn| turn.share).fold(1.0, f64::min);
            self.cpu_share = self.cpu_share.min(least);
        }
        self.loads.insert(load.to_owned(), row);
    }

    pub(super) fn joined(&mut self, join: Join) {
        self.join = join;
    }

    pub(super) fn memory(&mut self, [off, on]: [f64; 2]) {
        self.bytes_per_connection = Memory { off, on };
    }

    pub(super) fn lost(&mut self, connections: u64) {
        self.lost += connections;
    }

    pub(super) fn stale(&mut self, staleness: Staleness) {
        self.staleness_p99_ms = staleness.p99_ms;
        self.lost += staleness.lost;
        self.staleness = staleness;
    }
}

fn turns(outcomes: &[Outcome]) -> Vec<Turn> {
    outcomes.iter().map(Outcome::turn).collect()
}

impl Findings for Report {
    fn cpu_share(&self) -> f64 {
        self.cpu_share
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "state sync on {}", self.machine)?;
        writeln!(
            f,
            "{} connections, {} workers unless it says otherwise",
            self.connections, self.workers
        )?;
        writeln!(f, "{}; median of the rounds (least-greatest)\n", self.clock)?;
        let columns = ["M/s", "over no_sync", "records in a million", "sync thread, %"];
        for (load, row) in &self.loads {
            let mut table = Table::new(load.as_str(), &columns);
            for (design, rate) in &row.per_s {
                let one = |figures: &BTreeMap<_, f64>| {
                    let figure = figures.get(design).copied().unwrap_or_default();
                    Spread { median: figure, min: figure, max: figure }
                };
                let ratio = row.ratio.get(design).map(|ratio| Cell::new(*ratio, 3));
                table.row(
                    *design,
                    vec![
                        Some(Cell::new(rate.scaled(1e-6), 2)),
                        ratio,
                        Some(Cell::new(one(&row.records_per_million), 0)),
                        Some(Cell::new(one(&row.sync_share).scaled(100.0), 1)),
                    ],
                );
            }
            writeln!(f, "{table}")?;
        }
        write!(f, "records sent {:.2} M/s of the sync thread, ", self.records_per_s * 1e-6)?;
        writeln!(f, "taken {:.2} M/s of the standby", self.apply_per_s * 1e-6)?;
        let Join { seconds, node_seconds, active_ratio, records, apply_per_s } = self.join;
        write!(f, "join: {records} records in {seconds:.2} s, {node_seconds:.2} s of a worker, ")?;
        writeln!(f, "rate {active_ratio:.2}, taken {:.2} M/s", apply_per_s * 1e-6)?;
        let Staleness { median_ms, p99_ms, worst_ms, .. } = self.staleness;
        write!(
            f,
            "staleness: median {median_ms:.2} ms, 99 % {p99_ms:.2} ms, worst {worst_ms:.1} ms"
        )?;
        let Staleness { changes, missing, opened_per_s, lost, frames: [frames, again], .. } =
            self.staleness;
        writeln!(f, " of {changes} changes, {missing} missing, {lost} connections differ")?;
        write!(f, "  beside {opened_per_s:.0} new connections a second; ")?;
        writeln!(f, "{again} of {frames} frames were sent again")?;
        writeln!(f, "connections that differ afterwards: {}", self.lost)?;
        let Memory { off, on } = self.bytes_per_connection;
        writeln!(f, "memory of a connection: {off:.0} bytes, with a peer {on:.0}")?;
        match &self.conntrackd {
            Some(conntrackd) => writeln!(f, "{conntrackd}")?,
            None => {
                let reason = self.conntrackd_reason.as_deref().unwrap_or_default();
                writeln!(f, "conntrackd: not measured, {reason}")?;
            }
        }
        if self.quick {
            writeln!(f, "quick run over small tables: the figures mean little")?;
        }
        write!(f, "least share of a CPU that a worker had: {:.0} %", self.cpu_share * 100.0)
    }
}
