//! The figures of translation, as a part of the report on rules.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::{CASES, Design, MASQUERADE, Measured, Traffic};
use crate::Spread;
use crate::measure::{Turn, rates, ratios};
use crate::table::{Cell, Table};

/// The figures of translation. Those with agreed keys are for one worker, from queue to queue.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Translation {
    /// Connections opened through a masquerade and deleted, per second.
    pub nat_new_per_s: f64,
    /// Packets of established flows through a masquerade, millions per second.
    pub nat_established_mpps: f64,
    /// Ratios, by traffic: two workers over one of the gateway (`workers_2`), its masquerade
    /// over no rules (`to_no_rules`), and its tables over shared ones with as many threads
    /// (`to_hashed_locks`, `to_one_lock`, and the same with `_2` for two threads).
    pub nat_ratios: BTreeMap<&'static str, BTreeMap<&'static str, Spread>>,
    /// Everything that was measured.
    pub nat_variants: Vec<Row>,
}

/// The figures of a design.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Name of the design.
    pub design: &'static str,
    /// Threads.
    pub workers: usize,
    /// As [`Translation::nat_established_mpps`].
    pub established_mpps: Spread,
    /// As [`Translation::nat_new_per_s`].
    pub new_per_s: Spread,
}

impl Translation {
    /// The figures of all variants.
    pub(crate) fn of(all: &[Measured]) -> Self {
        let mut it = Self::default();
        for measured in all {
            it.add(measured);
        }
        for traffic in [Traffic::Established, Traffic::Churn] {
            let turns = |what: &'static str, workers: usize| {
                let is_it =
                    |it: &&Measured| (it.traffic, it.what, it.workers) == (traffic, what, workers);
                all.iter().find(is_it).map(|measured| measured.turns.as_slice())
            };
            it.nat_ratios.insert(traffic.name(), ratios_of(turns));
        }
        it
    }

    fn add(&mut self, Measured { traffic, what, workers, turns }: &Measured) {
        let is_ours = (*what, *workers) == (MASQUERADE, 1);
        let is_it = |row: &Row| (row.design, row.workers) == (*what, *workers);
        let at = self.nat_variants.iter().position(is_it).unwrap_or_else(|| {
            let (established_mpps, new_per_s) = Default::default();
            self.nat_variants.push(Row {
                design: what,
                workers: *workers,
                established_mpps,
                new_per_s,
            });
            self.nat_variants.len() - 1
        });
        let row = &mut self.nat_variants[at];
        match traffic {
            Traffic::Established => row.established_mpps = rates(turns).scaled(1e-6),
            Traffic::Churn => row.new_per_s = rates(turns),
        }
        if is_ours {
            self.nat_established_mpps = row.established_mpps.median;
            self.nat_new_per_s = row.new_per_s.median;
        }
    }
}

fn ratios_of<'t>(
    turns: impl Fn(&'static str, usize) -> Option<&'t [Turn]>,
) -> BTreeMap<&'static str, Spread> {
    let [no_rules, rules, _] = CASES.map(|(_, name)| name);
    let (ours, tables) = (MASQUERADE, Design::Buckets.name());
    let (hashed, one) = (Design::HASHED.name(), Design::ONE.name());
    let wanted = [
        ("workers_2", (ours, 2), (ours, 1)),
        ("to_no_rules", (ours, 1), (no_rules, 1)),
        ("to_rules", (ours, 1), (rules, 1)),
        ("to_hashed_locks", (tables, 1), (hashed, 1)),
        ("to_hashed_locks_2", (tables, 2), (hashed, 2)),
        ("to_one_lock", (tables, 1), (one, 1)),
        ("to_one_lock_2", (tables, 2), (one, 2)),
    ];
    let ratio = |(key, of, to): (&'static str, (&'static str, usize), (&'static str, usize))| {
        Some((key, ratios(turns(of.0, of.1)?, turns(to.0, to.1)?)))
    };
    wanted.into_iter().filter_map(ratio).collect()
}

impl fmt::Display for Translation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = ["established, Mpps", "opened, deleted, M/s"];
        let mut table = Table::new("translating 60-byte frames, by workers", &columns);
        for Row { design, workers, established_mpps, new_per_s } in &self.nat_variants {
            let cells = [*established_mpps, new_per_s.scaled(1e-6)];
            let cells = cells.map(|spread| Some(Cell::new(spread, 2)));
            table.row(format!("{design}, {workers}"), cells.to_vec());
        }
        writeln!(f, "{table}")?;
        let mut table = Table::new("ratios of turns in the same round", &columns.map(short));
        let of = |traffic: Traffic| self.nat_ratios.get(traffic.name());
        if let Some((established, churn)) = of(Traffic::Established).zip(of(Traffic::Churn)) {
            for (key, ratio) in established {
                let cell = |spread: &Spread| Cell::new(*spread, 2);
                table.row(*key, vec![Some(cell(ratio)), churn.get(key).map(cell)]);
            }
        }
        writeln!(f, "{table}")
    }
}

/// A column without its unit.
fn short(column: &'static str) -> &'static str {
    column.rsplit_once(", ").map_or(column, |(what, _)| what)
}
