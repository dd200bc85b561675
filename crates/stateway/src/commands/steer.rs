//! `stateway steer`

use control::schema::{Balance, Buckets, Done, Moves, SetBalancer, SetWorkers, Status};
use serde_json::json;

use super::remote::{Json, Remote, Watch};
use crate::balance_interval::BalanceInterval;
use crate::print::{Align, Output, Table, count, worker_table};

#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
Examples:
  stateway steer show --watch               load and counters of each worker
  stateway steer show -v                    each bucket with its owner
  stateway steer set --workers 4            change the number of workers while traffic runs
  stateway steer balance --dry-run          planned moves, with their reasons
  stateway steer balance --every 1s         balance every second from now on
  stateway steer balance --every off        and no longer")]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Show the workers with the counters of /proc/net/softnet_stat.
    Show {
        /// Show the buckets one by one.
        #[arg(short, long)]
        verbose: bool,
        #[command(flatten)]
        remote: Remote,
        #[command(flatten)]
        json: Json,
        #[command(flatten)]
        watch: Watch,
    },
    /// Change the number of workers.
    Set {
        /// Number of workers.
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
        workers: u16,
        #[command(flatten)]
        remote: Remote,
        #[command(flatten)]
        json: Json,
    },
    /// Move buckets from busy workers to idle ones.
    Balance {
        /// Only show what would be moved.
        #[arg(long, conflicts_with = "every")]
        dry_run: bool,
        /// Balance again and again, for example every 500ms or 1s; `off` ends it.
        #[arg(long, value_name = "TIME|off")]
        every: Option<BalanceInterval>,
        #[command(flatten)]
        remote: Remote,
        #[command(flatten)]
        json: Json,
    },
}

pub fn run(args: &Args, out: &mut Output) -> anyhow::Result<()> {
    match &args.action {
        Action::Show { verbose, remote, json, watch } => {
            let client = remote.client()?;
            watch.repeat(out, json.json, |out| {
                let status: Status = client.get("/v1/status")?;
                let buckets: Buckets = client.get("/v1/buckets")?;
                if json.json {
                    return out.json(&as_json(&status, &buckets));
                }
                softnet_of_workers(&status).print(out)?;
                let every = BalanceInterval::from_millis(status.balance_interval_ms);
                out.line("")?;
                out.line(format_args!("balancer {every}"))?;
                if *verbose {
                    out.line("")?;
                    bucket_table(&buckets).print(out)?;
                }
                Ok(())
            })
        }
        Action::Set { workers, remote, json } => {
            let moves: Moves = remote
                .client()?
                .put("/v1/workers", &SetWorkers { workers: usize::from(*workers) })?;
            report(&moves, json, out)
        }
        Action::Balance { dry_run, every, remote, json } => {
            let client = remote.client()?;
            let Some(every) = every else {
                let moves: Moves = client.post("/v1/balance", &Balance { dry_run: *dry_run })?;
                return report(&moves, json, out);
            };
            let interval_ms = every.interval().map(|interval| interval.as_millis() as u64);
            let done: Done = client.put("/v1/balancer", &SetBalancer { interval_ms })?;
            if json.json {
                return out.json(&done);
            }
            tell!("balancer {every}");
            Ok(())
        }
    }
}

fn as_json(status: &Status, buckets: &Buckets) -> serde_json::Value {
    let workers: Vec<_> = status
        .workers
        .iter()
        .map(|worker| {
            json!({
                "worker": worker.worker,
                "cpu": worker.cpu,
                "buckets": worker.buckets,
                "queues": worker.queues,
                "connections": worker.connections,
                "busy_ns": worker.busy_ns,
                "backlog_len": worker.backlog,
                "softnet": worker.counters.softnet,
            })
        })
        .collect();
    json!({
        "schema": control::SCHEMA,
        "uptime_ns": status.uptime_ns,
        "moves": status.moves,
        "balance_interval_ms": status.balance_interval_ms,
        "workers": workers,
        "buckets": buckets.buckets,
    })
}

fn softnet_of_workers(status: &Status) -> Table {
    let mut titles = vec!["buckets", "queues"];
    titles.extend(status.totals.softnet.iter().map(|(name, _)| name));
    titles.push("backlog_len");
    worker_table(status, &titles, |worker| {
        let mut cells = vec![worker.buckets.to_string(), worker.queues.to_string()];
        cells.extend(worker.counters.softnet.iter().map(|(_, value)| count(value)));
        cells.push(count(worker.backlog));
        cells
    })
}

fn bucket_table(buckets: &Buckets) -> Table {
    let mut table = Table::new(&[
        ("bucket", Align::Right),
        ("worker", Align::Right),
        ("packets", Align::Right),
        ("connections", Align::Right),
    ]);
    for bucket in &buckets.buckets {
        table.row([
            bucket.bucket.to_string(),
            bucket.worker.to_string(),
            count(bucket.packets),
            count(bucket.connections),
        ]);
    }
    table
}

fn report(moves: &Moves, json: &Json, out: &mut Output) -> anyhow::Result<()> {
    if json.json {
        return out.json(moves);
    }
    moves.report.lines().try_for_each(|line| out.line(line))
}
