//! `stateway conntrack`

mod argument_order;
mod expect;
mod filter;
mod output;
mod records;
mod rows;
mod update;

use control::ConnectionQuery;
use control::schema::{Count, Counters, Done, Event, Names, Status};

use super::remote::{Json, Remote, Watch};
use crate::errors::UsageError;
use crate::print::{Align, Output, Table, count, things};
pub use argument_order::in_order;
use filter::FilterArgs;
use output::{Format, FormatArgs};
use rows::{ConnectionRows, EventRows};

#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
The options of the kernel's conntrack tool work too:
  stateway conntrack -L                      = stateway conntrack list
  stateway conntrack -L -p tcp --dport 443   connections to port 443
  stateway conntrack -L -o conntrack         lines as the kernel's tool prints them
  stateway conntrack -L -o labels,extended   the same with labels and network protocol
  stateway conntrack -L expect               = stateway conntrack expect
  stateway conntrack -E -e NEW,DESTROY       connections that begin and end, as it happens
  stateway conntrack -S                      counters per worker
  stateway conntrack -C                      number of connections
  stateway conntrack -D -s 192.0.2.7         delete connections that a host has opened
  stateway conntrack -U -s 192.0.2.7 -m 1    mark connections that a host has opened
  stateway conntrack -F                      delete all connections
  stateway conntrack -F expect               delete all expectations")]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// List connections.
    #[command(
        short_flag = 'L',
        long_flag = "dump",
        after_long_help = "\
Examples:
  stateway conntrack list -p tcp --state ESTABLISHED
  stateway conntrack list -s 192.0.2.0/24 --json | jq -r .original.destination
  stateway conntrack list -o conntrack | diff - kernel.txt"
    )]
    List {
        /// The table to list.
        #[arg(value_name = "TABLE", default_value = "conntrack")]
        table: ListedTable,
        #[command(flatten)]
        filter: FilterArgs,
        #[command(flatten)]
        format: FormatArgs,
        #[command(flatten)]
        remote: Remote,
    },
    /// List expectations: connections that a helper has seen announced and that have not come yet.
    #[command(after_long_help = "\
Examples:
  stateway conntrack expect
  stateway conntrack expect --json | jq -r .master.source
  stateway conntrack -L expect -o conntrack    lines as the kernel's tool prints them")]
    Expect {
        #[command(flatten)]
        format: FormatArgs,
        #[command(flatten)]
        remote: Remote,
    },
    /// Print events until interrupted.
    #[command(
        short_flag = 'E',
        long_flag = "event",
        after_long_help = "\
Examples:
  stateway conntrack events -e NEW
  stateway conntrack events -p udp --dport 53 --json
  stateway conntrack -E expect                 expectations, as they begin and end

It ends with exit code 0 when the gateway is told to stop, and with 1 when it is killed."
    )]
    Events {
        /// The table whose events to print.
        #[arg(value_name = "TABLE", default_value = "conntrack")]
        table: ListedTable,
        /// Only these events: NEW, UPDATES, DESTROY, ALL; several with commas.
        #[arg(short, long = "event-mask", value_name = "MASK")]
        event_mask: Option<String>,
        #[command(flatten)]
        filter: FilterArgs,
        #[command(flatten)]
        format: FormatArgs,
        #[command(flatten)]
        remote: Remote,
    },
    /// Show the counters of each worker.
    #[command(
        short_flag = 'S',
        long_flag = "stats",
        after_long_help = "\
The names are the kernel's: those of `conntrack -S`, and for the SYN proxy, once it has had \
something to do, those of /proc/net/stat/synproxy (whose `entries` is always 0 there)."
    )]
    Stats {
        /// The table; only connections have counters.
        #[arg(value_name = "TABLE", default_value = "conntrack")]
        table: ListedTable,
        /// table, conntrack (as the kernel's tool prints them) or json.
        #[command(flatten)]
        format: FormatArgs,
        #[command(flatten)]
        watch: Watch,
        #[command(flatten)]
        remote: Remote,
    },
    /// Print the number of connections.
    #[command(short_flag = 'C', long_flag = "count")]
    Count {
        /// The table to count.
        #[arg(value_name = "TABLE", default_value = "conntrack")]
        table: ListedTable,
        /// Count only this zone.
        #[arg(short = 'w', long, value_name = "ZONE")]
        zone: Option<u16>,
        #[command(flatten)]
        json: Json,
        #[command(flatten)]
        watch: Watch,
        #[command(flatten)]
        remote: Remote,
    },
    /// Delete connections that match a filter.
    #[command(
        short_flag = 'D',
        long_flag = "delete",
        after_long_help = "\
Examples:
  stateway conntrack delete -s 192.0.2.7
  stateway conntrack delete -p udp --dport 5060"
    )]
    Delete {
        /// The table; only connections can be deleted.
        #[arg(value_name = "TABLE", default_value = "conntrack")]
        table: ListedTable,
        #[command(flatten)]
        filter: FilterArgs,
        #[command(flatten)]
        json: Json,
        #[command(flatten)]
        remote: Remote,
    },
    /// Change mark, timeout or labels of connections that match a filter.
    #[command(
        short_flag = 'U',
        long_flag = "update",
        after_long_help = "\
This sets the mark, as with the kernel's tool, and does not choose by it. With a mask, only the \
bits of the mask are cleared before MARK is combined with the old mark by exclusive or.

Examples:
  stateway conntrack update -s 192.0.2.7 --mark 0x10
  stateway conntrack update -s 192.0.2.7 --mark 0x10/0xf0    leave the other bits as they are
  stateway conntrack update -p tcp --dport 22 --timeout 86400
  stateway conntrack update -s 192.0.2.7 --label-add bulk --label-del voice"
    )]
    Update(update::Args),
    /// Save all connections to a file, from which a gateway can take them over.
    #[command(after_long_help = "\
Examples:
  stateway conntrack save connections.records
  stateway conntrack save - | ssh standby stateway conntrack load -

The file has the state of each connection at the moment in which it was read: addresses and ports, \
translation, sequence numbers, marks, helpers. It also has the connections that helpers expect, \
and the elements of sets that packets change.")]
    Save(records::SaveArgs),
    /// Take over the connections of a file.
    #[command(after_long_help = "\
Examples:
  stateway conntrack load connections.records
  stateway conntrack load - < connections.records

Load the rules before, because elements need the sets that they were in. Connections and \
elements that the gateway has already stay as they are. Exit code 1 means that other records were not taken over, \
and 2 that the file is damaged or no file of connections; then nothing has changed.")]
    Load(records::LoadArgs),
    /// Delete all connections, or those that match a filter.
    #[command(short_flag = 'F', long_flag = "flush")]
    Flush {
        /// The table to flush.
        #[arg(value_name = "TABLE", default_value = "conntrack")]
        table: ListedTable,
        #[command(flatten)]
        filter: FilterArgs,
        #[command(flatten)]
        json: Json,
        #[command(flatten)]
        remote: Remote,
    },
}

/// The tables of the kernel's tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum ListedTable {
    /// Connections.
    Conntrack,
    /// Expectations.
    Expect,
}

/// Counters of the kernel that its tool does not print.
const NOT_PRINTED: [&str; 9] = [
    "delete",
    "imported",
    "import_refused",
    "expect_new",
    "expect_create",
    "expect_refused",
    "expect_gave_way",
    "helper_left",
    "helper_forgot",
];

pub fn run(args: Args, out: &mut Output) -> anyhow::Result<()> {
    use ListedTable::{Conntrack, Expect};
    match args.action {
        Action::List { table: Conntrack, filter, format, remote } => {
            list(&filter.query()?, format.get(), &remote, out)
        }
        Action::List { table: Expect, filter, format, remote } => {
            filter.none("`-L expect` lists all expectations")?;
            expect::list(format.get(), &remote, out)
        }
        Action::Expect { format, remote } => expect::list(format.get(), &remote, out),
        Action::Events { table: Expect, event_mask, filter, format, remote } => {
            filter.none("`-E expect` prints the events of all expectations")?;
            let query = ConnectionQuery { events: event_mask, ..ConnectionQuery::default() };
            query.event_kinds().map_err(|error| UsageError(error.to_string()))?;
            expect::events(&query, format.get(), &remote, out)
        }
        Action::Events { table: Conntrack, event_mask, filter, format, remote } => {
            let query = ConnectionQuery { events: event_mask, ..filter.query()? };
            query.event_kinds().map_err(|error| UsageError(error.to_string()))?;
            events(&query, format.get(), &remote, out)
        }
        Action::Stats { table: Expect, .. } => {
            refused("`-S` counts expectations with the rest: see expect_new with --json")
        }
        Action::Stats { table: Conntrack, format, watch, remote } => {
            let (client, format) = (remote.client()?, format.get());
            watch.repeat(out, format == Format::Json, |out| {
                stats(&client.get("/v1/status")?, format, out)
            })
        }
        Action::Count { table: Expect, zone: Some(_), .. } => {
            refused("zones are for connections; `-C expect` counts all expectations")
        }
        Action::Count { table: Expect, zone: None, json, watch, remote } => {
            let client = remote.client()?;
            watch.repeat(out, json.json, |out| expect::count(&client, &json, out))
        }
        Action::Count { table: Conntrack, zone, json, watch, remote } => {
            let client = remote.client()?;
            let path = match zone {
                Some(zone) => format!("/v1/connections/count?zone={zone}"),
                None => "/v1/connections/count".to_owned(),
            };
            watch.repeat(out, json.json, |out| {
                let answer: Count = client.get(&path)?;
                if json.json { out.json(&answer) } else { out.line(answer.connections) }
            })
        }
        Action::Delete { table: Expect, .. } => refused(
            "an expectation ends with the connection that announced it: delete that; \
             `-F expect` deletes all expectations",
        ),
        Action::Delete { table: Conntrack, filter, json, remote } => {
            let query = filter.query()?;
            if query == ConnectionQuery::default() {
                return refused(
                    "delete needs a filter, for example -s 192.0.2.7; \
                     `stateway conntrack flush` forgets all",
                );
            }
            some_affected(&delete(&query, &remote)?, "deleted", &json, out)
        }
        Action::Flush { table: Expect, filter, json, remote } => {
            filter.none("`-F expect` deletes all expectations")?;
            let done: Done = remote.client()?.delete("/v1/expectations")?;
            affected(&done, ("expectation", "deleted"), &json, out)
        }
        Action::Flush { table: Conntrack, filter, json, remote } => {
            let done = delete(&filter.query()?, &remote)?;
            affected(&done, ("connection", "deleted"), &json, out)
        }
        Action::Update(args) => update::run(args, out),
        Action::Save(args) => records::save(args, out),
        Action::Load(args) => records::load(&args, out),
    }
}

fn list(
    query: &ConnectionQuery,
    format: Format,
    remote: &Remote,
    out: &mut Output,
) -> anyhow::Result<()> {
    let is_filtered = *query != ConnectionQuery::default();
    let query = ConnectionQuery { format: format.of_lines(), ..query.clone() };
    let mut rows = ConnectionRows::new();
    let mut listed: u64 = 0;
    remote.client()?.lines(&query.request("/v1/connections"), &mut |line| {
        listed += 1;
        match format {
            Format::Table => rows.add(&serde_json::from_slice(line)?, out),
            Format::Conntrack { .. } | Format::Json => out.sent_line(line),
        }
    })?;
    rows.finish(out)?;
    out.flush()?;
    match format {
        Format::Table if listed == 0 && is_filtered => {
            tell!("no connection matches the filter");
        }
        Format::Table if listed == 0 => tell!("no connections"),
        Format::Table | Format::Conntrack { .. } => {
            tell!("{}", things(listed, "connection"))
        }
        Format::Json => {}
    }
    Ok(())
}

fn events(
    query: &ConnectionQuery,
    format: Format,
    remote: &Remote,
    out: &mut Output,
) -> anyhow::Result<()> {
    let mut rows = EventRows::new();
    print_events(query, "/v1/events", format, remote, out, |line, out| {
        let event: Event = serde_json::from_slice(line)?;
        say_lost(event.lost);
        rows.add(&event, out)
    })
}

/// Prints a stream of events; `row` prints one event for people.
fn print_events(
    query: &ConnectionQuery,
    path: &str,
    format: Format,
    remote: &Remote,
    out: &mut Output,
    mut row: impl FnMut(&[u8], &mut Output) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let query = ConnectionQuery { format: format.of_lines(), ..query.clone() };
    remote.client()?.lines(&query.request(path), &mut |line| {
        match format {
            Format::Table => row(line, out)?,
            // The kernel's tool has no such lines, so remarks go to standard error.
            Format::Conntrack { .. } if line.starts_with(b"# ") => {
                tell!("{}", String::from_utf8_lossy(&line[2..]));
            }
            Format::Conntrack { timestamp: true, .. } => {
                out.sent_line(&[&output::now(), line].concat())?;
            }
            Format::Conntrack { .. } | Format::Json => out.sent_line(line)?,
        }
        out.flush()
    })?;
    tell!("the gateway has stopped");
    Ok(())
}

fn say_lost(lost: u64) {
    if lost > 0 {
        tell!("lost here: {}; this reader was too slow", things(lost, "event"));
    }
}

fn delete(query: &ConnectionQuery, remote: &Remote) -> anyhow::Result<Done> {
    Ok(remote.client()?.delete(&query.request("/v1/connections"))?)
}

/// Prints what a command did to how many things.
fn affected(
    done: &Done,
    (thing, what): (&str, &str),
    json: &Json,
    out: &mut Output,
) -> anyhow::Result<()> {
    if json.json {
        return out.json(done);
    }
    tell!("{} {what}", things(done.affected, thing));
    Ok(())
}

/// As [`affected`], for connections. No match is a failure, as with the kernel's tool.
fn some_affected(done: &Done, what: &str, json: &Json, out: &mut Output) -> anyhow::Result<()> {
    if done.affected > 0 {
        return affected(done, ("connection", what), json, out);
    }
    if json.json {
        out.json(done)?;
        out.flush()?;
    }
    anyhow::bail!("nothing is {what}: no connection matches")
}

fn refused(what: &str) -> anyhow::Result<()> {
    Err(UsageError(what.to_owned()).into())
}

fn stats(status: &Status, format: Format, out: &mut Output) -> anyhow::Result<()> {
    match format {
        Format::Table => {
            stats_table(status, |counters| &counters.conntrack).print(out)?;
            if status.totals.syn_proxy.iter().all(|(_, value)| value == 0) {
                return Ok(());
            }
            out.line("")?;
            out.title("SYN proxy")?;
            stats_table(status, |counters| &counters.syn_proxy).print(out)
        }
        Format::Conntrack { .. } => status.workers.iter().try_for_each(|worker| {
            let counters = worker.counters.conntrack.iter();
            let counters = counters.filter(|(name, _)| !NOT_PRINTED.contains(name));
            let counters: String =
                counters.map(|(name, value)| format!("{name}={value} ")).collect();
            out.line(format_args!("cpu={:<4}\t{counters}", worker.worker))
        }),
        Format::Json => out.json(&serde_json::json!({
            "schema": control::SCHEMA,
            "totals": status.totals.conntrack,
            "syn_proxy": status.totals.syn_proxy,
            "workers": status.workers.iter().map(|worker| serde_json::json!({
                "worker": worker.worker,
                "conntrack": worker.counters.conntrack,
                "syn_proxy": worker.counters.syn_proxy,
            })).collect::<Vec<_>>(),
        })),
    }
}

/// A group of counters by worker.
fn stats_table(status: &Status, group: fn(&Counters) -> &Names) -> Table {
    let totals = group(&status.totals);
    let mut columns = vec![("worker", Align::Right)];
    let names: Vec<&str> = totals.iter().map(|(name, _)| name).collect();
    columns.extend(names.iter().map(|&name| (name, Align::Right)));
    let mut table = Table::new(&columns);
    for worker in &status.workers {
        table.row(stats_row(worker.worker.to_string(), group(&worker.counters)));
    }
    table.row(stats_row("all".to_owned(), totals));
    table
}

fn stats_row(name: String, counters: &Names) -> Vec<String> {
    std::iter::once(name).chain(counters.iter().map(|(_, value)| count(value))).collect()
}
