//! Events of connections and of expectations, for subscribers.
//!
//! Each worker has a bounded ring to each subscriber. When a subscriber does not keep up, events
//! are lost and counted; packets never wait.
//!
//! # Order
//!
//! A bucket that moves leaves events of the same connection in the rings of several workers. So
//! each worker stamps its events with a clock that counts events. A bucket takes the reading of
//! its old owner's clock to the new owner, and the new owner sets its own clock no lower (Lamport,
//! "Time, Clocks, and the Ordering of Events in a Distributed System", 1978). So the stamps of one
//! connection grow, even if several workers report its events.
//!
//! The bucket itself travels through a ring. So when a reader sees an event of the new owner, all
//! events of the old owner are in their ring already. The reader therefore looks at every ring
//! once more before it sorts the events that it has found.
//!
//! Expectations have one table with one lock. The table stamps their events, and the reader sorts
//! all of them by these stamps.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use conntrack::{Event, EventSink, ExpectationEvent, ExpectationSink};
use flow::FlowKey;
use rtrb::{Consumer, Producer, RingBuffer};
use steer::WorkerId;

/// An event that is reported to subscribers.
pub trait Reported: Clone {
    /// Events with one subject are read in the order of their stamps.
    type Subject: Copy + Eq + Hash;

    /// The subject of this event.
    fn subject(&self) -> Self::Subject;
}

impl Reported for Event {
    type Subject = FlowKey;

    fn subject(&self) -> FlowKey {
        self.connection.key
    }
}

impl Reported for ExpectationEvent {
    type Subject = ();

    fn subject(&self) {}
}

/// An event as it lies in a ring.
#[derive(Debug)]
struct Stamped<E> {
    /// The worker's clock, or the stamp of the table of expectations.
    stamp: u64,
    /// Events that this ring had lost before this one, since its start.
    lost_before: u64,
    event: E,
}

/// The end of an event ring that a worker holds.
#[derive(Debug)]
pub struct EventSender<E> {
    ring: Producer<Stamped<E>>,
    /// Events that were lost. Only the worker writes it, and only when it loses an event.
    lost: Arc<AtomicU64>,
}

/// The subscribers of one worker.
#[derive(Debug)]
pub struct Subscribers<E> {
    senders: Vec<EventSender<E>>,
    clock: u64,
}

impl<E> Default for Subscribers<E> {
    fn default() -> Self {
        Self { senders: Vec::new(), clock: 0 }
    }
}

impl<E: Reported> Subscribers<E> {
    /// Adds a subscriber.
    pub fn add(&mut self, sender: EventSender<E>) {
        self.senders.push(sender);
    }

    fn send(&mut self, stamp: u64, event: &E) {
        self.senders.retain_mut(|EventSender { ring, lost }| {
            if ring.is_abandoned() {
                return false;
            }
            let lost_before = lost.load(Ordering::Relaxed);
            if ring.push(Stamped { stamp, lost_before, event: event.clone() }).is_err() {
                lost.store(lost_before + 1, Ordering::Relaxed);
            }
            true
        });
    }
}

impl Subscribers<ExpectationEvent> {
    /// The sink for events of tracking; `None` when nobody listens.
    pub fn sink(&mut self) -> Option<&mut dyn ExpectationSink> {
        if self.senders.is_empty() { None } else { Some(self) }
    }
}

impl Subscribers<Event> {
    /// The sink for events of tracking; `None` when nobody listens.
    pub fn sink(&mut self) -> Option<&mut dyn EventSink> {
        if self.senders.is_empty() { None } else { Some(self) }
    }

    /// The reading of the clock, which a bucket takes along when it leaves the worker.
    pub fn clock(&self) -> u64 {
        self.clock
    }

    /// Sets the clock no lower than that of the worker from which a bucket comes.
    pub fn advance_clock(&mut self, to: u64) {
        self.clock = self.clock.max(to);
    }
}

impl EventSink for Subscribers<Event> {
    fn event(&mut self, event: Event) {
        self.clock += 1;
        self.send(self.clock, &event);
    }
}

impl ExpectationSink for Subscribers<ExpectationEvent> {
    fn expectation(&mut self, stamp: u64, event: ExpectationEvent) {
        self.send(stamp, &event);
    }
}

/// The coordinator's end of a subscription. It connects workers that come later.
#[derive(Debug)]
pub struct Subscription<E> {
    joining: Weak<Mutex<Vec<Source<E>>>>,
    capacity: usize,
}

impl<E> Subscription<E> {
    /// Creates a subscription whose rings hold `capacity` events each, and its reader.
    pub fn new(capacity: usize) -> (Self, EventStream<E>) {
        let joining = Arc::default();
        let subscription = Self { joining: Arc::downgrade(&joining), capacity };
        (subscription, EventStream { joining, ..EventStream::default() })
    }

    /// True while the reader exists.
    pub fn is_read(&self) -> bool {
        self.joining.strong_count() > 0
    }

    /// Connects one more worker and returns its end of the ring; `None` when the reader has gone.
    /// The worker may own no bucket before.
    pub fn connect(&self, worker: WorkerId) -> Option<EventSender<E>> {
        let joining = self.joining.upgrade()?;
        let (producer, ring) = RingBuffer::new(self.capacity);
        let lost = Arc::new(AtomicU64::new(0));
        lock(&joining).push(Source { worker, ring, lost: lost.clone(), reported: 0 });
        Some(EventSender { ring: producer, lost })
    }
}

/// Locks the list. A panic of another thread does no harm: the list is whole between any two
/// steps.
fn lock<E>(sources: &Mutex<Vec<Source<E>>>) -> MutexGuard<'_, Vec<Source<E>>> {
    sources.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A subscription to the events of all workers, including workers that come later.
#[derive(Debug)]
pub struct EventStream<E = Event> {
    sources: Vec<Source<E>>,
    /// The rings of workers that were added since the last look at the rings.
    joining: Arc<Mutex<Vec<Source<E>>>>,
    /// Events in the order in which they are to be read.
    ready: VecDeque<Taken<E>>,
    /// Events that may have to wait for earlier events.
    held: Vec<Taken<E>>,
    sequence: u64,
    /// Losses of workers that have left and that no event has reported yet.
    lost_at_end: u64,
}

impl<E> Default for EventStream<E> {
    fn default() -> Self {
        Self {
            sources: Vec::new(),
            joining: Arc::default(),
            ready: VecDeque::new(),
            held: Vec::new(),
            sequence: 0,
            lost_at_end: 0,
        }
    }
}

#[derive(Debug)]
struct Source<E> {
    worker: WorkerId,
    ring: Consumer<Stamped<E>>,
    lost: Arc<AtomicU64>,
    reported: u64,
}

/// An event that was taken out of a ring.
#[derive(Debug)]
struct Taken<E> {
    stamp: u64,
    worker: WorkerId,
    lost: u64,
    event: E,
}

impl<E> Source<E> {
    /// Takes the events that are in the ring now.
    fn drain(&mut self, into: &mut Vec<Taken<E>>) {
        // A busy worker fills the ring meanwhile, so this does not go on until it is empty.
        for _ in 0..self.ring.slots() {
            let Ok(Stamped { stamp, lost_before, event }) = self.ring.pop() else { return };
            let lost = lost_before - self.reported;
            self.reported = lost_before;
            into.push(Taken { stamp, worker: self.worker, lost, event });
        }
    }
}

/// An entry of an event stream.
#[derive(Clone, Debug)]
pub struct NumberedEvent<E = Event> {
    /// The position in this stream, from 0, without gaps. The events of one connection come in the
    /// order in which they happened, also while its bucket moves between workers.
    pub sequence: u64,
    /// The worker that reported it.
    pub worker: WorkerId,
    /// Events of that worker that were lost just before this one, because the reader was too slow.
    /// The last losses of workers that have left are added.
    pub lost: u64,
    /// The event.
    pub event: E,
}

/// How long the reader pauses when all rings are empty.
const PAUSE: Duration = Duration::from_millis(2);

impl<E: Reported> EventStream<E> {
    /// The next event that has already happened.
    pub fn try_next(&mut self) -> Option<NumberedEvent<E>> {
        if self.ready.is_empty() {
            let mut found = std::mem::take(&mut self.held);
            self.drain(&mut found);
            if !found.is_empty() {
                let mut late = Vec::new();
                self.drain(&mut late);
                self.put_in_order(found, late);
            }
        }
        let Taken { worker, lost, event, .. } = self.ready.pop_front()?;
        let lost = lost + std::mem::take(&mut self.lost_at_end);
        let sequence = self.sequence;
        self.sequence += 1;
        Some(NumberedEvent { sequence, worker, lost, event })
    }

    /// The next event; `None` when none happened within `timeout`.
    pub fn next_within(&mut self, timeout: Duration) -> Option<NumberedEvent<E>> {
        let pauses = timeout.as_micros() / PAUSE.as_micros();
        for _ in 0..pauses {
            if let Some(event) = self.try_next() {
                return Some(event);
            }
            std::thread::sleep(PAUSE);
        }
        self.try_next()
    }

    /// Takes the events that are in the rings now, and removes the rings of workers that have
    /// left.
    fn drain(&mut self, into: &mut Vec<Taken<E>>) {
        self.sources.append(&mut lock(&self.joining));
        let lost_at_end = &mut self.lost_at_end;
        self.sources.retain_mut(|source| {
            // This comes first: if the worker has left, its last events are in the ring by now.
            let has_left = source.ring.is_abandoned();
            source.drain(into);
            if has_left {
                *lost_at_end += source.lost.load(Ordering::Relaxed) - source.reported;
            }
            !has_left
        });
    }

    /// Sorts `found` and makes it ready to be read. `late` has the events that were in the rings
    /// afterwards. Those of them that precede an event of `found` are made ready too, and the
    /// others are held back.
    fn put_in_order(&mut self, mut found: Vec<Taken<E>>, late: Vec<Taken<E>>) {
        if !late.is_empty() {
            let mut newest: HashMap<E::Subject, u64> = HashMap::new();
            for Taken { stamp, event, .. } in &found {
                let newest = newest.entry(event.subject()).or_default();
                *newest = (*newest).max(*stamp);
            }
            // Events that precede the other late ones may still be missing.
            let precedes = |taken: &Taken<E>| {
                newest.get(&taken.event.subject()).is_some_and(|&newest| taken.stamp < newest)
            };
            for taken in late {
                if precedes(&taken) { found.push(taken) } else { self.held.push(taken) }
            }
        }
        found.sort_by_key(|taken| taken.stamp);
        self.ready.extend(found);
    }
}

#[cfg(test)]
#[path = "events_tests.rs"]
mod tests;
