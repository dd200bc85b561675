//! Zones that rules give to packets.

use flow::{Timestamp, Zone, ZonePair};

use conntrack::Tracked;

use crate::path::PacketPath;
use crate::path::packet::{Packet, TrackedFlow};
use crate::path::zones::Origin;

impl PacketPath {
    /// Puts a packet into the zone that a rule says. Its bucket is that of its flow in any zone.
    #[cold]
    #[inline(never)]
    pub(super) fn change_zone(&self, packet: &mut Packet, zones: ZonePair, now: Timestamp) {
        packet.zones = Some(zones).filter(|zones| !zones.is_one());
        let zone = self.zone_of(packet, zones, now).unwrap_or(zones.original);
        self.put_into(packet, zone);
    }

    fn put_into(&self, packet: &mut Packet, zone: Zone) {
        if zone == packet.origin.zone {
            return;
        }
        // The epoch counts changes of the map of ports and VLANs, which has not put the packet into
        // this zone.
        packet.origin = Origin { zone, map_epoch: 0, ..packet.origin };
        if let Some(flow) = &mut packet.flow {
            let (keyed, hash) = flow.keyed.moved(flow.table_hash(&self.hasher), zone);
            *flow = TrackedFlow { keyed, hash: Some(hash) };
        }
    }

    /// A packet with a zone for each direction may have opened a connection where it was taken
    /// for a reply.
    #[inline]
    pub(super) fn follow_zone_of_connection(&self, packet: &mut Packet, tracked: &Tracked) {
        if let (true, Some(zones)) = (tracked.fresh, packet.zones) {
            self.put_into(packet, zones.original);
        }
    }

    /// The zone in which a packet belongs to a connection, if it has a zone for each direction.
    fn zone_of(&self, packet: &mut Packet, zones: ZonePair, now: Timestamp) -> Option<Zone> {
        let zones = Some(zones).filter(|zones| !zones.is_one())?;
        packet.flow.as_mut()?.table_hash(&self.hasher);
        let (keyed, hash) = packet.looked_up()?;
        let bucket = self.buckets.get(packet.bucket)?;
        let found = bucket.connections.zone_of(zones, &keyed, hash, now).or_else(|| {
            let (reply, hash) = keyed.moved(hash, zones.reply);
            bucket.aliases.owner(&reply, hash).map(|_| zones.reply)
        });
        found.or_else(|| self.tracking.tunnels().zone_of(zones, &keyed, now))
    }
}

#[cfg(test)]
#[path = "zone_rules_tests.rs"]
mod tests;
