//! A connection as rules see it.

use conntrack::{ConnectionId, Direction, Table, Tracked, TupleTransport};
use flow::{Endpoint, KeyedPacket, Tally, Timestamp};
use ruleset::{Details, Tuple, name_bits};
use wire::{TransportAddress, mapped};

/// A connection as rules see it.
pub(crate) enum ConnectionDetails<'a> {
    Live(&'a Table, ConnectionId, Timestamp),
    /// The packet has ended it, such as a reset that answers a SYN. Its ends are still known.
    Ended {
        original: Tuple,
        reply: Tuple,
    },
}

impl<'a> ConnectionDetails<'a> {
    /// The connection of a packet of this flow that was just tracked, if it has one.
    pub fn of(
        table: &'a Table,
        keyed: Option<&KeyedPacket>,
        tracked: &Tracked,
        now: Timestamp,
    ) -> Option<Self> {
        if let Some(id) = tracked.connection {
            return Some(Self::Live(table, id, now));
        }
        let (direction, KeyedPacket { key, sender }) = (tracked.direction?, *keyed?);
        let (from, to) = (key.end(sender), key.end(sender.opposite()));
        let address_changes = table.translation(tracked);
        let leaves = |place: Option<TransportAddress>, end: Endpoint| {
            place.map_or(end, |TransportAddress { address, port }| Endpoint { address, port })
        };
        let here = tuple(from, to);
        let there =
            tuple(leaves(address_changes.destination, to), leaves(address_changes.source, from));
        Some(match direction {
            Direction::Original => Self::Ended { original: here, reply: there },
            Direction::Reply => Self::Ended { original: there, reply: here },
        })
    }

    fn connection(&self) -> Option<conntrack::Connection> {
        match self {
            Self::Live(table, id, now) => table.connection(*id, *now),
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

impl Details for ConnectionDetails<'_> {
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

    fn is_tallied(&self, tally: &Tally) -> bool {
        match self {
            Self::Live(table, id, _) => table.is_tallied(*id, tally),
            Self::Ended { .. } => false,
        }
    }

    fn label(&self) -> u128 {
        self.connection().map_or(0, |connection| connection.labels.bits())
    }
}
