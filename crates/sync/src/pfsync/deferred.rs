//! Packets that wait until a peer has their state.

use std::collections::VecDeque;
use std::time::Duration;

use flow::Timestamp;

use super::identity::StateId;

/// Longest time for which a packet waits for an INS_ACK.
pub const DEFER_TIME: Duration = Duration::from_millis(20);
/// Most states with packets that wait. One more lets the oldest go.
pub const DEFERRED_MAX: usize = 128;

/// States whose first packets wait.
#[derive(Debug, Default)]
pub(super) struct Deferred(VecDeque<(Timestamp, StateId)>);

impl Deferred {
    /// A state's packet waits from now on. Returns the one that goes instead, if there are too many.
    pub fn hold(&mut self, now: Timestamp, id: StateId) -> Option<StateId> {
        let oldest = match self.0.len() {
            DEFERRED_MAX.. => self.0.pop_front(),
            _ => None,
        };
        self.0.push_back((now.after(DEFER_TIME), id));
        oldest.map(|(_, id)| id)
    }

    /// Ends the wait of one state. `false` if it did not wait.
    pub fn release(&mut self, id: StateId) -> bool {
        let place = self.0.iter().position(|(_, held)| *held == id);
        place.is_some_and(|place| self.0.remove(place).is_some())
    }

    /// Ends the wait of a state whose time is over.
    pub fn pop_due(&mut self, now: Timestamp) -> Option<StateId> {
        self.0.pop_front_if(|(until, _)| *until <= now).map(|(_, id)| id)
    }

    /// When the first wait is over.
    pub fn next(&self) -> Option<Timestamp> {
        self.0.front().map(|(until, _)| *until)
    }
}
