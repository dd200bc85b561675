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
use crate::path::bucket::Bucket;
use crate::path::packet::Packet;

/// Most connections that are looked at for one question. Each takes two messages at most, so packets
/// wait no longer than for a batch, here and at the workers that hear of them.
const PIECE: u32 = 64;

impl PacketPath {
    /// Prepares for other inside addresses, or no longer does.
    pub(crate) fn prepare_inside(&mut self, inside: Option<AddressSet>) {
        let prepared = inside.map(|inside| {
            let mut hasher = SteeringHasher::new(*self.hasher.config());
            hasher.set_inside(inside);
            Box::new(hasher)
        });
        if std::mem::replace(&mut self.hasher_to_come, prepared).is_some() {
            self.drop_useless_aliases();
        }
    }

    /// Steers packets by other inside addresses from now on.
    pub(crate) fn set_inside(&mut self, inside: AddressSet) {
        self.hasher.set_inside(inside);
        self.hasher_to_come = None;
        self.drop_useless_aliases();
    }

    /// Removes aliases of keys that are steered to other buckets. No packet would come to find that
    /// they lead nowhere.
    fn drop_useless_aliases(&mut self) {
        let Self { buckets, hasher, .. } = self;
        for (id, bucket) in buckets.owned_by_id_mut() {
            bucket.aliases.retain(|packet| hasher.bucket_of_key(&packet.key) == id);
        }
    }

    /// Files the aliases that a piece of a bucket's connections will need. Returns the start of the
    /// next piece, which is the same while the rings are full.
    pub(crate) fn resteer(
        &mut self,
        bucket: BucketId,
        from: Cursor,
        now: Timestamp,
    ) -> Option<Cursor> {
        if !self.buckets.have_room_for_news() {
            return Some(from);
        }
        if self.tracking.settings().conntrack.faults.forgets_late_addresses() {
            return None;
        }
        self.remove_aliases();
        let Bucket { connections, openings, .. } = self.buckets.get_mut(bucket)?;
        let mut flows = Vec::new();
        let next = connections.flows_from(from, PIECE, |flow| flows.push(flow));
        // A connection whose source is still being sought is filed when it has one.
        flows.retain(|[(original, _), _]| openings.is_empty() || !openings.awaits(original));
        for flow in flows {
            self.file_ahead(bucket, flow, now);
        }
        next
    }

    /// Files the aliases that the connection of a packet will need, which is opening and has its
    /// source.
    #[inline]
    pub(super) fn resteer_opening(&mut self, packet: &Packet, now: Timestamp) {
        if self.hasher_to_come.is_some() {
            self.resteer_opening_slowly(packet, now);
        }
    }

    #[cold]
    fn resteer_opening_slowly(&mut self, packet: &Packet, now: Timestamp) {
        let Some((name, hash)) = packet.looked_up() else { return };
        let Some(bucket) = self.buckets.get(packet.bucket) else { return };
        if let Some(flows) = bucket.connections.flows_of(&name, hash) {
            self.file_ahead(packet.bucket, flows, now);
        }
    }

    /// The same for a connection that was imported.
    pub(super) fn resteer_imported(
        &mut self,
        bucket: BucketId,
        (original, hash): (KeyedPacket, u64),
        now: Timestamp,
    ) {
        if self.hasher_to_come.is_some()
            && let Some(home) = self.buckets.get(bucket)
            && let Some(flows) = home.connections.flows_of(&original, hash)
        {
            self.file_ahead(bucket, flows, now);
        }
    }

    /// Keeps the way of a packet that has come by an alias and has opened a connection: the one that
    /// the alias was for has ended, and has taken the alias along.
    #[inline]
    pub(super) fn keep_way_of_opener(&mut self, packet: &Packet, now: Timestamp) {
        if let (Some(home), Some(alias)) = (packet.alias_in, packet.looked_up()) {
            self.lead_resteered(packet.bucket, alias, home, now);
        }
    }

    /// The bucket that has the connection of such packets, or is to get it. Packets may have been
    /// steered to another bucket when the connection was made; an alias leads to it then. If it leads
    /// nowhere, it is removed.
    pub(super) fn home_of(
        &mut self,
        id: BucketId,
        (original, hash): (&KeyedPacket, u64),
        now: Timestamp,
    ) -> BucketId {
        let Some(bucket) = self.buckets.get(id) else { return id };
        if bucket.aliases.is_empty() && !bucket.connections.is_resteered() {
            return id;
        }
        let home = bucket.aliases.owner(original, hash).unwrap_or(id);
        let steered = self.hasher.bucket_of_key(&original.key);
        let has = |home: &Bucket| home.connections.has(original, hash, now);
        if home == steered || self.buckets.get(home).is_none_or(has) {
            return home;
        }
        self.remove_alias(home, (*original, hash), steered);
        steered
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
            if let Some(home) = home {
                self.lead_resteered(bucket, alias, home, now);
            }
        }
    }

    /// Files an alias in the bucket `home` that leads to a connection of `bucket`, and has the
    /// connections of `bucket` take such aliases along when they end.
    fn lead_resteered(
        &mut self,
        bucket: BucketId,
        alias: (KeyedPacket, u64),
        home: BucketId,
        now: Timestamp,
    ) {
        if let Some(owner) = self.buckets.get_mut(bucket) {
            owner.connections.set_resteered(bucket.0);
        }
        self.lead(bucket, alias, home, now);
    }
}

#[cfg(test)]
#[path = "resteering_tests.rs"]
mod tests;
