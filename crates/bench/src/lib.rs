//! Benchmarks, with the rival designs as baselines.
//!
//! Each benchmark measures the gateway's code beside the designs that it replaces, in one process
//! and in turns. So a gain is measured and not claimed. `stateway bench NAME` calls [`run`]; the
//! modules offer functions that return a report.

pub mod conntrack;
pub mod defrag;
mod gateway;
pub mod instructions;
mod machine;
mod measure;
pub mod rules;
mod spin;
pub mod steer;
pub mod sync;
mod table;
mod traffic;

use std::io::{self, Write};

use serde::Serialize;

pub use machine::Machine;
use measure::Findings;
pub use measure::{Noise, Spread};

/// The benchmarks with a description of each.
pub const BENCHMARKS: &[(&str, &str)] = &[
    ("conntrack", "connection tracking: packets of known flows, new and deleted flows, memory"),
    (
        "defrag",
        "reassembly: beside the designs of 2012 under overload, rates, goodput under attack",
    ),
    (
        "rules",
        "judging packets by 10 to 10,000 rules, sets and maps, beside rule by rule; masquerade",
    ),
    ("steer", "700 request/response flows over one and two workers, with and without steering"),
    ("sync", "state sync: speed on against off, beside the queues of pfsync; staleness, joining"),
];

/// Options of a benchmark.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Run for seconds instead of minutes: fewer and shorter rounds over smaller tables, to see
    /// that everything works. The figures mean little.
    pub quick: bool,
    /// Print one JSON object as the last line, behind the table.
    pub json: bool,
}

/// The reasons why a benchmark has no result.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no such benchmark.
    #[error("there is no benchmark {name:?}; there are: {}", names())]
    Unknown {
        /// The name as given.
        name: String,
    },
    /// An event that must never happen happened while measuring: the figures would be worth
    /// nothing.
    #[error("{benchmark}: {problem}")]
    Wrong {
        /// The benchmark.
        benchmark: &'static str,
        /// Description of the event.
        problem: String,
    },
    /// The gateway of the benchmark did not start.
    #[error("the gateway of the benchmark did not start: {0}")]
    Start(#[from] engine::StartError),
    /// The gateway of the benchmark did not stop.
    #[error("the gateway of the benchmark did not stop: {0}")]
    Stop(#[from] engine::SteerError),
    /// A worker or the coordinator of a gateway did not answer.
    #[error("a gateway of the benchmark: {0}")]
    Unresponsive(#[from] engine::Unresponsive),
    /// The system refused a thread, a CPU or a descriptor.
    #[error("{what}: {source}")]
    System {
        /// The attempted operation.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The result could not be written.
    #[error("the result can not be written: {0}")]
    Output(#[from] io::Error),
}

fn names() -> String {
    BENCHMARKS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}

/// Runs the benchmark called `name` and writes its table to `out`, followed by the JSON object with
/// [`Options::json`].
///
/// # Errors
/// [`Error`]. Then the text that was written is not a result.
pub fn run(name: &str, options: Options, out: &mut dyn Write) -> Result<(), Error> {
    match name {
        "conntrack" => show(&conntrack::run(options)?, options, out),
        "defrag" => show(&defrag::run(options)?, options, out),
        "rules" => show(&rules::run(options)?, options, out),
        "steer" => show(&steer::run(options)?, options, out),
        "sync" => show(&sync::run(options)?, options, out),
        _ => Err(Error::Unknown { name: name.to_owned() }),
    }
}

/// Writes a report, followed by its JSON object with [`Options::json`].
///
/// # Errors
/// [`Error`] if `out` can not be written to.
pub fn show(report: &impl Findings, options: Options, out: &mut dyn Write) -> Result<(), Error> {
    writeln!(out, "{report}")?;
    let noise = Noise::of(report.cpu_share());
    if let Some(noise) = &noise {
        writeln!(out, "{noise}")?;
    }
    if options.json {
        let line = Line { report, quiet: noise.is_none() };
        let line = serde_json::to_string(&line).map_err(io::Error::from)?;
        writeln!(out, "{line}")?;
    }
    Ok(out.flush()?)
}

/// A report as JSON.
#[derive(Serialize)]
struct Line<'a, R> {
    #[serde(flatten)]
    report: &'a R,
    /// False if there was a warning of [`Noise`].
    quiet: bool,
}

#[cfg(test)]
#[path = "run_tests.rs"]
mod tests;
