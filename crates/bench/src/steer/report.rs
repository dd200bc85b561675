//! The result for people and for programs.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::{Outcome, VARIANTS, handoff};
use crate::measure::Findings;
use crate::table::{Cell, Table};
use crate::{Machine, Options, Spread};

/// The result. The JSON object has the medians with the work of [`Report::stack_ns`] under the
/// agreed keys, and everything with its spread under `levels`.
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
    /// The smallest part of a CPU that a busiest worker had; 1 on a quiet machine.
    pub cpu_share: f64,
    /// Connections.
    pub flows: u16,
    /// Work for each request that stands for stack and server, in nanoseconds. A
    /// parameter, not a measurement.
    pub stack_ns: u32,
    /// Transactions per second, by variant.
    pub transactions_per_s: BTreeMap<&'static str, f64>,
    /// One queue steered over two workers, over one worker.
    pub ratio_steered: f64,
    /// A queue for each of two workers, over one worker.
    pub ratio_multiqueue: f64,
    /// Transactions per second for each percent of a CPU, by variant.
    pub tps_per_cpu_percent: BTreeMap<&'static str, f64>,
    /// Packets that came out behind a later one of their flow, in all runs.
    pub reordered: u64,
    /// Packets that did not come out, in all runs.
    pub lost: u64,
    /// Time to hand a packet over a ring, in batches, by itself, in nanoseconds. `None` on a
    /// machine with one CPU.
    pub handoff_ns: Option<f64>,
    /// Spread of the same.
    pub handoff: Option<Spread>,
    /// The same over one locked queue for each CPU, as in 2009.
    pub handoff_locked: Option<Spread>,
    /// The figures for all amounts of work.
    pub levels: Vec<Level>,
}

/// The figures for one amount of work.
#[derive(Clone, Debug, Serialize)]
pub struct Level {
    /// Work for each request, in nanoseconds.
    pub stack_ns: u32,
    /// As [`Report::transactions_per_s`].
    pub transactions_per_s: BTreeMap<&'static str, Spread>,
    /// As [`Report::ratio_steered`].
    pub ratio_steered: Spread,
    /// As [`Report::ratio_multiqueue`].
    pub ratio_multiqueue: Spread,
    /// As [`Report::tps_per_cpu_percent`].
    pub tps_per_cpu_percent: BTreeMap<&'static str, Spread>,
}

impl Report {
    pub(super) fn begin(options: Options, flows: u16, stack_ns: u32) -> Self {
        Self {
            schema: 1,
            benchmark: "steer",
            machine: Machine::here(),
            quick: options.quick,
            clock: "CPU time of the busiest worker",
            cpu_share: 1.0,
            flows,
            stack_ns,
            transactions_per_s: BTreeMap::new(),
            ratio_steered: 0.0,
            ratio_multiqueue: 0.0,
            tps_per_cpu_percent: BTreeMap::new(),
            reordered: 0,
            lost: 0,
            handoff_ns: None,
            handoff: None,
            handoff_locked: None,
            levels: Vec::new(),
        }
    }

    /// Adds the outcomes of all variants, round by round.
    pub(super) fn level(&mut self, stack_ns: u32, outcomes: &[Vec<Outcome>]) {
        let ratio = |variant: usize| {
            let pairs = outcomes[variant].iter().zip(&outcomes[0]);
            Spread::of(pairs.map(|(this, one)| this.rate / one.rate).collect())
        };
        let by_variant = |figure: fn(&Outcome) -> f64| {
            let spreads =
                outcomes.iter().map(|rounds| Spread::of(rounds.iter().map(figure).collect()));
            VARIANTS.iter().map(|variant| variant.key).zip(spreads).collect::<BTreeMap<_, _>>()
        };
        let level = Level {
            stack_ns,
            transactions_per_s: by_variant(|outcome| outcome.rate),
            ratio_steered: ratio(1),
            ratio_multiqueue: ratio(2),
            tps_per_cpu_percent: by_variant(|outcome| outcome.rate / (outcome.cpus * 100.0)),
        };
        if stack_ns == self.stack_ns {
            self.transactions_per_s = medians(&level.transactions_per_s);
            self.tps_per_cpu_percent = medians(&level.tps_per_cpu_percent);
            self.ratio_steered = level.ratio_steered.median;
            self.ratio_multiqueue = level.ratio_multiqueue.median;
        }
        self.levels.push(level);
        outcomes.iter().flatten().for_each(|outcome| self.order(outcome));
    }

    /// Adds the result of a run that only tests the order of packets.
    pub(super) fn order(&mut self, outcome: &Outcome) {
        self.reordered += outcome.reordered;
        self.lost += outcome.lost;
        self.cpu_share = self.cpu_share.min(outcome.share);
    }

    pub(super) fn handoff(&mut self, costs: Option<handoff::Costs>) {
        self.handoff_ns = costs.map(|costs| costs.ring.median);
        self.handoff = costs.map(|costs| costs.ring);
        self.handoff_locked = costs.map(|costs| costs.locked);
    }
}

fn medians(spreads: &BTreeMap<&'static str, Spread>) -> BTreeMap<&'static str, f64> {
    spreads.iter().map(|(key, spread)| (*key, spread.median)).collect()
}

impl Findings for Report {
    fn cpu_share(&self) -> f64 {
        self.cpu_share
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "steering of {} request/response flows on {}", self.flows, self.machine)?;
        writeln!(
            f,
            "per second of CPU time of the busiest worker; median of the rounds (least-greatest)\n"
        )?;
        let keys = VARIANTS.map(|variant| variant.key);
        let mut table = Table::new("transactions, thousands per second", &keys);
        let mut efficiency = Table::new("transactions per second and percent of a CPU", &keys);
        let mut ratios = Table::new("over one worker", &keys[1..]);
        for level in &self.levels {
            let label = match level.stack_ns {
                0 => "the gateway alone".to_owned(),
                nanos => format!("with {nanos} ns of work for each request"),
            };
            let cells = |spreads: &BTreeMap<_, Spread>, scale, digits| {
                let cell = |key| Some(Cell::new(Spread::scaled(*spreads.get(key)?, scale), digits));
                keys.iter().map(cell).collect::<Vec<_>>()
            };
            table.row(label.clone(), cells(&level.transactions_per_s, 1e-3, 0));
            efficiency.row(label.clone(), cells(&level.tps_per_cpu_percent, 1.0, 0));
            let both = [level.ratio_steered, level.ratio_multiqueue];
            ratios.row(label, both.map(|ratio| Some(Cell::new(ratio, 2))).to_vec());
        }
        writeln!(f, "{table}\n{ratios}\n{efficiency}")?;
        let handoffs = [("ring", self.handoff), ("locked queue", self.handoff_locked)];
        for (name, cost) in handoffs {
            if let Some(cost) = cost {
                writeln!(f, "handing a packet over, {name}: {} ns", Cell::new(cost, 1))?;
            }
        }
        writeln!(f, "reordered: {}, lost: {}", self.reordered, self.lost)?;
        if self.quick {
            writeln!(f, "quick run: the figures mean little")?;
        }
        write!(f, "least share of a CPU that a busiest worker had: {:.0} %", self.cpu_share * 100.0)
    }
}
