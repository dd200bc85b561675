//! Departures and arrivals of buckets, with all that the worker keeps for them elsewhere.
//!
//! A bucket leaves at the end of a turn, when everything of it that this worker had in hand has
//! left. A bucket that has sent packets or messages to other workers is flushed first: see
//! [`crate::path::alias_messages`].

use flow::Timestamp;
use steer::BucketId;

use crate::egress::router::Router;
use crate::path::PacketPath;
use crate::path::bucket::Bucket;
use crate::path::packet::{Item, Kept};
use crate::rings::ownership::{Departure, Move};

impl PacketPath {
    /// Gives the worker a bucket before it starts.
    pub(crate) fn install(&mut self, bucket: BucketId, mut content: Box<Bucket>) {
        self.tracking.count_in(bucket, &mut content);
        self.buckets.install(bucket, content);
    }

    /// Moves buckets to other owners, or waits for buckets of others.
    pub(crate) fn switch(&mut self, moves: Vec<Move>, now: Timestamp) {
        self.remove_aliases();
        for order in moves {
            if let Some(departure) = self.buckets.switch(order) {
                self.depart(departure);
            }
        }
        self.send_deferred_of_leaving(now);
    }

    /// Takes a fence for a bucket that leaves.
    pub(super) fn take_fence(&mut self, bucket: BucketId) {
        self.remove_aliases();
        if let Some(departure) = self.buckets.fence(bucket) {
            self.depart(departure);
        }
    }

    /// Has a bucket leave at the end of the turn.
    fn depart(&mut self, mut departure: Departure<Box<Bucket>>) {
        self.tracking.forget_table(departure.bucket);
        // From here on nobody looks through its connections for addresses that are gone.
        departure.content.left_under = self.forwarder.router().map(Router::routing_now);
        self.buckets.depart(departure);
    }

    /// Takes in a bucket that another worker gave away.
    pub(super) fn take_bucket(
        &mut self,
        bucket: BucketId,
        mut content: Box<Bucket>,
        now: Timestamp,
    ) {
        if let Some(parcel) = content.datagrams.take() {
            self.unpack_datagrams(parcel, now);
        }
        let unsent = std::mem::take(&mut content.unsent);
        let Self { forwarder, pool, counters, .. } = self;
        forwarder.take_over_unsent(unsent, now.as_nanos(), pool, counters);
        self.drop_refused();
        self.tracking.count_in(bucket, &mut content);
        if let Some(before) = content.left_under.take() {
            self.end_masquerades_of(&mut content, &before, now);
        }
        self.tracking.advance_event_clock(content.event_clock);
        self.learn_promises(content.promises.drain(..));
        for kept in self.buckets.arrive(bucket, content) {
            match kept {
                Kept::Packet(packet) => self.take_packet(packet, now),
                Kept::Message(message) => {
                    self.process_batch(now);
                    self.take_message(bucket, message, now);
                }
            }
        }
        self.process_batch(now);
    }

    /// Sends off the buckets that leave, with all that this worker keeps for them.
    pub(super) fn send_departures(&mut self, now: Timestamp) {
        // Only now has everything of a departing bucket left this worker.
        while let Some(departure) = self.buckets.next_departure() {
            let Departure { bucket, to, mut content } = departure;
            content.datagrams = self.pack_datagrams(bucket);
            content.unsent = self.forwarder.take_unsent(bucket);
            self.tracking.count_out(&content);
            content.event_clock = self.tracking.event_clock();
            content.promises = self.syn_proxy.promises(now);
            match self.buckets.link(to.index()) {
                Some(link) => link.stage(Item::Bucket(bucket, content)),
                None => debug_assert!(false, "a bucket was ordered to a worker without rings"),
            }
        }
    }
}
