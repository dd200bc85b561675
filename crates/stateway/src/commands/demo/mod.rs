//! `stateway demo`: the gateway at work on this machine, in under a minute.

mod live;
mod memory;
mod plot;
mod progress;

use std::path::PathBuf;
use std::time::Duration;

use control::schema::Status;

use crate::print::{Align, Output, Table, count, percent};

#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
Where network namespaces are allowed (as root, or where users may make them), the demo \
builds a lab: a client, a gateway and a server, each in a namespace of its own, joined by \
veth cables. Stateway runs as the gateway, first with one worker, then with two while \
the traffic goes on. Traffic is real: ping, curl and iperf3.

Elsewhere, or with --memory, the same pipeline runs on generated traffic in memory. \
Nothing on the host is changed, and everything is gone at the end but the plot.

Examples:
  stateway demo
  stateway demo --memory --seconds 3
  stateway demo --plot /tmp/demo.svg")]
pub struct Args {
    /// Seconds of traffic for each number of workers, 2 to 15.
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u64).range(2..=15))]
    seconds: u64,
    /// File to write the plot to.
    #[arg(long, value_name = "FILE", default_value = "stateway-demo.svg")]
    plot: PathBuf,
    /// Generate traffic in memory, even where namespaces are allowed.
    #[arg(long)]
    memory: bool,
}

/// The demo changes the number of workers from one to the next of these.
const WORKERS: [usize; 2] = [1, 2];
/// Time between two samples of the gateway.
const SAMPLE_EVERY: Duration = Duration::from_millis(250);

/// The gateway's work between two looks at it.
#[derive(Clone, Debug)]
struct Sample {
    /// Seconds since the first look, at the end of the interval.
    at: f64,
    /// Bits that the gateway sent, per second.
    bits_per_second: f64,
    /// Frames that the gateway sent, per second.
    frames_per_second: f64,
    /// Fraction of the interval that each worker was busy; `None` while the worker did not exist.
    load: Vec<Option<f64>>,
}

/// The samples and the result of one run.
struct Run {
    /// The carrier of the traffic, for the title.
    title: String,
    samples: Vec<Sample>,
    /// A sentence for each thing that was tried.
    notes: Vec<String>,
    last: Status,
}

pub fn run(args: &Args, out: &mut Output) -> anyhow::Result<()> {
    let phase = Duration::from_secs(args.seconds);
    let run = if args.memory {
        memory::run(phase)?
    } else {
        match live::run(phase) {
            Err(error) if live::is_unavailable(&error) => {
                tell!(
                    "The demo can not build its lab, and shows less: {error:#}. If a program is \
                     missing, `sudo scripts/setup demo` installs it; then run `make demo` again."
                );
                tell!("The same pipeline in memory instead:");
                memory::run(phase)?
            }
            result => result?,
        }
    };
    plot::write(&args.plot, &run)?;
    report(&run, out)?;
    out.line("")?;
    out.line(format_args!("Throughput and load are drawn in {}", args.plot.display()))
}

fn report(run: &Run, out: &mut Output) -> anyhow::Result<()> {
    out.title(&run.title)?;
    for note in &run.notes {
        out.line(format_args!("  {note}"))?;
    }
    out.line("")?;
    phases(run).print(out)?;
    let totals = &run.last.totals;
    out.line("")?;
    let classes: Vec<String> =
        totals.classes.iter().map(|(name, packets)| format!("{name} {}", count(packets))).collect();
    out.line(format_args!("packets by class  {}", classes.join(", ")))?;
    out.line(format_args!("connections       {}", run.last.connections))?;
    out.line(format_args!("bucket moves      {}", run.last.moves))?;
    out.line(format_args!("dropped           {}", count(totals.drops.total())))?;
    for (reason, packets) in totals.drops.iter().filter(|(_, packets)| *packets > 0) {
        out.line(format_args!("  {reason:<22}{}", count(packets)))?;
    }
    Ok(())
}

/// A row for each number of workers: the medians of its samples.
fn phases(run: &Run) -> Table {
    let mut table = Table::new(&[
        ("workers", Align::Right),
        ("Gbit/s", Align::Right),
        ("frames/s", Align::Right),
        ("busy", Align::Left),
    ]);
    for workers in WORKERS {
        let of_phase: Vec<&Sample> = run
            .samples
            .iter()
            .filter(|sample| sample.load.iter().flatten().count() == workers)
            .collect();
        if of_phase.is_empty() {
            continue;
        }
        let median_of = |value: &dyn Fn(&Sample) -> f64| {
            median(of_phase.iter().map(|sample| value(sample)).collect())
        };
        let load: Vec<String> = (0..workers)
            .map(|worker| median_of(&|sample| sample.load[worker].unwrap_or_default()))
            .map(|load| percent((load * 1000.0) as u64, 1000))
            .collect();
        table.row([
            workers.to_string(),
            format!("{:.2}", median_of(&|sample| sample.bits_per_second) / 1e9),
            count(median_of(&|sample| sample.frames_per_second) as u64),
            load.join(" "),
        ]);
    }
    table
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// The sample between two statuses.
fn between(first: &Status, before: &Status, after: &Status) -> Sample {
    let seconds = (after.uptime_ns - before.uptime_ns).max(1) as f64 / 1e9;
    let load = |worker: usize| {
        let busy = |status: &Status| status.workers.get(worker).map(|worker| worker.busy_ns);
        let then = busy(before).unwrap_or_default();
        Some((busy(after)?.saturating_sub(then) as f64 / 1e9 / seconds).min(1.0))
    };
    let workers = before.workers.len().max(after.workers.len());
    let sent = |status: &Status| (status.totals.transmitted, status.totals.transmitted_bytes);
    let ((frames_before, bytes_before), (frames, bytes)) = (sent(before), sent(after));
    Sample {
        at: (after.uptime_ns - first.uptime_ns) as f64 / 1e9,
        bits_per_second: bytes.saturating_sub(bytes_before) as f64 * 8.0 / seconds,
        frames_per_second: frames.saturating_sub(frames_before) as f64 / seconds,
        load: (0..workers).map(load).collect(),
    }
}
