//! A state of pf: what two gateways tell each other about a connection.
//!
//! pf files a state under two keys. The *wire* key has the addresses of its packets outside, on the
//! interface to which the state belongs. The *stack* key has those inside the gateway. They differ
//! if the state translates. [`State::original`] and [`State::leaves_as`] turn both into the words of
//! connection tracking.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use super::identity::{InterfaceName, StateId, TagName};
use super::progress::{Direction, FlowState, TcpState, Timeout};

/// IP protocol numbers (IANA) whose states differ from those of the others.
pub(super) const TCP: u8 = 6;
pub(super) const SCTP: u8 = 132;
/// ICMP of both families, which a translation from one family to the other exchanges.
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;

/// Two addresses of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Addresses {
    /// IPv4.
    V4([Ipv4Addr; 2]),
    /// IPv6.
    V6([Ipv6Addr; 2]),
}

impl Addresses {
    /// Two addresses, `None` if their families differ.
    pub fn new(pair: [IpAddr; 2]) -> Option<Self> {
        match pair {
            [IpAddr::V4(one), IpAddr::V4(other)] => Some(Self::V4([one, other])),
            [IpAddr::V6(one), IpAddr::V6(other)] => Some(Self::V6([one, other])),
            _ => None,
        }
    }

    /// One of them.
    pub fn get(&self, index: Index) -> IpAddr {
        match self {
            Self::V4(pair) => pair[index as usize].into(),
            Self::V6(pair) => pair[index as usize].into(),
        }
    }
}

/// A place in the pairs of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Index {
    /// The first.
    First = 0,
    /// The second.
    Second = 1,
}

impl Index {
    const fn other(self) -> Self {
        match self {
            Self::First => Self::Second,
            Self::Second => Self::First,
        }
    }
}

/// The addresses and ports of a state's packets at one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// Both addresses.
    pub addresses: Addresses,
    /// Both ports; the identifier of an ICMP query is in both, or in one beside a zero.
    pub ports: [u16; 2],
    /// IP protocol number. That of both keys is the same, but for ICMP between families.
    pub protocol: u8,
    /// Routing domain. Only [`Dialect::Version6`](super::Dialect::Version6) carries it.
    pub routing_domain: u16,
}

/// A packet's addresses and ports, with its sender first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tuple {
    /// The sender.
    pub source: (IpAddr, u16),
    /// The receiver.
    pub destination: (IpAddr, u16),
    /// IP protocol number.
    pub protocol: u8,
}

impl Key {
    pub(super) const fn is_ipv4(&self) -> bool {
        matches!(self.addresses, Addresses::V4(_))
    }

    fn tuple_of(&self, sender: Index) -> Tuple {
        let end = |index: Index| (self.addresses.get(index), self.ports[index as usize]);
        Tuple { source: end(sender), destination: end(sender.other()), protocol: self.protocol }
    }

    /// True if both keys carry packets of one protocol.
    fn agrees_with(&self, stack: &Self) -> bool {
        stack.protocol == protocol_inside(self, &stack.addresses)
    }
}

/// The protocol of a stack key, of its addresses and the wire key.
pub(super) const fn protocol_inside(wire: &Key, stack: &Addresses) -> u8 {
    match (wire.protocol, &wire.addresses, stack) {
        (ICMPV6, Addresses::V6(_), Addresses::V4(_)) => ICMP,
        (ICMP, Addresses::V4(_), Addresses::V6(_)) => ICMPV6,
        (protocol, _, _) => protocol,
    }
}

/// The shift of a window (RFC 7323 section 2.2): up to 14.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WindowScale(u8);

impl WindowScale {
    /// The highest shift.
    pub const MAX: u8 = 14;

    /// A shift; a higher one counts as [`WindowScale::MAX`] (RFC 7323 section 2.3).
    pub fn new(shift: u8) -> Self {
        Self(shift.min(Self::MAX))
    }

    /// Its number of bits.
    pub const fn get(self) -> u8 {
        self.0
    }
}

/// The values by which pf normalises packets of one end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Scrub {
    /// Flags. Bit 0 says that timestamps of TCP are shifted.
    pub flags: u16,
    /// Least TTL that was seen.
    pub ttl: u8,
    /// The shift of timestamps.
    pub timestamp_shift: u32,
}

/// The numbers of one end of a connection. They mean something for TCP, and pf keeps some for SCTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Numbers {
    /// Next sequence number that the end is expected to send: the highest end of a segment so far.
    pub sequence: u32,
    /// Highest sequence number that the end may send: what its peer has allowed.
    pub sequence_max: u32,
    /// The gateway adds this to the sequence numbers of the end.
    pub sequence_shift: u32,
    /// Largest window that the end has announced, not scaled.
    pub window_max: u16,
    /// Maximum segment size, bytes.
    pub segment_max: u16,
    /// The scale of its windows, if its SYN had one.
    pub window_scale: Option<WindowScale>,
    /// Values for normalisation, if there are some.
    pub scrub: Option<Scrub>,
}

/// One end of a TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TcpPeer {
    /// How far it has come.
    pub state: TcpState,
    /// Its numbers.
    pub numbers: Numbers,
}

/// One end of an SCTP association. Its state is a number of the sender's kernel, which is opaque.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SctpPeer {
    /// How far it has come.
    pub state: u8,
    /// Its numbers.
    pub numbers: Numbers,
}

/// Both ends of a connection: first the one that has begun it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Peers {
    /// Of TCP.
    Tcp([TcpPeer; 2]),
    /// Of SCTP.
    Sctp([SctpPeer; 2]),
    /// Of any other protocol.
    Flow([FlowState; 2]),
}

impl Peers {
    /// True if an IP protocol has ends of this kind.
    pub const fn fit(&self, protocol: u8) -> bool {
        match self {
            Self::Tcp(_) => protocol == TCP,
            Self::Sctp(_) => protocol == SCTP,
            Self::Flow(_) => protocol != TCP && protocol != SCTP,
        }
    }
}

/// Packets and bytes of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Counts {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Flags of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct StateFlags(pub u16);

impl StateFlags {
    /// The numbers of its segments are not checked.
    pub const SLOPPY: Self = Self(0x02);
    /// The state is not told to peers.
    pub const NOT_SYNCED: Self = Self(0x08);
    /// Its packet waits for an acknowledgment of the insert.
    pub const ACK_WANTED: Self = Self(0x10);

    /// True if all flags of `other` are set.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// These flags, and those of `other`.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// These flags without those of `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

/// No rule: what pf sends where a state has none.
pub const NO_RULE: u32 = u32::MAX;

/// Fields in which pf keeps what its own rules have decided. They are opaque here, and any value can
/// be. A gateway keeps those of another one's state. Dialects carry different ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The rule that has created the state.
    pub rule: u32,
    /// The anchor in which that rule is.
    pub anchor: u32,
    /// The rule that translates.
    pub nat_rule: u32,
    /// The kind of route that a rule gives it; 0 for none.
    pub route_kind: u8,
    /// The next hop that a rule gives it.
    pub route_address: Option<IpAddr>,
    /// The interface that a rule gives it.
    pub route_interface: InterfaceName,
    /// The interface by which its first packet came.
    pub original_interface: InterfaceName,
    /// The tag of its packets.
    pub tag: TagName,
    /// Routing tables of the wire and the stack key. FreeBSD has only the first.
    pub routing_tables: [i32; 2],
    /// Queues: for packets, and for urgent ones.
    pub queues: [u16; 2],
    /// Pipes of dummynet, for both directions.
    pub pipes: [u16; 2],
    /// Packets get at least this TTL.
    pub ttl_min: u8,
    /// Packets get this type of service.
    pub type_of_service: u8,
    /// Packets get at most this maximum segment size.
    pub segment_max: u16,
    /// Packets get these priorities: usual and urgent ones.
    pub priorities: [u8; 2],
    /// Its setting for the log of packets.
    pub log: u8,
    /// Flags about the message itself.
    pub message_flags: u8,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            rule: NO_RULE,
            anchor: NO_RULE,
            nat_rule: NO_RULE,
            route_kind: 0,
            route_address: None,
            route_interface: InterfaceName::default(),
            original_interface: InterfaceName::default(),
            tag: TagName::default(),
            routing_tables: [0; 2],
            queues: [0; 2],
            pipes: [0; 2],
            ttl_min: 0,
            type_of_service: 0,
            segment_max: 0,
            priorities: [0; 2],
            log: 0,
            message_flags: 0,
        }
    }
}

/// The fields of a [`State`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateParts {
    /// Its name.
    pub id: StateId,
    /// The interface to which it belongs, or [`InterfaceName::ANY`].
    pub interface: InterfaceName,
    /// The direction of its first packet: in or out.
    pub direction: Direction,
    /// The key of its packets outside.
    pub wire: Key,
    /// The key of its packets inside.
    pub stack: Key,
    /// Both ends.
    pub peers: Peers,
    /// The timeout that runs.
    pub timeout: Timeout,
    /// Age, seconds.
    pub age: u32,
    /// Time left, seconds.
    pub left: u32,
    /// Counts of the initiator's packets, and of the answers.
    pub counts: [Counts; 2],
    /// Flags.
    pub flags: StateFlags,
    /// Number of changes that the message stands for, modulo 256. Version 1500 has no field for it.
    pub updates: u8,
    /// Decisions of pf's rules.
    pub policy: Policy,
}

/// A state whose parts fit each other: both keys have the same protocol, and its ends are of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State(StateParts);

impl State {
    /// A state of its parts; `None` if they do not fit each other.
    pub fn new(parts: StateParts) -> Option<Self> {
        let fits = parts.wire.agrees_with(&parts.stack) && parts.peers.fit(parts.wire.protocol);
        fits.then_some(Self(parts))
    }

    /// Its parts.
    pub const fn parts(&self) -> &StateParts {
        &self.0
    }

    /// Its name.
    pub const fn id(&self) -> StateId {
        self.0.id
    }

    /// The initiator's packets as they arrive at the gateway.
    pub fn original(&self) -> Tuple {
        match self.0.direction {
            Direction::In => self.0.wire.tuple_of(Index::First),
            Direction::Out => self.0.stack.tuple_of(Index::Second),
        }
    }

    /// The initiator's packets as they leave this state. They equal [`State::original`] unless the
    /// state translates.
    pub fn leaves_as(&self) -> Tuple {
        match self.0.direction {
            Direction::In => self.0.stack.tuple_of(Index::First),
            Direction::Out => self.0.wire.tuple_of(Index::Second),
        }
    }

    /// The same state with other ends, if they are of its protocol.
    pub(super) fn with_peers(mut self, peers: Peers) -> Option<Self> {
        self.0.peers = peers;
        Self::new(self.0)
    }

    /// The same state with other times and counts.
    #[must_use]
    pub(super) const fn with_life(mut self, life: Life) -> Self {
        let Life { timeout, left, age, counts } = life;
        (self.0.timeout, self.0.left, self.0.age, self.0.counts) = (timeout, left, age, counts);
        self
    }

    pub(super) const fn life(&self) -> Life {
        let StateParts { timeout, left, age, counts, .. } = self.0;
        Life { timeout, left, age, counts }
    }

    #[must_use]
    pub(super) const fn with_flags(mut self, flags: StateFlags) -> Self {
        self.0.flags = flags;
        self
    }

    #[must_use]
    pub(super) const fn with_updates(mut self, updates: u8) -> Self {
        self.0.updates = updates;
        self
    }

    /// True if both are about packets of the same addresses, ports and protocol.
    pub(super) fn has_keys_of(&self, other: &Self) -> bool {
        let ours = (self.0.wire, self.0.stack, self.0.direction);
        ours == (other.0.wire, other.0.stack, other.0.direction)
    }
}

/// Times and counts of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Life {
    pub timeout: Timeout,
    /// Time left, seconds.
    pub left: u32,
    /// Age, seconds.
    pub age: u32,
    pub counts: [Counts; 2],
}

impl Life {
    /// The same after a while.
    pub fn after(self, elapsed: Duration) -> Self {
        let elapsed = u32::try_from(elapsed.as_secs()).unwrap_or(u32::MAX);
        let (left, age) = (self.left.saturating_sub(elapsed), self.age.saturating_add(elapsed));
        Self { left, age, ..self }
    }
}
