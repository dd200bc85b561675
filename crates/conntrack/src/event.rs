//! What happens to connections, for whoever listens.

use crate::{Connection, Expected};

/// What happened.
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
    /// What happened.
    pub kind: EventKind,
    /// The connection as it is after that, and for `Destroy` as it was at the end.
    pub connection: Connection,
}

/// Takes events. It is called on the packet path: keep or drop, do not wait.
pub trait EventSink {
    /// Takes one event.
    fn event(&mut self, event: Event);
}

/// What happened to a connection that is expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpectationEvent {
    /// [`EventKind::New`] when it is announced, [`EventKind::Destroy`] when it has come, its
    /// time is over, it was withdrawn, or another took its place. It does not change.
    pub kind: EventKind,
    /// What is or was expected, with the time that is left.
    pub expected: Expected,
}

/// Takes events of expectations. It is called under their lock: keep or drop, do not wait.
pub trait ExpectationSink {
    /// Takes one event. Stamps grow, whichever worker reports.
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
