//! `stateway bench`

mod attacks;
mod captures;
mod io;
mod policy;
mod sync;

use std::path::PathBuf;
use std::time::Duration;

use bench::Options;
use indicatif::{ProgressBar, ProgressStyle};

use crate::errors::UsageError;
use crate::print::Output;

#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
Every benchmark compares variants in one run, in turns, and prints medians with their \
spread and the machine. Figures of a busy machine mean little: trust the ratios.

Examples:
  stateway bench conntrack            tracking in memory, beside tables with one and 256 locks
  stateway bench defrag               reassembly, beside one lock and a lock per bucket; attacks
  stateway bench rules                rules, sets, maps, masquerade, beside rules without an index
  stateway bench steer --json         700 connections over one queue, with and without steering
  stateway bench sync                 state sync, beside pfsync's queues and conntrackd
  stateway bench io                   real traffic beside the kernel's gateways (needs root)
  stateway bench policy               the policies of devices beside each other (needs root)
  stateway bench attacks              honest requests under attack, beside the kernel (needs root)
  stateway bench replay               captures, beside tcpdump")]
pub struct Args {
    /// The benchmark.
    #[arg(value_parser = names())]
    name: String,
    /// Run for seconds instead of minutes; the figures mean little.
    #[arg(long)]
    quick: bool,
    /// Print one JSON object as the last line.
    #[arg(short, long)]
    json: bool,
    /// With `policy`: draw the delay against the load (SVG).
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

fn names() -> clap::builder::PossibleValuesParser {
    let in_memory = bench::BENCHMARKS.iter().map(|(name, _)| *name);
    clap::builder::PossibleValuesParser::new(in_memory.chain([
        io::NAME,
        policy::NAME,
        attacks::NAME,
        captures::NAME,
    ]))
}

pub fn run(args: &Args, out: &mut Output) -> anyhow::Result<()> {
    if args.plot.is_some() && args.name != policy::NAME {
        let what = format!("bench {} draws no plot; bench {} does", args.name, policy::NAME);
        return Err(UsageError(what).into());
    }
    match args.name.as_str() {
        io::NAME => return io::run(args.quick, args.json, out),
        policy::NAME => return policy::run(args.quick, args.json, args.plot.as_deref(), out),
        attacks::NAME => return attacks::run(args.quick, args.json, out),
        captures::NAME => return captures::run(args.quick, args.json, out),
        _ => {}
    }
    let options = Options { quick: args.quick, json: args.json };
    if args.name == sync::NAME {
        return sync::run(options, out);
    }
    bench::run(&args.name, options, out.writer()).map_err(|error| match error {
        bench::Error::Unknown { .. } => UsageError(error.to_string()).into(),
        other => other.into(),
    })
}

fn spinner(title: &'static str) -> ProgressBar {
    let spinner = ProgressBar::new_spinner().with_message(title);
    if let Ok(style) = ProgressStyle::with_template("  {spinner} {elapsed:>4}  {msg}") {
        spinner.set_style(style);
    }
    spinner.enable_steady_tick(Duration::from_millis(120));
    spinner
}
