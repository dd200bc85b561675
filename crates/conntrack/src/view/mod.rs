//! Copies of connections for people and programs outside the packet path: listings, events,
//! filters and the text of all of them.

mod event;
mod filter;
pub mod format;

use std::net::IpAddr;
use std::time::Duration;

use flow::{FlowKey, Side, Timestamp, Zone, ZonePair};
use wire::{Family, QueryKind, protocol};

use crate::connection::{Direction, Labels, ip_address};

pub use self::event::{Event, EventKind, EventSink, ExpectationEvent, ExpectationSink};
pub use self::filter::{Filter, New};

/// A copy of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Address family.
    pub family: Family,
    /// IP protocol number.
    pub protocol: u8,
    /// Zone of both directions, 0 if they are in different ones.
    pub zone: u16,
    /// Zone of the originator's packets alone, 0 if both directions are in one.
    pub original_zone: u16,
    /// Zone of the replies alone, 0 if both directions are in one.
    pub reply_zone: u16,
    /// Addresses and ports of the originator's packets.
    pub original: Tuple,
    /// Addresses and ports of the replies.
    pub reply: Tuple,
    /// The key under which it is filed, for changing and deleting it.
    pub key: FlowKey,
    /// State of its protocol, with the kernel's name; `None` for protocols without states.
    pub state: Option<&'static str>,
    /// Whole seconds until it ends unless a packet comes.
    pub timeout_s: u64,
    /// A reply was seen.
    pub seen_reply: bool,
    /// Not a candidate for early drop before it closes.
    pub assured: bool,
    /// Another connection has announced it.
    pub expected: bool,
    /// It is one of several parts of a tunnel, each of which has its own lifetime and counters.
    pub part: bool,
    /// Name of its helper.
    pub helper: Option<&'static str>,
    /// Mark.
    pub mark: u32,
    /// Labels.
    pub labels: Labels,
    /// Packets and bytes in the original and the reply direction; `None` unless
    /// `nf_conntrack_acct` was on when it was opened.
    pub counters: Option<[Counts; 2]>,
    /// Whole seconds since it was opened; `None` unless `nf_conntrack_timestamp`
    /// was on.
    pub age_s: Option<u64>,
}

/// Packets and bytes of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counts {
    /// Packets.
    pub packets: u64,
    /// Bytes from the network header on.
    pub bytes: u64,
}

/// Addresses and ports of one direction, or the numbers in the place of ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuple {
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// Ports or the numbers in their place.
    pub transport: TupleTransport,
}

/// The numbers that tell flows between two addresses apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TupleTransport {
    /// TCP, UDP, UDP-Lite, SCTP, DCCP.
    Ports {
        /// Source port.
        source: u16,
        /// Destination port.
        destination: u16,
    },
    /// ICMP and ICMPv6 queries.
    Icmp {
        /// Type.
        kind: u8,
        /// Code.
        code: u8,
        /// Identifier.
        id: u16,
    },
    /// Calls of GRE version 1.
    Call {
        /// Own call id of the source, 0 if it is not known.
        source: u16,
        /// Own call id of the destination, which its packets carry.
        destination: u16,
    },
    /// GRE.
    Gre {
        /// Key, as in [`wire::Transport::Gre`].
        key: u32,
    },
    /// The protocol has no such numbers.
    None,
}

/// A copy of an expectation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Zone.
    pub zone: u16,
    /// IP protocol number.
    pub protocol: u8,
    /// Address of its opener; `None`: any.
    pub source: Option<IpAddr>,
    /// Port of its opener; `None`: any.
    pub source_port: Option<u16>,
    /// Destination address.
    pub destination: IpAddr,
    /// Destination port.
    pub destination_port: u16,
    /// Whole seconds for which it is expected.
    pub timeout_s: u64,
    /// It stands for any number of connections.
    pub permanent: bool,
    /// The connection that has announced it, in the addresses of its originator's packets.
    pub master: Tuple,
    /// Name of the helper of that connection.
    pub helper: &'static str,
    /// The helper's name and number for this class of connections.
    pub class: (&'static str, u8),
    /// The mark that the connection will have.
    pub mark: u32,
}

impl Tuple {
    /// The addresses and numbers of the packets in a direction of a flow.
    pub(crate) fn of(key: &FlowKey, originator: Side, direction: Direction) -> Self {
        let sender = match direction {
            Direction::Original => originator,
            Direction::Reply => originator.opposite(),
        };
        let (source, destination) = (key.endpoint(sender), key.endpoint(sender.opposite()));
        let transport = match key.protocol {
            number if has_ports(number) => {
                TupleTransport::Ports { source: source.port, destination: destination.port }
            }
            protocol::ICMP | protocol::ICMPV6 => TupleTransport::Icmp {
                kind: icmp_type(key.kind >> 1, direction),
                code: (key.high.port & 0xff) as u8,
                id: key.low.port,
            },
            protocol::GRE if key.is_call() => {
                TupleTransport::Call { source: source.port, destination: destination.port }
            }
            protocol::GRE => TupleTransport::Gre {
                key: u32::from(key.high.port) << 16 | u32::from(key.low.port),
            },
            _ => TupleTransport::None,
        };
        let address = |bytes| ip_address(bytes, key.family);
        Self {
            source: address(source.address),
            destination: address(destination.address),
            transport,
        }
    }

    /// Both ends, with the fields that a translation can change. An identifier of ICMP belongs
    /// to the end that asks, which is the source of one direction and the destination of the
    /// other.
    pub(crate) const fn ends(&self) -> ((IpAddr, Option<u16>), (IpAddr, Option<u16>)) {
        let (source, destination) = match self.transport {
            TupleTransport::Ports { source, destination }
            | TupleTransport::Call { source, destination } => (Some(source), Some(destination)),
            TupleTransport::Icmp { kind, id, .. } if is_request(kind) => (Some(id), None),
            TupleTransport::Icmp { id, .. } => (None, Some(id)),
            TupleTransport::Gre { .. } | TupleTransport::None => (None, None),
        };
        ((self.source, source), (self.destination, destination))
    }
}

impl Connection {
    /// The zones of both directions.
    pub const fn zones(&self) -> ZonePair {
        match (self.original_zone, self.reply_zone) {
            (0, 0) => ZonePair::both(Zone(self.zone)),
            (original, reply) => ZonePair { original: Zone(original), reply: Zone(reply) },
        }
    }
}

/// True for the types of ICMP and ICMPv6 queries.
const fn is_request(kind: u8) -> bool {
    matches!(kind, 8 | 13 | 15 | 17 | 128 | 139)
}

/// Whole seconds, as the kernel shows them. The kernel counts in ticks, so a lifetime has its
/// full length for the whole tick in which it begins. The tick here is that of a kernel with
/// 250 Hz.
pub(crate) fn seconds_left(deadline: Timestamp, now: Timestamp) -> u64 {
    const TICK: Duration = Duration::from_millis(4);
    const LAST: Duration = Duration::from_nanos(1);
    match deadline.since(now) {
        Duration::ZERO => 0,
        left => (left + TICK - LAST).as_secs(),
    }
}

pub(crate) const fn zone_number(Zone(number): Zone) -> u16 {
    number
}

/// The ICMP type for a query kind of a flow key.
fn icmp_type(kind: u8, direction: Direction) -> u8 {
    QueryKind::ALL.iter().find(|known| **known as u8 == kind).map_or(0, |known| match direction {
        Direction::Original => known.request_type(),
        Direction::Reply => known.reply_type(),
    })
}

/// True for the protocols that tell flows apart by two ports.
pub(crate) const fn has_ports(number: u8) -> bool {
    matches!(
        number,
        protocol::TCP | protocol::UDP | protocol::UDPLITE | protocol::SCTP | protocol::DCCP
    )
}
