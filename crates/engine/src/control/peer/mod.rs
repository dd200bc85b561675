//! State sync with a peer: the owner of a [`Session`].
//!
//! It takes changes of connections from the workers, writes them as records, and gives records of
//! the peer to the workers. It has no socket, clock or thread: its owner passes in datagrams and the
//! time, so a simulation can be the owner as well. docs/internals/replication.md explains the rules.

mod connections;
mod copies;
pub(super) mod ownership;
mod shared;
mod supply;

use flow::{HashKey, KeyedPacket, PortPart, Timestamp};
use siphasher::sip::SipHasher13;
use sync::{Event, Refusal, Session, StreamId};

use crate::control::shared_copies::SharedThings;
use crate::control::worker_handle::Unresponsive;

use self::copies::Copies;
use self::ownership::{Claim, Passing, Sweep, Words, Yielded};
use self::supply::Supply;

pub use self::connections::Connections;
pub use self::copies::CopyCounters;
pub use self::shared::SharedCounters;
pub use self::supply::SupplyCounters;

/// The part of a gateway in a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It forwards, and its connections are copied to the peer.
    Active,
    /// It has copies of the peer's connections, and gives those that it owns to an active peer.
    Standby,
}

impl Role {
    /// Its name for programs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Standby => "standby",
        }
    }
}

/// State sync with a peer.
pub struct Peer {
    session: Session,
    role: Role,
    /// The right of this node to its connections.
    claim: Claim,
    /// That of the peer, and its part, once it has told them.
    peer: Option<(Claim, Role)>,
    peer_node: u16,
    supply: Supply,
    copies: Copies,
    sweep: Option<Sweep>,
    /// The last words about the part of this node, and the stream in which they were said.
    said: Option<(StreamId, Words)>,
    /// The last time that all was given away.
    given: Option<Yielded>,
    /// All was given away here, and the peer does not know so.
    owes_yield: bool,
    /// The part of all ports that this node gives away.
    ports: PortPart,
    /// The revision of the zones when everything was asked for last.
    zones: u64,
    /// The revision of the rules whose sets are told of.
    rules: Option<u32>,
}

impl Peer {
    /// A peer that nothing has been heard of. `names` is the secret by which the peers name
    /// connections; both have the same.
    ///
    /// # Errors
    /// [`Unresponsive`].
    pub fn new(
        gateway: &dyn Connections,
        mut session: Session,
        role: Role,
        names: HashKey,
        now: Timestamp,
    ) -> Result<Self, Unresponsive> {
        // The peer's staleness counts until the workers have a change.
        session.set_acknowledges_applied(now, true);
        // Each node may own connections, whatever its part is.
        session.set_follows(true);
        let claim = Claim { term: 0, node: session.node().0.get() };
        let copies = Copies::new(names, session.faults());
        let mut peer = Self {
            session,
            role,
            claim,
            peer: None,
            peer_node: 0,
            supply: Supply::new(names),
            copies,
            sweep: None,
            said: None,
            given: None,
            owes_yield: false,
            ports: PortPart::All,
            zones: 0,
            rules: None,
        };
        peer.set_role(gateway, role)?;
        Ok(peer)
    }

    /// Takes a datagram from the peer's address.
    ///
    /// # Errors
    /// The reason for which it was refused, which is counted.
    pub fn handle(&mut self, now: Timestamp, datagram: &[u8]) -> Result<(), Refusal> {
        self.session.handle(now, datagram)
    }

    /// Does all that can be done now: applies what has come, takes in what has changed. True if
    /// there may be more to do at once. `send` gets the datagrams for the peer.
    ///
    /// # Errors
    /// [`Unresponsive`]; nothing is lost, so another try may succeed.
    pub fn turn(
        &mut self,
        gateway: &dyn Connections,
        now: Timestamp,
        mut send: impl FnMut(&[u8]),
    ) -> Result<bool, Unresponsive> {
        self.say_role(now);
        let mut has_more = self.pass_on(gateway)?;
        if self.sweep.is_none() {
            has_more |= self.follow_events(gateway, now)?;
            has_more |= self.begin_to_pass(gateway, now)?;
            self.say_role(now);
        }
        self.divide_ports(gateway, now)?;
        self.follow_rules(gateway);
        has_more |= self.supply.take_changes(gateway, &mut self.session, now)?;
        self.supply.give_receipts_back(&self.session, now);
        if self.sweep.is_none() {
            has_more |= self.supply.go_on_with_bulk(gateway, &mut self.session, now)?;
            self.say_yield(now);
        }
        let mut datagram = Vec::new();
        while self.session.poll_transmit(now, &mut datagram) {
            send(&datagram);
        }
        Ok(has_more)
    }

    /// Goes on to give connections another owner. True if there is more.
    fn pass_on(&mut self, gateway: &dyn Connections) -> Result<bool, Unresponsive> {
        let Self { sweep, copies, supply, owes_yield, .. } = self;
        let Some(going) = sweep else { return Ok(false) };
        if !going.go_on(gateway, |given| copies.take_in(given))? {
            return Ok(true);
        }
        match going.passing {
            Passing::Adopting => supply.forget_news(),
            Passing::GivingAway => *owes_yield = true,
        }
        *sweep = None;
        Ok(true)
    }

    /// Begins to give connections another owner if there is a reason. True if it has.
    fn begin_to_pass(
        &mut self,
        gateway: &dyn Connections,
        now: Timestamp,
    ) -> Result<bool, Unresponsive> {
        if self.sweep.is_some() {
            return Ok(true);
        }
        let is_away = self.session.is_away(now);
        if self.role == Role::Active && is_away && self.copies.len() + self.copies.shared() > 0 {
            return self.adopt(gateway, now).map(|()| true);
        }
        let stream = self.session.stream();
        let gives = self.role == Role::Standby
            && self.peer_role() == Some(Role::Active)
            && !is_away
            && self.session.is_level()
            && self.given.is_none_or(|given| given.is_out_of_date(stream, now))
            && !self.owes_yield;
        if gives {
            self.sweep = Some(Sweep::new(Passing::GivingAway));
        }
        Ok(gives)
    }

    /// Takes over the connections of the peer, which has given them away or is silent.
    fn adopt(&mut self, gateway: &dyn Connections, now: Timestamp) -> Result<(), Unresponsive> {
        self.apply(gateway, now)?;
        let peers_term = self.peer.map_or(0, |(claim, _)| claim.term);
        self.claim.term = self.claim.term.max(peers_term).saturating_add(1);
        self.copies.give_up();
        self.sweep = Some(Sweep::new(Passing::Adopting));
        self.owes_yield = false;
        // The peer has to know the term before it hears of the connections.
        self.say_role(now);
        Ok(())
    }

    /// While both nodes are active, each gives away half of the ports, so that no two connections get
    /// one.
    fn divide_ports(
        &mut self,
        gateway: &dyn Connections,
        now: Timestamp,
    ) -> Result<(), Unresponsive> {
        let both = self.role == Role::Active
            && self.peer_role() == Some(Role::Active)
            && !self.session.is_away(now);
        let part = match both {
            true if self.claim.node < self.peer_node => PortPart::First,
            true => PortPart::Second,
            false => PortPart::All,
        };
        if part != self.ports {
            gateway.divide_ports(part)?;
            self.ports = part;
        }
        Ok(())
    }

    /// All sets begin anew with other rules. So the peer needs all elements once more, which ends
    /// those from before, and this node needs those of the peer.
    fn follow_rules(&mut self, gateway: &dyn Connections) {
        let revision = gateway.shared_things().and_then(SharedThings::rules_revision);
        if revision.is_some() && revision != self.rules {
            if self.rules.is_some() {
                self.session.lost_change();
                self.session.ask_again();
            }
            self.rules = revision;
        }
    }

    /// Tells the peer the part and the term of this node, once in each stream.
    fn say_role(&mut self, now: Timestamp) {
        let words = Words::Role(self.role, self.claim.term);
        let Some(stream) = self.session.stream() else { return };
        if self.said != Some((stream, words)) && self.session.say(now, &words.encode()) {
            self.said = Some((stream, words));
        }
    }

    /// Tells the peer that all is its own now, after all that the workers had told before.
    fn say_yield(&mut self, now: Timestamp) {
        if self.owes_yield
            && self.supply.is_drained()
            && self.session.is_level()
            && self.session.say(now, &Words::Yield.encode())
        {
            self.owes_yield = false;
            self.given = self.session.stream().map(|stream| Yielded::new(stream, now));
            // Copies that the peer does not have end here.
            self.session.ask_again();
        }
    }

    fn follow_events(
        &mut self,
        gateway: &dyn Connections,
        now: Timestamp,
    ) -> Result<bool, Unresponsive> {
        while let Some(event) = self.session.poll_event(now) {
            match event {
                Event::Joined { node, is_other_process, .. } => {
                    (self.peer, self.peer_node) = (None, node.0.get());
                    if is_other_process {
                        // The owner of the copies is no more.
                        self.adopt(gateway, now)?;
                        return Ok(true);
                    }
                }
                // Both peers derive the secret from the pre-shared key.
                Event::Compared | Event::Secret(_) => {}
                Event::BulkAsked => self.supply.ask_bulk(),
                Event::BulkBegan(bulk) => {
                    self.copies.begin_bulk(bulk);
                    self.zones = gateway.zones_revision();
                }
                Event::Words(bytes) => match Words::decode(&bytes) {
                    Some(Words::Role(role, term)) => {
                        self.peer = Some((Claim { term, node: self.peer_node }, role));
                    }
                    Some(Words::Yield) => {
                        self.adopt(gateway, now)?;
                        return Ok(true);
                    }
                    None => {}
                },
                Event::Records(batch) => {
                    let prevails = self.peer.is_some_and(|(claim, _)| claim > self.claim);
                    let news = self.copies.decide_on_all(&batch, prevails);
                    if let Some(given) = &mut self.given {
                        // The peer sent news before it heard that all is its own, or a packet has
                        // opened a connection here since.
                        given.owns_again |= news > 0;
                    }
                    if self.copies.has_many() {
                        self.apply(gateway, now)?;
                        return Ok(true);
                    }
                }
                Event::BulkEnded(bulk) => {
                    self.copies.end_bulk(bulk);
                    self.apply(gateway, now)?;
                    self.session.bulk_applied(now, bulk);
                }
            }
        }
        self.apply(gateway, now)?;
        // The peer does not repeat by itself the connections that were refused for their zones.
        if self.copies.lacks_zones() && gateway.zones_revision() != self.zones {
            self.zones = gateway.zones_revision();
            self.session.ask_again();
        }
        Ok(false)
    }

    /// Gives changes of copies to the workers, and acknowledges them.
    fn apply(&mut self, gateway: &dyn Connections, now: Timestamp) -> Result<(), Unresponsive> {
        if let Some(mark) = self.copies.apply(gateway)? {
            self.session.applied(now, mark);
        }
        Ok(())
    }

    /// The part of this gateway.
    pub fn role(&self) -> Role {
        self.role
    }

    /// Gives this gateway another part. An active one owns the connections of a peer that gives them
    /// away or is silent. One on standby gives its own to an active peer.
    ///
    /// # Errors
    /// [`Unresponsive`].
    pub fn set_role(&mut self, gateway: &dyn Connections, role: Role) -> Result<(), Unresponsive> {
        gateway.set_stands_by(role == Role::Standby)?;
        if self.role != role {
            self.given = None;
        }
        self.role = role;
        Ok(())
    }

    /// This gateway has another ruleset: the number that its fingerprint is, or `None` without rules.
    /// The peer compares it with its own.
    pub fn set_rules(&mut self, fingerprint: Option<u128>) {
        self.session.set_rules(rules_likeness(fingerprint));
    }

    /// The part of the peer, once it has told it.
    pub fn peer_role(&self) -> Option<Role> {
        self.peer.map(|(_, role)| role)
    }

    /// The term of this node: how often connections have got another owner without being given away
    /// by it, as far as it knows.
    pub fn term(&self) -> u32 {
        self.claim.term
    }

    /// The highest term that this node knows, its own or that of the peer.
    pub fn highest_term(&self) -> u32 {
        self.peer.map_or(0, |(claim, _)| claim.term).max(self.claim.term)
    }

    /// Begins with this term, because this node has taken the place of another process. The peer takes
    /// over the connections of that process, at a term that is higher by one than any that it knows.
    pub fn set_term(&mut self, term: u32) {
        self.claim.term = term;
    }

    /// The state of the session.
    pub fn status(&self, now: Timestamp) -> sync::Status {
        self.session.status(now)
    }

    /// The peer's connections that are here.
    pub fn copies(&self) -> usize {
        self.copies.len()
    }

    /// The announcements and elements of sets here that the peer owns.
    pub fn shared_copies(&self) -> usize {
        self.copies.shared()
    }

    /// Counts of what was done with the peer's records.
    pub fn copy_counters(&self) -> CopyCounters {
        self.copies.counters()
    }

    /// Counts of what was offered to the peer.
    pub fn supply_counters(&self) -> SupplyCounters {
        self.supply.counters()
    }

    /// When [`Peer::turn`] has to be called next, if nothing comes before. While the peer follows,
    /// changes of connections may come at any time.
    pub fn next_timeout(&self) -> Timestamp {
        self.session.next_timeout()
    }

    /// True while changes of connections are wanted.
    pub fn is_followed(&self) -> bool {
        self.supply.is_followed()
    }
}

/// The form in which peers compare rulesets, of which these are the fingerprints.
pub fn rules_likeness(fingerprint: Option<u128>) -> Vec<u8> {
    fingerprint.map_or_else(Vec::new, |it| it.to_be_bytes().to_vec())
}

/// The name of a connection between peers. Two connections may have one key, if each end has opened
/// one of them.
fn name_of(names: HashKey, original: &KeyedPacket) -> u64 {
    original.key.hash(names) & !1 | original.sender.index() as u64
}

/// The name between peers of something that workers share, of which these are the bytes of its
/// [name](crate::control::record::SharedRecord::name).
fn name_of_shared(HashKey(k0, k1): HashKey, bytes: &[u8]) -> u64 {
    SipHasher13::new_with_keys(k0, k1).hash(bytes)
}

#[cfg(test)]
mod defer_tests;
#[cfg(test)]
mod ownership_tests;
#[cfg(test)]
mod shared_tests;
#[cfg(test)]
#[path = "peer_tests.rs"]
mod tests;
