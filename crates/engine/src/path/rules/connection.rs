//! A connection as rules see it.

use conntrack::{Direction, Table, Tracked, TupleTransport};
use flow::{Endpoint, KeyedPacket, Tally, Timestamp};
use ruleset::{Details, Tuple, name_bits};
use wire::{TransportAddress, mapped};

/// A connection as rules see it. Everything is looked up when a rule asks for it, which few do.
pub(crate) struct ConnectionDetails<'a> {
    table: &'a Table,
    keyed: Option<&'a KeyedPacket>,
    tracked: &'a Tracked,
    now: Timestamp,
}

impl<'a> ConnectionDetails<'a> {
    /// The connection of a packet of this flow that was just tracked, if it has one.
    #[inline]
    pub fn of(
        table: &'a Table,
        keyed: Option<&'a KeyedPacket>,
        tracked: &'a Tracked,
        now: Timestamp,
    ) -> Option<Self> {
        let has_ended = || tracked.direction.is_some() && keyed.is_some();
        (tracked.connection.is_some() || has_ended()).then_some(Self { table, keyed, tracked, now })
    }

    fn connection(&self) -> Option<conntrack::Connection> {
        self.table.connection(self.tracked.connection?, self.now)
    }

    /// The ends of a connection that the packet has ended, such as a reset that answers a SYN.
    fn ended(&self, reply: bool) -> Option<Tuple> {
        let (direction, KeyedPacket { key, sender }) = (self.tracked.direction?, *self.keyed?);
        let (from, to) = (key.end(sender), key.end(sender.opposite()));
        if reply == (direction == Direction::Reply) {
            return Some(tuple(from, to));
        }
        let address_changes = self.table.translation(self.tracked);
        let leaves = |place: Option<TransportAddress>, end: Endpoint| {
            place.map_or(end, |TransportAddress { address, port }| Endpoint { address, port })
        };
        let source = leaves(address_changes.destination, to);
        Some(tuple(source, leaves(address_changes.source, from)))
    }

    fn live(&self, reply: bool) -> Option<Tuple> {
        let connection = self.connection()?;
        let tuple = if reply { connection.reply } else { connection.original };
        let (source_port, destination_port) = match tuple.transport {
            TupleTransport::Ports { source, destination } => (source, destination),
            _ => (0, 0),
        };
        let (source, destination) = (mapped(tuple.source), mapped(tuple.destination));
        Some(Tuple { source, destination, source_port, destination_port })
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
        let tuple = match self.tracked.connection {
            Some(_) => self.live(reply),
            None => self.ended(reply),
        };
        let nobody = [0; 16];
        tuple.unwrap_or(Tuple {
            source: nobody,
            destination: nobody,
            source_port: 0,
            destination_port: 0,
        })
    }

    fn counts(&self) -> Option<[(u64, u64); 2]> {
        let counters = self.connection()?.counters?;
        Some(counters.map(|counts| (counts.packets, counts.bytes)))
    }

    fn expiration_ms(&self) -> u64 {
        // As in the kernel, time runs once the connection's first packet has passed.
        self.connection()
            .filter(|_| !self.tracked.fresh)
            .map_or(0, |connection| connection.timeout_s * 1000)
    }

    fn helper(&self) -> u128 {
        let name = self.connection().and_then(|connection| connection.helper);
        name.and_then(name_bits).unwrap_or(0)
    }

    fn may_join(&self, tally: &Tally) -> bool {
        let connection = self.tracked.connection.filter(|_| self.tracked.fresh);
        connection.is_some_and(|id| !self.table.is_tallied(id, tally))
    }

    fn label(&self) -> u128 {
        self.connection().map_or(0, |connection| connection.labels.bits())
    }
}
