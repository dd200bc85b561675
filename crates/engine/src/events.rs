//! Connection events for subscribers.
//!
//! Each worker has a bounded ring of its own to each subscriber. When a
//! subscriber does not keep up, events are lost and counted; packets never wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use conntrack::{Event, EventSink};
use rtrb::{Consumer, Producer, RingBuffer};
use steer::WorkerId;

/// The end of an event ring that a worker holds.
#[derive(Debug)]
pub struct EventSender {
    ring: Producer<Event>,
    lost: Arc<AtomicU64>,
}

/// A worker's subscribers.
#[derive(Debug, Default)]
pub struct Subscribers {
    senders: Vec<EventSender>,
}

impl Subscribers {
    /// Adds one.
    pub fn add(&mut self, sender: EventSender) {
        self.senders.push(sender);
    }

    /// Where tracking puts events; `None` when nobody listens.
    pub fn sink(&mut self) -> Option<&mut dyn EventSink> {
        if self.senders.is_empty() { None } else { Some(self) }
    }
}

impl EventSink for Subscribers {
    fn event(&mut self, event: Event) {
        self.senders.retain_mut(|sender| {
            if sender.ring.is_abandoned() {
                return false;
            }
            if sender.ring.push(event.clone()).is_err() {
                // Only this worker writes the count; the subscriber reads it.
                sender.lost.fetch_add(1, Ordering::Relaxed);
            }
            true
        });
    }
}

/// A subscription to the events of all workers.
#[derive(Debug)]
pub struct EventStream {
    sources: Vec<Source>,
    next: usize,
    sequence: u64,
}

#[derive(Debug)]
struct Source {
    worker: WorkerId,
    ring: Consumer<Event>,
    lost: Arc<AtomicU64>,
    reported: u64,
}

/// An entry of an event stream.
#[derive(Clone, Debug)]
pub struct NumberedEvent {
    /// Position in this stream, from 0, without gaps. The order of events of one
    /// connection is the order in which they happened.
    pub sequence: u64,
    /// The worker that reported it.
    pub worker: WorkerId,
    /// Events of that worker that were lost just before this one, because the
    /// reader was too slow.
    pub lost: u64,
    /// The event.
    pub event: Event,
}

/// How long the reader pauses when all rings are empty.
const PAUSE: Duration = Duration::from_millis(2);

impl EventStream {
    /// A stream without sources.
    pub(crate) fn new() -> Self {
        Self { sources: Vec::new(), next: 0, sequence: 0 }
    }

    /// Adds a worker, whose ring holds `capacity` events, and returns its end.
    pub(crate) fn add_source(&mut self, worker: WorkerId, capacity: usize) -> EventSender {
        let (producer, ring) = RingBuffer::new(capacity);
        let lost = Arc::new(AtomicU64::new(0));
        self.sources.push(Source { worker, ring, lost: lost.clone(), reported: 0 });
        EventSender { ring: producer, lost }
    }

    /// The next event that has already happened.
    pub fn try_next(&mut self) -> Option<NumberedEvent> {
        for _ in 0..self.sources.len() {
            let at = self.next % self.sources.len();
            self.next = at + 1;
            let source = &mut self.sources[at];
            if let Ok(event) = source.ring.pop() {
                let lost_in_all = source.lost.load(Ordering::Relaxed);
                let lost = lost_in_all - source.reported;
                source.reported = lost_in_all;
                let sequence = self.sequence;
                self.sequence += 1;
                return Some(NumberedEvent { sequence, worker: source.worker, lost, event });
            }
        }
        None
    }

    /// The next event, or `None` when none happened within `timeout`.
    pub fn next_within(&mut self, timeout: Duration) -> Option<NumberedEvent> {
        let pauses = timeout.as_micros() / PAUSE.as_micros();
        for _ in 0..pauses {
            if let Some(event) = self.try_next() {
                return Some(event);
            }
            std::thread::sleep(PAUSE);
        }
        self.try_next()
    }
}
