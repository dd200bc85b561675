//! Bulk updates as state machines: the way of all states to a peer, and from one.
//!
//! Nothing in pfsync is acknowledged. So the gateway that sends says the end several times, and the
//! one that asks never waits for ever: it asks again, more and more slowly, and then goes on alone.

use std::time::Duration;

use flow::Timestamp;

use super::identity::StateId;

/// Time after the start of a bulk update for which a question is taken for the same one, sent again.
/// After a later one, another bulk update follows this one. So no peer keeps it from its end.
pub const BULK_REPEAT_INTERVAL: Duration = Duration::from_millis(500);
/// How often the end of a bulk update is said.
pub const BULK_ENDS: u8 = 3;
/// Time between two messages that say the end.
pub const BULK_END_INTERVAL: Duration = Duration::from_millis(100);
/// Time after which a gateway that has asked for a bulk update asks again. It doubles each time.
pub const BULK_ANSWER_TIME: Duration = Duration::from_secs(1);
/// Silence in a bulk update after which it is asked for again.
pub const BULK_SILENCE: Duration = Duration::from_secs(5);
/// Questions without a bulk update that is complete, after which a gateway goes on alone.
pub const BULK_ASKS_MAX: u8 = 5;
/// Time after the first question after which a gateway goes on alone in any case. States that still
/// arrive are taken in.
pub const BULK_TIME_MAX: Duration = Duration::from_secs(300);
/// Time after which a gateway that goes on alone asks again, if it hears a peer.
pub const BULK_ALONE_TIME: Duration = Duration::from_secs(60);
/// The end of a bulk update tells whole seconds since its start.
const ELAPSED_STEP: Duration = Duration::from_secs(1);

/// The way of all states to a peer that has asked for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum BulkOut {
    /// No peer has asked.
    #[default]
    Idle,
    /// States are queued.
    Queueing {
        /// When it has begun.
        begun: Timestamp,
        /// The last state that was queued.
        last: Option<StateId>,
        /// Another one follows.
        again: bool,
    },
    /// All are queued, and some wait to be sent.
    Draining {
        /// When it has begun.
        begun: Timestamp,
        /// Messages in places before this one belong to it.
        until: u64,
        /// Another one follows.
        again: bool,
    },
    /// All are sent, and the end is said.
    Ending {
        /// When it has begun.
        begun: Timestamp,
        /// How often it is still said.
        left: u8,
        /// When it is said next.
        next: Timestamp,
        /// Another one follows.
        again: bool,
    },
}

/// Something that happens to a [`BulkOut`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BulkOutInput {
    /// A peer asks for all states.
    Asked(Timestamp),
    /// A state is queued.
    Queued(StateId),
    /// All are queued, in places before this one.
    Through(u64),
    /// All are sent.
    Drained(Timestamp),
    /// The end is said.
    EndSaid(Timestamp),
}

impl BulkOut {
    const fn begin(now: Timestamp) -> Self {
        Self::Queueing { begun: now, last: None, again: false }
    }

    /// The next state; `None` if the input is out of place.
    pub(super) fn on(self, input: BulkOutInput) -> Option<Self> {
        use BulkOutInput::{Asked, Drained, EndSaid, Queued, Through};
        Some(match (self, input) {
            (Self::Idle, Asked(now)) => Self::begin(now),
            (mut running, Asked(now)) => {
                if let Self::Queueing { begun, again, .. }
                | Self::Draining { begun, again, .. }
                | Self::Ending { begun, again, .. } = &mut running
                {
                    *again |= now.since(*begun) >= BULK_REPEAT_INTERVAL;
                }
                running
            }
            (Self::Queueing { begun, again, .. }, Queued(id)) => {
                Self::Queueing { begun, last: Some(id), again }
            }
            (Self::Queueing { begun, again, .. }, Through(until)) => {
                Self::Draining { begun, until, again }
            }
            (Self::Draining { begun, again, .. }, Drained(now)) => {
                Self::Ending { begun, left: BULK_ENDS, next: now, again }
            }
            (Self::Ending { left: ..=1, again: true, .. }, EndSaid(now)) => Self::begin(now),
            (Self::Ending { left: ..=1, .. }, EndSaid(_)) => Self::Idle,
            (Self::Ending { begun, left, again, .. }, EndSaid(now)) => {
                let next = now.after(BULK_END_INTERVAL);
                Self::Ending { begun, left: left - 1, next, again }
            }
            (Self::Idle | Self::Draining { .. } | Self::Ending { .. }, Queued(_) | Through(_))
            | (Self::Idle | Self::Queueing { .. } | Self::Ending { .. }, Drained(_))
            | (Self::Idle | Self::Queueing { .. } | Self::Draining { .. }, EndSaid(_)) => {
                return None;
            }
        })
    }
}

/// The way of all states from a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum BulkIn {
    /// This gateway has not asked.
    #[default]
    Off,
    /// It has asked.
    Asking {
        /// When it has asked for the first time.
        first: Timestamp,
        /// The number of this question, from 1 on.
        attempt: u8,
        /// When it has asked.
        asked: Timestamp,
        /// When it asks again.
        until: Timestamp,
    },
    /// A bulk update has begun.
    Filling {
        /// When it has asked for the first time.
        first: Timestamp,
        /// The number of the question.
        attempt: u8,
        /// When the question was sent.
        asked: Timestamp,
        /// When it asks again, unless a state arrives.
        until: Timestamp,
    },
    /// A bulk update is complete.
    Level,
    /// Nobody has completed one. This gateway goes on without.
    Alone {
        /// When it asks again if it hears a peer.
        retry: Timestamp,
    },
}

/// Something that happens to a [`BulkIn`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BulkInInput {
    /// The owner wants all states.
    Want,
    /// Time has passed.
    Time,
    /// A peer is heard.
    Heard,
    /// A peer says that it begins.
    Start,
    /// A message has updated a whole state.
    State,
    /// A peer says that it has sent all in a transfer that has taken so long.
    End(Duration),
}

impl BulkIn {
    /// True if it waits for states of a peer. It never does so for ever.
    pub const fn is_waiting(self) -> bool {
        matches!(self, Self::Asking { .. } | Self::Filling { .. })
    }

    /// When it does something by itself.
    pub(super) const fn next(self) -> Option<Timestamp> {
        match self {
            Self::Asking { until, .. } | Self::Filling { until, .. } => Some(until),
            Self::Off | Self::Level | Self::Alone { .. } => None,
        }
    }

    fn ask(now: Timestamp, first: Timestamp, attempt: u8) -> Self {
        if attempt > BULK_ASKS_MAX || now.since(first) >= BULK_TIME_MAX {
            return Self::Alone { retry: now.after(BULK_ALONE_TIME) };
        }
        let patience = BULK_ANSWER_TIME * (1 << attempt.saturating_sub(1));
        Self::Asking { first, attempt, asked: now, until: now.after(patience) }
    }

    /// The next state. A question has to be sent if it is another [`BulkIn::Asking`].
    pub(super) fn on(self, now: Timestamp, input: BulkInInput) -> Self {
        use BulkInInput::{End, Heard, Start, State, Time, Want};
        match (self, input) {
            (_, Want) => Self::ask(now, now, 1),
            (
                Self::Asking { first, attempt, until, .. }
                | Self::Filling { first, attempt, until, .. },
                Time,
            ) if until <= now => Self::ask(now, first, attempt + 1),
            (Self::Alone { retry }, Heard) if retry <= now => Self::ask(now, now, 1),
            (
                Self::Asking { first, attempt, asked, .. }
                | Self::Filling { first, attempt, asked, .. },
                Start,
            )
            | (Self::Filling { first, attempt, asked, .. }, State) => {
                let until = now.after(BULK_SILENCE).min(first.after(BULK_TIME_MAX));
                Self::Filling { first, attempt, asked, until }
            }
            // The start may be lost. The end of a transfer for an earlier question does not count.
            (Self::Asking { asked, .. } | Self::Filling { asked, .. }, End(elapsed))
                if elapsed <= now.since(asked) + ELAPSED_STEP =>
            {
                Self::Level
            }
            (same, Time | Heard | Start | State | End(_)) => same,
        }
    }
}

#[cfg(test)]
#[path = "bulk_tests.rs"]
mod tests;
