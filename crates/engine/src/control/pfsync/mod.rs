//! State sync with gateways that speak pfsync: the owner of a [`Speaker`].
//!
//! It takes changes of connections from the workers, tells them as states of pf, and gives states of
//! peers to the workers. It has no socket, clock or thread, as [`super::peer::Peer`].
//! docs/internals/pfsync.md explains the rules.

mod feed;
mod flows;
mod mapping;
mod news;

use std::collections::BTreeMap;
use std::time::Duration;

use conntrack::{ImportRefusal, Untold};
use flow::Timestamp;
use sync::pfsync::{
    Arrival, BulkIn, BulkOut, Config, Counters, CreatorId, Dialect, Refusal, Refusals, Speaker,
};

use crate::control::peer::ownership::{Given, Passing, Sweep};
use crate::control::peer::{Connections, Role};
use crate::control::worker_handle::Unresponsive;
use crate::path::replication::CopyChange;

use self::feed::Feed;
use self::flows::Flows;

pub use self::mapping::Unmapped;

/// Silence of all peers after which an active gateway asks whether anybody is there, and the time
/// between two such questions.
const PROBE_AFTER: Duration = Duration::from_secs(5);
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// Silence of all peers after which an active gateway takes over their connections.
const SILENT_AFTER: Duration = Duration::from_secs(10);
/// Packets that leave in one turn at most, so that others are taken meanwhile.
const PACKETS_A_TURN: usize = 64;

/// The fate of a packet that was given to the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carried {
    /// It is on its way.
    Sent,
    /// The socket has no room now.
    Later,
    /// It is lost: the system has refused it.
    Lost,
}

/// Counts of what was done with states and connections.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PfsyncCounters {
    /// Connections that were made.
    pub made: u64,
    /// Connections that got another state.
    pub changed: u64,
    /// Connections that were ended.
    pub ended: u64,
    /// Connections of this gateway that were given up, because a peer's prevails.
    pub clashes_lost: u64,
    /// Connections of peers that were refused, because those of this gateway prevail.
    pub clashes_won: u64,
    /// Changes that came behind later ones.
    pub stale: u64,
    /// How often ends of connections were lost, so that all connections were read once more.
    pub lost_ends: u64,
    /// Packets that the system has refused to send.
    pub lost_packets: u64,
    /// Connections that the speaker has no room for.
    pub not_taken: u64,
    /// Times that a state of a peer was not mapped, by reason.
    pub unmapped: BTreeMap<Unmapped, u64>,
    /// Times that a connection was not told, by reason.
    pub untold: BTreeMap<Untold, u64>,
    /// Times that a connection was not told because pf can not have such a state, by reason.
    pub inexpressible: BTreeMap<Unmapped, u64>,
    /// Connections of peers that were not made, by reason.
    pub refused: BTreeMap<ImportRefusal, u64>,
}

/// State sync with gateways that speak pfsync.
pub struct Pfsync {
    speaker: Speaker,
    creator: CreatorId,
    dialect: Dialect,
    /// The name that the next state gets.
    next_id: u64,
    role: Role,
    flows: Flows,
    feed: Feed,
    sweep: Option<Sweep>,
    /// How often this gateway has taken connections over.
    adoptions: u32,
    /// When it began.
    begun: Timestamp,
    next_probe: Timestamp,
    /// A packet that the socket had no room for.
    unsent: Option<Vec<u8>>,
    /// Ends and the like that the workers have not been given yet.
    owed: Vec<CopyChange>,
    /// Connections that clash with others, and are tried again after the next end.
    clashing: Vec<mapping::Middle>,
    counters: PfsyncCounters,
}

impl Pfsync {
    /// A gateway that has heard of no peer. `first_id` is the name of its first state: no other
    /// process with the same creator number may have given it.
    ///
    /// # Errors
    /// [`Unresponsive`].
    pub fn new(
        gateway: &dyn Connections,
        config: Config,
        first_id: u64,
        role: Role,
        now: Timestamp,
    ) -> Result<Self, Unresponsive> {
        let (creator, dialect) = (config.creator, config.dialect);
        let mut pfsync = Self {
            feed: Feed::new(config.defers),
            speaker: Speaker::new(now, config),
            creator,
            dialect,
            next_id: first_id,
            role,
            flows: Flows::default(),
            sweep: None,
            adoptions: 0,
            begun: now,
            next_probe: now,
            unsent: None,
            owed: Vec::new(),
            clashing: Vec::new(),
            counters: PfsyncCounters::default(),
        };
        pfsync.set_role(gateway, role)?;
        Ok(pfsync)
    }

    /// Takes a packet in, without its IP header.
    ///
    /// # Errors
    /// The reason for which it was refused, which is counted.
    pub fn handle(
        &mut self,
        now: Timestamp,
        arrival: &Arrival,
        pfsync: &[u8],
    ) -> Result<(), Refusal> {
        self.speaker.handle(now, arrival, pfsync)
    }

    /// The sync link is there, or another one is in its place: packets may have so many bytes behind the
    /// IP header, and peers may have told much meanwhile, so they are asked for all.
    pub fn begin_on_link(&mut self, now: Timestamp, packet_bytes: usize) {
        // It was written for the link of before.
        self.unsent = self.unsent.take().filter(|packet| packet.len() <= packet_bytes);
        self.speaker.set_packet_bytes(packet_bytes);
        self.speaker.request_bulk(now);
    }

    /// Counts a packet that is none of pfsync.
    pub fn refuse(&mut self, refusal: Refusal) {
        self.speaker.refuse(refusal);
    }

    /// Does all that can be done now: applies what has come, tells what has changed. True if there
    /// may be more to do at once. `send` gets the packets for the peers, without IP header.
    ///
    /// # Errors
    /// [`Unresponsive`]; nothing is lost, so another try may succeed.
    pub fn turn(
        &mut self,
        gateway: &dyn Connections,
        now: Timestamp,
        send: impl FnMut(&[u8]) -> Carried,
    ) -> Result<bool, Unresponsive> {
        self.follow(gateway)?;
        let mut has_more = self.pass_on(gateway, now)?;
        self.follow_events(gateway, now)?;
        self.watch_peers(now);
        has_more |= self.take_changes(now);
        has_more |= self.go_on_with_scan(gateway, now)?;
        has_more |= self.transmit(now, send);
        self.give_receipts_back(now);
        Ok(has_more)
    }

    /// Goes on to give connections another owner. True if there is more.
    fn pass_on(&mut self, gateway: &dyn Connections, now: Timestamp) -> Result<bool, Unresponsive> {
        let Some(mut sweep) = self.sweep.take() else { return Ok(false) };
        let mut given = Vec::new();
        let passed = sweep.go_on(gateway, |it| match it {
            Given::Connection(original) => given.push(original),
            Given::Shared(_) => {}
        });
        if !matches!(passed, Ok(true)) {
            self.sweep = Some(sweep);
        }
        self.give_away(gateway, now, given)?;
        passed?;
        Ok(true)
    }

    /// An active gateway takes over the connections of peers that are silent and do not answer.
    fn watch_peers(&mut self, now: Timestamp) {
        let silent = self.silence(now);
        let looks = self.role == Role::Active && self.sweep.is_none() && silent >= PROBE_AFTER;
        if !looks || now < self.next_probe {
            return;
        }
        self.next_probe = now.after(PROBE_INTERVAL);
        if self.flows.copies() == 0 {
            return;
        }
        match silent >= SILENT_AFTER {
            true => self.adopt(),
            false => self.speaker.probe(now),
        }
    }

    fn adopt(&mut self) {
        self.adoptions = self.adoptions.saturating_add(1);
        self.sweep = Some(Sweep::of_connections(Passing::Adopting));
    }

    /// Sends what is to be sent, as far as the socket has room. True if there is more.
    fn transmit(&mut self, now: Timestamp, mut send: impl FnMut(&[u8]) -> Carried) -> bool {
        for _ in 0..PACKETS_A_TURN {
            let waiting = self.unsent.take().or_else(|| self.speaker.poll_transmit(now));
            let Some(packet) = waiting else { return false };
            match send(&packet) {
                Carried::Sent => {}
                Carried::Lost => self.counters.lost_packets += 1,
                Carried::Later => {
                    self.unsent = Some(packet);
                    return false;
                }
            }
        }
        true
    }

    /// The part of this gateway.
    pub fn role(&self) -> Role {
        self.role
    }

    /// Gives this gateway another part. An active one takes over all connections. One on standby
    /// leaves its own to its peers.
    ///
    /// # Errors
    /// [`Unresponsive`].
    pub fn set_role(&mut self, gateway: &dyn Connections, role: Role) -> Result<(), Unresponsive> {
        gateway.set_stands_by(role == Role::Standby)?;
        if self.role != role {
            match role {
                Role::Active => self.adopt(),
                Role::Standby => self.sweep = Some(Sweep::of_connections(Passing::GivingAway)),
            }
        }
        self.role = role;
        Ok(())
    }

    fn silence(&self, now: Timestamp) -> Duration {
        now.since(self.speaker.heard().unwrap_or(self.begun))
    }

    /// How long all peers have been silent; `None` if none was ever heard.
    pub fn silent_for(&self, now: Timestamp) -> Option<Duration> {
        self.speaker.heard().map(|heard| now.since(heard))
    }

    /// True if a peer was heard a short time ago. An idle peer is silent, too.
    pub fn is_heard(&self, now: Timestamp) -> bool {
        self.silent_for(now).is_some_and(|silent| silent < SILENT_AFTER)
    }

    /// The number of this gateway.
    pub fn creator(&self) -> CreatorId {
        self.creator
    }

    /// The dialect.
    pub fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// How far the bulk update from the peers is.
    pub fn bulk_in(&self) -> BulkIn {
        self.speaker.bulk_in()
    }

    /// How far the bulk update to the peers is.
    pub fn bulk_out(&self) -> BulkOut {
        self.speaker.bulk_out()
    }

    /// The peers' connections that are here.
    pub fn copies(&self) -> usize {
        self.flows.copies()
    }

    /// Counts of what was done with states and connections.
    pub fn counters(&self) -> &PfsyncCounters {
        &self.counters
    }

    /// Counts of the protocol.
    pub fn protocol_counters(&self) -> Counters {
        self.speaker.counters()
    }

    /// Counts of refused packets.
    pub fn refusals(&self) -> &Refusals {
        self.speaker.refusals()
    }
}

#[cfg(test)]
#[path = "pfsync_tests.rs"]
mod tests;
