//! Workers file and remove aliases, and packets follow them. [`crate::path::alias_table`] explains
//! the term.
//!
//! The second key of a connection may be steered to another bucket. The owner of the connection
//! then asks the owner of that bucket to file an alias. The packets of the connection wait until
//! it has confirmed this, so a reply to the first packet finds its way. If one worker owns both
//! buckets, nothing waits. The messages are control items of the rings. They are never refused,
//! and they stay in order with the packets, even with packets that wait for a bucket on its way.
//!
//! # Order
//!
//! A packet that follows an alias goes through two buckets. After the first bucket has moved, the
//! packets that its new owner sends on must not overtake the packets that its old owner has sent
//! on. The same holds for messages about aliases. So a bucket that has sent anything to other
//! workers is *flushed* before it is given away ([`crate::path::buckets::Buckets::next_departure`]): its owner asks each
//! peer through the ring to say when the peer has come to this point, and waits for all answers.
//! Nothing arrives for the bucket meanwhile: its fences are in, and its next owner keeps packets
//! for it.

use std::ops::ControlFlow;

use conntrack::Claimant;
use flow::{DropReason, KeyedPacket, Timestamp};
use steer::BucketId;
use wire::Readdress;

use crate::egress::original_ends::original_ends;
use crate::egress::route_decision::RouteDecision;
use crate::path::PacketPath;
use crate::path::alias_table::{AliasMessage, Filing, Opener, Waiting};
use crate::path::packet::{Item, Kept, Packet};
use crate::path::scratch::Scratch;
use crate::path::step::{End, Step, Wait, dropped};

impl PacketPath {
    /// Keeps a packet until its bucket is here.
    #[inline]
    pub(super) fn find_bucket(&mut self, packet: &mut Packet, _: &mut Scratch) -> Step {
        match self.buckets.get(packet.bucket) {
            Some(_) => ControlFlow::Continue(()),
            None => ControlFlow::Break(End::Wait(Wait::Bucket)),
        }
    }

    /// Sends a packet that has met an alias to the bucket that has its connection, and keeps a
    /// packet that has to wait for the alias of its connection.
    #[inline]
    pub(super) fn follow_alias(&mut self, packet: &mut Packet, scratch: &mut Scratch) -> Step {
        let Some(bucket) = self.buckets.get(packet.bucket) else {
            return ControlFlow::Continue(());
        };
        let is_plain = bucket.aliases.is_empty() && bucket.openings.is_empty();
        if is_plain && packet.alias_in.is_none() {
            return ControlFlow::Continue(());
        }
        self.follow_alias_slowly(packet, scratch.now)
    }

    #[cold]
    fn follow_alias_slowly(&mut self, packet: &mut Packet, now: Timestamp) -> Step {
        let found = packet.looked_up().zip(self.buckets.get_mut(packet.bucket));
        let Some(((keyed, hash), bucket)) = found else { return ControlFlow::Continue(()) };
        if bucket.openings.awaits(&keyed) {
            if !bucket.openings.has_room() {
                return dropped(DropReason::AliasQueueFull);
            }
            return ControlFlow::Break(End::Wait(Wait::Opener));
        }
        if let Some(alias_in) = packet.alias_in {
            if bucket.connections.has(&keyed, hash, now) {
                return ControlFlow::Continue(());
            }
            // The connection has ended. The alias is removed, and the packet is judged in the
            // bucket that it was steered to.
            let owner = packet.bucket;
            self.remove_alias(owner, (keyed, hash), alias_in);
            (packet.bucket, packet.alias_in) = (alias_in, None);
            return ControlFlow::Break(End::Steer(Some(owner)));
        }
        let Some(owner) = bucket.aliases.owner(&keyed, hash) else {
            return ControlFlow::Continue(());
        };
        let from = packet.bucket;
        (packet.bucket, packet.alias_in) = (owner, Some(from));
        ControlFlow::Break(End::Steer(Some(from)))
    }

    pub(super) fn require_flush(&mut self, bucket: BucketId) {
        if let Some(bucket) = self.buckets.get_mut(bucket) {
            bucket.must_flush = true;
        }
    }

    /// Makes packets of the key `alias` find their connection in `owner`, a bucket of this worker.
    /// The packets are steered to the bucket `home`. `None` if the answer comes later.
    pub(super) fn file_alias(
        &mut self,
        owner: BucketId,
        connection: (KeyedPacket, u64),
        (alias, claimant): ((KeyedPacket, u64), Option<Claimant>),
        home: BucketId,
        now: Timestamp,
    ) -> Option<Filing> {
        if let Some(bucket) = self.buckets.get_mut(owner) {
            bucket.connections.note_alias(&connection.0, connection.1);
        }
        if self.buckets.get(home).is_some() {
            return Some(self.file_here(home, owner, alias, claimant, now));
        }
        // Each message leads to another one when the connection ends, and none is refused, so the
        // packets that may wait limit them.
        if self.buckets.get(owner).is_none_or(|owner| !owner.openings.has_room()) {
            return Some(Filing::Crowded);
        }
        let message = AliasMessage::File { alias, owner, connection, claimant };
        self.tell_bucket(owner, home, message);
        None
    }

    /// Leads packets of the key `alias` from the bucket `home` to `owner`, a bucket of this worker.
    /// Nobody waits for an answer: if the key belongs to another connection there, it stays so.
    pub(super) fn lead(
        &mut self,
        owner: BucketId,
        alias: (KeyedPacket, u64),
        home: BucketId,
        now: Timestamp,
    ) {
        if self.buckets.get(home).is_some() {
            self.file_here(home, owner, alias, None, now);
        } else {
            self.tell_bucket(owner, home, AliasMessage::Lead { alias, owner });
        }
    }

    fn file_here(
        &mut self,
        home: BucketId,
        owner: BucketId,
        (key, hash): (KeyedPacket, u64),
        claimant: Option<Claimant>,
        now: Timestamp,
    ) -> Filing {
        if let Some(claimant) = claimant {
            self.make_way(home, owner, (key, hash), claimant, now);
        }
        let limit = self.tracking.settings().conntrack.max_entries as usize;
        let Some(home) = self.buckets.get_mut(home) else { return Filing::Full };
        if home.connections.has(&key, hash, now) {
            Filing::Taken
        } else {
            home.aliases.file(&key, hash, owner, limit)
        }
    }

    /// Lets the connection that has this key give way to a claimant, if it is here: in the bucket
    /// `home`, or in a bucket to which an alias leads.
    fn make_way(
        &mut self,
        home: BucketId,
        owner: BucketId,
        (key, hash): (KeyedPacket, u64),
        claimant: Claimant,
        now: Timestamp,
    ) {
        let Some(bucket) = self.buckets.get(home) else { return };
        let alias_to = bucket.aliases.owner(&key, hash).filter(|&other| other != owner);
        let Self { buckets, tracking, counters, .. } = self;
        let mut context = tracking.context(now, counters);
        let Some(holder) = buckets.get_mut(alias_to.unwrap_or(home)) else { return };
        if holder.connections.give_way(&key, hash, &claimant, &mut context)
            && let (Some(other), Some(bucket)) = (alias_to, buckets.get_mut(home))
        {
            bucket.aliases.remove(&key, hash, other);
        }
    }

    /// Removes the alias of a connection that has ended.
    pub(super) fn remove_alias(
        &mut self,
        owner: BucketId,
        alias: (KeyedPacket, u64),
        home: BucketId,
    ) {
        match self.buckets.get_mut(home) {
            Some(home) => home.aliases.remove(&alias.0, alias.1, owner),
            None => self.tell_bucket(owner, home, AliasMessage::Remove { alias, owner }),
        }
    }

    /// Sends a message in the name of the bucket `from` to the bucket `to`, which is not here.
    fn tell_bucket(&mut self, from: BucketId, to: BucketId, message: AliasMessage) {
        if self.buckets.takes(to) {
            return self.buckets.keep_always(to, Kept::Message(message));
        }
        self.require_flush(from);
        match self.buckets.link_of(to) {
            Some(link) => link.stage(Item::Alias(to, message)),
            None => debug_assert!(false, "a bucket's owner has rings"),
        }
    }

    /// Takes a message to a bucket that is here or on its way here. The driver does, between two
    /// packets: an answer lets the packets go that have waited for it.
    pub(super) fn take_message(&mut self, to: BucketId, message: AliasMessage, now: Timestamp) {
        let Some(bucket) = self.buckets.get_mut(to) else {
            return self.buckets.keep_always(to, Kept::Message(message));
        };
        match message {
            AliasMessage::File { alias, owner, connection, claimant } => {
                let filing = self.file_here(to, owner, alias, claimant, now);
                if self.buckets.get(owner).is_some() {
                    return self.release(owner, connection, filing, now);
                }
                self.tell_bucket(to, owner, AliasMessage::Answer { connection, filing });
            }
            AliasMessage::Lead { alias, owner } => {
                self.file_here(to, owner, alias, None, now);
            }
            AliasMessage::Answer { connection, filing } => {
                self.release(to, connection, filing, now);
            }
            AliasMessage::Remove { alias: (key, hash), owner } => {
                bucket.aliases.remove(&key, hash, owner);
            }
        }
    }

    /// Lets the packets go that have waited for the alias of their connection. If the alias was
    /// refused, or the first of them can no longer leave as its connection was opened, the
    /// connection ends and the packets are dropped.
    fn release(
        &mut self,
        bucket: BucketId,
        (key, hash): (KeyedPacket, u64),
        filing: Filing,
        now: Timestamp,
    ) {
        if self.settle_import(bucket, (key, hash), filing, now) {
            return;
        }
        let Some(home) = self.buckets.get_mut(bucket) else { return };
        let mut packets = home.openings.take(&key);
        let mut found = Some(filing);
        let mut taken = DropReason::AliasTaken;
        if let Some(Waiting::Opener(Opener { packet, search, .. })) = packets.front_mut() {
            if filing == Filing::Taken {
                found = self.search_port(packet, search, now);
                taken = search.refusal();
            }
            if let Some(filing) = found {
                self.end_search(packet, search, filing, now);
            }
        }
        let routed = match packets.front_mut() {
            Some(Waiting::Opener(opener)) if found == Some(Filing::Filed) => {
                self.renew_route(opener)
            }
            _ => Ok(()),
        };
        let Some(home) = self.buckets.get_mut(bucket) else { return };
        let refusal = match found {
            None => return home.openings.put_back(&key, packets),
            Some(filing) => filing.refusal(taken).or(routed.err()),
        };
        if refusal.is_some() {
            let mut context = self.tracking.context(now, &mut self.counters);
            home.connections.end(&key, hash, &mut context);
        }
        for packet in packets {
            match (packet, refusal) {
                (Waiting::Opener(Opener { mut packet, exit, .. }), None) => {
                    self.resteer_opening(&packet, now);
                    if !self.defer_opener(&mut packet, &exit, now) {
                        self.send_out(&mut packet, &exit, now);
                    }
                }
                (Waiting::Follower(mut packet), None) => self.process(&mut packet, now),
                (waiting, Some(reason)) => {
                    let packet = waiting.into_packet();
                    self.drop_frames(packet.frame, packet.pieces, reason);
                }
            }
        }
    }

    /// Gives a packet that has waited the route of today, unless it was routed under the same
    /// routes and rules.
    ///
    /// # Errors
    /// The reason to drop the packet: it would leave by another port than the one that rules have
    /// accepted it for, and that its source was chosen for. Its sender sends it again, and the
    /// connection is opened anew.
    pub(super) fn renew_route(&mut self, opener: &mut Opener) -> Result<(), DropReason> {
        let Opener { packet, exit, generation, .. } = opener;
        let Some(before) = exit.route.filter(|_| *generation != self.tracking.generation()) else {
            return Ok(());
        };
        // It was routed before its source was translated.
        let mut network = packet.network;
        Readdress { destination: None, ..original_ends(&packet.frame) }.describe(&mut network);
        let (port, is_whole) = (packet.frame.port, packet.pieces.is_none());
        let Self { forwarder, .. } = self;
        exit.route = forwarder.route(&network, port, exit.mark, is_whole);
        match exit.route {
            Some(RouteDecision::Host) if before == RouteDecision::Host => Ok(()),
            Some(RouteDecision::Refuse { reason, .. }) => Err(reason),
            Some(now) if forwarder.port_of(&now) == forwarder.port_of(&before) => Ok(()),
            _ => Err(DropReason::RouteChanged),
        }
    }

    /// Drops the packets that wait for aliases, because the worker ends.
    pub(super) fn end_openings(&mut self) {
        let waiting = self.buckets.owned_mut().flat_map(|bucket| bucket.openings.take_all());
        for packet in waiting.collect::<Vec<_>>() {
            let packet = packet.into_packet();
            self.drop_frames(packet.frame, packet.pieces, DropReason::AliasQueueFull);
        }
    }
}

#[cfg(test)]
#[path = "alias_messages_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "alias_waits_tests.rs"]
mod waits_tests;
