//! `stateway defrag`

use std::time::Duration;

use control::schema::{Counters, Datagram, DatagramMemory, Status, Tunables};
use serde_json::json;

use super::remote::{Json, Remote, Watch};
use crate::print::{Align, Output, Table, bytes, count, duration, percent};

#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
Examples:
  stateway defrag show                       memory by worker, what was completed and given up
  stateway defrag show -v                    also each datagram that waits for fragments
  stateway defrag show --watch               again every second
  stateway tunable set ipfrag_high_thresh 67108864

The counters count datagrams, unless they are said to count fragments.

Keys with --json, beside schema:
  limits       most bytes that fragments of a family may hold
  fragments    received: fragments to reassemble; dropped: fragments by reason, including
               those that were refused before reassembly
  datagrams_ended
               completed; given_up for any reason (a fragment that is refused alone counts as
               a datagram), and of these timed_out, evicted_new (one fragment had come) and
               evicted_progress (several had); forgotten: given up before, and forgotten
               early because memory was needed
  totals       the same counters under the kernel's names: reasm_reqds are fragments
  output       packets that were too long for an output: cut (frag_oks), the fragments made
               of them (frag_creates), dropped instead of cut (frag_fails)
  workers      worker; datagrams: number of waiting ones (count, including those that are
               remembered), and their memory by family and stage, bytes; counters: as totals
  datagrams    with -v: the waiting datagrams, one by one")]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Show datagrams that wait for fragments, their memory, and datagrams that were given up.
    Show {
        /// Show the datagrams one by one.
        #[arg(short, long)]
        verbose: bool,
        #[command(flatten)]
        remote: Remote,
        #[command(flatten)]
        json: Json,
        #[command(flatten)]
        watch: Watch,
    },
}

/// The limits of one address family.
#[derive(Clone, Copy, Debug)]
struct Family {
    name: &'static str,
    limit: &'static str,
    memory: fn(&control::schema::Worker) -> &DatagramMemory,
}

const FAMILIES: [Family; 2] = [
    Family { name: "IPv4", limit: "ipfrag_high_thresh", memory: |worker| &worker.datagrams.v4 },
    Family { name: "IPv6", limit: "ip6frag_high_thresh", memory: |worker| &worker.datagrams.v6 },
];

pub fn run(args: &Args, out: &mut Output) -> anyhow::Result<()> {
    let Action::Show { verbose, remote, json, watch } = &args.action;
    let client = remote.client()?;
    watch.repeat(out, json.json, |out| {
        let status: Status = client.get("/v1/status")?;
        let tunables: Tunables = client.get("/v1/tunables")?;
        let mut datagrams = Vec::new();
        if *verbose {
            client.lines("/v1/datagrams", &mut |line| -> anyhow::Result<()> {
                datagrams.push(serde_json::from_slice::<Datagram>(line)?);
                Ok(())
            })?;
        }
        if json.json {
            return out.json(&as_json(&status, &tunables, verbose.then_some(&datagrams)));
        }
        summary(&status, &tunables, out)?;
        out.line("")?;
        workers(&status).print(out)?;
        given_up(&status.totals, out)?;
        if *verbose {
            out.line("")?;
            list(&datagrams).print(out)?;
        }
        Ok(())
    })
}

fn as_json(
    status: &Status,
    tunables: &Tunables,
    datagrams: Option<&Vec<Datagram>>,
) -> serde_json::Value {
    let workers: Vec<_> = status
        .workers
        .iter()
        .map(|worker| {
            json!({
                "worker": worker.worker,
                "datagrams": worker.datagrams,
                "counters": worker.counters.defrag,
            })
        })
        .collect();
    let limits: serde_json::Map<_, _> = FAMILIES
        .iter()
        .map(|family| (family.limit.to_owned(), json!(limit(tunables, family))))
        .collect();
    let defrag = &status.totals.defrag;
    let dropped: serde_json::Map<_, _> =
        dropped(&status.totals).map(|(name, number)| (name.to_owned(), json!(number))).collect();
    let ended: serde_json::Map<_, _> =
        ENDED.iter().map(|end| (end.key.to_owned(), json!(defrag.get(end.counter)))).collect();
    let mut shown = json!({
        "schema": control::SCHEMA,
        "limits": limits,
        "fragments": { "received": defrag.get("reasm_reqds"), "dropped": dropped },
        "datagrams_ended": ended,
        "totals": status.totals.defrag,
        "output": status.totals.output,
        "workers": workers,
    });
    if let Some(datagrams) = datagrams {
        shown["datagrams"] = json!(datagrams);
    }
    shown
}

/// The largest number of bytes that the datagrams of a family may hold.
fn limit(tunables: &Tunables, family: &Family) -> u64 {
    let limit = tunables.tunables.iter().find(|tunable| tunable.name == family.limit);
    limit.map_or(0, |tunable| tunable.value)
}

fn summary(status: &Status, tunables: &Tunables, out: &mut Output) -> anyhow::Result<()> {
    let defrag = &status.totals.defrag;
    let fragments_dropped: u64 = dropped(&status.totals).map(|(_, number)| number).sum();
    out.line(format_args!(
        "fragments: {} received, {} dropped",
        count(defrag.get("reasm_reqds")),
        count(fragments_dropped),
    ))?;
    out.line(format_args!(
        "datagrams: {} completed, {} given up",
        count(defrag.get("reasm_oks")),
        count(defrag.get("reasm_fails")),
    ))?;
    let output = &status.totals.output;
    out.line(format_args!(
        "packets too long for an output: cut {} into {} fragments, dropped {}",
        count(output.get("frag_oks")),
        count(output.get("frag_creates")),
        count(output.get("frag_fails")),
    ))?;
    for family in FAMILIES {
        let used: u64 = status.workers.iter().map(|worker| (family.memory)(worker).total()).sum();
        let limit = limit(tunables, &family);
        out.line(format_args!(
            "{} memory {} of {} ({})",
            family.name,
            bytes(used),
            bytes(limit),
            percent(used, limit)
        ))?;
    }
    Ok(())
}

fn workers(status: &Status) -> Table {
    let mut table = Table::new(&[
        ("worker", Align::Right),
        ("datagrams", Align::Right),
        ("memory of", Align::Left),
        ("with one fragment", Align::Right),
        ("with several", Align::Right),
        ("given up", Align::Right),
    ]);
    for worker in &status.workers {
        for (index, family) in FAMILIES.iter().enumerate() {
            let memory = (family.memory)(worker);
            let first = |text: String| if index == 0 { text } else { String::new() };
            table.row([
                first(worker.worker.to_string()),
                first(count(worker.datagrams.count)),
                family.name.to_owned(),
                bytes(memory.new),
                bytes(memory.progress),
                bytes(memory.given_up),
            ]);
        }
    }
    table
}

/// A way for datagrams to end.
struct End {
    /// Name in JSON.
    key: &'static str,
    /// The counter of such datagrams.
    counter: &'static str,
    /// A description; empty if the summary has it.
    words: &'static str,
}

const ENDED: [End; 6] = [
    End { key: "completed", counter: "reasm_oks", words: "" },
    End { key: "given_up", counter: "reasm_fails", words: "" },
    End { key: "timed_out", counter: "reasm_timeout", words: "not complete in time" },
    End { key: "evicted_new", counter: "evicted_newcomer", words: "evicted, with one fragment" },
    End { key: "evicted_progress", counter: "evicted_progress", words: "evicted, with several" },
    End {
        key: "forgotten",
        counter: "evicted_dead",
        words: "given up before, and forgotten early",
    },
];

/// Fragments that were dropped, by reason.
fn dropped(totals: &Counters) -> impl Iterator<Item = (&str, u64)> {
    // The counter of packets that were too long for an output has a line of its own.
    let is_ours = |name: &str| name.starts_with("frag_") && name != "frag_needed";
    totals.drops.iter().filter(move |(name, _)| is_ours(name))
}

/// Prints how datagrams ended and why fragments were dropped, for reasons that occurred.
fn given_up(totals: &Counters, out: &mut Output) -> anyhow::Result<()> {
    let mut datagrams =
        Table::new(&[("datagrams given up", Align::Left), ("datagrams", Align::Right)]);
    for end in ENDED.iter().filter(|end| !end.words.is_empty()) {
        let number = totals.defrag.get(end.counter);
        if number > 0 {
            datagrams.row([end.words.to_owned(), count(number)]);
        }
    }
    datagrams.print_section(out)?;
    let mut fragments =
        Table::new(&[("fragments dropped", Align::Left), ("fragments", Align::Right)]);
    for (name, number) in dropped(totals).filter(|(_, number)| *number > 0) {
        fragments.row([name.to_owned(), count(number)]);
    }
    fragments.print_section(out)
}

fn list(datagrams: &[Datagram]) -> Table {
    let mut table = Table::new(&[
        ("source", Align::Left),
        ("destination", Align::Left),
        ("id", Align::Right),
        ("bucket", Align::Right),
        ("stage", Align::Left),
        ("fragments", Align::Right),
        ("bytes", Align::Right),
        ("of", Align::Right),
        ("memory", Align::Right),
        ("age", Align::Right),
        ("left", Align::Right),
    ]);
    for datagram in datagrams {
        let time = |milliseconds| duration(Duration::from_millis(milliseconds));
        table.row([
            datagram.source.to_string(),
            datagram.destination.to_string(),
            datagram.id.to_string(),
            datagram.bucket.to_string(),
            datagram.reason.clone().unwrap_or_else(|| datagram.stage.clone()),
            datagram.fragments.to_string(),
            datagram.received.to_string(),
            datagram.total.map_or("?".to_owned(), |total| total.to_string()),
            bytes(datagram.memory),
            time(datagram.age_ms),
            time(datagram.remaining_ms),
        ]);
    }
    table
}
