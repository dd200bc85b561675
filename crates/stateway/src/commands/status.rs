//! `stateway status`

use std::time::Duration;

use control::HostRule;
use control::schema::{HostPolicy, RulesStatus, Status};

use super::remote::{Json, Remote, Watch};
use super::rules::host_rules::remark;
use crate::print::{Align, Output, Table, bytes, count, duration, percent, things, worker_table};

#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
Examples:
  stateway status
  stateway status --watch 5
  stateway status --json | jq .connections")]
pub struct Args {
    #[command(flatten)]
    remote: Remote,
    #[command(flatten)]
    json: Json,
    #[command(flatten)]
    watch: Watch,
}

pub fn run(args: &Args, out: &mut Output) -> anyhow::Result<()> {
    let client = args.remote.client()?;
    args.watch.repeat(out, args.json.json, |out| {
        let status: Status = client.get("/v1/status")?;
        if args.json.json { out.json(&status) } else { print(&status, out) }
    })
}

fn print(status: &Status, out: &mut Output) -> anyhow::Result<()> {
    let up = duration(Duration::from_nanos(status.uptime_ns));
    let workers = status.workers.len();
    out.line(format_args!("up {up}, {workers} workers, version {}", status.version))?;
    out.line(format_args!("mode        {}", status.mode))?;
    let rules = status.rules.as_ref().map_or("none".to_owned(), running);
    out.line(format_args!("rules       {rules}"))?;
    let left_out = status.rules.as_ref().map_or(0, |rules| rules.left_out);
    if left_out > 0 {
        let left_out = things(left_out as u64, "object");
        let see = "`stateway rules list` shows LEFT OUT beside each";
        out.line(format_args!("            {left_out} not supported and left out: {see}"))?;
    }
    for chain in status.rules.iter().flat_map(|rules| &rules.kernels_chains) {
        let HostRule { place, text, .. } = chain;
        out.line(format_args!("            {place} ({text}): {}", remark(chain)))?;
    }
    for HostPolicy { device, state } in &status.host_policies {
        out.line(format_args!("host policy {device}: {state}"))?;
    }
    for warning in &status.warnings {
        out.line(format_args!("warning     {warning}"))?;
    }
    out.line(format_args!(
        "connections {} of {} ({})",
        status.connections,
        status.connections_limit,
        percent(status.connections, status.connections_limit)
    ))?;
    let classes = &status.totals.classes;
    let classes: Vec<String> =
        classes.iter().map(|(name, packets)| format!("{name} {}", count(packets))).collect();
    out.line(format_args!("packets     {}", classes.join(", ")))?;
    out.line(format_args!("dropped     {}", count(status.totals.drops.total())))?;
    out.line("")?;
    ports(status).print(out)?;
    out.line("")?;
    traffic_of_workers(status).print(out)?;
    if status.zones.is_empty() {
        return Ok(());
    }
    out.line("")?;
    zones(status).print(out)
}

/// A ruleset with its source and age.
fn running(rules: &RulesStatus) -> String {
    let RulesStatus { file, revision, age_s, confirm_s, rules, .. } = rules;
    let source = match file {
        Some(file) => format!("{file} of the configuration"),
        None => "from `rules load`".to_owned(),
    };
    let age = duration(Duration::from_secs(*age_s));
    let tried = match confirm_s {
        Some(left) => format!(", tried for {} more", things(*left, "second")),
        None => String::new(),
    };
    let rules = things(*rules as u64, "rule");
    format!("{source}: {rules}, revision {revision}, loaded {age} ago{tried}")
}

fn zones(status: &Status) -> Table {
    let mut table = Table::new(&[
        ("zone", Align::Right),
        ("connections", Align::Right),
        ("limit", Align::Right),
        ("", Align::Right),
    ]);
    for zone in &status.zones {
        let limit = zone.connections_limit;
        table.row([
            zone.zone.to_string(),
            count(zone.connections),
            limit.map_or("-".to_owned(), count),
            limit.map_or(String::new(), |limit| percent(zone.connections, limit)),
        ]);
    }
    table
}

fn ports(status: &Status) -> Table {
    let mut table = Table::new(&[
        ("interface", Align::Left),
        ("link", Align::Left),
        ("policy", Align::Left),
        ("received", Align::Right),
        ("bytes", Align::Right),
        ("sent", Align::Right),
        ("bytes", Align::Right),
        ("lost", Align::Right),
    ]);
    for port in &status.ports {
        table.row([
            port.name.clone(),
            if port.up { "up" } else { "down" }.to_owned(),
            port.policy.clone(),
            count(port.received),
            bytes(port.received_bytes),
            count(port.sent),
            bytes(port.sent_bytes),
            count(port.lost),
        ]);
    }
    table
}

fn traffic_of_workers(status: &Status) -> Table {
    let titles = ["policy", "awake", "blocked", "packets", "connections", "dropped"];
    worker_table(status, &titles, |worker| {
        let waiting = &worker.waiting;
        vec![
            waiting.policy.clone(),
            percent(waiting.time_ns.saturating_sub(waiting.asleep_ns), waiting.time_ns),
            count(waiting.blocked),
            count(worker.counters.softnet.get("processed")),
            count(worker.connections),
            count(worker.counters.drops.total()),
        ]
    })
}
