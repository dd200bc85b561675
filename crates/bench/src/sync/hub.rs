//! The connections of the sending node, as state sync asks for them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use conntrack::Cursor;
use engine::{
    ChangeSender, ChangeStream, ChangeTap, Connections, CopyChange, CopyReport, Passed,
    ReplicationPiece, Unresponsive, Wakeup,
};
use flow::PortPart;
use steer::{BucketCount, BucketId, WorkerId};

use super::clock::NodeClock;

/// The time after which a lane without an answer counts as stuck.
const PATIENCE: Duration = Duration::from_secs(60);

/// Something that state sync asks a lane to do.
pub enum Request {
    /// Send changes to this reader from now on, or to none.
    Send(Option<Box<ChangeSender>>),
    /// Tell all connections of a piece of a bucket.
    Tell(BucketId, Cursor, Sender<ReplicationPiece>),
}

/// The requests for one lane.
#[derive(Default)]
pub struct Mailbox {
    is_full: AtomicBool,
    requests: Mutex<Vec<Request>>,
    /// The lane has no changes that wait.
    pub is_clear: AtomicBool,
    /// Connections of the lane, for the progress of a bulk transfer.
    pub connections: AtomicU64,
}

/// Locks what is whole between any two steps, so that a panic of another thread does no harm.
fn lock<T>(content: &Mutex<T>) -> MutexGuard<'_, T> {
    content.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Mailbox {
    fn put(&self, request: Request) {
        lock(&self.requests).push(request);
        self.is_clear.store(false, Ordering::Relaxed);
        self.is_full.store(true, Ordering::Release);
    }

    /// The requests since the last call.
    pub fn take(&self) -> Vec<Request> {
        match self.is_full.swap(false, Ordering::Acquire) {
            true => std::mem::take(&mut lock(&self.requests)),
            false => Vec::new(),
        }
    }
}

/// How changes get from the lanes to the sync thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Each lane sends its own.
    Lanes,
    /// The sync thread takes them from a rival's queue.
    Rival,
}

/// The lanes of a node.
pub struct Hub {
    clock: Arc<NodeClock>,
    way: Way,
    /// One for each lane.
    pub mailboxes: Vec<Arc<Mailbox>>,
    /// For what comes from a rival's queue.
    feed: Mutex<Option<ChangeSender>>,
    wakeup: Wakeup,
}

impl Hub {
    /// The hub of so many lanes.
    pub fn new(clock: Arc<NodeClock>, way: Way, lanes: usize) -> std::io::Result<Self> {
        let mailboxes = (0..lanes).map(|_| Arc::default()).collect();
        let wakeup = Wakeup::new(netio::Waker::new()?);
        Ok(Self { clock, way, mailboxes, feed: Mutex::new(None), wakeup })
    }

    /// The ring for what comes from a rival's queue, while the peer follows.
    pub fn feed(&self) -> MutexGuard<'_, Option<ChangeSender>> {
        lock(&self.feed)
    }

    /// True if no lane has changes that wait.
    pub fn is_clear(&self) -> bool {
        self.mailboxes.iter().all(|mailbox| mailbox.is_clear.load(Ordering::Acquire))
    }
}

impl Connections for Hub {
    fn follow_changes(&self) -> Result<ChangeStream, Unresponsive> {
        let (tap, stream) = ChangeTap::new(self.clock.now());
        match self.way {
            Way::Lanes => {
                for mailbox in &self.mailboxes {
                    mailbox.put(Request::Send(tap.connect(&self.wakeup).map(Box::new)));
                }
            }
            Way::Rival => *self.feed() = tap.connect(&self.wakeup),
        }
        Ok(stream)
    }

    fn unfollow_changes(&self) -> Result<(), Unresponsive> {
        self.mailboxes.iter().for_each(|mailbox| mailbox.put(Request::Send(None)));
        *self.feed() = None;
        Ok(())
    }

    fn set_stands_by(&self, _: bool) -> Result<(), Unresponsive> {
        Ok(())
    }

    fn connection_count(&self) -> Result<u64, Unresponsive> {
        Ok(self.mailboxes.iter().map(|it| it.connections.load(Ordering::Relaxed)).sum())
    }

    fn tell_connections(
        &self,
        bucket: BucketId,
        from: Cursor,
    ) -> Result<Option<ReplicationPiece>, Unresponsive> {
        let buckets = BucketCount::DEFAULT.get();
        if bucket.index() >= buckets {
            return Ok(None);
        }
        let lane = bucket.index() * self.mailboxes.len() / buckets;
        let (answer, pieces) = mpsc::channel();
        self.mailboxes[lane].put(Request::Tell(bucket, from, answer));
        pieces.recv_timeout(PATIENCE).map(Some).map_err(|_| Unresponsive(WorkerId(lane as u16)))
    }

    fn change_copies(&self, _: Vec<CopyChange>) -> Result<CopyReport, Unresponsive> {
        Ok(CopyReport::default())
    }

    fn adopt_connections(&self, _: BucketId, _: Cursor) -> Result<Option<Passed>, Unresponsive> {
        Ok(None)
    }

    fn give_connections_away(
        &self,
        _: BucketId,
        _: Cursor,
    ) -> Result<Option<Passed>, Unresponsive> {
        Ok(None)
    }

    fn divide_ports(&self, _: PortPart) -> Result<(), Unresponsive> {
        Ok(())
    }
}
