//! Evaluates rules for packets: with an index and sets, and one rule after the other. Then translates
//! their addresses, and measures the whole gateway with more and more flows.

mod report;
mod scale;
mod translation;
mod workload;

use flow::Timestamp;
use ruleset::{
    CompileOptions, Connection, CtState, Decision, Hook, Options as ImportOptions, PacketView,
    Program, RuleState, SharedState, evaluate, import_value, name_bits,
};
use serde_json::Value;

pub use self::report::{Report, Row};
pub use self::scale::Scale;
pub use self::translation::Translation;
use self::workload::Workload;
use crate::measure::{Schedule, Turn, Work, cpus, rounds, turn};
use crate::{Error, Options};

/// Packets of a batch.
const BATCH: usize = 64;

fn wrong(problem: String) -> Error {
    Error::Wrong { benchmark: "rules", problem }
}

/// The form of a ruleset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Design {
    /// The gateway's form, with an index.
    Indexed,
    /// Sets, but without an index: every rule of a chain in turn.
    Linear,
    /// A rule for each element of a set, every rule in turn.
    AsRules,
    /// Makes the packets and evaluates nothing.
    Making,
}

impl Design {
    const ALL: [Self; 4] = [Self::Indexed, Self::Linear, Self::AsRules, Self::Making];

    const fn name(self) -> &'static str {
        match self {
            Self::Indexed => "indexed",
            Self::Linear => "rule by rule",
            Self::AsRules => "a rule for each element",
            Self::Making => "(making packets)",
        }
    }
}

/// A ruleset and packets, on one worker.
struct Evaluation<'a> {
    program: Program,
    state: RuleState,
    workload: &'a Workload,
    at: usize,
    dropped: u64,
    is_idle: bool,
    interfaces: [u128; 2],
}

impl<'a> Evaluation<'a> {
    fn new(workload: &'a Workload, design: Design) -> Result<Self, Error> {
        let document = match design {
            Design::AsRules => &workload.as_rules,
            _ => &workload.ruleset,
        };
        let program = program(document, design == Design::Indexed)?;
        let state =
            RuleState::new(&program, &SharedState::new(&program, Timestamp::ZERO), Timestamp::ZERO);
        let interfaces = ["lan0", "wan0"].map(|name| name_bits(name).unwrap_or_default());
        let is_idle = design == Design::Making;
        Ok(Self { program, state, workload, at: 0, dropped: 0, is_idle, interfaces })
    }

    fn decide(&mut self, at: usize) -> Decision {
        let sample = &self.workload.packets[at];
        let view = PacketView {
            frame: &sample.frame,
            network: &sample.network,
            vlan: 0,
            packet_type: 0,
            input: self.interfaces[0],
            output: self.interfaces[1],
            mark: 0,
            priority: 0,
            routes: None,
            connection: Connection { state: CtState::New, known: None },
        };
        if self.is_idle {
            // Reads the same bytes as rules would, so that fetching them counts for all designs
            // alike.
            let read = view.network.source[15] ^ view.frame[36];
            return if std::hint::black_box(read) < u8::MAX {
                Decision::Accept
            } else {
                Decision::Drop
            };
        }
        evaluate(&self.program, Hook::Forward, &view, &mut self.state, Timestamp::ZERO).decision
    }
}

impl Work for Evaluation<'_> {
    fn batch(&mut self) -> u64 {
        for _ in 0..BATCH {
            let decision = self.decide(self.at);
            self.at = (self.at + 1) % self.workload.packets.len();
            self.dropped += u64::from(decision == Decision::Drop);
        }
        BATCH as u64
    }
}

fn program(document: &Value, index: bool) -> Result<Program, Error> {
    let imported = import_value(document, ImportOptions::default());
    let imported = imported.map_err(|refused| wrong(refused.to_string()))?;
    let options = CompileOptions { index, seed: 0x5eed };
    Program::compile(imported.ruleset, options).map_err(|error| wrong(error.to_string()))
}

/// Runs the benchmark.
///
/// # Errors
/// [`Error::Wrong`] if two designs decide differently about a packet.
pub fn run(options: Options) -> Result<Report, Error> {
    let cpus = cpus()?;
    let cpu = cpus[0];
    let schedule = Schedule::of(options);
    let mut report = Report::begin(options);
    for workload in workload::all(options.quick)? {
        let mut designs = Vec::new();
        for design in Design::ALL {
            // A ruleset without sets is the same in this form.
            if design == Design::AsRules && workload.as_rules == workload.ruleset {
                continue;
            }
            designs.push((design, Evaluation::new(&workload, design)?));
        }
        check(&workload, &mut designs)?;
        let turns: Vec<Vec<Turn>> = rounds(schedule, designs.len(), |at| {
            turn(&mut [&mut designs[at].1], &[cpu], schedule.turn)
        })?;
        let index_bytes = designs[0].1.program.index_bytes();
        report.measured(
            &workload,
            index_bytes,
            designs.iter().map(|(design, _)| *design).zip(&turns),
        );
    }
    report.translated(&translation::run(options, &cpus)?);
    report.scaled(scale::run(options, cpu)?);
    Ok(report)
}

/// Fails unless all designs decide alike.
fn check(workload: &Workload, designs: &mut [(Design, Evaluation<'_>)]) -> Result<(), Error> {
    /// Packets to compare; a hundred thousand rules in turn take their time.
    const ASKED: usize = 512;
    for at in 0..ASKED.min(workload.packets.len()) {
        let mut first = None;
        for (design, evaluation) in
            designs.iter_mut().filter(|(design, _)| *design != Design::Making)
        {
            let decision = evaluation.decide(at);
            if *first.get_or_insert(decision) != decision {
                let problem =
                    format!("{}: packet {at}: {design:?} says {decision:?}", workload.key);
                return Err(wrong(problem));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "run_tests.rs"]
mod tests;
