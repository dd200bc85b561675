//! A session with one peer.

mod offer;
mod receive;
mod settings;
mod status;
mod transmit;

use std::collections::VecDeque;
use std::time::Duration;

use flow::Timestamp;

use crate::bulk::{Inflow, InflowInput, Outflow, OutflowInput, Pace};
use crate::epoch::{Epoch, SEALED_OVERHEAD_BYTES};
use crate::fault::Faults;
use crate::greeting::{Agreed, Bond, Greeter, Host};
use crate::handshake::Handshake;
use crate::inbox::Inbox;
use crate::keys::{HashSecret, PreSharedKey, Seed};
use crate::likeness::{Aspect, Consequence, Likeness, Mismatch, Proof};
use crate::message::{BulkId, Message, WORDS_BYTES_MAX};
use crate::node::{NodeId, NodeName};
use crate::outbox::Outbox;
use crate::packet::{Ack, Place};
use crate::record::{Batch, Mark};
use crate::refusal::Refusals;

pub use offer::RECORD_COST_BYTES;
pub use settings::{SettingOutOfBounds, Settings};
pub use status::{Agreement, Counters, PeerStatus, Presence, Status};

/// A peer that has been silent for so long is away, and a full queue of which nothing was
/// acknowledged for so long is given up.
pub const AWAY_AFTER: Duration = Duration::from_secs(1);
/// A node that has nothing to say says so after this time.
const KEEPALIVE: Duration = Duration::from_millis(250);
/// Keys that have been replaced still open datagrams that were on their way.
const OLD_KEYS_KEPT: Duration = Duration::from_secs(5);
/// Bytes of a datagram besides its message: keys, an acknowledgment without ranges, place, and the
/// length of the message.
const AROUND_MESSAGE_BYTES: usize = SEALED_OVERHEAD_BYTES + Ack::BYTES_LEAST + Place::BYTES + 2;

/// The fate of the hash secret if the peers have different ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretRole {
    /// Both keep theirs, and stay apart.
    Keeps,
    /// This node gives its secret to a peer that asks: it is active.
    Gives,
    /// This node asks for the peer's: it is on standby.
    Takes,
}

/// A session's part in the cluster.
#[derive(Clone, Debug)]
pub struct Config {
    /// Number of this node.
    pub node: NodeId,
    /// Its name.
    pub name: NodeName,
    /// The peer, if its number is known beforehand.
    pub peer: Option<NodeId>,
    /// True if this node wants the peer's connections.
    pub follows: bool,
    /// The fate of the hash secret.
    pub secret_role: SecretRole,
    /// How this node steers and decides.
    pub likeness: Likeness,
    /// Numbers.
    pub settings: Settings,
    /// Planted by tests.
    pub faults: Faults,
}

/// Something that the owner has to know or do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A peer is there that was not before, or one that has restarted.
    Joined {
        /// Its number.
        node: NodeId,
        /// Its name.
        name: NodeName,
        /// True if another process was the peer before. The connections of that one which this
        /// node holds have no owner any more. An owner of this session that does not take them
        /// over now sees them end with the bulk transfer that follows.
        is_other_process: bool,
    },
    /// The comparison with the peer has another result; the status shows it.
    Compared,
    /// The peer gives its hash secret. The owner rehashes its tables and calls
    /// [`Session::set_likeness`].
    Secret(HashSecret),
    /// The peer wants all connections. The owner drops what its workers had queued for the peer
    /// before, but for news of what the peer owns, calls [`Session::begin_bulk`], reads its tables
    /// from the start as [`Session::bulk_room`] allows, and calls [`Session::end_bulk`].
    BulkAsked,
    /// A bulk transfer of the peer begins: [`Applied::begin_bulk`](crate::Applied::begin_bulk).
    BulkBegan(BulkId),
    /// Records to apply.
    Records(Batch),
    /// The peer has sent all connections. Those of this peer for which
    /// [`Applied::is_left_over`](crate::Applied::is_left_over) is true have ended. The owner may
    /// look at them one by one meanwhile: what a later transfer names is not left over.
    BulkEnded(BulkId),
    /// The peer's owner has said this, after all records that came before it.
    Words(Vec<u8>),
}

/// Names a stream of this node. Words that were said in it arrive, unless another one begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamId {
    bond: Option<Bond>,
    stream: u32,
}

/// Why a record was not taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotTaken {
    /// Nobody follows. The owner forgets the change: a bulk transfer comes before the next ones.
    NotFollowed,
    /// The queue is full. The owner keeps the change, as a flag of the connection, and offers the
    /// connection again later, in the state that it has then. Until then it offers no later change
    /// of the same connection, above all not its end. It calls [`Session::lost_change`] for a
    /// change that it can not keep.
    Full,
    /// The body is longer than [`RECORD_BYTES_MAX`](crate::RECORD_BYTES_MAX), or than a quarter of
    /// [`Settings::queue_bytes`].
    TooLong,
}

/// Messages that are to be sent as soon as there is room for them. Only the last of each counts,
/// so a peer can not make them many.
#[derive(Clone, Copy, Debug, Default)]
struct Owed {
    likeness: bool,
    follow: bool,
    ask_secret: bool,
    secret: bool,
}

/// A session with one peer: a state machine that its owner drives.
///
/// After each call of [`Session::handle`] the owner takes events until there is none. After that
/// and after each other call, and when [`Session::next_timeout`] has come, it takes datagrams with
/// [`Session::poll_transmit`] until there is none.
pub struct Session {
    node: NodeId,
    greeter: Greeter,
    follows: bool,
    secret_role: SecretRole,
    likeness: Likeness,
    settings: Settings,
    faults: Faults,

    handshake: Handshake,
    /// An answer to a greeting, to be sent.
    reply: Option<Vec<u8>>,
    current: Option<Epoch>,
    /// Keys that have been replaced, until this time.
    previous: Option<(Epoch, Timestamp)>,
    peer: Option<Host>,
    heard: Option<Timestamp>,
    spoke: Timestamp,

    compared: Option<(Proof, Vec<Mismatch>)>,
    outbox: Outbox,
    inbox: Inbox,
    outflow: Outflow,
    inflow: Inflow,
    pace: Pace,
    /// Number of the frame behind the end of the last bulk transfer that was sent.
    bulk_end: u64,
    /// True if the peer lacks a change that no frame carries.
    has_hole: bool,
    awaits_applied: bool,
    /// The last bulk transfer of the peer that has ended, until the owner has applied that.
    ended_bulk: Option<(BulkId, Mark)>,
    /// Number of the last bulk transfer that this node has asked for.
    bulks: u32,
    owed: Owed,
    events: VecDeque<Event>,
    counters: Counters,
    refusals: Refusals,
    content: Vec<u8>,
}

impl Session {
    /// A session that looks for its peer. `seed` is drawn anew for each.
    pub fn new(now: Timestamp, config: Config, secret: PreSharedKey, seed: Seed) -> Self {
        let Config { node, name, peer, follows, secret_role, likeness, settings, faults } = config;
        let settings = settings.bounded();
        let mut greeter = Greeter::new((node, name), peer, secret, seed);
        let bulks = greeter.jitter(u32::MAX.into()) as u32;
        Self {
            node,
            greeter,
            follows,
            secret_role,
            likeness,
            settings,
            faults,
            handshake: Handshake::Quiet,
            reply: None,
            current: None,
            previous: None,
            peer: None,
            heard: None,
            spoke: now,
            compared: None,
            outbox: Outbox::default(),
            inbox: Inbox::default(),
            outflow: Outflow::default(),
            inflow: if follows { Inflow::Apart } else { Inflow::Off },
            pace: Pace::new(now, settings.bulk_records_per_s),
            bulk_end: 0,
            has_hole: false,
            awaits_applied: false,
            ended_bulk: None,
            bulks,
            owed: Owed::default(),
            events: VecDeque::new(),
            counters: Counters::default(),
            refusals: Refusals::default(),
            content: Vec::new(),
        }
    }

    /// True if nothing of the peer was heard for [`AWAY_AFTER`].
    pub fn is_away(&self, now: Timestamp) -> bool {
        self.heard.is_none_or(|heard| now.since(heard) >= AWAY_AFTER)
    }

    /// New keys are in force. Unless both ends had the same bond before, both begin anew: one of
    /// them has restarted, or has been in session with another process of the other's node.
    fn install(&mut self, now: Timestamp, agreed: Agreed) {
        let is_kept = self.keeps_bond(&agreed);
        let Agreed { peer, epoch, bond, .. } = agreed;
        self.counters.keys_agreed += 1;
        if !self.faults.keeps_answers() {
            self.greeter.renew(bond);
        }
        let replaced = self.current.replace(epoch);
        if is_kept {
            self.previous = replaced.map(|epoch| (epoch, now.after(OLD_KEYS_KEPT)));
            return;
        }
        self.previous = None;
        self.inbox = Inbox::default();
        self.compared = None;
        self.outflow(OutflowInput::Apart);
        self.inflow(InflowInput::Apart);
        self.restart_stream();
        let (node, name) = (peer.node, peer.name.clone());
        let mut is_other_process = self.peer.as_ref().is_some_and(|before| *before != peer);
        // News of this kind that nobody has read are one.
        self.events.retain(|event| match event {
            Event::Joined { is_other_process: unread, .. } => {
                is_other_process |= unread;
                false
            }
            _ => true,
        });
        self.events.push_back(Event::Joined { node, name, is_other_process });
        self.peer = Some(peer);
    }

    /// True if the streams of both ends go on under keys that come into force.
    fn keeps_bond(&self, agreed: &Agreed) -> bool {
        match self.faults.restarts_alone() {
            true => self.peer.as_ref() == Some(&agreed.peer),
            false => agreed.is_kept,
        }
    }

    /// Begins another stream, in which the peer is told all anew.
    fn restart_stream(&mut self) {
        self.outbox.restart();
        let follow = matches!(self.inflow, Inflow::Asked(_) | Inflow::Off);
        self.owed = Owed { likeness: true, follow, ask_secret: self.lacks_secret(), secret: false };
    }

    /// True if the peer has another hash secret, which this node would take.
    fn lacks_secret(&self) -> bool {
        let mut found = self.compared.iter().flat_map(|(_, found)| found);
        let is_other = found.any(|it| it.aspect == Aspect::HashSecret);
        is_other && self.secret_role == SecretRole::Takes
    }

    fn outflow(&mut self, input: OutflowInput) -> bool {
        let next = self.outflow.on(input);
        self.outflow = next.unwrap_or(self.outflow);
        next.is_some()
    }

    fn inflow(&mut self, input: InflowInput) -> bool {
        let next = self.inflow.on(input);
        self.inflow = next.unwrap_or(self.inflow);
        next.is_some()
    }

    /// The fault that a test has planted.
    pub fn faults(&self) -> Faults {
        self.faults
    }

    /// True if the peers have compared each other and agree about buckets.
    fn is_together(&self) -> bool {
        let keeps_apart = |it: &Mismatch| {
            it.aspect.consequence() == Consequence::KeepsApart && !self.faults.ignores_differences()
        };
        self.compared.as_ref().is_some_and(|(_, found)| !found.iter().any(keeps_apart))
    }

    /// Compares the peer, and follows what comes of it.
    fn compare(&mut self, proof: Proof) {
        let Some(peer) = &self.peer else { return };
        let own = self.likeness.prove(&self.greeter.likeness_key(peer));
        let found = own.compare(&proof);
        if self.compared.as_ref().is_none_or(|(_, before)| *before != found) {
            self.events.retain(|event| *event != Event::Compared);
            self.events.push_back(Event::Compared);
        }
        self.compared = Some((proof, found));
        self.owed.ask_secret = self.lacks_secret();
        if self.is_together() {
            // The peer may have got the last question while it was not alike, and ignored it.
            self.owed.follow |= matches!(self.inflow, Inflow::Asked(_));
            self.ask_bulk();
        } else {
            self.inflow(InflowInput::Apart);
            if self.outflow != Outflow::Unfollowed {
                // Another stream tells the peer that changes are missing.
                self.outflow(OutflowInput::Apart);
                self.restart_stream();
            }
        }
    }

    /// Asks for the peer's connections if they are wanted and not asked for yet.
    fn ask_bulk(&mut self) {
        if self.is_together() && self.inflow == Inflow::Apart {
            self.bulks = self.bulks.wrapping_add(1);
            self.inflow(InflowInput::Together(BulkId(self.bulks)));
            self.owed.follow = true;
        }
    }

    /// Another way to steer and decide. The peer is told, and compared again.
    pub fn set_likeness(&mut self, likeness: Likeness) {
        self.likeness = likeness;
        self.compare_again();
    }

    /// The same with other rules alone.
    pub fn set_rules(&mut self, rules: Vec<u8>) {
        if self.likeness.rules != rules {
            self.likeness.rules = rules;
            self.compare_again();
        }
    }

    /// Sets whether records and ends of bulk transfers are acknowledged only when the owner calls
    /// [`Session::applied`] and [`Session::bulk_applied`], rather than when it has taken them. So
    /// the peer's staleness counts the time in the owner's own queues, and the peer does not count
    /// as safe what is lost with these.
    pub fn set_acknowledges_applied(&mut self, now: Timestamp, is_awaited: bool) {
        self.awaits_applied = is_awaited;
        if !is_awaited {
            self.inbox.all_applied(now);
        }
    }

    /// The owner has applied a batch and all that it took before.
    pub fn applied(&mut self, now: Timestamp, mark: Mark) {
        if mark.bond == self.greeter.bond() {
            self.inbox.applied(now, mark.place);
        }
    }

    /// The owner has ended all that a bulk transfer has left over, and has applied all that it took
    /// before.
    pub fn bulk_applied(&mut self, now: Timestamp, bulk: BulkId) {
        if let Some((_, mark)) = self.ended_bulk.take_if(|(ended, _)| *ended == bulk) {
            self.applied(now, mark);
        }
    }

    /// Another role in giving the hash secret.
    pub fn set_secret_role(&mut self, role: SecretRole) {
        self.secret_role = role;
        // A peer that gets the likeness compares again, and asks again.
        self.compare_again();
    }

    /// Tells the peer the likeness, and compares that of the peer again.
    fn compare_again(&mut self) {
        self.owed.likeness = self.peer.is_some();
        if let Some((proof, _)) = self.compared.clone() {
            self.compare(proof);
        }
    }

    /// Sets whether this node wants the peer's connections. Wanting them again begins with a bulk
    /// transfer.
    pub fn set_follows(&mut self, follows: bool) {
        if self.follows == follows {
            return;
        }
        self.follows = follows;
        match follows {
            true => {
                self.inflow(InflowInput::Want);
                self.ask_bulk();
            }
            false => {
                self.inflow(InflowInput::Stop);
                self.owed.follow = true;
            }
        }
    }

    /// The number of this node.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// The stream in which this node speaks. `None` while the peers are apart.
    pub fn stream(&self) -> Option<StreamId> {
        let stream = self.outbox.stream();
        self.is_together().then(|| StreamId { bond: self.greeter.bond(), stream })
    }

    /// Says something to the peer's owner, after all records that were offered before. False if
    /// there is no room now or the peers are apart, or if it is not between 1 and
    /// [`WORDS_BYTES_MAX`] bytes.
    pub fn say(&mut self, now: Timestamp, words: &[u8]) -> bool {
        let is_possible = (1..=WORDS_BYTES_MAX).contains(&words.len()) && self.is_together();
        // Messages that are owed come first: the likeness begins the stream.
        self.flush_owed(now);
        if !is_possible || self.owed.likeness || !self.outbox.takes_control() {
            return false;
        }
        self.outbox.push_control(now, &Message::Words(words.to_vec()));
        true
    }

    /// Asks for all connections of the peer once more.
    pub fn ask_again(&mut self) {
        if self.follows {
            self.inflow(InflowInput::Want);
            self.ask_bulk();
        }
    }
}

#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
mod offer_tests;
#[cfg(test)]
mod pair;
#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
