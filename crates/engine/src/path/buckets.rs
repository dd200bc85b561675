//! The buckets of a worker, and its rings to the workers that have the others.

use steer::{BucketId, SteerSettings, WorkerId};

use crate::path::bucket::Bucket;
use crate::path::packet::{Item, Kept, Link};
use crate::rings::ownership::{Departure, Move, Ownership, Switched};

/// A bucket that leaves after everything that was sent in its name has been processed.
struct Flushing {
    departure: Departure<Box<Bucket>>,
    /// Number of peers that have not confirmed this yet.
    missing: usize,
}

/// The buckets that a worker owns, the owners of all others, and the rings to them.
pub struct Buckets {
    me: WorkerId,
    ownership: Ownership<Box<Bucket>, Kept>,
    /// The rings to and from each worker, by its number.
    links: Vec<Option<Box<Link>>>,
    /// Buckets that leave at the end of the turn.
    departures: Vec<Departure<Box<Bucket>>>,
    /// Buckets that leave when peers have processed what was sent in their name.
    flushing: Vec<Flushing>,
}

impl Buckets {
    /// The state of a worker without buckets and rings. `routes` has the owner of each bucket, and
    /// `keep_limit` bounds the packets that wait for buckets on their way.
    pub fn new(me: WorkerId, routes: Vec<WorkerId>, keep_limit: usize) -> Self {
        Self {
            me,
            ownership: Ownership::new(me, routes, keep_limit),
            links: Vec::new(),
            departures: Vec::new(),
            flushing: Vec::new(),
        }
    }

    /// The number of the worker.
    pub fn worker(&self) -> WorkerId {
        self.me
    }

    /// How many buckets the gateway has.
    pub fn count(&self) -> usize {
        self.ownership.routes().len()
    }

    /// Gives the worker a bucket at the start.
    pub fn install(&mut self, bucket: BucketId, content: Box<Bucket>) {
        self.ownership.install(bucket, content);
    }

    /// A bucket, if it is here.
    #[inline]
    pub fn get(&self, bucket: BucketId) -> Option<&Bucket> {
        self.ownership.get(bucket).map(|content| &**content)
    }

    /// A bucket, if it is here, to be changed.
    #[inline]
    pub fn get_mut(&mut self, bucket: BucketId) -> Option<&mut Bucket> {
        self.ownership.get_mut(bucket).map(|content| &mut **content)
    }

    /// The buckets that are here.
    pub fn owned(&self) -> impl Iterator<Item = (BucketId, &Bucket)> {
        self.ownership.owned().map(|(bucket, content)| (bucket, &**content))
    }

    /// The buckets that are here, to be changed.
    pub fn owned_mut(&mut self) -> impl Iterator<Item = &mut Bucket> {
        self.owned_by_id_mut().map(|(_, bucket)| bucket)
    }

    /// The same, each with its number.
    pub fn owned_by_id_mut(&mut self) -> impl Iterator<Item = (BucketId, &mut Bucket)> {
        self.ownership.owned_mut().map(|(id, content)| (id, &mut **content))
    }

    /// True if new packets of a bucket are for this worker.
    #[inline]
    pub fn is_routed_here(&self, bucket: BucketId) -> bool {
        self.ownership.route(bucket) == self.me
    }

    /// True for a bucket that is here or on its way here. A bucket that is about to leave is here.
    pub fn takes(&self, bucket: BucketId) -> bool {
        self.get(bucket).is_some() || self.is_routed_here(bucket)
    }

    /// Keeps a packet until its bucket arrives. `weight` is how many packets it counts as.
    ///
    /// # Errors
    /// The packet, if no more may wait.
    #[expect(clippy::result_large_err, reason = "the packet itself comes back")]
    pub fn keep(&mut self, bucket: BucketId, kept: Kept, weight: usize) -> Result<(), Kept> {
        self.ownership.keep(bucket, kept, weight)
    }

    /// Keeps a message until its bucket arrives. It is never refused.
    pub fn keep_always(&mut self, bucket: BucketId, message: Kept) {
        self.ownership.keep_always(bucket, message);
    }

    /// Sets how many packets may wait in rings and for buckets on their way.
    pub fn set_limits(&mut self, settings: &SteerSettings) {
        for (peer, link) in self.links.iter_mut().enumerate() {
            if let Some(link) = link {
                link.set_limits(settings.backlog_limits(WorkerId(peer as u16)));
            }
        }
        self.ownership.set_keep_limit(settings.netdev_max_backlog());
    }
}

/// The rings.
impl Buckets {
    /// Takes the rings to a worker, or gives them up.
    pub fn connect(&mut self, peer: WorkerId, link: Option<Box<Link>>) {
        if self.links.len() <= peer.index() {
            self.links.resize_with(peer.index() + 1, || None);
        }
        self.links[peer.index()] = link;
    }

    /// One more than the highest number of a peer.
    pub fn peers(&self) -> usize {
        self.links.len()
    }

    /// The rings to a peer.
    pub fn link(&mut self, peer: usize) -> Option<&mut Link> {
        self.links.get_mut(peer)?.as_deref_mut()
    }

    /// The rings to the worker that packets of a bucket are sent to. `None` if that has left, and
    /// its buckets before it.
    pub fn link_of(&mut self, bucket: BucketId) -> Option<&mut Link> {
        self.link(self.ownership.route(bucket).index())
    }

    /// Tells all peers something, and returns how many there are.
    pub fn tell_all(&mut self, item: impl Fn() -> Item) -> usize {
        let links = self.links.iter_mut().flatten();
        links.map(|link| link.stage(item())).count()
    }

    /// True if all rings have room for news that may be told later.
    pub fn have_room_for_news(&self) -> bool {
        self.links.iter().flatten().all(|link| link.has_room_for_news())
    }

    /// Publishes what is staged for peers.
    pub fn flush(&mut self) {
        for link in self.links.iter_mut().flatten() {
            link.flush();
        }
    }

    /// True if an item of a peer waits, or something staged has not found room.
    pub fn has_work(&self) -> bool {
        self.links.iter().flatten().any(|link| link.waiting() > 0 || link.has_staged())
    }

    /// Items of peers that wait.
    pub fn backlog(&self) -> u64 {
        self.links.iter().flatten().map(|link| link.waiting() as u64).sum()
    }
}

/// Moves. See [`crate::rings::ownership`] for the fences.
impl Buckets {
    /// Takes a move. Returns the bucket if it departs now.
    pub fn switch(&mut self, order: Move) -> Option<Departure<Box<Bucket>>> {
        match self.ownership.switch(order) {
            Switched::SendFence => {
                if let Some(link) = self.link(order.from.index()) {
                    link.stage(Item::Fence(order.bucket));
                }
                None
            }
            Switched::Leaving => None,
            Switched::Departs(departure) => Some(departure),
        }
    }

    /// Takes a fence. Returns the bucket if this was the last fence that it waited for.
    pub fn fence(&mut self, bucket: BucketId) -> Option<Departure<Box<Bucket>>> {
        self.ownership.fence(bucket)
    }

    /// Has a bucket leave at the end of the turn.
    pub fn depart(&mut self, departure: Departure<Box<Bucket>>) {
        self.departures.push(departure);
    }

    /// A bucket that leaves now.
    ///
    /// If a bucket has sent packets or messages to other workers, every peer is asked first to say
    /// when it has processed them: see [`crate::path::alias_messages`].
    pub fn next_departure(&mut self) -> Option<Departure<Box<Bucket>>> {
        while let Some(mut departure) = self.departures.pop() {
            if !std::mem::take(&mut departure.content.must_flush) {
                return Some(departure);
            }
            let bucket = departure.bucket;
            let missing = self.tell_all(|| Item::Flush(bucket));
            self.flushing.push(Flushing { departure, missing });
        }
        None
    }

    /// Notes that a peer has processed everything that was sent in the name of a bucket.
    pub fn flushed(&mut self, bucket: BucketId) {
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

    /// Takes in a bucket, and returns what was kept for it, in order.
    pub fn arrive(&mut self, bucket: BucketId, content: Box<Bucket>) -> Vec<Kept> {
        self.ownership.arrive(bucket, content)
    }
}
