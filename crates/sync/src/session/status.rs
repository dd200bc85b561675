//! The view of a session that an operator gets.

use std::time::Duration;

use flow::Timestamp;

use super::Session;
use crate::bulk::{Inflow, Outflow};
use crate::likeness::Mismatch;
use crate::node::{NodeId, NodeName};
use crate::refusal::Refusals;

/// Counts since the session began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Datagrams sent, of all kinds.
    pub sent_datagrams: u64,
    /// Datagrams of the peer that were accepted.
    pub received_datagrams: u64,
    /// Frames sent, repetitions included.
    pub sent_frames: u64,
    /// Frames sent again.
    pub resent_frames: u64,
    /// Frames that arrived again.
    pub repeated_frames: u64,
    /// Records taken in from the owner.
    pub sent_records: u64,
    /// Records given to the owner.
    pub received_records: u64,
    /// Records that arrived while none were wanted.
    pub unwanted_records: u64,
    /// Messages that were out of place, and changed nothing.
    pub out_of_place: u64,
    /// How often a full queue was given up because the peer was away or acknowledged nothing.
    pub forgotten_queues: u64,
    /// Records in queues that were given up, or left behind for a bulk transfer.
    pub forgotten_records: u64,
    /// Changes that the owner could not keep.
    pub lost_changes: u64,
    /// Bulk transfers that were sent whole.
    pub bulks_sent: u64,
    /// Bulk transfers that were received whole.
    pub bulks_received: u64,
    /// Bulk transfers that ended with another number of records than their sender counts. Each is
    /// asked for again.
    pub bulks_incomplete: u64,
    /// Keys that came into force.
    pub keys_agreed: u64,
}

/// Presence of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It never was.
    Unknown,
    /// It is.
    There,
    /// It has been silent for so long.
    Away(Duration),
}

/// The result of the comparison of the peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Agreement {
    /// They have not been compared.
    Unknown,
    /// They agree about buckets; the differences deserve a warning.
    Together(Vec<Mismatch>),
    /// They do not, because of some of these differences.
    Apart(Vec<Mismatch>),
}

/// The peer's number and name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerStatus {
    /// Its number.
    pub node: NodeId,
    /// Its name.
    pub name: NodeName,
}

/// The state of a session for `sync status`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The peer, once it was there.
    pub peer: Option<PeerStatus>,
    /// Its presence.
    pub presence: Presence,
    /// Its likeness to this node.
    pub agreement: Agreement,
    /// The way to the peer, with the progress of a bulk transfer.
    pub outflow: Outflow,
    /// The way from it.
    pub inflow: Inflow,
    /// Age of the oldest change that this session has taken in and the peer's owner has not, as far
    /// as this node knows. Zero if there is none. `None` if the peer lacks more than such changes:
    /// nobody follows, a bulk transfer has not arrived whole, or the owner has lost a change.
    pub staleness: Option<Duration>,
    /// The number of such changes: a connection may have several.
    pub unacknowledged_records: u64,
    /// Memory of frames that wait to be acknowledged, bytes.
    pub queue_bytes: usize,
    /// Memory of frames that wait for one before them, bytes.
    pub held_bytes: usize,
    /// Counts.
    pub counters: Counters,
    /// Datagrams that were refused.
    pub refusals: Refusals,
}

impl Session {
    /// The state of the session.
    pub fn status(&self, now: Timestamp) -> Status {
        let silence = self.heard.map(|heard| now.since(heard));
        let agreement = match &self.compared {
            None => Agreement::Unknown,
            Some((_, found)) if self.is_together() => Agreement::Together(found.clone()),
            Some((_, found)) => Agreement::Apart(found.clone()),
        };
        let peer = self.peer.as_ref();
        Status {
            peer: peer.map(|it| PeerStatus { node: it.node, name: it.name.clone() }),
            presence: match silence {
                None => Presence::Unknown,
                Some(silence) if self.is_away(now) => Presence::Away(silence),
                Some(_) => Presence::There,
            },
            agreement,
            outflow: self.outflow,
            inflow: self.inflow,
            staleness: self
                .is_level()
                .then(|| self.outbox.oldest().map_or(Duration::ZERO, |since| now.since(since))),
            unacknowledged_records: self.outbox.records(),
            queue_bytes: self.outbox.bytes(),
            held_bytes: self.inbox.bytes(),
            counters: Counters {
                resent_frames: self.outbox.resent(),
                repeated_frames: self.inbox.repeated(),
                ..self.counters
            },
            refusals: self.refusals.clone(),
        }
    }
}
