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
use crate::path::records::{RecordImport, importing, interfaces_of};
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

impl ChangeSender {
    /// The time since which changes are wanted.
    pub fn since(&self) -> Timestamp {
        self.since
    }

    /// True if nobody reads any more.
    pub fn is_abandoned(&self) -> bool {
        self.lots.is_abandoned()
    }

    /// True while the ring has no room.
    pub fn is_full(&self) -> bool {
        self.lots.is_full()
    }

    /// Sends changes, as many as there is room and time for. `next` shows up to so many changes of
    /// one more table and says whether some of its ends were lost; `None`: no table has changes.
    pub fn send_from(&mut self, mut next: impl FnMut(usize, &mut Vec<Change>) -> Option<bool>) {
        let (mut left, mut is_over) = (CHANGES_A_TURN, false);
        while left > 0 && !is_over && !self.is_full() {
            let changes = self.spare.pop().unwrap_or_else(|_| Vec::with_capacity(LOT));
            let mut lot = Lot { changes, has_lost: false };
            // Most tables have one change or two, so a lot has those of several.
            while left > 0 && lot.changes.len() < LOT {
                let before = lot.changes.len();
                let Some(has_lost) = next(LOT - before, &mut lot.changes) else {
                    is_over = true;
                    break;
                };
                lot.has_lost |= has_lost;
                left = left.saturating_sub((lot.changes.len() - before).max(1));
            }
            if !lot.changes.is_empty() || lot.has_lost {
                // The ring has room, and nobody else writes to it.
                let _ = self.lots.push(lot);
            }
        }
    }
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
    /// Records of connections that were not made, with the reasons.
    pub refused: Vec<(Box<ConnectionRecord>, ImportRefusal)>,
    /// Changes that this worker could not make now. They come back, for another try.
    pub back: Vec<(BucketId, CopyChange)>,
}

/// The result of a state of a copy.
enum SetCopy {
    /// The copy was made.
    Made,
    /// The copy has this state now.
    Changed,
    /// There is no copy.
    Refused(ImportRefusal),
    /// The worker can not make it now. Another try may succeed.
    Later,
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

    /// Sets whether copies of a peer's connections stay when their time is over, and a bridge forwards
    /// nothing.
    pub(crate) fn set_stands_by(&mut self, stands_by: bool) {
        self.tracking.replication_mut().set_stands_by(stands_by);
        self.forwarder.set_stands_by(stands_by);
    }

    /// Begins a turn in which changes are collected, if anybody wants them.
    pub(super) fn begin_replication(&mut self, now: Timestamp) {
        let followed = self.change_sender.as_ref().map(|sender| now.since(sender.since));
        self.tracking.replication_mut().begin_turn(followed);
    }

    /// Sends what the peer has to hear of. True if there is more, for which the ring has room.
    pub(super) fn send_changes(&mut self, now: Timestamp) -> bool {
        if !self.tracking.replication().has_tables() {
            return false;
        }
        let Some(sender) = &mut self.change_sender else { return false };
        if sender.is_abandoned() {
            self.set_change_sender(None, now);
            return false;
        }
        let Self { buckets, tracking, forwarder, counters, .. } = self;
        sender.send_from(|budget, changes| {
            loop {
                let place = tracking.replication_mut().next_table()?;
                // The bucket may have left.
                let Some(bucket) = buckets.get_mut(BucketId(place)) else { continue };
                let interfaces = interfaces_of(forwarder);
                let mut context = tracking.context(now, counters);
                let push = |change| changes.push(change);
                return Some(bucket.connections.take_changes(
                    budget,
                    interfaces,
                    &mut context,
                    push,
                ));
            }
        });
        !sender.is_full() && self.tracking.replication().has_tables()
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
            if self.buckets.get(bucket).is_none() || !self.buckets.have_room_for_news() {
                lot.back.push((bucket, change));
                continue;
            }
            match change {
                CopyChange::End(original) => {
                    lot.ended += u64::from(self.end_copy(bucket, &original, now))
                }
                CopyChange::State(record) => match self.set_copy(bucket, &record, now) {
                    SetCopy::Made => lot.made += 1,
                    SetCopy::Changed => lot.changed += 1,
                    SetCopy::Refused(refusal) => lot.refused.push((record, refusal)),
                    SetCopy::Later => lot.back.push((bucket, CopyChange::State(record))),
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

    /// Gives a copy this state, or makes it.
    fn set_copy(&mut self, bucket: BucketId, record: &ConnectionRecord, now: Timestamp) -> SetCopy {
        let hash = self.hasher.table_hash(&record.original().key);
        let epoch = self.tracking.zones().map_epoch(record.zones().named());
        let Self { buckets, hasher, tracking, forwarder, counters, .. } = self;
        let Some(content) = buckets.get_mut(bucket) else { return SetCopy::Later };
        let key_hash = |key: &flow::FlowKey| hasher.table_hash(key);
        let importing = importing(&key_hash, forwarder, epoch, false);
        let mut context = tracking.context_of(Some(record.zones().named()), now, counters);
        if let Ok(id) = content.connections.amend(record, importing, &mut context) {
            content.connections.set_copy(id);
            return SetCopy::Changed;
        }
        // It may have other replies now, because it was translated anew.
        content.connections.end_original(&record.original(), hash, &mut context);
        let id = match self.import_one(bucket, record, (epoch, false), now) {
            RecordImport::Made(id) => id,
            RecordImport::Refused(refusal) => return SetCopy::Refused(refusal),
            RecordImport::Later => return SetCopy::Later,
        };
        if let Some(content) = self.buckets.get_mut(bucket) {
            content.connections.set_copy(id);
        }
        SetCopy::Made
    }
}
