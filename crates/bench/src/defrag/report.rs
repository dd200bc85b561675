//! The result for people and for programs.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::flood::{CAP, Floods, Outcome, SHARES, Wrap};
use super::rates::{self, Rates};
use super::seed_table::Row;
use crate::measure::{Findings, least_share, rates as rates_of, ratios};
use crate::table::{Cell, Table};
use crate::{Machine, Options, Spread};

/// The result. The JSON object has the medians under the agreed keys, and spreads beside them.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    schema: u32,
    benchmark: &'static str,
    /// The machine that was measured.
    pub machine: Machine,
    /// True for a run that only shows that everything works.
    pub quick: bool,
    /// The meaning of a second in these figures, except those of the flood.
    pub clock: &'static str,
    /// The smallest part of a CPU that a measured thread had; 1 on a quiet machine.
    pub cpu_share: f64,
    /// The designs under the overload of 2012.
    pub seed_table: Vec<Row>,
    /// Datagrams of three pieces in order, per second, one worker.
    pub datagrams_4416_per_s: f64,
    /// The same with the pieces of each datagram in any order.
    pub datagrams_4416_shuffled_within_per_s: f64,
    /// The same with the pieces of 32 datagrams in any order.
    pub datagrams_4416_shuffled32_per_s: f64,
    /// Payload of datagrams of 65507 bytes in order, Gbit/s, one worker.
    pub gbit_s_65507: f64,
    /// Datagrams per second with their spread, and the rate of making the frames alone, which is
    /// part of each.
    pub rates: BTreeMap<&'static str, Spread>,
    /// Nanoseconds for each piece of 8 bytes in any order, by the number of pieces of the datagram.
    /// The machine may have no counter of instructions.
    pub nanoseconds_per_piece: BTreeMap<usize, Spread>,
    /// Two workers over one, 4416 bytes, shuffled. `None` on a machine with one CPU.
    pub scaling_2_workers: Option<f64>,
    /// The same with its spread.
    pub scaling: Option<Spread>,
    /// Limit of the memory under attack, bytes for each family.
    pub flood_cap_bytes: u64,
    /// Every attack at every share.
    pub flood: Vec<Outcome>,
    /// Identifications that wrap, without an attack.
    pub wrap: Wrap,
    /// Wrong datagrams that a receiver would have accepted.
    pub corrupt: u64,
    /// The longest time until goodput was back after a flood, in milliseconds of the model.
    pub recovery_ms: f64,
    /// The largest memory that waiting frames occupied under attack, in bytes.
    pub peak_bytes: u64,
}

impl Report {
    pub(super) fn new(
        options: Options,
        seed_table: Vec<Row>,
        rates: Rates,
        floods: Floods,
    ) -> Self {
        let turns = || rates.datagrams.iter().map(|measured| &measured.turns);
        let by_key: BTreeMap<_, _> = rates
            .datagrams
            .iter()
            .map(|measured| (measured.key, rates_of(&measured.turns)))
            .collect();
        let median = |key| by_key.get(key).map_or(0.0, |spread| spread.median);
        let one = rates.datagrams.iter().find(|measured| measured.key == rates::OVER_32);
        let scaling = one.zip(rates.two_workers.as_ref());
        let scaling = scaling.map(|(one, two)| ratios(two, &one.turns));
        let all =
            turns().chain(rates.two_workers.iter()).chain(seed_table.iter().map(|r| &r.turns));
        let all: Vec<_> = all.cloned().collect();
        let outcomes = &floods.outcomes;
        Self {
            schema: 1,
            benchmark: super::NAME,
            machine: Machine::here(),
            quick: options.quick,
            clock: "CPU time of the measured threads",
            cpu_share: least_share(&all).min(rates.share_of_many_pieces),
            datagrams_4416_per_s: median(rates::IN_ORDER),
            datagrams_4416_shuffled_within_per_s: median(rates::WITHIN),
            datagrams_4416_shuffled32_per_s: median(rates::OVER_32),
            gbit_s_65507: median(rates::LARGE) * rates::LARGEST as f64 * 8.0 / 1e9,
            nanoseconds_per_piece: rates.nanoseconds_per_piece,
            scaling_2_workers: scaling.map(|scaling| scaling.median),
            scaling,
            flood_cap_bytes: CAP,
            wrap: floods.wrap,
            corrupt: outcomes.iter().map(|outcome| outcome.corrupt).sum(),
            recovery_ms: outcomes.iter().map(|outcome| outcome.recovery_ms).fold(0.0, f64::max),
            peak_bytes: outcomes.iter().map(|outcome| outcome.peak_bytes).max().unwrap_or(0),
            flood: floods.outcomes,
            rates: by_key,
            seed_table,
        }
    }

    fn seed(&self) -> (Table, Table) {
        let keys = ["65507, 1 worker", "65507, 2 workers", "4416, 1 worker", "4416, 2 workers"];
        let places = [(65_507, 1), (65_507, 2), (4416, 1), (4416, 2)];
        let mut goodput = Table::new("goodput under overload, Mbit/s", &keys);
        let mut completed = Table::new("datagrams completed, percent of those sent", &keys);
        for design in super::seed_table::Design::ALL {
            let row = |&(size, workers): &(usize, usize)| {
                let is_it =
                    |row: &&Row| (row.design, row.size, row.workers) == (design, size, workers);
                self.seed_table.iter().find(is_it)
            };
            let rows = places.each_ref().map(row);
            let cells = rows.map(|row| row.map(|row| Cell::new(row.goodput, 0)));
            goodput.row(design.name(), cells.to_vec());
            let cells = rows.map(|row| row.map(|row| Cell::new(row.completed.scaled(100.0), 1)));
            completed.row(design.name(), cells.to_vec());
        }
        (goodput, completed)
    }

    fn attacks(&self) -> String {
        use fmt::Write;
        let mut text = format!("goodput under attack, percent of that without{:>6}", "");
        SHARES.iter().for_each(|share| write!(text, "{:>8}", format!("{share} %")).unwrap_or(()));
        for outcomes in self.flood.chunks(SHARES.len()) {
            let name = outcomes.first().map_or("", |outcome| outcome.attack.name());
            write!(text, "\n  {name:49}").unwrap_or(());
            for outcome in outcomes {
                write!(text, "{:8.1}", outcome.goodput_ratio * 100.0).unwrap_or(());
            }
        }
        text
    }
}

impl Findings for Report {
    fn cpu_share(&self) -> f64 {
        self.cpu_share
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "reassembly on {}", self.machine)?;
        writeln!(f, "per second of CPU time; median of the rounds (least-greatest)\n")?;
        let (goodput, completed) = self.seed();
        writeln!(f, "{goodput}\n{completed}")?;
        let mut rates = Table::new("one worker, nothing missing", &["M datagrams/s"]);
        for (key, spread) in &self.rates {
            rates.row(*key, vec![Some(Cell::new(spread.scaled(1e-6), 3))]);
        }
        writeln!(f, "{rates}")?;
        writeln!(f, "65507 bytes in order: {:.1} Gbit/s", self.gbit_s_65507)?;
        if let Some(scaling) = self.scaling {
            writeln!(f, "two workers over one, 4416 bytes: {}", Cell::new(scaling, 2))?;
        }
        for (pieces, spread) in &self.nanoseconds_per_piece {
            writeln!(f, "datagrams in {pieces} pieces: {} ns per piece", Cell::new(*spread, 1))?;
        }
        writeln!(f, "\n{}", self.attacks())?;
        writeln!(
            f,
            "identifications that wrap: {:.1} %, mixed: {}",
            self.wrap.goodput_ratio * 100.0,
            self.wrap.mixed
        )?;
        writeln!(
            f,
            "corrupt: {}, recovery: {:.0} ms, peak memory {:.1} of {} MiB",
            self.corrupt,
            self.recovery_ms,
            self.peak_bytes as f64 / f64::from(1 << 20),
            self.flood_cap_bytes >> 20
        )?;
        if self.quick {
            writeln!(f, "quick run: the figures mean little")?;
        }
        write!(f, "least share of a CPU that a thread had: {:.0} %", self.cpu_share * 100.0)
    }
}
