//! State sync with a peer: the owner of a [`Session`].
//!
//! It takes changes of connections from the workers, writes them as records, and gives records of
//! the peer to the workers. It has no socket, clock or thread: its owner passes in datagrams and the
//! time, so a simulation can be the owner as well. docs/internals/replication.md explains the rules.

mod copies;
mod supply;

use flow::{HashKey, KeyedPacket, Timestamp};
use sync::{Event, Refusal, Session};

use crate::Gateway;
use crate::control::worker_handle::Unresponsive;

use self::copies::Copies;
use self::supply::Supply;

pub use self::copies::CopyCounters;
pub use self::supply::SupplyCounters;

/// The part of a gateway in a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It forwards, and its connections are copied to the peer.
    Active,
    /// It has copies of the peer's connections, and takes over when it is told to.
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
    supply: Supply,
    copies: Copies,
    /// The revision of the zones when everything was asked for last.
    zones: u64,
}

impl Peer {
    /// A peer that nothing has been heard of. `names` is the secret by which the peers name
    /// connections; both have the same. The session has to follow the peer if the role is
    /// [`Role::Standby`].
    ///
    /// # Errors
    /// [`Unresponsive`].
    pub fn new(
        gateway: &Gateway,
        mut session: Session,
        role: Role,
        names: HashKey,
        now: Timestamp,
    ) -> Result<Self, Unresponsive> {
        // The peer's staleness counts until the workers have a change.
        session.set_acknowledges_applied(now, true);
        let copies = Copies::new(names, session.faults());
        let mut peer = Self { session, role, supply: Supply::new(names), copies, zones: 0 };
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
        gateway: &Gateway,
        now: Timestamp,
        mut send: impl FnMut(&[u8]),
    ) -> Result<bool, Unresponsive> {
        let mut has_more = self.follow_events(gateway, now)?;
        // A gateway on standby would tell of connections that are not its own.
        if self.role == Role::Active {
            has_more |= self.supply.take_changes(gateway, &mut self.session, now)?;
            has_more |= self.supply.go_on_with_bulk(gateway, &mut self.session, now)?;
        }
        let mut datagram = Vec::new();
        while self.session.poll_transmit(now, &mut datagram) {
            send(&datagram);
        }
        Ok(has_more)
    }

    fn follow_events(&mut self, gateway: &Gateway, now: Timestamp) -> Result<bool, Unresponsive> {
        while let Some(event) = self.session.poll_event(now) {
            match event {
                Event::Joined { is_other_process, .. } if is_other_process => {
                    self.copies.forget_stamps();
                }
                // Both peers derive the secret from the pre-shared key.
                Event::Joined { .. } | Event::Compared | Event::Secret(_) => {}
                Event::BulkAsked => self.supply.ask_bulk(),
                Event::BulkBegan(bulk) => {
                    self.copies.begin_bulk(bulk);
                    self.zones = gateway.zones().revision;
                }
                Event::Records(batch) => {
                    self.copies.judge(&batch);
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
        // What was refused for its zone is not told again by itself.
        if self.copies.lacks_zones() && gateway.zones().revision != self.zones {
            self.zones = gateway.zones().revision;
            self.session.ask_again();
        }
        Ok(false)
    }

    /// Gives changes of copies to the workers, and acknowledges them.
    fn apply(&mut self, gateway: &Gateway, now: Timestamp) -> Result<(), Unresponsive> {
        if let Some(mark) = self.copies.apply(gateway)? {
            self.session.applied(now, mark);
        }
        Ok(())
    }

    /// The part of this gateway.
    pub fn role(&self) -> Role {
        self.role
    }

    /// Gives this gateway another part. The copies of an active gateway are its own connections.
    ///
    /// # Errors
    /// [`Unresponsive`].
    pub fn set_role(&mut self, gateway: &Gateway, role: Role) -> Result<(), Unresponsive> {
        let stands_by = role == Role::Standby;
        gateway.set_stands_by(stands_by)?;
        self.session.set_follows(stands_by);
        if stands_by {
            self.supply.pause(gateway, &mut self.session)?;
        } else {
            self.copies.give_up();
        }
        self.role = role;
        Ok(())
    }

    /// The state of the session.
    pub fn status(&self, now: Timestamp) -> sync::Status {
        self.session.status(now)
    }

    /// The peer's connections that are here.
    pub fn copies(&self) -> usize {
        self.copies.len()
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

/// The name of a connection between peers. Two connections may have one key, if each end has opened
/// one of them.
fn name_of(names: HashKey, original: &KeyedPacket) -> u64 {
    original.key.hash(names) & !1 | original.sender.index() as u64
}

#[cfg(test)]
#[path = "peer_tests.rs"]
mod tests;
