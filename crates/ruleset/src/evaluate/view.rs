//! A packet as rules see it.

use flow::{Tally, ZonePair};
use wire::Network;

use super::routes::Routes;
use crate::names::CT_STATES;

/// A packet with its surroundings.
#[derive(Clone, Copy)]
pub struct PacketView<'a> {
    /// The frame that the offsets of `network` count in.
    pub frame: &'a [u8],
    /// The headers, of a whole datagram.
    pub network: &'a Network,
    /// Outermost VLAN identifier, 0 for none.
    pub vlan: u16,
    /// The receiver on the link: 0 this host, 1 broadcast, 2 multicast, 3 another host.
    pub packet_type: u8,
    /// The name of the input interface, as [`name_bits`](crate::name_bits) encodes it.
    pub input: u128,
    /// The name of the output interface, encoded likewise; 0 before the route is known.
    pub output: u128,
    /// Mark.
    pub mark: u32,
    /// Traffic control handle.
    pub priority: u32,
    /// Its connection, as tracking knows it.
    pub connection: Connection<'a>,
    /// The routes of the gateway; `None` where nobody knows them.
    pub routes: Option<&'a dyn Routes>,
}

#[cfg(test)]
impl<'a> PacketView<'a> {
    /// A packet of which only the headers are known.
    pub(crate) const fn untracked(frame: &'a [u8], network: &'a Network) -> Self {
        Self {
            frame,
            network,
            vlan: 0,
            packet_type: 0,
            input: 0,
            output: 0,
            mark: 0,
            priority: 0,
            connection: Connection::UNTRACKED,
            routes: None,
        }
    }
}

/// The result of tracking for a packet.
#[derive(Clone, Copy, Debug)]
pub struct Connection<'a> {
    /// Its state.
    pub state: CtState,
    /// Its connection; `None` for packets that are invalid or not tracked.
    pub known: Option<Known<'a>>,
}

impl Connection<'_> {
    /// For a packet that was not tracked, or not yet.
    pub const UNTRACKED: Self = Self { state: CtState::Untracked, known: None };
}

/// State of a packet, with the bit of the kernel's interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum CtState {
    /// The packet can not belong to a connection.
    Invalid = 1,
    /// The packet belongs to a connection that has seen packets of both ends.
    Established = 2,
    /// The packet belongs to, or opens, a connection that another one announced.
    Related = 4,
    /// The packet opens a connection.
    New = 8,
    /// The packet is not tracked.
    Untracked = 64,
}

impl CtState {
    /// nftables' name of the state.
    pub fn name(self) -> &'static str {
        let bit = self as u64;
        CT_STATES.iter().find(|(_, number)| *number == bit).map_or("", |(name, _)| name)
    }
}

impl From<flow::Class> for CtState {
    fn from(class: flow::Class) -> Self {
        match class {
            flow::Class::New => Self::New,
            flow::Class::Established => Self::Established,
            flow::Class::Related => Self::Related,
            flow::Class::Invalid(_) => Self::Invalid,
            flow::Class::Untracked => Self::Untracked,
        }
    }
}

/// The connection of a packet.
#[derive(Clone, Copy)]
pub struct Known<'a> {
    /// True if the packet comes from the end that did not open the connection.
    pub reply: bool,
    /// Status bits of the kernel's interface (`enum ip_conntrack_status`).
    pub status: u32,
    /// Mark.
    pub mark: u32,
    /// Zones of both directions.
    pub zones: ZonePair,
    /// Properties that rules seldom ask for.
    pub details: Option<&'a dyn Details>,
}

impl std::fmt::Debug for Known<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { reply, status, mark, zones, details: _ } = self;
        write!(f, "Known {{ reply: {reply}, status: {status:#x}, mark: {mark}, {zones:?} }}")
    }
}

/// Properties of a connection that rules seldom ask for. They are looked up only then.
pub trait Details {
    /// Addresses and ports of packets in a direction.
    fn tuple(&self, reply: bool) -> Tuple;
    /// Packets and bytes of the original and the reply direction, if they are counted.
    fn counts(&self) -> Option<[(u64, u64); 2]>;
    /// Milliseconds until it ends, unless a packet comes.
    fn expiration_ms(&self) -> u64;
    /// Name of its helper, as [`name_bits`](crate::name_bits) encodes it; 0 for none.
    fn helper(&self) -> u128;
    /// Label bits.
    fn label(&self) -> u128;
    /// True if it is to take a place in this count of connections: its first packet is under way,
    /// and it has none yet.
    fn may_join(&self, _tally: &Tally) -> bool {
        true
    }
}

/// Addresses and ports of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuple {
    /// Source address, IPv4 in the IPv4-mapped form.
    pub source: [u8; 16],
    /// Destination address.
    pub destination: [u8; 16],
    /// Source port, 0 without.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
}
