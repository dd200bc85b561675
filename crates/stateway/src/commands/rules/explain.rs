//! `stateway rules explain`

use std::path::{Path, PathBuf};

use control::schema::{AskRules, ExplainedStage, ExplainedStep, Explanation, RuleObject};
use control::{RuleBook, RulesRefused};
use netio::capture::{CaptureReader, Captured};
use netio::{FramePool, PortId};
use ruleset::Options;
use ruleset::probe::Probe;

use super::check::{document, list, refusal};
use crate::commands::remote::{Json, Remote};
use crate::errors::UsageError;
use crate::print::Output;

#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
Examples:
  stateway rules explain --file rules.nft tcp 192.0.2.1:1234 198.51.100.2:443 in lan0 out wan0
  stateway rules explain udp [2001:db8::1]:5353 [2001:db8::2]:53 in lan0
  stateway rules explain icmp 192.0.2.1 198.51.100.2 type echo-request
  stateway rules explain 4500001c000000004001f8e3c0000201c6336402... in lan0
  stateway rules explain @traffic.pcap:17 in lan0 out wan0

A packet is a protocol with the addresses of its ends and, for TCP, UDP, SCTP and DCCP, their \
ports; or a frame or IP packet in hexadecimal digits; or the number of a packet in a capture, \
counted from 1. Further properties follow, in any order:
  in IFACE  out IFACE      input and output interface
  state STATE              new (the default), established, related, invalid, untracked
  reply                    it comes from the end that did not open the connection
  status dnat,assured      status of its connection
  mark N  ct-mark N  zone N
and for a packet that is not given byte by byte:
  flags syn,ack  type TYPE  code N  id N  vlan N  ttl N  dscp NAME  length BYTES

With a running gateway, sets have their current elements, the state is that of the packet's \
connection unless STATE is given, and without `out` the route is looked up. With a file, sets have \
the elements that it lists, and a packet without STATE is new. Limits and quotas count as \
unused.")]
pub struct Args {
    /// The packet and its properties.
    #[arg(required = true, value_name = "PACKET")]
    packet: Vec<String>,
    /// Ask this ruleset in nft's syntax or JSON, or of iptables-save (`-` for standard input), instead
    /// of the one that the gateway runs.
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Leave out rules of the file that are not supported.
    #[arg(long, requires = "file")]
    allow_unsupported: bool,
    #[command(flatten)]
    remote: Remote,
    #[command(flatten)]
    json: Json,
}

pub fn run(args: &Args, out: &mut Output) -> anyhow::Result<()> {
    let Args { packet, file, allow_unsupported, remote, json } = args;
    let (probe, packet) = probe(&packet.join(" "))?;
    let Some(file) = file else {
        let asked: Explanation =
            remote.client()?.post("/v1/rules/explain", &AskRules { packet })?;
        return if json.json { out.json(&asked) } else { print(&asked, out) };
    };
    let document = document(file)?;
    let options = Options { allow_unsupported: *allow_unsupported };
    let book = match RuleBook::read(document, options, 0) {
        Ok(book) => book,
        Err(RulesRefused { report }) => {
            list(&report.problems, out)?;
            out.flush()?;
            return Err(refusal(file, &report).into());
        }
    };
    let explanation = book.explain(&probe);
    if json.json { out.json(&explanation) } else { print(&explanation, out) }
}

/// The packet of a question, and the question without a reference to a capture.
pub fn probe(question: &str) -> anyhow::Result<(Probe, String)> {
    let question = question.trim();
    let usage = |error: ruleset::probe::ProbeError| UsageError(error.to_string());
    let Some(place) = question.strip_prefix('@') else {
        return Ok((Probe::parse(question).map_err(usage)?, question.to_owned()));
    };
    let (place, rest) = place.split_once(char::is_whitespace).unwrap_or((place, ""));
    let parts =
        place.rsplit_once(':').and_then(|(file, number)| Some((file, number.parse().ok()?)));
    let (file, number): (&str, u64) = parts.filter(|(_, number)| *number > 0).ok_or_else(|| {
        UsageError(format!("@{place}: write @FILE:NUMBER, where 1 is the first packet"))
    })?;
    let frame = frame_of(Path::new(file), number)?;
    let digits: String = frame.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok((Probe::of_frame(frame, rest).map_err(usage)?, format!("{digits} {rest}")))
}

/// A packet of a capture, counted from 1.
fn frame_of(file: &Path, number: u64) -> anyhow::Result<Vec<u8>> {
    let mut capture = CaptureReader::open(file, PortId(0))?.with_headers_mended();
    let mut pool = FramePool::new(1, 1);
    while let Some(captured) = capture.next_packet(&mut pool)? {
        let is_it = capture.packets() == number;
        let why = match captured {
            Captured::Frame(frame) if is_it => return Ok(frame.bytes().to_vec()),
            Captured::Frame(frame) => {
                pool.give_back(frame);
                continue;
            }
            _ if !is_it => continue,
            Captured::TooLong(length) => format!("has {length} bytes, more than any frame"),
            Captured::Foreign => "is of a link type that is not read".to_owned(),
        };
        return Err(UsageError(format!("{}: packet {number} {why}", file.display())).into());
    }
    let (file, seen) = (file.display(), capture.packets());
    Err(UsageError(format!("{file}: there is no packet {number}, only {seen}")).into())
}

pub(super) fn print(explanation: &Explanation, out: &mut Output) -> anyhow::Result<()> {
    let Explanation { packet, input, output, state, stages, outcome, remarks, .. } = explanation;
    out.line(format_args!("packet   {packet}"))?;
    let name = |name: &Option<String>| name.clone().unwrap_or_else(|| "-".to_owned());
    let (input, output) = (name(input), name(output));
    out.line(format_args!("         in {input}, out {output}, state {state}"))?;
    for stage in stages {
        print_stage(stage, out)?;
    }
    if stages.is_empty() {
        out.line("no chain judges it")?;
    }
    out.title(&format!("verdict  {outcome}"))?;
    remarks.iter().try_for_each(|remark| out.line(format_args!("note     {remark}")))
}

fn print_stage(stage: &ExplainedStage, out: &mut Output) -> anyhow::Result<()> {
    out.line("")?;
    out.title(&stage.stage)?;
    let places: Vec<String> = stage.steps.iter().map(|step| place(&step.place)).collect();
    let width = places.iter().map(|place| place.chars().count()).max().unwrap_or(0);
    for (step, place) in stage.steps.iter().zip(&places) {
        let ExplainedStep { text, comment, .. } = step;
        let comment = comment.as_ref().map(|comment| format!("  \"{comment}\""));
        out.line(format_args!("  {place:width$}  {text}{}", comment.unwrap_or_default()))?;
    }
    stage.changes.iter().try_for_each(|change| out.line(format_args!("  -> {change}")))
}

fn place(place: &RuleObject) -> String {
    let RuleObject { family, table, object, name, handle } = place;
    let handle = match (object.as_str(), handle) {
        ("rule", Some(handle)) => format!(" handle {handle}"),
        _ => String::new(),
    };
    format!("{family} {table} {name}{handle}")
}
