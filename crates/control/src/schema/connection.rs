//! Connections and their events.

use std::net::IpAddr;

use conntrack::{LabelNames, TupleTransport};
use serde::{Deserialize, Serialize};
use wire::Family;

/// One connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connection {
    /// Schema version.
    pub schema: u32,
    /// 4 or 6.
    pub family: u8,
    /// Name of the protocol as `conntrack` prints it.
    pub protocol: String,
    /// Its IP protocol number.
    pub protocol_number: u8,
    /// State of the protocol; `null` for protocols without.
    pub state: Option<String>,
    /// Seconds until the connection ends unless a packet comes.
    pub timeout_s: u64,
    /// Addresses and ports of the originator's packets.
    pub original: Tuple,
    /// Addresses and ports of the replies.
    pub reply: Tuple,
    /// True if a reply was seen.
    pub seen_reply: bool,
    /// True if the connection is no candidate for early drop before it closes.
    pub assured: bool,
    /// True if another connection has announced it.
    pub expected: bool,
    /// True if it is one of several parts of a tunnel, each with its own timeout and counters.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub part: bool,
    /// The helper that reads its packets; `null` without.
    pub helper: Option<String>,
    /// Mark.
    pub mark: u32,
    /// Labels in the order of their numbers, each by name, or by number if it has none.
    #[serde(default)]
    pub labels: Vec<String>,
    /// Zone of both directions; 0 if they are in different zones.
    pub zone: u16,
    /// Zone of the originator's packets, if the directions are in different zones.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub original_zone: u16,
    /// Zone of the replies, if the directions are in different zones.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub reply_zone: u16,
    /// Seconds since it was opened, if `nf_conntrack_timestamp` was on then.
    pub age_s: Option<u64>,
}

/// One direction of a connection. Fields that its protocol does not have are absent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tuple {
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// Source port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_port: Option<u16>,
    /// Destination port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destination_port: Option<u16>,
    /// ICMP type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub icmp_type: Option<u8>,
    /// ICMP code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub icmp_code: Option<u8>,
    /// ICMP identifier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub icmp_id: Option<u16>,
    /// GRE key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gre_key: Option<u32>,
    /// PPTP calls: the source's own call id, 0 while it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_call_id: Option<u16>,
    /// PPTP calls: the destination's own call id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destination_call_id: Option<u16>,
    /// Packets and bytes, if `nf_conntrack_acct` was on when the connection was opened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counts: Option<Counts>,
}

/// Packets and bytes of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Packets.
    pub packets: u64,
    /// Bytes from the network header on.
    pub bytes: u64,
}

/// An event of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Schema version.
    pub schema: u32,
    /// Position in this stream, from 0, without gaps.
    pub sequence: u64,
    /// The worker that reported it.
    pub worker: u16,
    /// Events of that worker that were lost just before this one, because this stream was not read
    /// fast enough.
    pub lost: u64,
    /// `new`, `update` or `destroy`.
    pub event: String,
    /// The connection after the event; for `destroy`, its last state.
    pub connection: Connection,
}

impl Connection {
    /// A connection; `names` are the names of labels.
    pub fn new(connection: &conntrack::Connection, names: &LabelNames) -> Self {
        let counts = |direction: usize| {
            let counts = connection.counters.as_ref()?[direction];
            Some(Counts { packets: counts.packets, bytes: counts.bytes })
        };
        Self {
            schema: crate::SCHEMA,
            family: match connection.family {
                Family::V4 => 4,
                Family::V6 => 6,
            },
            protocol: conntrack::format::protocol_name(connection.protocol).to_owned(),
            protocol_number: connection.protocol,
            state: connection.state.map(str::to_owned),
            timeout_s: connection.timeout_s,
            original: Tuple::new(&connection.original, counts(0)),
            reply: Tuple::new(&connection.reply, counts(1)),
            seen_reply: connection.seen_reply,
            assured: connection.assured,
            expected: connection.expected,
            part: connection.part,
            helper: connection.helper.map(str::to_owned),
            mark: connection.mark,
            labels: names.tell(connection.labels),
            zone: connection.zone,
            original_zone: connection.original_zone,
            reply_zone: connection.reply_zone,
            age_s: connection.age_s,
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
const fn is_zero(zone: &u16) -> bool {
    *zone == 0
}

impl Tuple {
    pub(crate) fn new(tuple: &conntrack::Tuple, counts: Option<Counts>) -> Self {
        let mut this = Self {
            source: tuple.source,
            destination: tuple.destination,
            source_port: None,
            destination_port: None,
            icmp_type: None,
            icmp_code: None,
            icmp_id: None,
            gre_key: None,
            source_call_id: None,
            destination_call_id: None,
            counts,
        };
        match tuple.transport {
            TupleTransport::Ports { source, destination } => {
                (this.source_port, this.destination_port) = (Some(source), Some(destination));
            }
            TupleTransport::Icmp { kind, code, id } => {
                (this.icmp_type, this.icmp_code, this.icmp_id) = (Some(kind), Some(code), Some(id));
            }
            TupleTransport::Call { source, destination } => {
                (this.source_call_id, this.destination_call_id) = (Some(source), Some(destination));
            }
            TupleTransport::Gre { key } => this.gre_key = Some(key),
            TupleTransport::None => {}
        }
        this
    }
}

pub(super) const fn event_name(kind: conntrack::EventKind) -> &'static str {
    match kind {
        conntrack::EventKind::New => "new",
        conntrack::EventKind::Update => "update",
        conntrack::EventKind::Destroy => "destroy",
    }
}

impl Event {
    /// An event of a connection; `names` are the names of labels.
    pub fn new(numbered: &engine::NumberedEvent, names: &LabelNames) -> Self {
        Self {
            schema: crate::SCHEMA,
            sequence: numbered.sequence,
            worker: numbered.worker.0,
            lost: numbered.lost,
            event: event_name(numbered.event.kind).to_owned(),
            connection: Connection::new(&numbered.event.connection, names),
        }
    }
}
