//! What happens to connections, for whoever listens.

use crate::Connection;

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

impl EventSink for Vec<Event> {
    fn event(&mut self, event: Event) {
        self.push(event);
    }
}
