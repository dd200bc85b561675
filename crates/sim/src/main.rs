//! `cargo run -p sim -- --seed N` runs a seed and prints what failed, with a short trace.

use std::process::ExitCode;

use clap::Parser;
use sim::{Failure, Fault, Planted, explain, run_all};

/// Simulates gateways with state sync.
#[derive(Parser)]
struct Arguments {
    /// Runs this seed and prints a trace if it fails.
    #[arg(long, conflicts_with_all = ["from", "count"])]
    seed: Option<u64>,
    /// Lines of the trace.
    #[arg(long, default_value_t = 100)]
    trace: usize,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    from: u64,
    /// Plants this fault.
    #[arg(long, value_parser = |name: &str| Fault::named(name).ok_or("no such fault"))]
    fault: Option<Fault>,
    /// How many seeds; without it, until it is stopped.
    #[arg(long)]
    count: Option<u64>,
}

/// Seeds between two lines of progress.
const PROGRESS: u64 = 100;

#[expect(clippy::print_stdout, reason = "the report of a tool")]
fn main() -> ExitCode {
    let Arguments { seed, trace, from, count, fault } = Arguments::parse();
    let planted = Planted(fault);
    if let Some(seed) = seed {
        return match explain(seed, planted, trace) {
            Ok(()) => {
                println!("seed {seed} passes");
                ExitCode::SUCCESS
            }
            Err(failure) => {
                println!("{failure}");
                ExitCode::FAILURE
            }
        };
    }
    let mut failed = 0;
    let mut first = from;
    let end = count.map_or(u64::MAX, |count| from.saturating_add(count));
    while first < end {
        let seeds = first..end.min(first.saturating_add(PROGRESS));
        first = seeds.end;
        // One seed is enough to see that a fault shows.
        let most = if fault.is_some() { 1 } else { usize::MAX };
        for Failure { seed, violation, .. } in run_all(seeds, planted, most) {
            failed += 1;
            println!("seed {seed}: {}\n  {:.300}", violation.invariant, violation.what);
        }
        if fault.is_some() && failed > 0 {
            break;
        }
        println!("{} seeds, {failed} failed", first - from);
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
