//! Departures and arrivals of buckets.
//!
//! A bucket leaves at the end of a turn, when everything of it that this worker had in hand has
//! left. A bucket that has sent packets or messages to other workers is flushed first: see
//! [`crate::path::alias_messages`].

use flow::Timestamp;
use steer::BucketId;

use crate::BATCH;
use crate::path::bucket::Bucket;
use crate::path::packet::{Item, Kept};
use crate::rings::ownership::{Departure, Move, Switched};
use crate::worker::Worker;
use crate::worker::command::Notice;

/// A bucket that leaves after everything that was sent in its name has been processed.
pub struct Flushing {
    departure: Departure<Box<Bucket>>,
    /// Number of peers that have not confirmed this yet.
    missing: usize,
}

impl Worker {
    pub(crate) fn switch(&mut self, order: Move) {
        match self.path.ownership.switch(order) {
            Switched::SendFence => {
                if let Some(Some(link)) = self.path.links.get_mut(order.from.index()) {
                    link.stage(Item::Fence(order.bucket));
                }
            }
            Switched::Leaving => {}
            Switched::Departs(departure) => self.depart(departure),
        }
    }

    pub(crate) fn take_bucket(
        &mut self,
        bucket: BucketId,
        mut content: Box<Bucket>,
        now: Timestamp,
    ) {
        if let Some(parcel) = content.datagrams.take() {
            self.path.unpack_datagrams(parcel, now);
        }
        let unsent = std::mem::take(&mut content.unsent);
        self.path.with_router(|router, exits| {
            for (next, frame) in unsent {
                router.send_to(next, frame, now.as_nanos(), exits);
            }
        });
        self.path.tracking.adopt(bucket, &mut content);
        self.path.tracking.subscribers.advance_clock(content.event_clock);
        self.path.learn_promises(content.promises.drain(..));
        for kept in self.path.ownership.arrive(bucket, content) {
            match kept {
                Kept::Packet(packet) => {
                    self.path.batch.push(packet);
                    if self.path.batch.len() >= BATCH {
                        self.path.process_batch(now);
                    }
                }
                Kept::Message(message) => {
                    self.path.process_batch(now);
                    self.path.take_message(bucket, message, now);
                }
            }
        }
        self.path.process_batch(now);
        self.notify(Notice::Arrived(bucket));
    }

    /// Takes note of a bucket that leaves at the end of the turn.
    pub(crate) fn depart(&mut self, departure: Departure<Box<Bucket>>) {
        self.path.tracking.forget_table(departure.bucket);
        self.departures.push(departure);
    }

    /// Sends off the buckets that leave, with all that this worker keeps for them.
    pub(crate) fn send_departures(&mut self) {
        // Only now has everything of a departing bucket left this worker.
        while let Some(departure) = self.departures.pop() {
            let Some(departure) = self.flush_bucket(departure) else { continue };
            let Departure { bucket, to, mut content } = departure;
            content.datagrams = self.path.pack_datagrams(bucket);
            content.unsent =
                self.path.router.as_mut().map_or_else(Vec::new, |it| it.unsent(bucket));
            self.path.tracking.surrender(&content);
            content.event_clock = self.path.tracking.subscribers.clock();
            content.promises = self.path.syn_proxy.promises(self.path.now);
            match self.path.links.get_mut(to.index()) {
                Some(Some(link)) => link.stage(Item::Bucket(bucket, content)),
                _ => debug_assert!(false, "a bucket was ordered to a worker without rings"),
            }
        }
    }

    /// Asks every peer to say when it has processed everything that was sent in the name of a
    /// bucket that leaves. Returns the bucket if nothing was sent.
    pub(crate) fn flush_bucket(
        &mut self,
        mut departure: Departure<Box<Bucket>>,
    ) -> Option<Departure<Box<Bucket>>> {
        if !std::mem::take(&mut departure.content.has_spoken) {
            return Some(departure);
        }
        let mut missing = 0;
        for link in self.path.links.iter_mut().flatten() {
            link.stage(Item::Flush(departure.bucket));
            missing += 1;
        }
        self.flushing.push(Flushing { departure, missing });
        None
    }

    /// Notes that a peer has processed everything that was sent in the name of a bucket.
    pub(crate) fn flushed(&mut self, bucket: BucketId) {
        let found = self.flushing.iter().position(|it| it.departure.bucket == bucket);
        let Some(at) = found else {
            return debug_assert!(false, "{bucket} is not flushed");
        };
        self.flushing[at].missing -= 1;
        if self.flushing[at].missing == 0 {
            let Flushing { departure, .. } = self.flushing.swap_remove(at);
            self.departures.push(departure);
        }
    }
}
