//! `stateway drops`

use std::time::Duration;

use control::schema::{RecentDrops, Status};
use serde::Serialize;

use super::remote::{Json, Remote, Watch};
use crate::print::{Align, Output, Table, ZoneAndVlan, count, duration};

#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
Examples:
  stateway drops              reasons that occurred
  stateway drops --all        every reason there is, with its meaning
  stateway drops --recent     the last packets for each reason: headers, and the check that
                              decided, with its numbers
  stateway drops -v --watch   per worker, again every second

--recent lacks frames that the queue of an interface refuses: these are only counted.")]
pub struct Args {
    /// Show reasons that have not occurred, too.
    #[arg(short, long)]
    all: bool,
    /// Show the last dropped packets for each reason, with the check that decided.
    #[arg(short, long, conflicts_with = "all")]
    recent: bool,
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
        if args.recent {
            return recent(&client.get("/v1/drops/recent")?, args, out);
        }
        let status: Status = client.get("/v1/status")?;
        let drops = drops(&status);
        if args.json.json {
            out.json(&drops)
        } else if drops.total == 0 && !args.all {
            tell!("no packet was dropped");
            Ok(())
        } else {
            table(&status, &drops, args).print(out)
        }
    })
}

fn recent(recent: &RecentDrops, args: &Args, out: &mut Output) -> anyhow::Result<()> {
    if args.json.json {
        return out.json(recent);
    }
    if recent.packets.is_empty() {
        tell!("no packet was dropped");
    }
    for dropped in &recent.packets {
        let age = duration(Duration::from_millis(dropped.age_ms));
        let place = ZoneAndVlan { zone: dropped.zone, vlan: dropped.vlan };
        out.line(format_args!("{} from {}{place}, {age} ago", dropped.reason, dropped.interface))?;
        out.line(format_args!("  {}", dropped.packet))?;
        out.line(format_args!("  {}", dropped.why))?;
    }
    Ok(())
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
