//! The report of a replay, for people and as JSON. It does not depend on the number of workers.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use control::schema::{Counters, Names};
use engine::{ReplayReport, Seen};
use flow::DropReason;
use serde::Serialize;

use crate::print::{Align, Output, Table, ZoneAndVlan, bytes, count, duration};

/// The report.
#[derive(Debug, Serialize)]
pub struct Report {
    schema: u32,
    input: String,
    packets: u64,
    bytes: u64,
    /// Packets that the capturing program had cut off.
    truncated: u64,
    /// Packets whose headers were filled in.
    mended: u64,
    /// Packets that were not played, by the name of their link type.
    skipped: BTreeMap<String, u64>,
    span_ns: u64,
    /// Packets that came in by no interface of the configuration.
    elsewhere: u64,
    passed: u64,
    /// Packets that the output holds, if there is one.
    written: Option<u64>,
    dropped: u64,
    classes: Names,
    flows: Vec<Flows>,
    drops: Names,
    conntrack: Names,
    /// Reassembly: fragments, datagrams completed and given up.
    defrag: Names,
    /// The reason why the capture could not be read to its end.
    problem: Option<String>,
    /// The reason why the output is not complete.
    output_problem: Option<String>,
}

/// A dropped packet.
#[derive(Debug, Serialize)]
struct Dropped<'a> {
    schema: u32,
    /// Its number in the capture, from 1.
    number: u64,
    reason: &'static str,
    why: String,
    packet: &'a str,
    length: u32,
    zone: u16,
    /// Outermost VLAN, 0 for none.
    vlan: u16,
}

/// Shows a dropped packet and the check that decided.
pub fn explain(seen: &Seen, as_json: bool, out: &mut Output) -> anyhow::Result<()> {
    let Seen::Dropped { number, zone, vlan, length, why, refused_by, summary, .. } = seen else {
        return Ok(());
    };
    let (zone, vlan) = (zone.0, *vlan);
    let reason = why.reason().name();
    let why = refused_by.clone().unwrap_or_else(|| why.to_string());
    if as_json {
        let (number, length) = (*number, *length);
        let schema = control::SCHEMA;
        let packet = summary;
        return out.json(&Dropped { schema, number, reason, why, packet, length, zone, vlan });
    }
    let place = ZoneAndVlan { zone, vlan };
    out.line(format_args!("{number}: {reason}{place}: {why}"))?;
    out.line(format_args!("    {summary}"))
}

/// Flows with one protocol and one last state.
#[derive(Debug, Serialize)]
struct Flows {
    protocol: &'static str,
    protocol_number: u8,
    state: Option<&'static str>,
    flows: u64,
}

impl Report {
    /// The report on a capture.
    pub fn new(input: &Path, report: &ReplayReport) -> Self {
        let counters = Counters::from(&report.counters);
        let flows = report.flows.iter().map(|(&(number, state), &flows)| Flows {
            protocol: conntrack::format::protocol_name(number),
            protocol_number: number,
            state: Some(state).filter(|state| !state.is_empty()),
            flows,
        });
        Self {
            schema: control::SCHEMA,
            input: input.display().to_string(),
            packets: report.packets,
            bytes: report.bytes,
            truncated: report.truncated,
            mended: report.mended,
            skipped: report.foreign.clone(),
            span_ns: report.span_ns,
            elsewhere: report.elsewhere,
            passed: report.passed,
            written: report.written,
            dropped: report.counters.dropped_total(),
            classes: counters.classes,
            flows: flows.collect(),
            drops: counters.drops,
            conntrack: counters.conntrack,
            defrag: counters.defrag,
            problem: report.problem.clone(),
            output_problem: report.output_problem.clone(),
        }
    }

    /// Prints the report as tables.
    pub fn print(&self, out: &mut Output) -> anyhow::Result<()> {
        let span = duration(Duration::from_nanos(self.span_ns));
        out.line(format_args!("packets  {} ({}, {span})", count(self.packets), bytes(self.bytes)))?;
        out.line(format_args!("passed   {}", count(self.passed)))?;
        if let Some(written) = self.written {
            out.line(format_args!("written  {}", count(written)))?;
        }
        out.line(format_args!("dropped  {}", count(self.dropped)))?;
        if self.truncated > 0 {
            out.line(format_args!("cut off  {} when they were captured", count(self.truncated)))?;
        }
        if self.mended > 0 {
            out.line(format_args!(
                "mended   {}, whose IP headers an interface would have filled in",
                count(self.mended)
            ))?;
        }
        for (link_type, &packets) in &self.skipped {
            out.line(format_args!("skipped  {} of {link_type}", count(packets)))?;
        }
        let fragments = self.defrag.get("reasm_reqds");
        if fragments > 0 {
            let datagrams = count(self.defrag.get("reasm_oks"));
            let failed = count(self.defrag.get("reasm_fails"));
            out.line(format_args!(
                "fragments {}; of datagrams {datagrams} were completed, {failed} given up",
                count(fragments)
            ))?;
        }
        self.print_classes(out)?;
        self.print_flows(out)?;
        self.print_drops(out)
    }

    fn print_classes(&self, out: &mut Output) -> anyhow::Result<()> {
        let mut table = Table::new(&[("class", Align::Left), ("packets", Align::Right)]);
        for (name, packets) in self.classes.iter().filter(|(_, packets)| *packets > 0) {
            table.row([name.to_owned(), count(packets)]);
        }
        table.print_section(out)
    }

    fn print_flows(&self, out: &mut Output) -> anyhow::Result<()> {
        let columns =
            [("protocol", Align::Left), ("last state", Align::Left), ("flows", Align::Right)];
        let mut table = Table::new(&columns);
        for flows in &self.flows {
            let protocol = match flows.protocol {
                "unknown" => flows.protocol_number.to_string(),
                name => name.to_owned(),
            };
            table.row([protocol, flows.state.unwrap_or("-").to_owned(), count(flows.flows)]);
        }
        table.print_section(out)
    }

    fn print_drops(&self, out: &mut Output) -> anyhow::Result<()> {
        let columns =
            [("drop reason", Align::Left), ("packets", Align::Right), ("meaning", Align::Left)];
        let mut table = Table::new(&columns);
        for reason in DropReason::ALL {
            let packets = self.drops.get(reason.name());
            if packets > 0 {
                table.row([reason.name().to_owned(), count(packets), reason.meaning().to_owned()]);
            }
        }
        table.print_section(out)
    }
}
