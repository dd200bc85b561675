//! The way of a packet through the stages of the rules, and its connection as rules see it.

use conntrack::nat::Halves;
use conntrack::{ConnectionId, Direction, Table, Tracked, TupleTransport};
use flow::{Endpoint, KeyedPacket, Timestamp, ZonePair};
use netio::PortId;
use ruleset::{Connection, CtState, Details, Known, Reject, Tuple, name_bits};
use wire::{Place, mapped};

use crate::egress::bridge::Way;
use crate::path::packet::Packet;
use crate::path::rules::stages::Passed;

/// Status bits (`enum ip_conntrack_status` of the kernel's interface).
const EXPECTED: u32 = 1;
const SEEN_REPLY: u32 = 1 << 1;
const ASSURED: u32 = 1 << 2;
const CONFIRMED: u32 = 1 << 3;
const SOURCE_TRANSLATED: u32 = 1 << 4;
const DESTINATION_TRANSLATED: u32 = 1 << 5;

/// A packet on its way through the stages of the rules.
pub(crate) struct Journey {
    pub tracked: Tracked,
    pub state: CtState,
    pub mark: u32,
    pub priority: u32,
    pub input: u128,
    pub output: u128,
    pub passed: Passed,
    pub output_port: Option<PortId>,
    /// The answer to its sender if no port takes it.
    pub rejected: Option<Reject>,
    /// It is for the host, and no rule translates it.
    pub is_hosts: bool,
    /// A rule has chosen a destination and left no choice, so the kernel's own copy goes to the
    /// same destination.
    pub is_determined: bool,
    /// Its connection was announced by a translated one and is translated accordingly, so no rule
    /// is asked for its translation.
    pub follows: bool,
    /// A rule was asked that has to see every packet of the flow.
    pub per_packet: bool,
    /// The translated ends of its connection, as status bits.
    translated: u32,
}

/// A connection as rules see it.
pub(crate) enum Asked<'a> {
    Lives(&'a Table, ConnectionId, Timestamp),
    /// The packet has ended it, such as a reset that answers a SYN. Its ends are still known.
    Ended {
        original: Tuple,
        reply: Tuple,
    },
}

impl<'a> Asked<'a> {
    /// The connection of a packet of this flow that was just tracked, if it has one.
    pub fn of(
        table: &'a Table,
        keyed: Option<&KeyedPacket>,
        tracked: &Tracked,
        now: Timestamp,
    ) -> Option<Self> {
        if let Some(id) = tracked.connection {
            return Some(Self::Lives(table, id, now));
        }
        let (direction, KeyedPacket { key, sender }) = (tracked.direction?, *keyed?);
        let (from, to) = (key.end(sender), key.end(sender.opposite()));
        let halves = table.translation(tracked);
        let leaves = |place: Option<Place>, end: Endpoint| {
            place.map_or(end, |Place { address, port }| Endpoint { address, port })
        };
        let here = tuple(from, to);
        let there = tuple(leaves(halves.destination, to), leaves(halves.source, from));
        Some(match direction {
            Direction::Original => Self::Ended { original: here, reply: there },
            Direction::Reply => Self::Ended { original: there, reply: here },
        })
    }

    fn connection(&self) -> Option<conntrack::Connection> {
        match self {
            Self::Lives(table, id, now) => table.connection(*id, *now),
            Self::Ended { .. } => None,
        }
    }
}

fn tuple(source: Endpoint, destination: Endpoint) -> Tuple {
    Tuple {
        source: source.address,
        destination: destination.address,
        source_port: source.port,
        destination_port: destination.port,
    }
}

impl Details for Asked<'_> {
    fn tuple(&self, reply: bool) -> Tuple {
        if let Self::Ended { original, reply: back } = self {
            return if reply { *back } else { *original };
        }
        let tuple = self.connection().map(|it| if reply { it.reply } else { it.original });
        let Some(tuple) = tuple else {
            let nobody = [0; 16];
            return Tuple {
                source: nobody,
                destination: nobody,
                source_port: 0,
                destination_port: 0,
            };
        };
        let (source_port, destination_port) = match tuple.transport {
            TupleTransport::Ports { source, destination } => (source, destination),
            _ => (0, 0),
        };
        let (source, destination) = (mapped(tuple.source), mapped(tuple.destination));
        Tuple { source, destination, source_port, destination_port }
    }

    fn counts(&self) -> Option<[(u64, u64); 2]> {
        let counters = self.connection()?.counters?;
        Some(counters.map(|counts| (counts.packets, counts.bytes)))
    }

    fn expiration_ms(&self) -> u64 {
        self.connection().map_or(0, |connection| connection.timeout_s * 1000)
    }

    fn helper(&self) -> u128 {
        let name = self.connection().and_then(|connection| connection.helper);
        name.and_then(name_bits).unwrap_or(0)
    }

    fn label(&self) -> u128 {
        self.connection().map_or(0, |connection| connection.labels.bits())
    }
}

impl Journey {
    pub fn new(packet: &Packet, tracked: Tracked, input: u128) -> Self {
        let state = tracked.class.into();
        Self {
            tracked,
            state,
            mark: packet.mark,
            priority: 0,
            input,
            output: 0,
            passed: Passed::default(),
            output_port: None,
            rejected: None,
            is_hosts: false,
            is_determined: false,
            follows: false,
            per_packet: packet.per_packet,
            translated: 0,
        }
    }

    /// True if it is to be copied to several ports, each of which is asked for.
    pub fn is_flooded(&self) -> bool {
        matches!(self.passed.way, Some(Way::Ports(_)))
    }

    /// Lets the next stages see which ends of the connection are translated. The destination of a
    /// new connection is known before its source.
    pub fn set_translated(&mut self, halves: &Halves) {
        let bit = |is_set, bit| if is_set { bit } else { 0 };
        let (source, destination) = match self.tracked.direction {
            Some(Direction::Reply) => (halves.destination, halves.source),
            _ => (halves.source, halves.destination),
        };
        self.translated = bit(source.is_some(), SOURCE_TRANSLATED)
            | bit(destination.is_some(), DESTINATION_TRANSLATED);
    }

    /// Lets the next stages see a translated destination.
    pub fn set_redirected(&mut self) {
        self.translated |= DESTINATION_TRANSLATED;
    }

    /// The connection as rules see it.
    pub fn connection<'a>(
        &self,
        zones: ZonePair,
        details: Option<&'a dyn Details>,
    ) -> Connection<'a> {
        let tracked = &self.tracked;
        let bit = |is_set, bit| if is_set { bit } else { 0 };
        let known = tracked.direction.map(|direction| Known {
            reply: direction == Direction::Reply,
            status: bit(!tracked.fresh, CONFIRMED)
                | bit(tracked.is_expected(), EXPECTED)
                | bit(tracked.has_seen_reply(), SEEN_REPLY)
                | bit(tracked.is_assured(), ASSURED)
                | self.translated,
            mark: tracked.mark,
            zones,
            details,
        });
        Connection { state: self.state, known }
    }
}
