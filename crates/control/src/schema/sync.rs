//! The state of sync with a peer.

use std::collections::BTreeMap;

use engine::{Peer, Pfsync, Role, StateSync};
use flow::{DeferralCounters, Timestamp};
use serde::{Deserialize, Serialize};
use sync::pfsync::{BulkIn, BulkOut, Refusal};
use sync::{Agreement, Inflow, Mismatch, Outflow, Presence, Progress};

use crate::SCHEMA;

/// State sync with a peer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sync {
    /// Schema version.
    pub schema: u32,
    /// `native` or `pfsync`.
    pub protocol: String,
    /// The version of pfsync: 1301, 1400, 1500 or 6.
    pub pfsync_version: Option<u16>,
    /// The number of this gateway among those that speak pfsync (`hostid`).
    pub hostid: Option<u32>,
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
    /// `unknown`, `there` or `away`. A peer that speaks pfsync is `silent` and never away, because it
    /// says nothing as long as it has nothing to tell.
    pub presence: String,
    /// Milliseconds since the peer was heard, if it is away or silent.
    pub silent_ms: Option<u64>,
    /// `unknown`, `together`, `apart`, or `not compared` with pfsync: whether both steer packets to the same buckets.
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
    /// `off`, `apart`, `asked`, `bulk` or `level`; with pfsync also `alone`, if no peer has answered.
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
    /// The state of sync. `deferral` has the counts of all workers.
    pub fn new(sync: &StateSync, deferral: &DeferralCounters, now: Timestamp) -> Self {
        match sync {
            StateSync::Native(peer) => Self::of_peer(peer, deferral, now),
            StateSync::Pfsync(pfsync) => Self::of_pfsync(pfsync, deferral, now),
        }
    }

    fn of_pfsync(pfsync: &Pfsync, deferral: &DeferralCounters, now: Timestamp) -> Self {
        let silent = pfsync.silent_for(now).map(|it| it.as_millis() as u64);
        let (presence, silent_ms) = match silent {
            None => ("unknown", None),
            Some(_) if pfsync.is_heard(now) => ("there", None),
            Some(_) => ("silent", silent),
        };
        let outflow = match pfsync.bulk_out() {
            BulkOut::Idle => "level",
            BulkOut::Queueing { .. } | BulkOut::Draining { .. } | BulkOut::Ending { .. } => "bulk",
        };
        let inflow = match pfsync.bulk_in() {
            BulkIn::Off => "off",
            BulkIn::Asking { .. } => "asked",
            BulkIn::Filling { .. } => "bulk",
            BulkIn::Level => "level",
            BulkIn::Alone { .. } => "alone",
        };
        Self {
            schema: SCHEMA,
            protocol: "pfsync".to_owned(),
            pfsync_version: Some(pfsync.dialect().number()),
            hostid: Some(pfsync.creator().get()),
            role: pfsync.role().name().to_owned(),
            peer_role: None,
            term: 0,
            peer_node: None,
            peer_name: None,
            presence: presence.to_owned(),
            silent_ms,
            agreement: "not compared".to_owned(),
            differences: Vec::new(),
            outflow: Flow::new(outflow, None),
            inflow: Flow::new(inflow, None),
            staleness_ms: None,
            unacknowledged: 0,
            copies: pfsync.copies() as u64,
            shared_copies: 0,
            counters: pfsync_counters(pfsync, deferral),
        }
    }

    fn of_peer(peer: &Peer, deferral: &DeferralCounters, now: Timestamp) -> Self {
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
            protocol: "native".to_owned(),
            pfsync_version: None,
            hostid: None,
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
    all.extend(deferral_counters(deferral));
    for (refusal, count) in &copies.refused {
        all.insert(format!("copies_refused_{}", refusal.name()), *count);
    }
    for (refusal, count) in &copies.shared.refused {
        all.insert(format!("shared_refused_{}", refusal.name()), *count);
    }
    all
}

fn deferral_counters(deferral: &DeferralCounters) -> [(String, u64); 4] {
    [
        ("deferred_packets", deferral.deferred),
        ("deferred_acknowledged", deferral.acknowledged),
        ("deferred_timed_out", deferral.timed_out),
        ("not_deferred", deferral.not_deferred),
    ]
    .map(|(name, count)| (name.to_owned(), count))
}

fn pfsync_counters(pfsync: &Pfsync, deferral: &DeferralCounters) -> BTreeMap<String, u64> {
    let (own, protocol, refusals) =
        (pfsync.counters(), pfsync.protocol_counters(), pfsync.refusals());
    let mut all: BTreeMap<String, u64> = [
        ("copies_made", own.made),
        ("copies_changed", own.changed),
        ("copies_ended", own.ended),
        ("clashes_lost", own.clashes_lost),
        ("clashes_won", own.clashes_won),
        ("changes_stale", own.stale),
        ("lost_ends", own.lost_ends),
        ("lost_packets", own.lost_packets),
        ("states_not_taken", own.not_taken),
        ("sent_packets", protocol.packets_sent),
        ("received_packets", protocol.packets_taken),
        ("packets_abandoned", protocol.abandoned),
        ("messages_skipped", protocol.skipped),
        ("messages_stale", protocol.stale),
        ("messages_of_ended_states", protocol.buried),
        ("messages_of_unknown_states", protocol.unknown),
        ("messages_of_other_connections", protocol.clashes),
        ("questions", protocol.requests),
        ("questions_omitted", protocol.requests_omitted),
        ("clears_omitted", protocol.clears_omitted),
        ("states_without_room", protocol.full),
        ("states_forgotten", protocol.forgotten),
        ("states_inexpressible", protocol.inexpressible),
        ("ends_refused", protocol.ends_refused),
        ("ends_retold", protocol.ends_retold),
    ]
    .map(|(name, count)| (name.to_owned(), count))
    .into();
    all.extend(deferral_counters(deferral));
    let mut count = |what: &str, reason: &str, count: u64| {
        all.insert(format!("{what}_{reason}"), count);
    };
    for refusal in Refusal::ALL.iter().filter(|it| refusals.of(**it) > 0) {
        count("packets_refused", refusal.name(), refusals.of(*refusal));
    }
    for (reason, number) in &own.unmapped {
        count("states_not_mapped", reason.name(), *number);
    }
    for (reason, number) in &own.untold {
        count("connections_not_told", reason.name(), *number);
    }
    for (reason, number) in &own.inexpressible {
        count("connections_not_mapped", reason.name(), *number);
    }
    for (refusal, number) in &own.refused {
        count("copies_refused", refusal.name(), *number);
    }
    all
}
