//! Connections whose directions are in different zones.
//!
//! They have two keys, of which at least the zones differ, so they are filed like
//! [translated ones](super::translated): each key is that of one direction only. The hash of
//! a flow in another zone follows from its hash in one.

use flow::{KeyedPacket, Timestamp, Zone, ZonePair};

use super::{Met, Table};
use crate::slab::Translation;
use crate::{ConnectionId, Context, Direction, Tracked};

impl Table {
    /// The zones of the connection of a packet that was tracked just now, also if the packet has
    /// ended it; nothing of the kind if it has none.
    pub fn zones(&self, tracked: &Tracked) -> ZonePair {
        tracked.connection.map_or(self.parting_zones, |ConnectionId(slot)| self.zones_of(slot))
    }

    /// The zone of the originator's packets, of the connection that a packet belongs to; its own if
    /// it belongs to none.
    pub fn original_zone(&self, packet: &KeyedPacket, hash: u64) -> Zone {
        let met = self.look_up(packet, hash);
        met.map_or(packet.key.zone, |met| self.slab[met.slot].head.key.zone)
    }

    /// The zone in which a packet with a [zone for each
    /// direction](crate::TrackedPacket::zones) belongs to a connection: it is looked for among
    /// originators' packets in the one, then among the replies in the other, as in the kernel,
    /// and last among the replies in the one. There the kernel would open a second connection
    /// with the same flow. `None` if it belongs to none that lives. `packet` and its hash may be
    /// in any zone.
    pub fn zone_of(
        &self,
        zones: ZonePair,
        packet: &KeyedPacket,
        hash: u64,
        now: Timestamp,
    ) -> Option<Zone> {
        let direction_in = |zone: Zone| {
            let (packet, hash) = packet.moved(hash, zone);
            let met = self.look_up(&packet, hash)?;
            (!self.slab[met.slot].head.is_expired(now)).then_some(met.direction)
        };
        zone_of(zones, direction_in)
    }

    /// The connection of a packet that is in one of two zones, if it is live. One whose time is over ends here and now.
    #[cold]
    pub(super) fn find_in(
        &mut self,
        zones: ZonePair,
        packet: &KeyedPacket,
        hash: u64,
        context: &mut Context<'_>,
    ) -> Option<Met> {
        let met = self.look_up_in(zones, packet, hash)?;
        self.if_live(met, context)
    }

    fn look_up_in(&self, zones: ZonePair, packet: &KeyedPacket, hash: u64) -> Option<Met> {
        let met = self.look_up(packet, hash)?;
        let is_reply = met.direction == Direction::Reply;
        (is_reply || packet.key.zone == zones.original).then_some(met)
    }

    /// Puts the replies to a new connection into a zone of their own. [`Table::settle`] files
    /// their key, unless a rule has them translated.
    pub(super) fn part(&mut self, slot: u32, zones: ZonePair, hash: u64, now: Timestamp) {
        let original = self.original(slot);
        // Of a call packets name one end only, so it is looked for in one place.
        if zones.reply == original.key.zone || original.key.is_call() {
            return;
        }
        let (leaves_as, hash) = original.moved(hash, zones.reply);
        let translation = Translation::new(leaves_as, hash as u32, None, now);
        self.slab.set_translation(slot, Some(translation));
    }

    /// What packets of the originator would be in the zone of the replies.
    pub(super) fn outside(&self, slot: u32) -> KeyedPacket {
        self.original(slot).in_zone(self.zones_of(slot).reply)
    }

    pub(super) fn zones_of(&self, slot: u32) -> ZonePair {
        let original = self.slab[slot].head.key.zone;
        let reply = self.slab.translation(slot).map_or(original, |it| it.leaves_as.key.zone);
        ZonePair { original, reply }
    }
}

/// The same of what says which way a packet goes that was in a zone.
pub(crate) fn zone_of(
    zones: ZonePair,
    direction_in: impl Fn(Zone) -> Option<Direction>,
) -> Option<Zone> {
    let in_first = direction_in(zones.original);
    if in_first != Some(Direction::Original) && direction_in(zones.reply) == Some(Direction::Reply)
    {
        return Some(zones.reply);
    }
    in_first.map(|_| zones.original)
}

#[cfg(test)]
#[path = "zoned_tests.rs"]
mod tests;
