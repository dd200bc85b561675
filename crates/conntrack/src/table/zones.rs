//! Connections whose directions are in different zones.
//!
//! They have two keys that differ at least in the zone, so they are filed like [translated
//! ones](super::translation): each key is that of one direction only. The hash of a flow in one
//! zone gives its hash in any other.

use flow::{KeyedPacket, Timestamp, Zone, ZonePair};

use super::{Hit, Table};
use crate::connection::zone_of;
use crate::nat::Translation;
use crate::{ConnectionId, Context, Direction, Tracked};

impl Table {
    /// The zones of the connection of a packet that was tracked, also if the packet has ended it;
    /// the default if it has no connection.
    pub fn zones(&self, tracked: &Tracked) -> ZonePair {
        match (tracked.connection, tracked.detached) {
            (Some(ConnectionId(slot)), _) => self.zones_of(slot),
            (None, Some(detached)) => detached.zones,
            (None, None) => ZonePair::default(),
        }
    }

    /// The zone of the originator's packets of the packet's connection; the packet's own zone
    /// if it belongs to none.
    pub fn original_zone(&self, packet: &KeyedPacket, hash: u64) -> Zone {
        let hit = self.look_up(packet, hash);
        hit.map_or(packet.key.zone, |hit| self.slab[hit.slot].head.key.zone)
    }

    /// The zone in which a packet with a [zone for each direction](crate::TrackedPacket::zones)
    /// belongs to a connection. The order is as in the kernel: first the originators' packets
    /// in the first zone, then the replies in the second. Last come the replies in the first
    /// zone, where the kernel would open a second connection with the same flow. `None` if it
    /// belongs to no live connection. `packet` and its hash may be in any zone.
    pub fn zone_of(
        &self,
        zones: ZonePair,
        packet: &KeyedPacket,
        hash: u64,
        now: Timestamp,
    ) -> Option<Zone> {
        let direction_in = |zone: Zone| {
            let (packet, hash) = packet.moved(hash, zone);
            let hit = self.look_up(&packet, hash)?;
            (!self.slab[hit.slot].is_over(now)).then_some(hit.direction)
        };
        zone_of(zones, direction_in)
    }

    /// The connection of a packet in one of two zones, if it is live. An expired one ends here.
    #[cold]
    pub(super) fn find_in(
        &mut self,
        zones: ZonePair,
        packet: &KeyedPacket,
        hash: u64,
        context: &mut Context<'_>,
    ) -> Option<Hit> {
        let hit = self.look_up_in(zones, packet, hash)?;
        self.if_live(hit, context)
    }

    fn look_up_in(&self, zones: ZonePair, packet: &KeyedPacket, hash: u64) -> Option<Hit> {
        let hit = self.look_up(packet, hash)?;
        let is_reply = hit.direction == Direction::Reply;
        (is_reply || packet.key.zone == zones.original).then_some(hit)
    }

    /// Puts the replies to a new connection into a zone of their own. [`Table::make_reply_unique`] files
    /// their key, unless a rule translates the connection.
    pub(super) fn part(&mut self, slot: u32, zones: ZonePair, hash: u64, now: Timestamp) {
        let original = self.original(slot);
        // Packets of a call name one end only, so a call is looked up in one zone.
        if zones.reply == original.key.zone || original.key.is_call() {
            return;
        }
        let (leaves_as, hash) = original.moved(hash, zones.reply);
        let translation = Translation::new(leaves_as, hash as u32, None, now);
        self.slab.set_translation(slot, Some(translation));
    }

    /// Key and sender that the originator's packets would have in the zone of the replies.
    pub(super) fn outside(&self, slot: u32) -> KeyedPacket {
        self.original(slot).in_zone(self.zones_of(slot).reply)
    }

    pub(super) fn zones_of(&self, slot: u32) -> ZonePair {
        let original = self.slab[slot].head.key.zone;
        let reply = self.slab.translation(slot).map_or(original, |it| it.leaves_as.key.zone);
        ZonePair { original, reply }
    }
}

#[cfg(test)]
#[path = "zones_tests.rs"]
mod tests;
