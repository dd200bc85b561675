//! Packets, and the items that travel between workers.

use conntrack::Guess;
use flow::{KeyedPacket, ZonePair};
use netio::Frame;
use steer::{BucketId, SteeringHasher};
use wire::{Network, Transport};

use crate::Bucket;
use crate::egress::forwarder::Forwarder;
use crate::egress::route_decision::RouteDecision;
use crate::egress::stations::StationUpdate;
use crate::path::alias_table::AliasMessage;
use crate::path::reassembly::Pieces;
use crate::path::zones::Origin;
use crate::rings::link::Freight;

/// A frame with what the receiving worker found out about it, so that the owner
/// of its bucket does not have to look again.
#[derive(Debug)]
pub struct Packet {
    /// The frame.
    pub frame: Frame,
    /// Its headers.
    pub network: Network,
    /// Its flow, or for an ICMP error the flow of the quote; `None` for packets
    /// that no flow can own.
    pub flow: Option<TrackedFlow>,
    /// Where its connection most likely lies in the table of its bucket.
    pub guess: Guess,
    /// The bucket whose owner processes it.
    pub bucket: BucketId,
    /// Zone and VLAN that it came from.
    pub origin: Origin,
    /// Zones of a connection that it opens, where a rule has given it one for one direction.
    pub zones: Option<ZonePair>,
    /// The mark that rules have given it before tracking.
    pub mark: u32,
    /// Rules in front of tracking have been asked: it is in its zone.
    pub passed_raw: bool,
    /// A rule in front of tracking has to see every packet of its flow.
    pub per_packet: bool,
    /// Rules have said that it is not to be tracked.
    pub untracked: bool,
    /// It is of a tunnel, and what it carries is to be judged.
    pub carries: bool,
    /// For a datagram that came in fragments: these, in order. They are what is
    /// sent; `frame` is the whole, to be looked at.
    pub pieces: Option<Box<Pieces>>,
    /// A router has looked at its addresses and options.
    pub is_checked: bool,
    /// It is for an address of the host: only what is translated goes on.
    pub is_local: bool,
    /// The bucket whose alias has led here, if one has.
    pub alias_in: Option<BucketId>,
}

impl Packet {
    /// The key of the packets of its connection in its direction, with the hash of the key, if that
    /// was computed. An ICMP error goes against the packet that it quotes. A call of GRE is
    /// [named](KeyedPacket::named).
    pub fn looked_up(&self) -> Option<(KeyedPacket, u64)> {
        let TrackedFlow { mut keyed, hash: Some(hash) } = self.flow? else { return None };
        if matches!(self.network.transport, Transport::IcmpError(_)) {
            keyed.sender = keyed.sender.opposite();
        }
        Some((keyed.named(&self.network), hash))
    }

    /// Notes that a router has looked at its addresses and options, and whether it is for the host.
    #[inline]
    pub fn set_checked(&mut self, forwarder: &mut Forwarder) {
        self.is_checked = true;
        self.is_local = forwarder.is_local(&self.network);
    }

    /// Prepares it to wait, or for another worker. Routes and rules may be others when it goes on. So a
    /// router looks at it again, and no decision is recorded that rests on rules asked before.
    pub fn set_aside(&mut self) {
        self.is_checked = false;
        self.per_packet |= self.passed_raw;
    }

    /// Takes the packet out of its place, which keeps what describes it.
    pub fn take(&mut self) -> Self {
        let (frame, pieces) = (std::mem::take(&mut self.frame), self.pieces.take());
        Self { frame, pieces, ..*self }
    }

    /// How many packets it counts as where a limit bounds what may wait: 1, or one for
    /// each fragment of a datagram, because all of them wait.
    pub fn weight(&self) -> usize {
        self.pieces.as_ref().map_or(1, |pieces| pieces.frames().len())
    }
}

/// The route of a packet with this mark. `None` in a bridge.
#[inline]
pub fn route_of(forwarder: &mut Forwarder, packet: &Packet, mark: u32) -> Option<RouteDecision> {
    forwarder.route(&packet.network, packet.frame.port, mark, packet.pieces.is_none())
}

/// The flow of a packet.
#[derive(Clone, Copy, Debug)]
pub struct TrackedFlow {
    /// Key and sender.
    pub keyed: KeyedPacket,
    /// Hash of the key; its low half is the place in the bucket's table. `None`
    /// where choosing the bucket did not need it: the owner computes it.
    pub hash: Option<u64>,
}

impl TrackedFlow {
    /// The hash, computed now if nobody has needed it before.
    #[inline]
    pub fn table_hash(&mut self, hasher: &SteeringHasher) -> u64 {
        *self.hash.get_or_insert_with(|| hasher.packet_hash(&self.keyed.key))
    }
}

/// An entry of a ring between two workers. The order of a ring is the order in
/// which they take effect.
#[derive(Debug)]
pub enum Item {
    /// A packet for a bucket that the sender believes the receiver owns.
    Packet(Packet),
    /// Nothing of this bucket will follow on this ring.
    Fence(BucketId),
    /// A bridge has heard from a station.
    Station(StationUpdate),
    /// A bucket changes its owner.
    Bucket(BucketId, Box<Bucket>),
    /// Something about an alias, for a bucket that the sender believes the receiver owns.
    Alias(BucketId, AliasMessage),
    /// To be answered when everything before it has been processed: the bucket is to leave.
    Flush(BucketId),
    /// The answer.
    Flushed(BucketId),
    /// To be reported to the coordinator when it is reached: everything that was
    /// sent on this ring before it has been processed.
    Marker(u64),
}

impl Freight for Item {
    fn weight(&self) -> usize {
        if let Self::Packet(packet) = self { packet.weight() } else { 1 }
    }

    #[inline]
    fn frames(&self, mut each: impl FnMut(&Frame)) {
        let Self::Packet(packet) = self else { return };
        each(&packet.frame);
        if let Some(pieces) = &packet.pieces {
            pieces.frames().for_each(each);
        }
    }
}

/// The rings between this worker and another one.
pub type Link = crate::rings::link::Link<Item>;

/// An item that is kept for a bucket on its way, in its order.
#[derive(Debug)]
pub enum Kept {
    /// A packet.
    Packet(Packet),
    /// Something about an alias.
    Message(AliasMessage),
}
