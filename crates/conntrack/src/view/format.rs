//! Connections and events as the `conntrack` tool (version 1.4.7) prints them.

use std::fmt::{Display, Formatter, Result};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use wire::{Family, protocol};

use crate::connection::AtTheEnd;
use crate::{
    Connection, Counts, Event, EventKind, ExpectationEvent, Expected, LabelNames, Tuple,
    TupleTransport,
};

/// A connection as a line of `conntrack -L`, without the line end.
///
/// `[PART]` is an addition of this gateway: the entry is one of several of one tunnel, whose
/// packets come to several buckets.
///
/// `use` is always 1. In the kernel it is one more for each live connection that this one has
/// announced. Here such a connection may belong to any worker, and neither refers to the other
/// once it is open: counting them would need a counter that all workers share.
pub struct Listed<'a>(pub &'a Connection);

/// An event as a line of `conntrack -E`, without the line end.
pub struct Reported<'a>(pub &'a Event);

/// Optional parts of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extras {
    /// Labels at the end (`-o labels`).
    pub labels: bool,
    /// The network protocol at the beginning (`-o extended`).
    pub extended: bool,
}

/// A connection as a line of `conntrack -L` with some options of `-o`, without the line end.
pub struct ListedWith<'a>(pub &'a Connection, pub &'a LabelNames, pub Extras);

/// An event as a line of `conntrack -E` with some options of `-o`, without the line end.
pub struct ReportedWith<'a>(pub &'a Event, pub &'a LabelNames, pub Extras);

/// An expectation as a line of `conntrack -L expect`, without the line end.
pub struct ListedExpectation<'a>(pub &'a Expected);

/// An event of an expectation as a line of `conntrack -E expect`, without the line end.
pub struct ReportedExpectation<'a>(pub &'a ExpectationEvent);

impl Display for ReportedExpectation<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let ExpectationEvent { kind, expected } = self.0;
        write!(f, "{:>LABEL_WIDTH$} {}", label(*kind), ListedExpectation(expected))
    }
}

/// Characters of [`label`] with the blanks before it.
const LABEL_WIDTH: usize = 9;

/// The first word of an event.
const fn label(kind: EventKind) -> &'static str {
    match kind {
        EventKind::New => "[NEW]",
        EventKind::Update => "[UPDATE]",
        EventKind::Destroy => "[DESTROY]",
    }
}

impl Display for Listed<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let connection = self.0;
        let counters = connection.counters.as_ref();
        write!(f, "{}", Beginning { connection, timeout_s: Some(connection.timeout_s) })?;
        write!(f, "{}", Middle { connection, counters })?;
        write!(f, "mark={} ", connection.mark)?;
        write!(f, "{}use=1", End { connection, age_s: connection.age_s })
    }
}

impl Display for Reported<'_> {
    /// Only the last event has counters and age. A mark is shown if it is not 0. A connection
    /// that ended by itself has no remaining time to show.
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Event { kind, connection } = self.0;
        let ended = *kind == EventKind::Destroy;
        let timeout_s = (!ended || connection.timeout_s > 0).then_some(connection.timeout_s);
        let counters = connection.counters.as_ref().filter(|_| ended);
        let age_s = connection.age_s.filter(|_| ended);
        let mut line =
            format!("{:>LABEL_WIDTH$} {}", label(*kind), Beginning { connection, timeout_s });
        line += &Middle { connection, counters }.to_string();
        if connection.mark != 0 {
            line += &format!("mark={} ", connection.mark);
        }
        line += &End { connection, age_s }.to_string();
        f.write_str(line.trim_end())
    }
}

impl Display for ListedWith<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Self(connection, names, extras) = self;
        if extras.extended {
            f.write_str(network_protocol(connection.family))?;
        }
        write!(f, "{}", Listed(connection))?;
        match extras.labels {
            true => write!(f, "{}", AtTheEnd(connection.labels, names)),
            false => Ok(()),
        }
    }
}

impl Display for ReportedWith<'_> {
    /// The end of a connection is reported without its labels.
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Self(event, names, extras) = self;
        let mut line = Reported(event).to_string();
        if extras.extended {
            line.insert_str(LABEL_WIDTH + 1, network_protocol(event.connection.family));
        }
        f.write_str(&line)?;
        match event.kind {
            EventKind::New | EventKind::Update if extras.labels => {
                write!(f, "{}", AtTheEnd(event.connection.labels, names))
            }
            _ => Ok(()),
        }
    }
}

/// The name of a network protocol with its number (the kernel's address family), with which a
/// line begins.
const fn network_protocol(family: Family) -> &'static str {
    match family {
        Family::V4 => "ipv4     2 ",
        Family::V6 => "ipv6     10 ",
    }
}

/// Protocol, timeout and state.
struct Beginning<'a> {
    connection: &'a Connection,
    timeout_s: Option<u64>,
}

impl Display for Beginning<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let number = self.connection.protocol;
        write!(f, "{:<8} {number} ", protocol_name(number))?;
        if let Some(timeout_s) = self.timeout_s {
            write!(f, "{timeout_s} ")?;
        }
        self.connection.state.map_or(Ok(()), |state| write!(f, "{state} "))
    }
}

/// Both tuples and the status.
struct Middle<'a> {
    connection: &'a Connection,
    counters: Option<&'a [Counts; 2]>,
}

impl Display for Middle<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Self { connection, counters } = self;
        let zone = ("zone-orig", connection.original_zone);
        write_tuple(f, &connection.original, zone, counters.map(|counts| counts[0]))?;
        if !connection.seen_reply {
            f.write_str("[UNREPLIED] ")?;
        }
        let zone = ("zone-reply", connection.reply_zone);
        write_tuple(f, &connection.reply, zone, counters.map(|counts| counts[1]))?;
        f.write_str(if connection.assured { "[ASSURED] " } else { "" })?;
        f.write_str(if connection.part { "[PART] " } else { "" })
    }
}

/// The part behind the mark.
struct End<'a> {
    connection: &'a Connection,
    age_s: Option<u64>,
}

impl Display for End<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write_zone(f, ("zone", self.connection.zone))?;
        self.age_s.map_or(Ok(()), |age_s| write!(f, "delta-time={age_s} "))?;
        self.connection.helper.map_or(Ok(()), |helper| write!(f, "helper={helper} "))
    }
}

impl Display for ListedExpectation<'_> {
    /// A field that may have any value is shown as 0, and so is its mask.
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let expected = self.0;
        let (any, one): (IpAddr, IpAddr) = match expected.destination {
            IpAddr::V4(_) => (Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::BROADCAST.into()),
            IpAddr::V6(_) => (Ipv6Addr::UNSPECIFIED.into(), Ipv6Addr::from(u128::MAX).into()),
        };
        let Expected { protocol, destination, source_port, destination_port, .. } = *expected;
        let source = expected.source.unwrap_or(any);
        let source_mask = if expected.source.is_some() { one } else { any };
        let port_mask = if source_port.is_some() { u16::MAX } else { 0 };
        write!(f, "{} proto={protocol} src={source} dst={destination} ", expected.timeout_s)?;
        write_expected_ports(f, protocol, source_port.unwrap_or(0), destination_port)?;
        write!(f, "mask-src={source_mask} mask-dst={one} ")?;
        write_expected_ports(f, protocol, port_mask, u16::MAX)?;
        write!(f, "master-src={} ", expected.master.source)?;
        write!(f, "master-dst={} ", expected.master.destination)?;
        write_transport(f, &expected.master)?;
        f.write_str(if expected.permanent { "PERMANENT " } else { "" })?;
        write!(f, "class={} helper={}", expected.class.1, expected.helper)
    }
}

fn write_expected_ports(f: &mut Formatter<'_>, protocol: u8, from: u16, to: u16) -> Result {
    match protocol {
        protocol::GRE => write!(f, "srckey=0x{from:x} dstkey=0x{to:x} "),
        _ => write!(f, "sport={from} dport={to} "),
    }
}

fn write_zone(f: &mut Formatter<'_>, (name, zone): (&str, u16)) -> Result {
    if zone == 0 { Ok(()) } else { write!(f, "{name}={zone} ") }
}

fn write_tuple(
    f: &mut Formatter<'_>,
    tuple: &Tuple,
    zone: (&str, u16),
    counts: Option<Counts>,
) -> Result {
    write!(f, "src={} dst={} ", tuple.source, tuple.destination)?;
    write_transport(f, tuple)?;
    write_zone(f, zone)?;
    counts.map_or(Ok(()), |Counts { packets, bytes }| write!(f, "packets={packets} bytes={bytes} "))
}

fn write_transport(f: &mut Formatter<'_>, tuple: &Tuple) -> Result {
    match tuple.transport {
        TupleTransport::Ports { source, destination } => {
            write!(f, "sport={source} dport={destination} ")
        }
        TupleTransport::Icmp { kind, code, id } => write!(f, "type={kind} code={code} id={id} "),
        TupleTransport::Call { source, destination } => {
            write!(f, "srckey=0x{source:x} dstkey=0x{destination:x} ")
        }
        TupleTransport::Gre { key } => write!(f, "srckey=0x{key:x} dstkey=0x{key:x} "),
        TupleTransport::None => Ok(()),
    }
}

/// The name of a protocol as `conntrack` prints it.
pub fn protocol_name(number: u8) -> &'static str {
    match number {
        protocol::ICMP => "icmp",
        protocol::TCP => "tcp",
        protocol::UDP => "udp",
        protocol::DCCP => "dccp",
        protocol::GRE => "gre",
        protocol::ICMPV6 => "icmpv6",
        protocol::SCTP => "sctp",
        protocol::UDPLITE => "udplite",
        _ => "unknown",
    }
}

#[cfg(test)]
#[path = "format_tests.rs"]
mod tests;
