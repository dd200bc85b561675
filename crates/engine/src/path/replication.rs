//! Changes of connections on their way to a peer, and connections of a peer that become copies here.
//!
//! A worker reads the dirty lists of its tables at the end of each turn and sends the states of the
//! connections through a ring. Another thread encodes and encrypts them. When the ring is full, the
//! connections stay on their lists, so a peer never holds a packet up.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use conntrack::{Change, ConnectionRecord, Cursor, ImportRefusal};
use flow::{KeyedPacket, Timestamp};
use rtrb::{Consumer, Producer, RingBuffer};
use steer::BucketId;

use crate::path::PacketPath;
use crate::path::records::{importing, interfaces_of};
use crate::rings::link::Wakeup;

/// Changes that go through the ring in one piece at most.
const LOT: usize = 64;
/// Pieces that the ring of a worker holds.
const LOTS: usize = 64;
/// Slots of dirty lists that a worker looks at in one turn, so that packets wait no longer than for
/// a few batches.
const CHANGES_A_TURN: usize = 256;
/// Places of a connection table that one question about all of its connections covers.
const PIECE: u32 = 256;

/// Some changes of one worker.
#[derive(Debug, Default)]
pub struct Lot {
    /// The changes.
    pub changes: Vec<Change>,
    /// The worker has lost ends of connections, so the peer needs all connections once more.
    pub has_lost: bool,
}

/// The end of a ring of changes that a worker holds.
pub struct ChangeSender {
    since: Timestamp,
    lots: Producer<Lot>,
    /// Memory that comes back.
    spare: Consumer<Vec<Change>>,
}

/// The other end.
struct Source {
    lots: Consumer<Lot>,
    spare: Producer<Vec<Change>>,
    wakeup: Wakeup,
}

/// The coordinator's end of a stream of changes. It connects workers that come later.
#[derive(Clone)]
pub struct ChangeTap {
    since: Timestamp,
    joining: Weak<Mutex<Vec<Source>>>,
}

impl ChangeTap {
    /// Creates a stream of changes, which is read from now on. No worker is connected to it.
    pub fn new(now: Timestamp) -> (Self, ChangeStream) {
        let joining = Arc::default();
        let tap = Self { since: now, joining: Arc::downgrade(&joining) };
        (tap, ChangeStream { sources: Vec::new(), joining })
    }

    /// Connects one more worker and returns its end of the ring; `None` when nobody reads.
    pub fn connect(&self, wakeup: &Wakeup) -> Option<ChangeSender> {
        let joining = self.joining.upgrade()?;
        let (lots, received) = RingBuffer::new(LOTS);
        let (emptied, spare) = RingBuffer::new(LOTS);
        lock(&joining).push(Source { lots: received, spare: emptied, wakeup: wakeup.clone() });
        Some(ChangeSender { since: self.since, lots, spare })
    }
}

/// Locks the list. A panic of another thread does no harm: the list is whole between any two steps.
fn lock(sources: &Mutex<Vec<Source>>) -> MutexGuard<'_, Vec<Source>> {
    sources.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The changes of all workers, including workers that come later.
pub struct ChangeStream {
    sources: Vec<Source>,
    joining: Arc<Mutex<Vec<Source>>>,
}

impl ChangeStream {
    /// Takes one lot of each worker that has one; `each` gets it, and its memory goes back
    /// afterwards. False if there was none.
    ///
    /// The order of the changes of one connection is that of their stamps: while its bucket moves,
    /// they are in the rings of two workers.
    pub fn take(&mut self, mut each: impl FnMut(&mut Lot)) -> bool {
        self.sources.append(&mut lock(&self.joining));
        let mut has_taken = false;
        self.sources.retain_mut(|Source { lots, spare, wakeup }| {
            // This comes first: if the worker has left, its last lots are in the ring by now.
            let has_left = lots.is_abandoned();
            let was_full = lots.slots() == LOTS;
            let Ok(mut lot) = lots.pop() else { return !has_left };
            has_taken = true;
            each(&mut lot);
            lot.changes.clear();
            // The worker allocates another one if there is no place for it.
            let _ = spare.push(lot.changes);
            if was_full {
                wakeup.ring();
            }
            true
        });
        has_taken
    }
}

/// A change of a copy of a peer's connection.
#[derive(Clone, Debug)]
pub enum CopyChange {
    /// It has this state.
    State(Box<ConnectionRecord>),
    /// It has ended.
    End(KeyedPacket),
}

impl CopyChange {
    /// Key and sender of the packets of the connection's originator.
    pub fn original(&self) -> KeyedPacket {
        match self {
            Self::State(record) => record.original(),
            Self::End(original) => *original,
        }
    }
}

/// The results for some changes of copies.
#[derive(Debug, Default)]
pub struct AppliedLot {
    /// Connections that were made.
    pub made: u64,
    /// Connections that got another state.
    pub changed: u64,
    /// Connections that were ended.
    pub ended: u64,
    /// Connections that were not made, with the reasons.
    pub refused: Vec<(KeyedPacket, ImportRefusal)>,
    /// Changes that this worker could not make now. They come back, for another try.
    pub back: Vec<(BucketId, CopyChange)>,
}

/// All connections of a piece of a bucket.
#[derive(Debug, Default)]
pub struct ToldPiece {
    /// Their states.
    pub changes: Vec<Change>,
    /// The start of the next piece; `None` if this was the last.
    pub rest: Option<Cursor>,
}

impl PacketPath {
    /// Sends changes of connections to this reader from now on, or to none.
    pub(crate) fn set_change_sender(&mut self, sender: Option<Box<ChangeSender>>, now: Timestamp) {
        self.change_sender = sender;
        self.begin_replication(now);
    }

    /// Whether copies of a peer's connections stay when their time is over, and a bridge forwards
    /// nothing.
    pub(crate) fn set_stands_by(&mut self, stands_by: bool) {
        self.tracking.replication.set_stands_by(stands_by);
        self.forwarder.set_stands_by(stands_by);
    }

    /// Begins a turn in which changes are collected, if anybody wants them.
    pub(super) fn begin_replication(&mut self, now: Timestamp) {
        let followed = self.change_sender.as_ref().map(|sender| now.since(sender.since));
        self.tracking.replication.begin_turn(followed);
    }

    /// Sends what the peer has to hear of. True if there is more, for which the ring has room.
    pub(super) fn send_changes(&mut self, now: Timestamp) -> bool {
        if !self.tracking.replication.has_tables() {
            return false;
        }
        let Some(sender) = &mut self.change_sender else { return false };
        if sender.lots.is_abandoned() {
            self.set_change_sender(None, now);
            return false;
        }
        let mut left = CHANGES_A_TURN;
        while left > 0 && !sender.lots.is_full() {
            let Some(place) = self.tracking.replication.next_table() else { return false };
            let Some(bucket) = self.buckets.get_mut(BucketId(place)) else { continue };
            let changes = sender.spare.pop().unwrap_or_else(|_| Vec::with_capacity(LOT));
            let mut lot = Lot { changes, has_lost: false };
            let interfaces = interfaces_of(&self.forwarder);
            let mut context = self.tracking.context(now, &mut self.counters);
            let push = |change| lot.changes.push(change);
            lot.has_lost = bucket.connections.take_changes(LOT, interfaces, &mut context, push);
            left = left.saturating_sub(lot.changes.len().max(1));
            if !lot.changes.is_empty() || lot.has_lost {
                // The ring has room, and nobody else writes to it.
                let _ = sender.lots.push(lot);
            }
        }
        !sender.lots.is_full() && self.tracking.replication.has_tables()
    }

    /// All connections of a piece of a bucket, of which a peer hears now; `None` if the bucket is
    /// not here.
    pub(crate) fn tell_all(
        &mut self,
        bucket: BucketId,
        from: Cursor,
        now: Timestamp,
    ) -> Option<ToldPiece> {
        let Self { buckets, tracking, forwarder, counters, .. } = self;
        let bucket = buckets.get_mut(bucket)?;
        let interfaces = interfaces_of(forwarder);
        let mut changes = Vec::new();
        let context = tracking.context(now, counters);
        let push = |change| changes.push(change);
        let rest = bucket.connections.tell_all_from(from, PIECE, interfaces, &context, push);
        Some(ToldPiece { changes, rest })
    }

    /// Makes changes of a peer's connections here, in their order.
    pub(crate) fn apply(
        &mut self,
        changes: Vec<(BucketId, CopyChange)>,
        now: Timestamp,
    ) -> AppliedLot {
        let mut lot = AppliedLot::default();
        for (bucket, change) in changes {
            // Aliases are told to other workers. Their rings have to have room.
            let is_here = self.buckets.get(bucket).is_some();
            if !is_here
                && self.tracking.settings().conntrack.faults.loses_records_of_moved_buckets()
            {
                continue;
            }
            if !is_here || !self.buckets.take_news() {
                lot.back.push((bucket, change));
                continue;
            }
            match change {
                CopyChange::End(original) => {
                    lot.ended += u64::from(self.end_copy(bucket, &original, now))
                }
                CopyChange::State(record) => match self.set_copy(bucket, &record, now) {
                    Ok(true) => lot.made += 1,
                    Ok(false) => lot.changed += 1,
                    Err(Some(refusal)) => lot.refused.push((record.original(), refusal)),
                    Err(None) => lot.back.push((bucket, CopyChange::State(record))),
                },
            }
            // It may have taken the place of others that have aliases.
            self.remove_aliases();
        }
        lot
    }

    /// True if there was such a connection.
    fn end_copy(&mut self, bucket: BucketId, original: &KeyedPacket, now: Timestamp) -> bool {
        let hash = self.hasher.table_hash(&original.key);
        let Self { buckets, tracking, counters, .. } = self;
        let Some(bucket) = buckets.get_mut(bucket) else { return false };
        let mut context = tracking.context(now, counters);
        bucket.connections.end_original(original, hash, &mut context)
    }

    /// True for a connection that was made, false for one that has another state now.
    fn set_copy(
        &mut self,
        bucket: BucketId,
        record: &ConnectionRecord,
        now: Timestamp,
    ) -> Result<bool, Option<ImportRefusal>> {
        let hash = self.hasher.table_hash(&record.original().key);
        let epoch = self.tracking.zones().map_epoch(record.zones().named());
        let Self { buckets, hasher, tracking, forwarder, counters, .. } = self;
        let Some(content) = buckets.get_mut(bucket) else { return Err(None) };
        let key_hash = |key: &flow::FlowKey| hasher.table_hash(key);
        let importing = importing(&key_hash, forwarder, epoch, false);
        let mut context = tracking.context_of(Some(record.zones().named()), now, counters);
        if let Ok(id) = content.connections.amend(record, importing, &mut context) {
            content.connections.set_copy(id);
            return Ok(false);
        }
        // It may have other replies now, because it was translated anew.
        content.connections.end_original(&record.original(), hash, &mut context);
        let id = self.import_one(bucket, record, (epoch, false), now)?;
        if let Some(content) = self.buckets.get_mut(bucket) {
            content.connections.set_copy(id);
        }
        Ok(true)
    }
}
