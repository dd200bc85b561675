//! The rings through which workers tell another thread of changes of connections.
//!
//! The coordinator makes one stream and connects each worker to it, also those that come later.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use conntrack::Change;
use flow::Timestamp;
use rtrb::{Consumer, Producer, RingBuffer};

use crate::path::deferred::{Awaited, Deferrals, Receipt};
use crate::rings::link::Wakeup;

/// Changes that go through the ring in one piece at most.
const LOT: usize = 64;
/// Pieces that the ring of a worker holds.
const LOTS: usize = 64;
/// Slots of dirty lists that a worker looks at in one turn, so that packets wait no longer than for
/// a few batches.
const CHANGES_A_TURN: usize = 256;
/// Some changes of one worker.
#[derive(Debug, Default)]
pub struct Lot {
    /// The changes.
    pub changes: Vec<Change>,
    /// The worker has lost ends of connections, so the peer needs all connections once more.
    pub has_lost: bool,
    /// To be given back when the peer has these changes and all before them: packets wait for that.
    pub receipt: Option<Receipt>,
}

/// The end of a ring of changes that a worker holds.
pub struct ChangeSender {
    since: Timestamp,
    is_exact: bool,
    lots: Producer<Lot>,
    /// Memory that comes back.
    spare: Consumer<Vec<Change>>,
    /// First packets of connections that wait for the peer, until the worker takes this.
    deferrals: Option<Box<Deferrals>>,
}

impl ChangeSender {
    /// The time since which changes are wanted.
    pub fn since(&self) -> Timestamp {
        self.since
    }

    /// True if every packet of a connection is a change.
    pub fn is_exact(&self) -> bool {
        self.is_exact
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
            let mut lot = Lot { changes: self.memory(), has_lost: false, receipt: None };
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

    /// The packets that wait for the peer, if any are to; the worker takes this once.
    pub(super) fn take_deferrals(&mut self) -> Option<Box<Deferrals>> {
        self.deferrals.take()
    }

    /// Sends a receipt behind all changes. False if there is no room.
    pub(super) fn send_receipt(&mut self, receipt: Receipt) -> bool {
        if self.is_full() {
            return false;
        }
        let changes = self.memory();
        self.lots.push(Lot { changes, has_lost: false, receipt: Some(receipt) }).is_ok()
    }

    fn memory(&mut self) -> Vec<Change> {
        self.spare.pop().unwrap_or_else(|_| Vec::with_capacity(LOT))
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
    /// Every packet of a connection is a change.
    is_exact: bool,
    joining: Weak<Mutex<Vec<Source>>>,
    /// The longest time that packets wait for the reader, if they do.
    defers: Option<Duration>,
    awaited: Awaited,
}

impl ChangeTap {
    /// Creates a stream of changes, which is read from now on. No worker is connected to it.
    pub fn new(now: Timestamp) -> (Self, ChangeStream) {
        let (joining, awaited) = (Arc::default(), Awaited::default());
        let awaits = awaited.clone();
        let joins = Arc::downgrade(&joining);
        let tap = Self { since: now, is_exact: false, joining: joins, defers: None, awaited };
        (tap, ChangeStream { sources: Vec::new(), joining, awaited: awaits })
    }

    /// The same stream, in which every packet of a connection is a change: when all changes were taken,
    /// nothing differs at the reader.
    #[must_use]
    pub fn exact(self) -> Self {
        Self { is_exact: true, ..self }
    }

    /// Has first packets of connections wait until the reader gives receipts back, or for so long at
    /// most; `None`: they do not wait. It holds for workers that are connected from now on.
    pub fn set_defers(&mut self, limit: Option<Duration>) {
        self.defers = limit;
    }

    /// Connects one more worker and returns its end of the ring; `None` when nobody reads.
    pub fn connect(&self, wakeup: &Wakeup) -> Option<ChangeSender> {
        let joining = self.joining.upgrade()?;
        let (lots, received) = RingBuffer::new(LOTS);
        let (emptied, spare) = RingBuffer::new(LOTS);
        lock(&joining).push(Source { lots: received, spare: emptied, wakeup: wakeup.clone() });
        let deferrals = |limit| Deferrals::new(limit, self.awaited.clone(), wakeup.clone());
        let deferrals = self.defers.map(|limit| Box::new(deferrals(limit)));
        let Self { since, is_exact, .. } = *self;
        Some(ChangeSender { since, is_exact, lots, spare, deferrals })
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
    awaited: Awaited,
}

impl ChangeStream {
    /// Sets whether packets wait for the peer, if they do at all.
    pub fn set_awaited(&self, is_awaited: bool) {
        self.awaited.set(is_awaited);
    }

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
