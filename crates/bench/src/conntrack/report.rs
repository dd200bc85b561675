//! The result for people and for programs.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::growth::Growth;
use super::resize::LiveResize;
use super::{Measured, STRIPED};
use crate::measure::{Findings, least_share, rates, ratios};
use crate::table::{Cell, Table};
use crate::{Machine, Options, Spread};

/// The result. The JSON object has the medians under the agreed keys, and everything with its
/// spread under `variants`.
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
    /// The smallest part of a CPU that a measured thread had; 1 on a quiet machine.
    pub cpu_share: f64,
    /// Flows of each population.
    pub flows: BTreeMap<&'static str, u32>,
    /// Packets of established flows, millions per second, one worker.
    pub established_mpps: BTreeMap<&'static str, f64>,
    /// Connections opened and deleted, per second, one worker.
    pub new_delete_per_s: BTreeMap<&'static str, f64>,
    /// Memory of index, entries and timers for each live connection, bytes, at the largest
    /// population.
    pub bytes_per_connection: f64,
    /// Two workers over one, each with its own buckets: the lower figure of `scaling`. `None` on a
    /// machine with one CPU.
    pub scaling_2_workers: Option<f64>,
    /// The same with spread, for packets of established flows and for new and deleted connections.
    /// A third entry is the gain of two threads that share nothing and look nothing up. It can not
    /// be exceeded, because two CPUs may be two threads of one core.
    pub scaling: BTreeMap<&'static str, Spread>,
    /// Packets outside every window that one worker refuses per second.
    pub invalid_per_s: f64,
    /// CPU time of the longest batch while the tables grew, in microseconds. Only the tables grow,
    /// without a gateway.
    pub resize_worst_stall_us: f64,
    /// Other figures of growth, and of operators' requests.
    pub growth: Growth,
    /// Growth and shrinking of a running gateway, by number of workers.
    pub resize_live: BTreeMap<&'static str, LiveResize>,
    /// New connections per second in a SYN flood that keeps the table full, by design and
    /// number of threads.
    pub designs: BTreeMap<&'static str, BTreeMap<&'static str, f64>>,
    /// Everything that was measured, with its spread.
    pub variants: Vec<Row>,
}

/// The figures of a design.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Name of the design.
    pub design: &'static str,
    /// Threads.
    pub workers: usize,
    /// As [`Report::established_mpps`].
    pub established_mpps: BTreeMap<&'static str, Spread>,
    /// As [`Report::new_delete_per_s`].
    pub new_delete_per_s: BTreeMap<&'static str, Spread>,
    /// As [`Report::designs`].
    pub flooded_per_s: Option<Spread>,
}

/// The gateway's own design.
pub(super) const OURS: &str = "buckets";
/// The bound that the memory system sets.
pub(super) const BOUND: &str = "(what memory allows)";
/// Makes packets and does nothing with them.
pub(super) const MAKING: &str = "(making packets)";

impl Report {
    pub(super) fn begin(options: Options) -> Self {
        Self {
            schema: 1,
            benchmark: "conntrack",
            machine: Machine::here(),
            quick: options.quick,
            clock: "CPU time of the measured threads",
            cpu_share: 1.0,
            flows: BTreeMap::new(),
            established_mpps: BTreeMap::new(),
            new_delete_per_s: BTreeMap::new(),
            bytes_per_connection: 0.0,
            scaling_2_workers: None,
            scaling: BTreeMap::new(),
            invalid_per_s: 0.0,
            resize_worst_stall_us: 0.0,
            growth: Growth::default(),
            resize_live: BTreeMap::new(),
            designs: BTreeMap::new(),
            variants: Vec::new(),
        }
    }

    pub(super) fn established(&mut self, key: &'static str, flows: u32, measured: &[Measured]) {
        self.flows.insert(key, flows);
        for Measured { design, workers, turns } in measured {
            let mpps = rates(turns).scaled(1e-6);
            self.row(design, *workers).established_mpps.insert(key, mpps);
            if (*design, *workers) == (OURS, 1) {
                self.established_mpps.insert(key, mpps.median);
            }
        }
        self.note("established", measured);
    }

    pub(super) fn new_deleted(&mut self, key: &'static str, measured: &[Measured]) {
        for Measured { design, workers, turns } in measured {
            let rate = rates(turns);
            self.row(design, *workers).new_delete_per_s.insert(key, rate);
            if (*design, *workers) == (OURS, 1) {
                self.new_delete_per_s.insert(key, rate.median);
            }
        }
        self.note("new_delete", measured);
    }

    pub(super) fn flooded(&mut self, measured: &[Measured]) {
        for Measured { design, workers, turns } in measured {
            let rate = rates(turns);
            self.row(design, *workers).flooded_per_s = Some(rate);
            let name = match *design {
                OURS => "owned_buckets",
                STRIPED => "hashed_locks",
                _ => "central_lock",
            };
            let workers = if *workers == 1 { "workers_1" } else { "workers_2" };
            self.designs.entry(name).or_default().insert(workers, rate.median);
        }
        self.note("SYN flood", measured);
    }

    pub(super) fn refused(&mut self, measured: &[Measured]) {
        self.invalid_per_s = measured.first().map_or(0.0, |m| rates(&m.turns).median);
    }

    pub(super) fn grown(&mut self, growth: Growth) {
        self.resize_worst_stall_us = growth.worst_stall_us;
        self.growth = growth;
    }

    pub(super) fn resized(&mut self, key: &'static str, live: LiveResize) {
        self.resize_live.insert(key, live);
    }

    fn row(&mut self, design: &'static str, workers: usize) -> &mut Row {
        let known = |row: &Row| (row.design, row.workers) == (design, workers);
        let at = self.variants.iter().position(known).unwrap_or_else(|| {
            let (established_mpps, new_delete_per_s) = Default::default();
            let flooded_per_s = None;
            let row = Row { design, workers, established_mpps, new_delete_per_s, flooded_per_s };
            self.variants.push(row);
            self.variants.len() - 1
        });
        &mut self.variants[at]
    }

    fn note(&mut self, what: &'static str, measured: &[Measured]) {
        let turns: Vec<_> = measured.iter().map(|measured| measured.turns.clone()).collect();
        self.cpu_share = self.cpu_share.min(least_share(&turns));
        let scaling = |design| {
            let turns = |workers| {
                let is_it = |m: &&Measured| (m.design, m.workers) == (design, workers);
                measured.iter().find(is_it).map(|measured| measured.turns.as_slice())
            };
            Some(ratios(turns(2)?, turns(1)?))
        };
        if let Some(scaling) = scaling(OURS) {
            self.scaling.insert(what, scaling);
            let lower = self.scaling_2_workers.map_or(scaling.median, |s| s.min(scaling.median));
            self.scaling_2_workers = Some(lower);
        }
        if let Some(scaling) = scaling(MAKING) {
            self.scaling.insert("making packets", scaling);
        }
    }

    fn table(
        &self,
        title: &str,
        keys: &[&str],
        figure: impl Fn(&Row, &str) -> Option<Spread>,
        scale: f64,
    ) -> Table {
        let mut table = Table::new(title, keys);
        for row in &self.variants {
            let found = keys.iter().map(|key| figure(row, key));
            let cells: Vec<_> = found
                .map(|spread| spread.map(|spread| Cell::new(spread.scaled(scale), 2)))
                .collect();
            if cells.iter().any(Option::is_some) {
                let plural = if row.workers == 1 { "" } else { "s" };
                table.row(format!("{}, {} thread{plural}", row.design, row.workers), cells);
            }
        }
        table
    }
}

impl Findings for Report {
    fn cpu_share(&self) -> f64 {
        self.cpu_share
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "connection tracking on {}", self.machine)?;
        writeln!(f, "per second of CPU time; median of the rounds (least-greatest)\n")?;
        let keys = ["flows_1k", "flows_100k", "flows_1m", "flows_4m"];
        let title = "packets of established flows, M/s";
        let established = |row: &Row, key: &str| row.established_mpps.get(key).copied();
        writeln!(f, "{}", self.table(title, &keys, established, 1.0))?;
        let title = "connections opened and deleted, M/s";
        let new_deleted = |row: &Row, key: &str| row.new_delete_per_s.get(key).copied();
        writeln!(f, "{}", self.table(title, &["live_0", "live_1m"], new_deleted, 1e-6))?;
        let title = "connections opened in a SYN flood, table full, M/s";
        let flooded = |row: &Row, _: &str| row.flooded_per_s;
        writeln!(f, "{}", self.table(title, &["rate"], flooded, 1e-6))?;
        writeln!(f, "invalid packets: {:.2} M/s", self.invalid_per_s * 1e-6)?;
        let Growth { from, to, worst_stall_us, median_us, .. } = self.growth;
        write!(
            f,
            "from {from} to {to} connections under load: worst batch {worst_stall_us:.0} us"
        )?;
        writeln!(f, ", median {median_us:.1} us, no packet lost")?;
        let Growth { live, delete_one_us, flush_source_ms, .. } = self.growth;
        write!(f, "among {live}: one flow deleted in {delete_one_us:.1} us")?;
        writeln!(f, ", all of one source in {flush_source_ms:.1} ms")?;
        self.resize_live.iter().try_for_each(|(key, live)| write_live(f, key, live))?;
        writeln!(f, "memory of a connection, all in: {:.0} bytes", self.bytes_per_connection)?;
        for (what, scaling) in &self.scaling {
            writeln!(f, "two workers over one, {what}: {}", Cell::new(*scaling, 2))?;
        }
        if self.quick {
            writeln!(f, "quick run over small tables: the figures mean little")?;
        }
        write!(f, "least share of a CPU that a thread had: {:.0} %", self.cpu_share * 100.0)
    }
}

fn write_live(f: &mut fmt::Formatter<'_>, key: &str, live: &LiveResize) -> fmt::Result {
    let LiveResize { from, to, worst_stall_us, worst_turn_us, opened_per_s, .. } = live;
    let workers = key.trim_start_matches("workers_");
    write!(f, "\nlive gateway, {from} to {to} connections and back, workers: {workers}; nothing ")?;
    write!(f, "lost, all in order\n  worst stall {worst_stall_us:.0} us, longest turn ")?;
    writeln!(f, "{worst_turn_us:.0} us of CPU time, {:.2} M/s opened", opened_per_s * 1e-6)?;
    let columns = ["seconds", "packets", "median us", "99.9 % us", "worst us", "turn us", "CPU %"];
    write!(f, "  {:8}", "")?;
    columns.iter().try_for_each(|column| write!(f, "{column:>11}"))?;
    writeln!(f)?;
    for phase in &live.phases {
        write!(f, "  {:8}{:>11.2}{:>11}", phase.name, phase.seconds, phase.packets)?;
        write!(f, "{:>11.1}{:>11.1}", phase.median_us, phase.p999_us)?;
        write!(f, "{:>11.0}{:>11.0}", phase.worst_stall_us, phase.worst_turn_us)?;
        writeln!(f, "{:>11.0}", phase.cpu_share * 100.0)?;
    }
    writeln!(f)
}
