//! The state of sync with a peer.

use std::collections::BTreeMap;

use engine::{Peer, Role};
use flow::{DeferralCounters, Timestamp};
use serde::{Deserialize, Serialize};
use sync::{Agreement, Inflow, Mismatch, Outflow, Presence, Progress};

use crate::SCHEMA;

/// State sync with a peer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sync {
    /// Schema version.
    pub schema: u32,
    /// `active` or `standby`.
    pub role: String,
    /// The part of the peer, as it has told it.
    pub peer_role: Option<String>,
    /// The term of this node. If two connections clash, the one of the node with the higher
    /// term remains, or else the one of the node with the higher number.
    pub term: u32,
    /// The peer's number; `null` if it was never there.
    pub peer_node: Option<u16>,
    /// Its name.
    pub peer_name: Option<String>,
    /// `unknown`, `there` or `away`.
    pub presence: String,
    /// Milliseconds since the peer was heard, if it is away.
    pub silent_ms: Option<u64>,
    /// `unknown`, `together` or `apart`: whether both steer packets to the same buckets.
    pub agreement: String,
    /// In what the peers differ.
    pub differences: Vec<Difference>,
    /// Connections on their way to the peer.
    pub outflow: Flow,
    /// Connections that come from the peer.
    pub inflow: Flow,
    /// Age of the oldest change that the peer has not applied, in milliseconds; `null` while the peer
    /// lacks more than changes.
    pub staleness_ms: Option<f64>,
    /// Changes that the peer has not acknowledged.
    pub unacknowledged: u64,
    /// Connections here that the peer owns.
    pub copies: u64,
    /// Announcements of connections and elements of sets here that the peer owns.
    #[serde(default)]
    pub shared_copies: u64,
    /// Counts since the start.
    pub counters: BTreeMap<String, u64>,
}

/// In what two peers differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// The aspect.
    pub what: String,
    /// The value here; empty for a secret and what is no short text.
    pub here: String,
    /// The value at the peer.
    pub there: String,
}

/// One way of connections.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flow {
    /// `off`, `apart`, `asked`, `bulk` or `level`.
    pub state: String,
    /// Records of the bulk transfer so far.
    pub done: Option<u64>,
    /// About how many there will be.
    pub total: Option<u64>,
}

/// Another part for a gateway.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SetRole {
    /// `active` or `standby`.
    pub role: String,
}

impl SetRole {
    /// The role; `None` for another word.
    pub fn role(&self) -> Option<Role> {
        [Role::Active, Role::Standby].into_iter().find(|role| role.name() == self.role)
    }
}

impl Flow {
    fn new(state: &str, progress: Option<Progress>) -> Self {
        let (done, total) = (progress.map(|it| it.done), progress.map(|it| it.total));
        Self { state: state.to_owned(), done, total }
    }

    fn of_outflow(outflow: Outflow) -> Self {
        match outflow {
            Outflow::Unfollowed => Self::new("off", None),
            Outflow::Asked(_) => Self::new("asked", None),
            Outflow::Bulk(progress) => Self::new("bulk", Some(progress)),
            Outflow::Live(_) => Self::new("level", None),
        }
    }

    fn of_inflow(inflow: Inflow) -> Self {
        match inflow {
            Inflow::Off => Self::new("off", None),
            Inflow::Apart => Self::new("apart", None),
            Inflow::Asked(_) => Self::new("asked", None),
            Inflow::Filling(progress) => Self::new("bulk", Some(progress)),
            Inflow::Level(_) => Self::new("level", None),
        }
    }
}

impl Sync {
    /// The state of a peer. `deferral` has the counts of all workers.
    pub fn new(peer: &Peer, deferral: &DeferralCounters, now: Timestamp) -> Self {
        let status = peer.status(now);
        let (presence, silent) = match status.presence {
            Presence::Unknown => ("unknown", None),
            Presence::There => ("there", None),
            Presence::Away(silent) => ("away", Some(silent.as_millis() as u64)),
        };
        let (agreement, found) = match &status.agreement {
            Agreement::Unknown => ("unknown", &[][..]),
            Agreement::Together(found) => ("together", &found[..]),
            Agreement::Apart(found) => ("apart", &found[..]),
        };
        let difference = |it: &Mismatch| Difference {
            what: it.aspect.name().to_owned(),
            here: it.here.clone(),
            there: it.there.clone(),
        };
        Self {
            schema: SCHEMA,
            role: peer.role().name().to_owned(),
            peer_role: peer.peer_role().map(|role| role.name().to_owned()),
            term: peer.term(),
            peer_node: status.peer.as_ref().map(|it| it.node.0.get()),
            peer_name: status.peer.as_ref().map(|it| it.name.to_string()),
            presence: presence.to_owned(),
            silent_ms: silent,
            agreement: agreement.to_owned(),
            differences: found.iter().map(difference).collect(),
            outflow: Flow::of_outflow(status.outflow),
            inflow: Flow::of_inflow(status.inflow),
            staleness_ms: status.staleness.map(|it| it.as_secs_f64() * 1000.0),
            unacknowledged: status.unacknowledged_records,
            copies: peer.copies() as u64,
            shared_copies: peer.shared_copies() as u64,
            counters: counters(peer, &status, deferral),
        }
    }
}

fn counters(
    peer: &Peer,
    status: &sync::Status,
    deferral: &DeferralCounters,
) -> BTreeMap<String, u64> {
    let (copies, supply, session) =
        (peer.copy_counters(), peer.supply_counters(), &status.counters);
    let mut all: BTreeMap<String, u64> = [
        ("copies_made", copies.made),
        ("copies_changed", copies.changed),
        ("copies_ended", copies.ended),
        ("news_of_own_connections", copies.news),
        ("clashes_lost", copies.clashes_lost),
        ("clashes_won", copies.clashes_won),
        ("records_stale", copies.stale),
        ("records_malformed", copies.malformed),
        ("records_too_long", supply.too_long),
        ("lost_ends", supply.lost_ends),
        ("shared_made", copies.shared.made),
        ("shared_changed", copies.shared.changed),
        ("shared_ended", copies.shared.ended),
        ("shared_news", copies.shared.news),
        ("shared_stale", copies.shared.stale),
        ("shared_malformed", copies.shared.malformed),
        ("shared_clashes_lost", copies.shared.clashes_lost),
        ("shared_clashes_won", copies.shared.clashes_won),
        ("deferred_packets", deferral.deferred),
        ("deferred_acknowledged", deferral.acknowledged),
        ("deferred_timed_out", deferral.timed_out),
        ("not_deferred", deferral.not_deferred),
        ("sent_datagrams", session.sent_datagrams),
        ("received_datagrams", session.received_datagrams),
        ("sent_frames", session.sent_frames),
        ("resent_frames", session.resent_frames),
        ("sent_records", session.sent_records),
        ("received_records", session.received_records),
        ("forgotten_queues", session.forgotten_queues),
        ("bulks_sent", session.bulks_sent),
        ("bulks_received", session.bulks_received),
    ]
    .map(|(name, count)| (name.to_owned(), count))
    .into();
    for (refusal, count) in &copies.refused {
        all.insert(format!("copies_refused_{}", refusal.name()), *count);
    }
    for (refusal, count) in &copies.shared.refused {
        all.insert(format!("shared_refused_{}", refusal.name()), *count);
    }
    all
}
