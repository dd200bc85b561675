//! The result for people and for programs.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::Measured;
use crate::measure::{least_share, rates, ratios};
use crate::table::{Cell, Table};
use crate::{Machine, Options, Spread};

/// The result. The JSON object has the medians under the keys of the contract, and
/// everything with its spread under `designs`.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    schema: u32,
    benchmark: &'static str,
    /// Where it was measured.
    pub machine: Machine,
    /// A run that only shows that everything works.
    pub quick: bool,
    /// What a second is in these figures.
    pub clock: &'static str,
    /// The least part of a CPU that a measured thread had; 1 on a quiet machine.
    pub cpu_share: f64,
    /// Flows of each population.
    pub flows: BTreeMap<&'static str, u32>,
    /// Packets of established flows, millions per second, one worker.
    pub established_mpps: BTreeMap<&'static str, f64>,
    /// Connections opened and deleted, per second, one worker.
    pub new_delete_per_s: BTreeMap<&'static str, f64>,
    /// Memory of index, entries and timers over live connections, largest population.
    pub bytes_per_connection: f64,
    /// Two workers over one, each with its own buckets: the lower of the two figures
    /// in `scaling`. `None` on a machine with one CPU.
    pub scaling_2_workers: Option<f64>,
    /// The same with spread, for packets of established flows and for new and
    /// deleted connections; and what this machine gives to two threads that share
    /// nothing and look nothing up, which can not be exceeded: two CPUs may be two
    /// threads of one core.
    pub scaling: BTreeMap<&'static str, Spread>,
    /// Every design.
    pub designs: Vec<Row>,
}

/// What a design came to.
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
}

/// The gateway's own design.
pub(super) const OURS: &str = "buckets";
/// Makes packets, does nothing with them.
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
            designs: Vec::new(),
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

    fn row(&mut self, design: &'static str, workers: usize) -> &mut Row {
        let known = |row: &Row| (row.design, row.workers) == (design, workers);
        let at = self.designs.iter().position(known).unwrap_or_else(|| {
            let (established_mpps, new_delete_per_s) = Default::default();
            self.designs.push(Row { design, workers, established_mpps, new_delete_per_s });
            self.designs.len() - 1
        });
        &mut self.designs[at]
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
        figures: impl Fn(&Row) -> &BTreeMap<&'static str, Spread>,
        scale: f64,
    ) -> Table {
        let mut table = Table::new(title, keys);
        for row in &self.designs {
            let found = keys.iter().map(|key| figures(row).get(key));
            let cells: Vec<_> = found
                .map(|spread| spread.map(|&spread| Cell::new(spread.scaled(scale), 2)))
                .collect();
            if cells.iter().any(Option::is_some) {
                let plural = if row.workers == 1 { "" } else { "s" };
                table.row(format!("{}, {} thread{plural}", row.design, row.workers), cells);
            }
        }
        table
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "connection tracking on {}", self.machine)?;
        writeln!(f, "per second of CPU time; median of the rounds (least-greatest)\n")?;
        let keys = ["flows_1k", "flows_100k", "flows_1m"];
        let title = "packets of established flows, M/s";
        writeln!(f, "{}", self.table(title, &keys, |row| &row.established_mpps, 1.0))?;
        let title = "connections opened and deleted, M/s";
        let keys = ["live_0", "live_1m"];
        writeln!(f, "{}", self.table(title, &keys, |row| &row.new_delete_per_s, 1e-6))?;
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
