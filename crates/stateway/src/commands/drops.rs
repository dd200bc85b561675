//! `stateway drops`

use control::schema::Status;
use serde::Serialize;

use super::remote::{Json, Remote, Watch};
use crate::print::{Align, Output, Table, count};

#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
Examples:
  stateway drops              reasons that occurred
  stateway drops --all        every reason there is, with its meaning
  stateway drops -v --watch   per worker, again every second")]
pub struct Args {
    /// Show also the reasons that have not occurred.
    #[arg(short, long)]
    all: bool,
    /// Show the workers one by one.
    #[arg(short, long)]
    verbose: bool,
    #[command(flatten)]
    remote: Remote,
    #[command(flatten)]
    json: Json,
    #[command(flatten)]
    watch: Watch,
}

/// The listing as JSON.
#[derive(Debug, Serialize)]
struct Drops {
    schema: u32,
    total: u64,
    drops: Vec<DropCount>,
}

/// One reason.
#[derive(Debug, Serialize)]
struct DropCount {
    name: &'static str,
    count: u64,
    meaning: &'static str,
    /// In the order of the workers.
    workers: Vec<u64>,
}

pub fn run(args: &Args, out: &mut Output) -> anyhow::Result<()> {
    let client = args.remote.client()?;
    args.watch.repeat(out, args.json.json, |out| {
        let status: Status = client.get("/v1/status")?;
        let drops = drops(&status);
        if args.json.json {
            out.json(&drops)
        } else if drops.total == 0 && !args.all {
            eprintln!("no packet was dropped");
            Ok(())
        } else {
            table(&status, &drops, args).print(out)
        }
    })
}

fn drops(status: &Status) -> Drops {
    let drop = |&reason: &flow::DropReason| DropCount {
        name: reason.name(),
        count: status.totals.drops.get(reason.name()),
        meaning: reason.meaning(),
        workers: status
            .workers
            .iter()
            .map(|worker| worker.counters.drops.get(reason.name()))
            .collect(),
    };
    Drops {
        schema: control::SCHEMA,
        total: status.totals.drops.total(),
        drops: flow::DropReason::ALL.iter().map(drop).collect(),
    }
}

fn table(status: &Status, drops: &Drops, args: &Args) -> Table {
    let workers: Vec<String> =
        status.workers.iter().map(|worker| format!("worker {}", worker.worker)).collect();
    let workers = if args.verbose { workers.as_slice() } else { &[] };
    let mut columns = vec![("reason", Align::Left), ("packets", Align::Right)];
    columns.extend(workers.iter().map(|title| (title.as_str(), Align::Right)));
    columns.push(("meaning", Align::Left));
    let mut table = Table::new(&columns);
    for drop in drops.drops.iter().filter(|drop| drop.count > 0 || args.all) {
        let mut row = vec![drop.name.to_owned(), count(drop.count)];
        row.extend(drop.workers.iter().take(workers.len()).map(|&packets| count(packets)));
        row.push(drop.meaning.to_owned());
        table.row(row);
    }
    table
}
