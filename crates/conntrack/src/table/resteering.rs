//! Connections whose packets are, or will be, steered to other buckets.

use flow::KeyedPacket;

use super::{Cursor, Table};

impl Table {
    /// Shows the flows of both directions of live connections, with the low halves of their hashes;
    /// looks at most at `budget` slots. Returns the position to continue from, `None` at the end.
    pub fn flows_from(
        &self,
        from: Cursor,
        budget: u32,
        each: impl FnMut([(KeyedPacket, u64); 2]),
    ) -> Option<Cursor> {
        let end = from.0.saturating_add(budget).min(self.slab.slots());
        let live = (from.0..end).filter(|slot| self.slab.live(*slot).is_some());
        live.map(|slot| self.slab.flows(slot)).for_each(each);
        (end < self.slab.slots()).then_some(Cursor(end))
    }

    /// The same for the connection of a packet; `None` if there is none.
    pub fn flows_of(&self, packet: &KeyedPacket, hash: u64) -> Option<[(KeyedPacket, u64); 2]> {
        Some(self.slab.flows(self.slot_of_packet(packet, hash)?))
    }

    /// Notes that an alias may lead to the connection of a packet. So its end is reported
    /// ([`Context::ended`](crate::Context)).
    pub fn note_alias(&mut self, packet: &KeyedPacket, hash: u64) {
        if let Some(slot) = self.slot_of_packet(packet, hash) {
            self.slab.note_alias(slot);
        }
    }

    /// True if [`Table::set_resteered`] was called: packets of connections here may be steered to
    /// other buckets.
    pub const fn is_resteered(&self) -> bool {
        self.slab.resteered_in.is_some()
    }

    /// Notes that this is the table of a bucket from which packets of connections may be steered
    /// away. So the end of each connection is reported ([`Context::ended`](crate::Context)).
    pub const fn set_resteered(&mut self, bucket: u16) {
        self.slab.resteered_in = Some(bucket);
    }
}
