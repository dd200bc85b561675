//! The owners of buckets, and how a bucket moves to another owner.
//!
//! Each worker has one [`Ownership`]: its own copy of the routes, and the buckets that it owns.
//! Nothing in it is shared. A move follows the rule of receive flow steering: a flow changes its
//! worker only after the old worker has processed every packet that was enqueued for it before.
//! Fences in the rings mark this point:
//!
//! 1. Every worker takes the same [`Move`] with [`Ownership::switch`]. Unless it is the old owner,
//!    it sends the old owner a fence behind all packets that it sent before.
//! 2. When the old owner has a fence from every worker ([`Ownership::fence`]), it has processed
//!    every packet that was sent to it, and gives the bucket away.
//! 3. The new owner keeps packets that arrive before the bucket does ([`Ownership::keep`]) and
//!    processes them first ([`Ownership::arrive`]).
//!
//! The type is generic over the bucket and the packet, so that the model checker runs the same
//! code as the gateway.

use steer::{BucketId, WorkerId};

/// A move of one bucket to another owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The bucket.
    pub bucket: BucketId,
    /// Its old owner.
    pub from: WorkerId,
    /// Its new owner, another worker.
    pub to: WorkerId,
    /// The number of workers, including the old and the new owner. Each of them accounts for one
    /// fence.
    pub workers: u16,
}

/// A bucket that its old owner gives away.
#[derive(Debug)]
pub struct Departure<B> {
    /// The bucket's number.
    pub bucket: BucketId,
    /// Its new owner.
    pub to: WorkerId,
    /// The bucket itself.
    pub content: B,
}

/// The consequence of a move for one worker.
#[derive(Debug)]
pub enum Switched<B> {
    /// Send the old owner a fence for the bucket.
    SendFence,
    /// This worker is the old owner, and fences of others are missing.
    Leaving,
    /// This worker is the old owner and may give the bucket away.
    Departs(Departure<B>),
}

#[derive(Debug)]
enum Slot<B, P> {
    Owned {
        content: B,
        /// Fences that arrived before this worker learned of the move.
        early_fences: u16,
    },
    Leaving {
        content: B,
        to: WorkerId,
        missing_fences: u16,
    },
    Awaited {
        kept: Vec<P>,
        weight: usize,
    },
    Elsewhere,
}

/// The routes and the owned buckets of one worker.
#[derive(Debug)]
pub struct Ownership<B, P> {
    me: WorkerId,
    routes: Vec<WorkerId>,
    slots: Vec<Slot<B, P>>,
    /// The weight of the packets that are kept for all buckets.
    kept: usize,
    keep_limit: usize,
}

impl<B, P> Ownership<B, P> {
    /// Creates the state of a worker that owns nothing yet. `routes` has the owner of each bucket,
    /// and `keep_limit` bounds the weight of packets that wait for buckets on their way.
    pub fn new(me: WorkerId, routes: Vec<WorkerId>, keep_limit: usize) -> Self {
        let slots = routes.iter().map(|_| Slot::Elsewhere).collect();
        Self { me, routes, slots, kept: 0, keep_limit }
    }

    /// Gives the worker a bucket at the start.
    pub fn install(&mut self, bucket: BucketId, content: B) {
        self.routes[bucket.index()] = self.me;
        self.slots[bucket.index()] = Slot::Owned { content, early_fences: 0 };
    }

    /// The worker that packets of a bucket are sent to.
    pub fn route(&self, bucket: BucketId) -> WorkerId {
        self.routes[bucket.index()]
    }

    /// The routes, by bucket.
    pub fn routes(&self) -> &[WorkerId] {
        &self.routes
    }

    /// Sets the limit on the weight of packets that wait for buckets on their way.
    pub fn set_keep_limit(&mut self, weight: usize) {
        self.keep_limit = weight;
    }

    /// Takes a move. The caller does this between two batches, when it holds no packet of the
    /// bucket.
    pub fn switch(&mut self, order: Move) -> Switched<B> {
        let index = order.bucket.index();
        self.routes[index] = order.to;
        if self.me == order.to && matches!(self.slots[index], Slot::Elsewhere) {
            self.slots[index] = Slot::Awaited { kept: Vec::new(), weight: 0 };
        }
        if self.me != order.from {
            return Switched::SendFence;
        }
        match std::mem::replace(&mut self.slots[index], Slot::Elsewhere) {
            Slot::Owned { content, early_fences } => {
                // This worker needs no fence from itself.
                let missing_fences = order.workers - 1 - early_fences;
                self.slots[index] = Slot::Leaving { content, to: order.to, missing_fences };
                match self.departure(order.bucket) {
                    Some(departure) => Switched::Departs(departure),
                    None => Switched::Leaving,
                }
            }
            other => {
                debug_assert!(
                    false,
                    "a move was ordered from a worker that does not own the bucket"
                );
                self.slots[index] = other;
                Switched::Leaving
            }
        }
    }

    /// Takes a fence from another worker. With the last fence the bucket departs.
    pub fn fence(&mut self, bucket: BucketId) -> Option<Departure<B>> {
        match &mut self.slots[bucket.index()] {
            Slot::Owned { early_fences, .. } => *early_fences += 1,
            Slot::Leaving { missing_fences, .. } => *missing_fences -= 1,
            Slot::Awaited { .. } | Slot::Elsewhere => {
                debug_assert!(false, "a fence reached a worker that does not own the bucket");
            }
        }
        self.departure(bucket)
    }

    fn departure(&mut self, bucket: BucketId) -> Option<Departure<B>> {
        let slot = &mut self.slots[bucket.index()];
        if !matches!(slot, Slot::Leaving { missing_fences: 0, .. }) {
            return None;
        }
        match std::mem::replace(slot, Slot::Elsewhere) {
            Slot::Leaving { content, to, .. } => Some(Departure { bucket, to, content }),
            // The slot was found to be leaving above.
            _ => None,
        }
    }

    /// Installs a bucket that another worker gave away. Returns the packets that waited for it, in
    /// the order of their arrival.
    pub fn arrive(&mut self, bucket: BucketId, content: B) -> Vec<P> {
        let slot = &mut self.slots[bucket.index()];
        match std::mem::replace(slot, Slot::Owned { content, early_fences: 0 }) {
            Slot::Awaited { kept, weight } => {
                self.kept -= weight;
                kept
            }
            Slot::Elsewhere => Vec::new(),
            Slot::Owned { .. } | Slot::Leaving { .. } => {
                debug_assert!(false, "a bucket arrived that was here already");
                Vec::new()
            }
        }
    }

    /// Keeps a packet whose bucket is not here. The bucket is on its way, and another worker may
    /// know that before this one. `weight` is how many packets it counts as. A packet of any
    /// weight may wait while the sum is below the limit.
    ///
    /// # Errors
    /// The packet, if no more may wait.
    pub fn keep(&mut self, bucket: BucketId, packet: P, weight: usize) -> Result<(), P> {
        let slot = &mut self.slots[bucket.index()];
        if matches!(slot, Slot::Elsewhere) {
            *slot = Slot::Awaited { kept: Vec::new(), weight: 0 };
        }
        match slot {
            Slot::Awaited { kept, weight: sum } if self.kept < self.keep_limit => {
                self.kept += weight;
                *sum += weight;
                kept.push(packet);
                Ok(())
            }
            _ => {
                debug_assert!(
                    self.get(bucket).is_none(),
                    "kept a packet for a bucket that is here"
                );
                Err(packet)
            }
        }
    }

    /// Keeps a message that must not be lost. It has no weight.
    pub fn keep_always(&mut self, bucket: BucketId, message: P) {
        let slot = &mut self.slots[bucket.index()];
        if matches!(slot, Slot::Elsewhere) {
            *slot = Slot::Awaited { kept: Vec::new(), weight: 0 };
        }
        match slot {
            Slot::Awaited { kept, .. } => kept.push(message),
            _ => debug_assert!(false, "kept a message for a bucket that is here"),
        }
    }

    /// The bucket, if it is here.
    pub fn get(&self, bucket: BucketId) -> Option<&B> {
        match &self.slots[bucket.index()] {
            Slot::Owned { content, .. } | Slot::Leaving { content, .. } => Some(content),
            Slot::Awaited { .. } | Slot::Elsewhere => None,
        }
    }

    /// The bucket, if it is here. The caller has to [keep](Ownership::keep) a packet whose bucket
    /// is not here.
    pub fn get_mut(&mut self, bucket: BucketId) -> Option<&mut B> {
        match &mut self.slots[bucket.index()] {
            Slot::Owned { content, .. } | Slot::Leaving { content, .. } => Some(content),
            Slot::Awaited { .. } | Slot::Elsewhere => None,
        }
    }

    /// The buckets that are here.
    pub fn owned(&self) -> impl Iterator<Item = (BucketId, &B)> {
        self.slots.iter().enumerate().filter_map(|(index, slot)| match slot {
            Slot::Owned { content, .. } | Slot::Leaving { content, .. } => {
                Some((BucketId(index as u16), content))
            }
            Slot::Awaited { .. } | Slot::Elsewhere => None,
        })
    }

    /// The buckets that are here, to be changed.
    pub fn owned_mut(&mut self) -> impl Iterator<Item = (BucketId, &mut B)> {
        (0..).map(BucketId).zip(&mut self.slots).filter_map(|(bucket, slot)| match slot {
            Slot::Owned { content, .. } | Slot::Leaving { content, .. } => Some((bucket, content)),
            Slot::Awaited { .. } | Slot::Elsewhere => None,
        })
    }
}

#[cfg(test)]
#[path = "ownership_tests.rs"]
mod tests;
