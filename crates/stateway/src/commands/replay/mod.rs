//! `stateway replay`

mod files;
mod packets;
mod report;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::bail;
use control::schema::{RuleObject, RuleProblem};
use engine::{Mode, REPLAY_SECRET, ReplayOptions, ReplayReport, Seen};
use indicatif::{ProgressBar, ProgressStyle};
use netio::PortId;

use super::remote::Json;
use crate::config::Configuration;
use crate::errors::UsageError;
use crate::print::Output;
use report::Report;

#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
Examples:
  stateway replay traffic.pcap
  stateway replay traffic.pcap -w passed.pcapng     keep the packets that pass
  stateway replay traffic.pcapng -c gateway.toml    as that gateway would have judged it
  stateway replay traffic.pcap --explain            every dropped packet, and the check that
                                                    decided, with its numbers
  stateway replay traffic.pcap --packets            class, direction and connection of each
  stateway replay traffic.pcap --json | jq .drops
  tcpdump -i wan0 -U -w - | stateway replay - -p      as a stream, live; it ends with the stream
  stateway replay traffic.pcap -w - | tcpdump -r -    the report goes to standard error then

A replay follows the configuration, except for settings that need the machine or other hosts: \
the SYN proxy and limits of half-open connections, rps_cpus, balance and [control]. A pcapng \
that names its interfaces, or --interface, tells by which interface a packet came in. Without \
either, new_connections and zones that name some interfaces do not apply.

Packets of IP that were cut off behind their headers are judged by these, as long as they were; \
no helper reads them. Headers of IP that an interface would have filled in behind the capture are \
taken as it would have sent them, unless --verify-checksums is given. Packets of link types that \
are not read are skipped. The output holds packets as they were captured. Packets that the \
gateway would have made itself are not in it.

The time is that of the capture. The result does not depend on the number of workers. A \
capture that is damaged is played up to the damage, and an output that can not be written \
ends the replay; the report then covers the packets that were played, and the exit code is 1.

Keys of a packet with --packets --json:
  schema, number    version of this form; place in the capture, from 1
  outcome           passed or dropped
  reason, why       why it was dropped, or null: the reason, and the check that decided
  class             of tracking, or null if it has not judged the packet
  connection        by the addresses and ports of its first packet, or null
  direction         of the packet in it: original or reply, or null
  packet, length    its headers in one line, and its bytes
  zone, vlan        0 for none

Keys of the report with --json:
  schema, input     version of this form, and the capture
  packets, bytes    read, link headers included; of these packets
  truncated           had been cut off when they were captured
  mended              IP headers that an interface would have filled in were written
  elsewhere           came in by an interface that the configuration does not have, as far as
                      the capture tells: all, without a configuration
  skipped           packets that were not played, by link type; no number above counts them
  passed, dropped     went on, and did not
  written             are in the output for sure; null without -w
  span_ns           from the first to the last packet, nanoseconds
  classes           packets by class of tracking
  drops             packets by reason (`stateway drops --all` has their meanings)
  flows             connections by protocol and last state
  conntrack         counters of tracking
  defrag            counters of reassembly: reasm_reqds are fragments, all others datagrams
  problem           why the capture could not be read to its end, or null
  output_problem    why the output is not complete, or null")]
pub struct Args {
    /// The capture: pcap or pcapng, also in gzip. `-` is standard input.
    input: PathBuf,
    /// Write the packets that pass to a capture; pcapng if the name ends so. `-` is standard
    /// output, as pcapng; the report goes to standard error then.
    #[arg(short, long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// The configuration of the gateway.
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The interface of the configuration by which packets came in, where the capture does not name
    /// it.
    #[arg(long, value_name = "NAME", requires = "config")]
    interface: Option<String>,
    /// Number of workers.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    workers: Option<u16>,
    /// Show each dropped packet and the check that decided. With `--json`: one object for each, on
    /// lines before the report.
    #[arg(short, long)]
    explain: bool,
    /// Show each packet with its class, its direction and its connection; a pcapng that is written
    /// has the same in comments. With `--json`: one object for each, on lines before the report.
    #[arg(short, long)]
    packets: bool,
    /// Judge packets by their checksums and by their IP headers as they are. Without it, checksums
    /// are ignored, and wrong ones and lengths of 0 in IP headers are filled in: on the machine that
    /// sends them, packets are captured before the interface has done that.
    #[arg(long)]
    verify_checksums: bool,
    #[command(flatten)]
    json: Json,
}

/// A rule that a replay can not run, with its place.
fn rule_line(problem: &RuleProblem) -> String {
    let RuleProblem { place: RuleObject { family, table, name, .. }, rule, message, .. } = problem;
    format!("{family} {table} {name}: {}", rule.as_ref().unwrap_or(message))
}

pub fn run(args: &Args, out: &mut Output) -> anyhow::Result<()> {
    let config = match &args.config {
        Some(file) => Configuration::load(file)?,
        None => Configuration::default(),
    };
    let names: Vec<String> = config.interfaces.iter().map(|i| i.name.clone()).collect();
    let options = ReplayOptions {
        workers: args.workers.or(config.workers).unwrap_or(1),
        verify_checksums: args.verify_checksums,
        refuses_new: config.interfaces.iter().map(|i| i.refuses_new).collect(),
        interfaces: names.clone(),
        tells_packets: args.packets,
    };
    let port = port(args.interface.as_deref(), &names)?;
    let asks_for_interfaces = asks_for_interfaces(&config);
    let rules_file = config.rules.as_ref().map(|rules| rules.path.clone());
    let rules = config.load_rules(Some(config.mode), 0)?;
    let obstacles = rules.iter().flat_map(|book| book.obstacles(Mode::Bridge));
    let obstacles: Vec<String> = obstacles.map(|it| rule_line(&it)).collect();
    if !obstacles.is_empty() {
        let what = format!(
            "a replay has no routes, and these rules need them: {}. Leave them out of a copy of \
             the ruleset, or ask about a single packet: stateway rules explain --file RULESET @{}:1",
            obstacles.join("; "),
            args.input.display()
        );
        return Err(UsageError(what).into());
    }
    let rules = rules.map(|book| Arc::new(book.ruleset().clone()));
    // A known secret, so that a run can be repeated.
    let secret = config.secret.unwrap_or(REPLAY_SECRET);
    let config = engine::Config { secret, rules, ..config.engine(None)? };
    let input = files::input(&args.input, port)?.with_ports(names);
    let mut read = vec![args.input.as_path()];
    read.extend(args.config.as_deref());
    read.extend(rules_file.as_deref());
    let output = args.write.as_ref().map(|path| files::output(path, &read)).transpose()?;
    let mut beside;
    let out = if args.write.as_ref().is_some_and(|path| files::is_stream(path)) {
        beside = Output::stderr();
        &mut beside
    } else {
        out
    };
    let progress = progress_bar();
    let mut explained = Ok(());
    let as_json = args.json.json;
    let result = engine::replay(input, output, &config, options, &mut |seen| match seen {
        Seen::Packets(packets) => progress.set_position(packets),
        // A stream is shown as it comes.
        Seen::Paused if explained.is_ok() => explained = progress.suspend(|| out.flush()),
        packet if args.packets && explained.is_ok() => {
            explained = progress.suspend(|| packets::tell(&packet, as_json, out));
        }
        dropped if args.explain && explained.is_ok() => {
            explained = progress.suspend(|| report::explain(&dropped, as_json, out));
        }
        Seen::Dropped { .. } | Seen::Passed { .. } | Seen::Paused => {}
    });
    progress.finish_and_clear();
    explained?;
    let report = result?;
    if asks_for_interfaces && report.elsewhere > 0 {
        tell!(
            "{} of {} packets came in by none of the interfaces of the configuration, as far as \
             the capture tells: new_connections and zones that name interfaces do not apply to \
             them. --interface NAME names the interface",
            report.elsewhere,
            report.packets
        );
    }
    conclude(args, &report, out)
}

/// Shows the report. An error if the capture or the output is not complete.
fn conclude(args: &Args, report: &ReplayReport, out: &mut Output) -> anyhow::Result<()> {
    let shown = Report::new(&args.input, report);
    if args.json.json {
        out.json(&shown)?
    } else {
        shown.print(out)?
    }
    out.flush()?;
    if let Some(problem) = &report.output_problem {
        let written = report.written.unwrap_or(0);
        bail!(
            "the output is not complete, {written} of {} packets were written: {problem}",
            report.passed
        );
    }
    if let Some(problem) = &report.problem {
        bail!("the capture is damaged; the packets before the damage were played: {problem}");
    }
    Ok(())
}

/// The port of packets whose interface the capture does not name. Without `interface`, it is the
/// port behind all others.
fn port(interface: Option<&str>, names: &[String]) -> Result<PortId, UsageError> {
    let Some(wanted) = interface else { return Ok(PortId(names.len() as u16)) };
    let port = names.iter().position(|name| name == wanted);
    port.map(|port| PortId(port as u16)).ok_or_else(|| {
        let known = names.join(", ");
        UsageError(format!("--interface: {wanted:?} is not in the configuration; there: {known}"))
    })
}

/// True if the input interface of a packet matters.
fn asks_for_interfaces(config: &Configuration) -> bool {
    config.interfaces.iter().any(|interface| interface.refuses_new)
        || config.zones.iter().any(|zone| zone.ports().is_some())
}

/// Draws on standard error, and only if that is a terminal.
fn progress_bar() -> ProgressBar {
    let style = ProgressStyle::with_template("{spinner} {human_pos} packets, {per_sec}, {elapsed}");
    let bar = ProgressBar::no_length();
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
