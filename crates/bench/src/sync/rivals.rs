//! The ways in which pf hands changes of states to pfsync: a central lock, a lock-free ring before
//! that (the experiment of 2018), and buckets with a lock each (its sequel).
//!
//! Each packet tells the sync code that its state has changed, and the sync code finds out whether the
//! peer has to hear of it. Here the worker finds that out beforehand, so a rival does the least that
//! its design allows: one shared operation for each packet. Records, encryption and socket are those of
//! the gateway.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use conntrack::Change;

use crate::spin::Spin;

/// The worker's end.
pub trait ChangeSink: Send {
    /// A packet has changed the state of a connection; `change` is there if the peer has to hear of
    /// it.
    fn note(&mut self, flow: u32, change: Option<Change>);
}

/// The end of the sync thread.
pub trait ChangeSource: Send {
    /// Takes changes, at most so many. True if there may be more.
    fn take(&mut self, most: usize, each: &mut dyn FnMut(Change)) -> bool;
}

/// A part of the states, with its lock.
#[derive(Debug, Default)]
struct Part {
    updates: u64,
    changes: VecDeque<Change>,
}

/// All parts; one part is the central lock.
#[derive(Clone)]
pub struct Locked(Arc<[Spin<Part>]>);

impl Locked {
    /// So many parts.
    pub fn new(parts: usize) -> Self {
        Self((0..parts).map(|_| Spin::new(Part::default())).collect())
    }
}

impl ChangeSink for Locked {
    fn note(&mut self, flow: u32, change: Option<Change>) {
        let mut part = self.0[flow as usize % self.0.len()].lock();
        part.updates += 1;
        part.changes.extend(change);
    }
}

impl ChangeSource for Locked {
    fn take(&mut self, most: usize, each: &mut dyn FnMut(Change)) -> bool {
        let mut left = most;
        for part in &*self.0 {
            let mut part = part.lock();
            let count = part.changes.len().min(left);
            part.changes.drain(..count).for_each(&mut *each);
            left -= count;
            if left == 0 {
                return true;
            }
        }
        false
    }
}

/// Slots of the ring.
const SLOTS: usize = 1 << 16;
/// Updates that the sync thread takes from the ring in one go.
const UPDATES_AT_ONCE: usize = 1 << 14;

struct Ring {
    /// The number of the next slot to be written, and of the next one to be read. Each has a cache
    /// line of its own.
    written: Alone,
    read: Alone,
    /// The number of a state plus one; 0 while the slot is empty.
    slots: Box<[AtomicU64]>,
    /// The changes that updates in the ring refer to.
    changes: Spin<VecDeque<Change>>,
}

#[repr(align(128))]
#[derive(Default)]
struct Alone(AtomicU64);

/// A ring that all workers write to.
#[derive(Clone)]
pub struct RingSink(Arc<Ring>);

/// Its other end.
pub struct RingSource {
    ring: Arc<Ring>,
    /// The number of updates of each state, which pfsync counts.
    updates: Vec<u32>,
}

/// A ring for the states of so many flows.
pub fn ring(flows: u32) -> (RingSink, RingSource) {
    let slots = (0..SLOTS).map(|_| AtomicU64::new(0)).collect();
    let (written, read) = (Alone::default(), Alone::default());
    let ring = Arc::new(Ring { written, read, slots, changes: Spin::new(VecDeque::new()) });
    (RingSink(ring.clone()), RingSource { ring, updates: vec![0; flows as usize] })
}

impl ChangeSink for RingSink {
    fn note(&mut self, flow: u32, change: Option<Change>) {
        let Ring { written, read, slots, changes } = &*self.0;
        if let Some(change) = change {
            changes.lock().push_back(change);
        }
        let mut at = written.0.load(Ordering::Relaxed);
        loop {
            // An update that finds the ring full is lost: its change is safe. The reader may have
            // passed `at` since it was read; then the exchange fails.
            if at.saturating_sub(read.0.load(Ordering::Acquire)) >= SLOTS as u64 {
                return;
            }
            match written.0.compare_exchange_weak(at, at + 1, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => break,
                Err(other) => at = other,
            }
        }
        slots[at as usize % SLOTS].store(u64::from(flow) + 1, Ordering::Release);
    }
}

impl ChangeSource for RingSource {
    fn take(&mut self, most: usize, each: &mut dyn FnMut(Change)) -> bool {
        let Ring { read, slots, changes, .. } = &*self.ring;
        let mut at = read.0.load(Ordering::Relaxed);
        let mut taken = 0;
        while taken < UPDATES_AT_ONCE {
            let slot = &slots[at as usize % SLOTS];
            let Some(flow) = slot.load(Ordering::Acquire).checked_sub(1) else { break };
            slot.store(0, Ordering::Relaxed);
            if let Some(updates) = self.updates.get_mut(flow as usize) {
                *updates = updates.wrapping_add(1);
            }
            (at, taken) = (at + 1, taken + 1);
            read.0.store(at, Ordering::Release);
        }
        let mut changes = changes.lock();
        let count = changes.len().min(most);
        changes.drain(..count).for_each(&mut *each);
        taken == UPDATES_AT_ONCE || !changes.is_empty()
    }
}
