//! Changes of the inside addresses, by which packets find their buckets, while connections live.
//!
//! Connections stay in their buckets. Before packets are steered anew, every connection whose
//! packets would come to another bucket gets an [alias](crate::path::alias_table) there:
//!
//! 1. The coordinator tells all workers the addresses to come. From then on a connection that opens
//!    gets its aliases at once.
//! 2. It asks for the other connections, piece by piece, while packets flow.
//! 3. It takes all receive queues from the workers and waits until the rings are empty. So no packet
//!    that was steered by the addresses before is overtaken by one that follows an alias.
//! 4. It tells all workers to steer by the new addresses, and gives the queues back.

use conntrack::Cursor;
use flow::{KeyedPacket, Timestamp};
use steer::{AddressSet, BucketId, SteeringHasher};

use crate::path::PacketPath;
use crate::path::packet::Packet;
use crate::path::scratch::Scratch;

/// Most connections that are looked at for one question, so that packets wait no longer than for a
/// batch.
const PIECE: u32 = 256;

impl PacketPath {
    /// Prepares for other inside addresses, or no longer does.
    pub(crate) fn prepare_inside(&mut self, inside: Option<AddressSet>) {
        self.hasher_to_come = inside.map(|inside| {
            let mut hasher = SteeringHasher::new(*self.hasher.config());
            hasher.set_inside(inside);
            Box::new(hasher)
        });
    }

    /// Steers packets by other inside addresses from now on.
    pub(crate) fn set_inside(&mut self, inside: AddressSet) {
        self.hasher.set_inside(inside);
        self.hasher_to_come = None;
        let Self { buckets, hasher, .. } = self;
        for (id, bucket) in buckets.owned_by_id_mut() {
            // No packet comes here any more to find that its alias leads nowhere.
            bucket.aliases.retain(|packet| hasher.bucket_of_key(&packet.key) == id);
        }
    }

    /// Files the aliases that a piece of a bucket's connections will need. Returns the start of the
    /// next piece.
    pub(crate) fn resteer(
        &mut self,
        bucket: BucketId,
        from: Cursor,
        now: Timestamp,
    ) -> Option<Cursor> {
        let connections = &mut self.buckets.get_mut(bucket)?.connections;
        let mut flows = Vec::new();
        let next = connections.flows_from(from, PIECE, |flow| flows.push(flow));
        for flow in flows {
            self.file_ahead(bucket, flow, now);
        }
        next
    }

    /// Files the aliases that a connection will need which is opening.
    #[inline]
    pub(super) fn resteer_opening(&mut self, packet: &Packet, scratch: &Scratch) {
        if self.hasher_to_come.is_some() {
            self.resteer_opening_slowly(packet, scratch);
        }
    }

    #[cold]
    fn resteer_opening_slowly(&mut self, packet: &Packet, scratch: &Scratch) {
        let Some(id) = scratch.tracked.connection else { return };
        let Some(bucket) = self.buckets.get(packet.bucket) else { return };
        let flows = bucket.connections.flows_of(id);
        self.file_ahead(packet.bucket, flows, scratch.now);
    }

    /// Files an alias for each direction of a connection that will be steered to another bucket.
    fn file_ahead(
        &mut self,
        bucket: BucketId,
        directions: [(KeyedPacket, u64); 2],
        now: Timestamp,
    ) {
        let Some(to_come) = &self.hasher_to_come else { return };
        let homes = directions.map(|(packet, _)| {
            let [before, home] =
                [&self.hasher, to_come].map(|hasher| hasher.bucket_of_key(&packet.key));
            (home != before && home != bucket).then_some(home)
        });
        for (alias, home) in directions.into_iter().zip(homes) {
            let Some(home) = home else { continue };
            if let Some(owner) = self.buckets.get_mut(bucket) {
                owner.connections.set_resteered(bucket.0);
            }
            self.lead(bucket, alias, home, now);
        }
    }
}

#[cfg(test)]
#[path = "resteering_tests.rs"]
mod tests;
