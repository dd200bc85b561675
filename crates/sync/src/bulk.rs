//! Bulk transfers as state machines: who follows, how far a transfer has come, and its rate.

use flow::Timestamp;

use crate::fault::Faults;
use crate::message::BulkId;

/// How far a bulk transfer has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Name of the transfer.
    pub bulk: BulkId,
    /// Records sent or received.
    pub done: u64,
    /// The estimate of the sender at the beginning.
    pub total: u64,
}

/// The way of connections from this node to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Outflow {
    /// Nothing: the peer has not asked, or must not get any.
    #[default]
    Unfollowed,
    /// Nothing yet: the peer has asked for a bulk transfer, and the owner has not begun it.
    Asked(BulkId),
    /// A bulk transfer, and changes meanwhile.
    Bulk(Progress),
    /// Changes.
    Live(BulkId),
}

/// Something that happens to an [`Outflow`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutflowInput {
    /// The peer asks for all connections.
    Follow(BulkId),
    /// The peer wants no more.
    Unfollow,
    /// The owner has begun to read its tables: about so many connections.
    Begin(u64),
    /// The owner has sent some records of the bulk.
    Sent(u64),
    /// The owner has read all.
    End,
    /// The peers are apart: not alike, or frames are forgotten, or one has restarted.
    Apart,
}

impl Outflow {
    /// The bulk transfer that the peer has asked for last.
    fn bulk(self) -> Option<BulkId> {
        match self {
            Self::Unfollowed => None,
            Self::Asked(bulk) | Self::Bulk(Progress { bulk, .. }) | Self::Live(bulk) => Some(bulk),
        }
    }

    /// The next state; `None` if the input is out of place.
    pub(crate) fn on(self, input: OutflowInput) -> Option<Self> {
        use OutflowInput::{Apart, Begin, End, Follow, Sent, Unfollow};
        Some(match (self, input) {
            // A question that was repeated.
            (same, Follow(bulk)) if same.bulk() == Some(bulk) => same,
            (_, Follow(bulk)) => Self::Asked(bulk),
            (_, Unfollow | Apart) => Self::Unfollowed,
            (Self::Asked(bulk), Begin(total)) => Self::Bulk(Progress { bulk, done: 0, total }),
            (Self::Bulk(progress), Sent(records)) => {
                Self::Bulk(Progress { done: progress.done + records, ..progress })
            }
            (Self::Bulk(Progress { bulk, .. }), End) => Self::Live(bulk),
            (Self::Unfollowed | Self::Bulk(_) | Self::Live(_), Begin(_))
            | (Self::Unfollowed | Self::Asked(_) | Self::Live(_), Sent(_) | End) => return None,
        })
    }
}

/// The way of connections from the peer to this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Inflow {
    /// Nothing, as the owner wants.
    #[default]
    Off,
    /// Nothing: the peers are apart.
    Apart,
    /// A bulk transfer is asked for. Changes of a sender that has not heard of that yet are taken
    /// in, since it takes them for delivered.
    Asked(BulkId),
    /// A bulk transfer, and changes meanwhile.
    Filling(Progress),
    /// Changes: this node has all that the peer has.
    Level(BulkId),
}

/// Something that happens to an [`Inflow`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InflowInput {
    /// The owner wants the peer's connections.
    Want,
    /// The owner wants no more.
    Stop,
    /// The peers are together; the number is for the transfer that is asked for.
    Together(BulkId),
    /// The peers are apart: not alike, or the peer has forgotten frames or restarted.
    Apart,
    /// A transfer begins, of about so many connections.
    Begin(BulkId, u64),
    /// Records of a transfer.
    Received(BulkId, u64),
    /// A transfer ends, in which so many records were sent.
    End(BulkId, u64),
}

impl Inflow {
    /// The next state; `None` if the input is out of place.
    pub(crate) fn on(self, input: InflowInput) -> Option<Self> {
        use InflowInput::{Apart, Begin, End, Received, Stop, Together, Want};
        Some(match (self, input) {
            (_, Stop) => Self::Off,
            (Self::Off, Want) => Self::Apart,
            (Self::Off, Apart) => Self::Off,
            (_, Want | Apart) => Self::Apart,
            (Self::Apart, Together(bulk)) => Self::Asked(bulk),
            (other, Together(_)) => other,
            (Self::Asked(asked), Begin(bulk, total)) if asked == bulk => {
                Self::Filling(Progress { bulk, done: 0, total })
            }
            (Self::Filling(progress), Received(bulk, records)) if progress.bulk == bulk => {
                Self::Filling(Progress { done: progress.done + records, ..progress })
            }
            (Self::Filling(Progress { bulk: asked, done, .. }), End(bulk, records))
                if asked == bulk =>
            {
                if done == records {
                    Self::Level(bulk)
                } else {
                    Self::Apart
                }
            }
            (
                Self::Off | Self::Apart | Self::Asked(_) | Self::Filling(_) | Self::Level(_),
                Begin(..) | Received(..) | End(..),
            ) => return None,
        })
    }

    /// True if changes of the peer are taken in.
    pub(crate) fn takes_changes(self, faults: Faults) -> bool {
        match self {
            Self::Asked(_) => !faults.drops_while_asking(),
            Self::Filling(_) | Self::Level(_) => true,
            Self::Off | Self::Apart => false,
        }
    }
}

/// Nanoseconds for which records that were not sent may be sent at once later.
const BURST_NANOS: u64 = 10_000_000;
/// Time between two turns of an owner that has sent all that it may.
const TURN_NANOS: u64 = 1_000_000;
const NANOS: u64 = 1_000_000_000;

/// The rate of a bulk transfer, in the form of an arrival time that each record moves on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    nanos_per_record: u64,
    /// When the next record may be sent.
    next: u64,
}

impl Pace {
    pub fn new(now: Timestamp, records_per_s: u32) -> Self {
        let nanos_per_record = NANOS / u64::from(records_per_s.max(1));
        Self { nanos_per_record: nanos_per_record.max(1), next: now.as_nanos() }
    }

    /// Records that may be sent now.
    pub fn allowed(&self, now: Timestamp) -> u64 {
        let spare = now.as_nanos().saturating_sub(self.next).min(BURST_NANOS);
        match self.next <= now.as_nanos() {
            true => spare / self.nanos_per_record + 1,
            false => 0,
        }
    }

    /// A record is sent.
    pub fn spend(&mut self, now: Timestamp) {
        let earliest = now.as_nanos().saturating_sub(BURST_NANOS);
        self.next = self.next.max(earliest).saturating_add(self.nanos_per_record);
    }

    /// When the next records are worth a turn of the owner.
    pub fn next_turn(&self) -> Timestamp {
        Timestamp::from_nanos(self.next.saturating_add(TURN_NANOS))
    }
}

#[cfg(test)]
#[path = "bulk_tests.rs"]
mod tests;
