//! The key of the flow that a packet belongs to.

use wire::{Family, IcmpQuery, Network, QueryKind, Quoted, QuotedTransport, Transport, protocol};

use crate::siphash::{Tail, siphash};

/// A tracking zone: flows of different zones never meet, even with equal addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Zone(pub u16);

impl Zone {
    /// The difference between a flow's hash in this zone and in zone 0. It lies in the low
    /// half, so a flow has the same bucket in all zones. It is different for each zone.
    const fn spread(self) -> u64 {
        // An odd factor, so the product differs for each zone: 2^32 over the golden ratio
        // (Knuth, "The Art of Computer Programming" 6.4).
        (self.0 as u32).wrapping_mul(0x9e37_79b1) as u64
    }
}

/// The zones of a connection, one for each direction. Tracking looks a packet up in the zone of
/// its direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct ZonePair {
    /// The zone of the originator's packets.
    pub original: Zone,
    /// The zone of the packets that answer.
    pub reply: Zone,
}

impl ZonePair {
    /// The same zone for both directions, which is the usual case.
    pub const fn both(zone: Zone) -> Self {
        Self { original: zone, reply: zone }
    }

    /// True if both directions are in one zone.
    pub const fn is_one(self) -> bool {
        self.original.0 == self.reply.0
    }

    /// The zone by which rules and operators name the connection: the zone of the direction
    /// that has one other than 0.
    pub const fn named(self) -> Zone {
        if self.original.0 == 0 { self.reply } else { self.original }
    }
}

/// An address with the port or identifier that belongs to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Endpoint {
    /// Address; IPv4 in the IPv4-mapped form.
    pub address: [u8; 16],
    /// Port, or the number in its place (see [`FlowKey`]).
    pub port: u16,
}

/// One of the two ends of a flow, in the order of the canonical key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// The end whose (address, port) sorts first.
    Low,
    /// The other end.
    High,
}

impl Side {
    /// The other end.
    #[must_use]
    pub const fn opposite(self) -> Self {
        match self {
            Self::Low => Self::High,
            Self::High => Self::Low,
        }
    }

    /// 0 for `Low`, 1 for `High`: an index into per-side pairs.
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// The identity of a flow, the same for both of its directions: the two endpoints are sorted as
/// (address, port) pairs.
///
/// Protocols without ports put these numbers in their place:
///
/// | protocol | `low.port` / `high.port` | `kind` |
/// | --- | --- | --- |
/// | ICMP query | identifier / code | query kind and which end asks |
/// | GRE version 0 | low and high half of the key, both ends the same | 0 |
/// | GRE version 1, a packet | 0 / 0 | 1 |
/// | GRE version 1, a connection | each end's own call id | 2 |
/// | any other | 0 / 0 | 0 |
///
/// The end that asks is part of an ICMP key, because an echo request from A and one from B with
/// the same identifier belong to two flows.
///
/// A packet of GRE version 1 names only the call id of its receiver (RFC 2637 section 4.1). So
/// its key stands for all calls between two hosts ([`FlowKey::of_calls`]), which share a bucket
/// and a hash. Tracking finds out which call the packet belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowKey {
    /// The end that sorts first.
    pub low: Endpoint,
    /// The other end.
    pub high: Endpoint,
    /// Zone.
    pub zone: Zone,
    /// IP protocol number.
    pub protocol: u8,
    /// See the table above.
    pub kind: u8,
    /// Address family.
    pub family: Family,
}

/// A flow key and which end sent the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyedPacket {
    /// The flow.
    pub key: FlowKey,
    /// The sender of this packet. For a key made from the quote of an ICMP
    /// error: the sender of the quoted packet.
    pub sender: Side,
}

impl KeyedPacket {
    /// The same packet in another zone.
    #[must_use]
    pub const fn in_zone(self, zone: Zone) -> Self {
        Self { key: FlowKey { zone, ..self.key }, ..self }
    }

    /// The same packet in another zone, and the hash of its flow there; `hash` is the one in
    /// its present zone.
    #[must_use]
    pub const fn moved(self, hash: u64, zone: Zone) -> (Self, u64) {
        (self.in_zone(zone), hash ^ self.key.zone.spread() ^ zone.spread())
    }
}

/// The values of [`FlowKey::kind`] for GRE: version 0; a packet of version 1; a call of version
/// 1 between two ends.
const TUNNEL: u8 = 0;
const CALLS: u8 = 1;
const CALL: u8 = 2;

impl FlowKey {
    /// The flow of a packet by its own headers.
    ///
    /// `None` for packets that name no flow of their own: ICMP errors (see
    /// [`FlowKey::of_quoted`]), other ICMP messages and later fragments.
    pub fn of_packet(network: &Network, zone: Zone) -> Option<KeyedPacket> {
        Self::of_ported(network, zone).or_else(|| {
            let build = Builder::of(network, zone);
            match network.transport {
                Transport::IcmpQuery(query) => Some(build.query(query)),
                Transport::Gre { version, key } => Some(build.gre(version, key)),
                Transport::Other => Some(build.ports(0, 0)),
                Transport::IcmpError(_)
                | Transport::IcmpOther { .. }
                | Transport::LaterFragment
                | Transport::Tcp(_)
                | Transport::Udp { .. }
                | Transport::Sctp { .. }
                | Transport::Dccp { .. } => None,
            }
        })
    }

    /// The flow of a packet whose transport has ports, which nearly all have; `None` for
    /// others.
    #[inline]
    pub fn of_ported(network: &Network, zone: Zone) -> Option<KeyedPacket> {
        let (source, destination) = match network.transport {
            Transport::Tcp(tcp) => (tcp.source_port, tcp.destination_port),
            Transport::Udp { source_port, destination_port, .. }
            | Transport::Sctp { source_port, destination_port, .. }
            | Transport::Dccp { source_port, destination_port, .. } => {
                (source_port, destination_port)
            }
            _ => return None,
        };
        Some(Builder::of(network, zone).ports(source, destination))
    }

    /// The flow that the quote of an ICMP error names.
    pub fn of_quoted(quoted: &Quoted, family: Family, zone: Zone) -> KeyedPacket {
        let build = Builder {
            source: quoted.source,
            destination: quoted.destination,
            family,
            protocol: quoted.protocol,
            zone,
        };
        match quoted.transport {
            QuotedTransport::Ports { source, destination } => build.ports(source, destination),
            QuotedTransport::Query(query) => build.query(query),
            QuotedTransport::Gre { version, key } => build.gre(version, key),
            QuotedTransport::Other => build.ports(0, 0),
        }
    }

    /// A flow by its addresses and ports, as an operator names it.
    pub fn of_ports(
        family: Family,
        protocol: u8,
        zone: Zone,
        source: Endpoint,
        destination: Endpoint,
    ) -> KeyedPacket {
        Builder { source: source.address, destination: destination.address, family, protocol, zone }
            .ports(source.port, destination.port)
    }

    /// A flow of GRE version 0.
    pub fn of_tunnel(
        family: Family,
        zone: Zone,
        source: [u8; 16],
        destination: [u8; 16],
        key: u32,
    ) -> Self {
        Builder { source, destination, family, protocol: protocol::GRE, zone }.gre(TUNNEL, key).key
    }

    /// A call of GRE version 1 between two ends, each with its own call id as port, or 0 if
    /// that is not known.
    pub fn of_call(family: Family, zone: Zone, source: Endpoint, destination: Endpoint) -> Self {
        let (source_id, destination_id) = (source.port, destination.port);
        let (source, destination) = (source.address, destination.address);
        let build = Builder { source, destination, family, protocol: protocol::GRE, zone };
        let calls = build.gre(CALLS, 0);
        calls.key.call(calls.sender, source_id, destination_id)
    }

    /// The key of one of the calls that this packet key stands for.
    #[must_use]
    pub fn call(self, sender: Side, sender_id: u16, receiver_id: u16) -> Self {
        let Self { mut low, mut high, .. } = self;
        (low.port, high.port) = match sender {
            Side::Low => (sender_id, receiver_id),
            Side::High => (receiver_id, sender_id),
        };
        Self { low, high, kind: CALL, ..self }
    }

    /// The key that packets carry. For a call it is the key of all calls between its ends.
    #[must_use]
    pub const fn of_calls(self) -> Self {
        if !self.is_call() {
            return self;
        }
        let Self { mut low, mut high, .. } = self;
        (low.port, high.port) = (0, 0);
        Self { low, high, kind: CALLS, ..self }
    }

    /// True for a call of GRE version 1, known by its call ids.
    #[inline]
    pub const fn is_call(&self) -> bool {
        self.protocol == protocol::GRE && self.kind == CALL
    }

    /// True for the key of a packet of GRE version 1, which stands for all calls between its
    /// ends.
    #[inline]
    pub const fn is_of_calls(&self) -> bool {
        self.protocol == protocol::GRE && self.kind == CALLS
    }

    /// True for a tunnel whose inside steering may look at: IP in IP (RFC 2003, RFC 2473, RFC
    /// 4213) and GRE version 0 (RFC 2784).
    #[inline]
    pub const fn is_tunnel(&self) -> bool {
        match self.protocol {
            protocol::IPIP | protocol::IPV6 => true,
            protocol::GRE => self.kind == TUNNEL,
            _ => false,
        }
    }

    /// The same flow between other ends, and the side that `sender` has there.
    ///
    /// The port of an end is the number that the protocol puts in its place: for an ICMP query
    /// the identifier, given as the port of the end that asks; for a call of GRE each end's
    /// call id. Protocols with no such number (GRE version 0, node information of ICMPv6)
    /// ignore the ports. Protocols that are not in the table of [`FlowKey`] need ports of 0.
    #[must_use]
    pub fn between(&self, sender: Side, source: Endpoint, destination: Endpoint) -> KeyedPacket {
        let Self { family, protocol, zone, .. } = *self;
        let (from, to) = (source.address, destination.address);
        let build = Builder { source: from, destination: to, family, protocol, zone };
        match protocol {
            protocol::ICMP | protocol::ICMPV6 => {
                let asks = self.kind & 1 == sender as u8;
                let port = if asks { source.port } else { destination.port };
                let id = if self.is_identified() { port } else { self.low.port };
                build.asked(self.kind >> 1, asks, id, self.high.port)
            }
            protocol::GRE if self.is_call() => {
                let calls = build.gre(CALLS, 0);
                let key = calls.key.call(calls.sender, source.port, destination.port);
                KeyedPacket { key, sender: calls.sender }
            }
            protocol::GRE => {
                build.gre(self.kind, u32::from(self.high.port) << 16 | u32::from(self.low.port))
            }
            _ => build.ports(source.port, destination.port),
        }
    }

    /// True for the queries of ICMP and ICMPv6.
    pub const fn is_query(&self) -> bool {
        matches!(self.protocol, protocol::ICMP | protocol::ICMPV6)
    }

    /// True if the ends have ports, or if the one that asks has an identifier.
    pub const fn is_identified(&self) -> bool {
        const WITHOUT: u8 = QueryKind::NodeInformation as u8;
        // Nearly all packets, without a jump table.
        if matches!(self.protocol, protocol::TCP | protocol::UDP) {
            return true;
        }
        match self.protocol {
            protocol::UDPLITE | protocol::SCTP | protocol::DCCP | protocol::ICMP => true,
            protocol::ICMPV6 => self.kind >> 1 != WITHOUT,
            _ => false,
        }
    }

    /// The end on `side`, with its port or the number in its place. In an ICMP query only the
    /// end that asks has an identifier; in GRE version 0 neither end has a number, so its port
    /// is 0.
    #[inline]
    pub const fn end(&self, side: Side) -> Endpoint {
        match self.protocol {
            protocol::ICMP | protocol::ICMPV6 | protocol::GRE => self.end_without_ports(side),
            _ => self.endpoint(side),
        }
    }

    const fn end_without_ports(&self, side: Side) -> Endpoint {
        let Endpoint { address, port } = self.endpoint(side);
        let port = match self.protocol {
            protocol::GRE if self.is_call() => port,
            protocol::GRE => 0,
            _ => {
                let asks = self.kind & 1 == side as u8;
                if asks && self.is_identified() { self.low.port } else { 0 }
            }
        };
        Endpoint { address, port }
    }

    /// The endpoint of a side.
    pub const fn endpoint(&self, side: Side) -> Endpoint {
        match side {
            Side::Low => self.low,
            Side::High => self.high,
        }
    }

    /// The keyed hash of the flow (SipHash-1-3: an attacker who does not know the key can not
    /// choose flows that collide). The high half selects the bucket, the low half the place in
    /// the bucket's table. The high half does not depend on the zone ([`KeyedPacket::moved`]).
    /// A call has the hash of its packets.
    pub fn hash(&self, key: HashKey) -> u64 {
        if self.is_call() { self.of_calls().packet_hash(key) } else { self.packet_hash(key) }
    }

    /// [`FlowKey::hash`] for the key of a packet, which is never that of a single call.
    #[inline]
    pub fn packet_hash(&self, key: HashKey) -> u64 {
        debug_assert!(!self.is_call(), "no packet names a call");
        let hash = match self.family {
            Family::V4 => {
                let addresses = u64::from(last_word(self.low.address)) << 32
                    | u64::from(last_word(self.high.address));
                siphash(key, [addresses], self.rest())
            }
            Family::V6 => self.hash_long(key),
        };
        hash ^ self.zone.spread()
    }

    /// A keyed hash of the end on `side`: its address, and its port where both ends have ports. All
    /// flows with this endpoint have it in common, whatever their other ends are, so it chooses
    /// the [`crate::PortPermutation`] for the other end's ports.
    #[inline(always)]
    pub fn remote_secret(&self, side: Side, key: HashKey) -> u64 {
        let Endpoint { address, port } = self.endpoint(side);
        let port = if self.is_query() { 0 } else { port };
        // SipHash takes in the length at its end, and no flow key has as many bytes.
        match self.family {
            Family::V4 => {
                let end = u64::from(last_word(address)) << 16 | u64::from(port);
                siphash(key, [], Tail::<6>(end))
            }
            Family::V6 => siphash(key, halves(address), Tail::<2>(port.into())),
        }
    }

    /// A function of its own, so that the short hash of IPv4 keeps its state in registers.
    #[inline(never)]
    fn hash_long(&self, key: HashKey) -> u64 {
        let ([a, b], [c, d]) = (halves(self.low.address), halves(self.high.address));
        // SipHash takes in the length at its end, so the families differ.
        siphash(key, [a, b, c, d], self.rest())
    }

    /// All of the key but addresses and zone.
    #[inline(always)]
    const fn rest(&self) -> Tail<6> {
        Tail(
            (self.low.port as u64) << 32
                | (self.high.port as u64) << 16
                | (self.protocol as u64) << 8
                | self.kind as u64,
        )
    }
}

/// The IPv4 address of an address in the IPv4-mapped form.
fn last_word(address: [u8; 16]) -> u32 {
    u128::from_be_bytes(address) as u32
}

fn halves(address: [u8; 16]) -> [u64; 2] {
    let address = u128::from_be_bytes(address);
    [(address >> 64) as u64, address as u64]
}

/// The secret of a keyed hash, drawn once per process.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HashKey(pub u64, pub u64);

impl std::fmt::Debug for HashKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HashKey(secret)")
    }
}

struct Builder {
    source: [u8; 16],
    destination: [u8; 16],
    family: Family,
    protocol: u8,
    zone: Zone,
}

impl Builder {
    #[inline]
    fn of(network: &Network, zone: Zone) -> Self {
        let Network { source, destination, family, protocol, .. } = *network;
        Self { source, destination, family, protocol, zone }
    }

    #[inline]
    fn ports(self, source_port: u16, destination_port: u16) -> KeyedPacket {
        let source = Endpoint { address: self.source, port: source_port };
        let destination = Endpoint { address: self.destination, port: destination_port };
        // Numbers, because comparing byte arrays is a call.
        let order = |end: &Endpoint| (u128::from_be_bytes(end.address), end.port);
        let (low, high, sender) = if order(&source) <= order(&destination) {
            (source, destination, Side::Low)
        } else {
            (destination, source, Side::High)
        };
        self.keyed(low, high, 0, sender)
    }

    fn query(self, query: IcmpQuery) -> KeyedPacket {
        self.asked(query.kind as u8, !query.reply, query.id, u16::from(query.code))
    }

    /// A query of a kind; `asks` is true if the source asks.
    fn asked(self, kind: u8, asks: bool, id: u16, code: u16) -> KeyedPacket {
        let (low, high, mut sender) = self.sorted_addresses();
        if low == high {
            // With equal addresses only the type of the message tells the directions apart.
            sender = if asks { Side::Low } else { Side::High };
        }
        let asking = if asks { sender } else { sender.opposite() };
        self.keyed(
            Endpoint { address: low, port: id },
            Endpoint { address: high, port: code },
            (kind << 1) | asking as u8,
            sender,
        )
    }

    fn gre(self, version: u8, key: u32) -> KeyedPacket {
        let (low, high, sender) = self.sorted_addresses();
        let key = if version == CALLS { 0 } else { key };
        let halves = [(key & 0xffff) as u16, (key >> 16) as u16];
        self.keyed(
            Endpoint { address: low, port: halves[0] },
            Endpoint { address: high, port: halves[1] },
            version,
            sender,
        )
    }

    fn sorted_addresses(&self) -> ([u8; 16], [u8; 16], Side) {
        if self.source <= self.destination {
            (self.source, self.destination, Side::Low)
        } else {
            (self.destination, self.source, Side::High)
        }
    }

    #[inline]
    fn keyed(self, low: Endpoint, high: Endpoint, kind: u8, sender: Side) -> KeyedPacket {
        let Self { family, protocol, zone, .. } = self;
        KeyedPacket { key: FlowKey { low, high, zone, protocol, kind, family }, sender }
    }
}

#[cfg(test)]
#[path = "key_tests.rs"]
mod tests;
