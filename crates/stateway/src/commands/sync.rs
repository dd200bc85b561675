//! `stateway sync`

use control::schema::{Flow, Sync};

use super::remote::{Json, Remote, Watch};
use crate::print::{Output, count};

#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
Examples:
  stateway sync status             is the peer there, and does it have all connections?
  stateway sync status --watch     the same, every second
  stateway sync status --json      for scripts

Peers that steer packets differently exchange no connections; `differences` says why.")]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Show the peer, and how far its connections and those of this gateway have got.
    Status {
        #[command(flatten)]
        remote: Remote,
        #[command(flatten)]
        json: Json,
        #[command(flatten)]
        watch: Watch,
    },
}

pub fn run(args: &Args, out: &mut Output) -> anyhow::Result<()> {
    let Action::Status { remote, json, watch } = &args.action;
    let client = remote.client()?;
    watch.repeat(out, json.json, |out| {
        let sync: Sync = client.get("/v1/sync")?;
        if json.json {
            return out.json(&sync);
        }
        show(&sync, out)
    })
}

/// The state of sync for people.
fn show(sync: &Sync, out: &mut Output) -> anyhow::Result<()> {
    if let (Some(version), Some(hostid)) = (sync.pfsync_version, sync.hostid) {
        out.line(format_args!("protocol     pfsync, version {version}"))?;
        out.line(format_args!("hostid       {hostid:#010x}"))?;
    }
    out.line(format_args!("role         {}", sync.role))?;
    out.line(format_args!("peer         {}", peer_of(sync)))?;
    out.line(format_args!("agreement    {}", sync.agreement))?;
    for it in &sync.differences {
        let values = match it.here.is_empty() && it.there.is_empty() {
            true => String::new(),
            false => format!(": {:?} here, {:?} there", it.here, it.there),
        };
        out.line(format_args!("  differs    {}{values}", it.what))?;
    }
    out.line(format_args!("to the peer  {}", flow(&sync.outflow)))?;
    out.line(format_args!("from it      {}", flow(&sync.inflow)))?;
    let staleness = sync.staleness_ms.map_or("-".to_owned(), |ms| format!("{ms:.1} ms"));
    out.line(format_args!("staleness    {staleness}"))?;
    out.line(format_args!("not acknowledged  {}", count(sync.unacknowledged)))?;
    out.line(format_args!("copies here  {}", count(sync.copies)))?;
    out.line(format_args!("announced or in sets, here  {}", count(sync.shared_copies)))?;
    out.line(format_args!("term         {}", sync.term))?;
    for (name, value) in sync.counters.iter().filter(|(_, value)| **value > 0) {
        out.line(format_args!("  {name:<28} {}", count(*value)))?;
    }
    Ok(())
}

fn peer_of(sync: &Sync) -> String {
    let name = match (&sync.peer_name, sync.peer_node) {
        (Some(name), Some(node)) => format!("{name} (node {node}), "),
        _ => String::new(),
    };
    let presence = match &sync.peer_role {
        Some(role) => format!("{}, {role}", sync.presence),
        None => sync.presence.clone(),
    };
    match sync.silent_ms {
        Some(silent) => format!("{name}{} for {:.1} s", sync.presence, silent as f64 / 1000.0),
        None => format!("{name}{presence}"),
    }
}

fn flow(flow: &Flow) -> String {
    match (flow.done, flow.total) {
        (Some(done), Some(total)) => {
            format!("{}, {} of about {} connections", flow.state, count(done), count(total))
        }
        _ => flow.state.clone(),
    }
}
