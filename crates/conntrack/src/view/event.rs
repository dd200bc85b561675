//! Events of connections and of expectations.

use super::{Connection, Expected};

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// A connection was opened.
    New,
    /// Its state or status changed: first reply, protocol state, assured, mark.
    Update,
    /// It ended.
    Destroy,
}

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The kind.
    pub kind: EventKind,
    /// The connection after the event; for `Destroy` as it was at the end.
    pub connection: Connection,
}

/// Receives events. It is called on the packet path, so it must not wait: it keeps or drops the
/// event.
pub trait EventSink {
    /// Receives one event.
    fn event(&mut self, event: Event);
}

/// An event of an expectation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpectationEvent {
    /// [`EventKind::New`] for an announcement. [`EventKind::Destroy`] when the expected
    /// connection has come, its timeout has passed, or the announcement was withdrawn or
    /// replaced. There are no updates.
    pub kind: EventKind,
    /// The expectation with its remaining time.
    pub expected: Expected,
}

/// Receives events of expectations. It is called under their lock, so it must not wait: it
/// keeps or drops the event.
pub trait ExpectationSink {
    /// Receives one event. Stamps grow from event to event, whichever worker reports.
    fn expectation(&mut self, stamp: u64, event: ExpectationEvent);
}

impl ExpectationSink for Vec<(u64, ExpectationEvent)> {
    fn expectation(&mut self, stamp: u64, event: ExpectationEvent) {
        self.push((stamp, event));
    }
}

impl EventSink for Vec<Event> {
    fn event(&mut self, event: Event) {
        self.push(event);
    }
}
