//! The result for people and for programs.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::Design;
use super::scale::Scale;
use super::translation::{Measured, Translation};
use super::workload::Workload;
use crate::measure::{Findings, Turn, least_share, rates, ratios};
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
    /// The meaning of a nanosecond in these figures.
    pub clock: &'static str,
    /// The smallest part of a CPU that a measured thread had; 1 on a quiet machine.
    pub cpu_share: f64,
    /// Nanoseconds for a packet by workload, one worker, with the gateway's design.
    pub ns_per_packet: BTreeMap<&'static str, f64>,
    /// The same with one rule after the other.
    pub linear_ns_per_packet: BTreeMap<&'static str, f64>,
    /// The factor by which the gateway's design is faster.
    pub speedup: BTreeMap<&'static str, Spread>,
    /// Memory of the indexes, in bytes.
    pub index_bytes: BTreeMap<&'static str, usize>,
    /// Everything that was measured, with its spread.
    pub variants: Vec<Row>,
    /// The figures of translation.
    #[serde(flatten)]
    pub translation: Translation,
    /// The figures of the whole gateway by number of flows.
    #[serde(flatten)]
    pub scale: Scale,
}

/// The figures of a design.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Workload.
    pub workload: &'static str,
    /// Description of the workload.
    pub what: &'static str,
    /// Name of the design.
    pub design: &'static str,
    /// Nanoseconds for a packet.
    pub ns_per_packet: Spread,
}

impl Report {
    pub(super) fn begin(options: Options) -> Self {
        Self {
            schema: 1,
            benchmark: "rules",
            machine: Machine::here(),
            quick: options.quick,
            clock: "CPU time of the measured thread",
            cpu_share: 1.0,
            ns_per_packet: BTreeMap::new(),
            linear_ns_per_packet: BTreeMap::new(),
            speedup: BTreeMap::new(),
            index_bytes: BTreeMap::new(),
            variants: Vec::new(),
            translation: Translation::default(),
            scale: Scale::default(),
        }
    }

    pub(super) fn translated(&mut self, measured: &[Measured]) {
        let turns: Vec<_> = measured.iter().map(|it| it.turns().to_vec()).collect();
        self.cpu_share = self.cpu_share.min(least_share(&turns));
        self.translation = Translation::of(measured);
    }

    pub(super) fn scaled(&mut self, scale: Scale) {
        self.cpu_share = self.cpu_share.min(scale.cpu_share);
        self.scale = scale;
    }

    pub(super) fn measured<'t>(
        &mut self,
        workload: &Workload,
        index_bytes: usize,
        measured: impl Iterator<Item = (Design, &'t Vec<Turn>)>,
    ) {
        let Workload { key, what, .. } = *workload;
        let measured: Vec<(Design, &Vec<Turn>)> = measured.collect();
        for (design, turns) in &measured {
            self.cpu_share = self.cpu_share.min(least_share(&[turns.to_vec()]));
            let ns_per_packet = nanoseconds(rates(turns));
            self.variants.push(Row { workload: key, what, design: design.name(), ns_per_packet });
        }
        let of = |wanted| measured.iter().find(|(design, _)| *design == wanted);
        // A set is compared with a rule for each element.
        let linear = of(Design::AsRules).or_else(|| of(Design::Linear));
        if let (Some((_, ours)), Some((_, linear))) = (of(Design::Indexed), linear) {
            self.ns_per_packet.insert(key, nanoseconds(rates(ours)).median);
            self.linear_ns_per_packet.insert(key, nanoseconds(rates(linear)).median);
            self.speedup.insert(key, ratios(ours, linear));
        }
        self.index_bytes.insert(key, index_bytes);
    }
}

/// Nanoseconds for a packet, from packets per second.
pub(super) fn nanoseconds(rates: Spread) -> Spread {
    let invert = |rate: f64| if rate > 0.0 { 1e9 / rate } else { 0.0 };
    Spread { median: invert(rates.median), min: invert(rates.max), max: invert(rates.min) }
}

impl Findings for Report {
    fn cpu_share(&self) -> f64 {
        self.cpu_share
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "rules on {}", self.machine)?;
        writeln!(f, "nanoseconds of CPU time; median of the rounds (least-greatest)\n")?;
        let mut table = Table::new("judging a packet, one worker", &["ns"]);
        for row in &self.variants {
            let cell = Some(Cell::new(row.ns_per_packet, 1));
            table.row(format!("{}, {}", row.what, row.design), vec![cell]);
        }
        writeln!(f, "{table}")?;
        let mut table = Table::new("beside one rule after the other", &["times"]);
        for (key, speedup) in &self.speedup {
            table.row(*key, vec![Some(Cell::new(*speedup, 1))]);
        }
        writeln!(f, "{table}")?;
        write!(f, "{}{}", self.translation, self.scale)?;
        write!(f, "least share of a CPU: {:.0} %", self.cpu_share * 100.0)
    }
}
