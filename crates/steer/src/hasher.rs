//! From a packet to its bucket.
//!
//! # The packet's part that decides
//!
//! | packet | bucket from |
//! | --- | --- |
//! | names a flow between an inside and an outside address (below) | the inside end's port, permuted by the outside end |
//! | names another flow (TCP, UDP, ICMP query, GRE, ...) | hash of its flow key; all calls of GRE version 1 between two hosts have one |
//! | of a tunnel that is steered by its inside ([`TunnelSteering`]) | hash of the key of the innermost packet; of its addresses if that is a fragment or names no flow, of what it quotes if that is an ICMP error |
//! | ICMP error with a quote | that of the quoted flow, as in the rows above |
//! | fragment, first or later | SipHash of (addresses, identification, protocol) |
//! | anything else | SipHash of (sorted addresses) |
//!
//! The zone has no part in it: rules choose a packet's zone after it has reached its bucket,
//! and tracking may look for it in several zones. Equal flows of different zones share a
//! bucket, and the bucket's table tells them apart.
//!
//! A packet of a tunnel belongs to the flow that its outermost header names, and to no other.
//! The rules have not judged its inside, so that chooses the bucket and nothing else. So one
//! flow, the tunnel, has packets in many buckets.
//!
//! The first fragment carries ports and could name its flow, but the others can not. So all of
//! them are steered as fragments, and the whole datagram is steered again after reassembly. For
//! IPv6 the protocol is left out: RFC 8200 section 4.5 identifies a datagram by addresses and
//! identification alone, and behind the fragment header the fragments may name different next
//! headers. An atomic fragment (RFC 6946) is a whole datagram and is steered as one.
//!
//! With [`FragmentSteering::Ordered`] every packet is steered by its addresses as in the last
//! row, a tunnel's packets by the outermost ones. So fragments and whole packets between two
//! hosts meet at one worker, in the order of their arrival. If one address is inside and the other
//! outside, the latter alone chooses the bucket, because translation leaves it as it is.
//!
//! # What translation does not touch
//!
//! Source translation gives a connection another address and, if it must, another port at the
//! gateway's side. A hash of all of the key would lead a reply to any bucket. So a gateway that
//! translates sources divides addresses: *inside* are those whose packets it may translate, and
//! those that it translates them to; all others are *outside* (the address realms of RFC 2663
//! section 2.1). A flow with one end on each side is steered by what both of its forms have in
//! common: the outside end, and the port of the inside end.
//!
//! ```text
//! 192.0.2.1:40000 -> 198.51.100.1:443      outside end 198.51.100.1:443, port 40000: bucket 7
//!    leaves as 203.0.113.1:40000           the same: bucket 7
//! ```
//!
//! The outside end chooses a secret permutation of all ports ([`flow::PortPermutation`]), and the
//! place of the port in it is the bucket. So nobody outside can aim at a bucket by a port, all
//! ports towards one outside end are spread evenly, and the other ports of the same bucket can be
//! listed ([`SteeringHasher::local_ports`]): one of them is chosen if the port has to change. If
//! an address is on the wrong side, or both ends are on one, a reply may come to another bucket,
//! and an alias there leads it on.
//!
//! # Two hashes
//!
//! [`HashKind::Sip`] is keyed: nobody outside can aim at a bucket. Its high half
//! chooses the bucket and its low half the place in the bucket's table, so
//! that the places of one bucket's flows are still spread.
//!
//! [`HashKind::ToeplitzSymmetric`] is the hash that an interface with the symmetric RSS key
//! computes. It has one purpose: to take the bucket from the hash that the interface supplies.
//! For replies, ICMP errors and all packets that the interface hashed differently this module
//! computes it with the same function, so it never matters which of the two computed it. It has
//! 16 bits of entropy and ignores the zone, and anyone can aim at a bucket; the table hash
//! stays SipHash.
//!
//! # When a supplied hash counts
//!
//! A supplied hash counts only for packets that every interface with the symmetric key over
//! (addresses, ports) hashes in the same way: TCP and UDP, not fragmented, without options or
//! extension headers (the home address option and routing headers replace addresses in some
//! hash types), directly behind an untagged Ethernet header (interfaces differ in how they
//! treat tags, PPPoE, MPLS and tunnels). For all others this module computes the hash, which
//! takes a few nanoseconds. A supplied hash of zero never counts, because interfaces mean
//! "none" by it; the computed hash is then the one that counts.

use std::hash::Hasher;
use std::num::NonZeroU32;

use flow::{BucketPorts, Endpoint, FlowKey, HashKey, KeyedPacket, PortPermutation, Side, Zone};
use siphasher::sip::SipHasher13;
use wire::{Family, FragmentInfo, Network, Transport, inside, protocol};

use crate::{AddressSet, BucketCount, BucketId, symmetric_toeplitz};

/// The hash that chooses the bucket of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum HashKind {
    /// SipHash-1-3 under the secret of the process.
    #[default]
    Sip,
    /// Toeplitz with the symmetric key over addresses and ports; may be supplied
    /// by the interface.
    ToeplitzSymmetric,
}

/// The rule that keeps fragments of a datagram together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum FragmentSteering {
    /// Each datagram has a bucket of its own. That spreads best; datagrams of one flow that
    /// arrive in fragments may overtake each other and those that arrive whole.
    #[default]
    Spread,
    /// All packets between two addresses have one bucket, so a datagram leaves in its turn
    /// whether it came whole or in fragments. The flows between two hosts share one worker.
    Ordered,
    /// All fragments have one bucket, and everything else is steered as in `Spread`. This is
    /// for replays, whose result must not depend on the number of workers.
    OneBucket,
}

/// The part of a tunnel's packet that chooses its bucket. Tunnels are IP in IP and GRE version
/// 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum TunnelSteering {
    /// The tunnel. It then has at most one worker for each direction.
    Outer,
    /// The flow inside, so that the packets of one tunnel spread over the workers.
    #[default]
    Inner,
    /// As [`TunnelSteering::Inner`]. In addition the rules judge the packet inside: steering
    /// marks each packet of a tunnel as [`Steered::Carrying`].
    Judged,
}

/// The settings of steering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SteeringConfig {
    /// The hash that chooses the bucket of a flow.
    pub kind: HashKind,
    /// Secret of the keyed hash, needed with either kind.
    pub key: HashKey,
    /// How many buckets there are.
    pub buckets: BucketCount,
    /// The rule for fragments.
    pub fragments: FragmentSteering,
    /// The rule for tunnels.
    pub tunnels: TunnelSteering,
}

/// The result of steering a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Steered {
    /// The packet belongs to the flow that its outermost headers name.
    Flow {
        /// The flow and which end sent the packet.
        keyed: KeyedPacket,
        /// The table hash of the flow, if it was needed to choose the bucket
        /// ([`HashKind::Sip`]). Otherwise the owner computes it
        /// ([`SteeringHasher::table_hash`]).
        hash: Option<u64>,
        /// Its bucket.
        bucket: BucketId,
    },
    /// As [`Steered::Flow`], for a packet of a tunnel whose inside the rules judge
    /// ([`TunnelSteering::Judged`]).
    Carrying {
        /// The tunnel and which end sent the packet.
        keyed: KeyedPacket,
        /// As in [`Steered::Flow`].
        hash: Option<u64>,
        /// The bucket of the flow inside, or of the tunnel if the inside can not choose one.
        bucket: BucketId,
    },
    /// An ICMP error that belongs to the flow it quotes.
    Quoted {
        /// The quoted flow and which end sent the quoted packet.
        keyed: KeyedPacket,
        /// As in [`Steered::Flow`].
        hash: Option<u64>,
        /// Bucket of the quoted flow.
        bucket: BucketId,
    },
    /// A fragment of a datagram, which must be reassembled first.
    Fragment {
        /// Bucket of all fragments of the datagram.
        bucket: BucketId,
    },
    /// The packet names no flow; packets between the same two addresses stay in order.
    Keyless {
        /// Bucket of the pair of addresses.
        bucket: BucketId,
    },
}

impl Steered {
    /// The bucket, in every case.
    pub const fn bucket(&self) -> BucketId {
        match *self {
            Self::Flow { bucket, .. }
            | Self::Carrying { bucket, .. }
            | Self::Quoted { bucket, .. }
            | Self::Fragment { bucket }
            | Self::Keyless { bucket } => bucket,
        }
    }
}

/// Maps packets to buckets. Small and cheap to clone: each worker has its own.
#[derive(Clone, Debug)]
pub struct SteeringHasher {
    config: SteeringConfig,
    inside: AddressSet,
}

impl SteeringHasher {
    /// A hasher for which no address is inside. Two hashers with equal configurations and inside
    /// addresses choose the same bucket for every packet.
    pub fn new(config: SteeringConfig) -> Self {
        Self { config, inside: AddressSet::default() }
    }

    /// The configuration by which packets are mapped to buckets.
    pub const fn config(&self) -> &SteeringConfig {
        &self.config
    }

    /// The inside addresses; empty if sources are not translated.
    pub const fn inside(&self) -> &AddressSet {
        &self.inside
    }

    /// Steers by these inside addresses from now on. They must include all addresses that
    /// sources are translated to.
    pub fn set_inside(&mut self, inside: AddressSet) {
        self.inside = inside;
    }

    /// The bucket of a packet without its frame: a tunnel's packet is steered as with
    /// [`TunnelSteering::Outer`].
    #[inline(always)]
    pub fn steer(&self, network: &Network, zone: Zone, supplied: Option<NonZeroU32>) -> Steered {
        self.steer_frame(&[], network, zone, supplied)
    }

    /// The bucket of the packet in `frame` that `network` describes.
    ///
    /// `supplied` is the hash that the interface delivered with the packet. Pass it only if the
    /// interface is declared to hash with the symmetric Toeplitz key over addresses and ports.
    /// It is used only with [`HashKind::ToeplitzSymmetric`] and only for packets that every
    /// such interface hashes in the same way; see the description of this module.
    #[inline(always)]
    pub fn steer_frame(
        &self,
        frame: &[u8],
        network: &Network,
        zone: Zone,
        supplied: Option<NonZeroU32>,
    ) -> Steered {
        if let Some(fragment) = network.fragment.filter(|fragment| !fragment.is_atomic()) {
            return Steered::Fragment { bucket: self.fragment_bucket(network, fragment) };
        }
        match FlowKey::of_ported(network, zone) {
            Some(keyed) => self.steer_flow(network, keyed, supplied),
            None => self.steer_portless(frame, network, zone, supplied),
        }
    }

    #[inline(always)]
    fn steer_flow(
        &self,
        network: &Network,
        keyed: KeyedPacket,
        supplied: Option<NonZeroU32>,
    ) -> Steered {
        let supplied = supplied.filter(|_| may_trust_supplied(network));
        let (hash, bucket) = self.flow_bucket(&keyed.key, supplied);
        Steered::Flow { keyed, hash, bucket }
    }

    /// The bucket of a whole packet of a transport without ports.
    #[inline(never)]
    fn steer_portless(
        &self,
        frame: &[u8],
        network: &Network,
        zone: Zone,
        supplied: Option<NonZeroU32>,
    ) -> Steered {
        if let Some(keyed) = FlowKey::of_packet(network, zone) {
            if keyed.key.is_tunnel() {
                return self.steer_tunnel(frame, network, keyed);
            }
            return self.steer_flow(network, keyed, supplied);
        }
        if let Transport::IcmpError(wire::IcmpError { quoted: Some(quoted), .. }) =
            &network.transport
        {
            let keyed = FlowKey::of_quoted(quoted, network.family, zone);
            let (hash, bucket) = self.flow_bucket(&keyed.key, None);
            return Steered::Quoted { keyed, hash, bucket };
        }
        Steered::Keyless { bucket: self.keyless_bucket(network) }
    }

    /// The bucket of a packet of a tunnel.
    fn steer_tunnel(&self, frame: &[u8], network: &Network, keyed: KeyedPacket) -> Steered {
        let (hash, bucket) = match self.bucket_inside(frame, network) {
            Some(bucket) => (None, bucket),
            None => self.flow_bucket(&keyed.key, None),
        };
        match self.config.tunnels {
            TunnelSteering::Judged => Steered::Carrying { keyed, hash, bucket },
            _ => Steered::Flow { keyed, hash, bucket },
        }
    }

    /// The bucket of a tunnel's packet by its inside; `None` if that can not choose one.
    fn bucket_inside(&self, frame: &[u8], outer: &Network) -> Option<BucketId> {
        let SteeringConfig { fragments, tunnels, .. } = self.config;
        if tunnels == TunnelSteering::Outer || fragments == FragmentSteering::Ordered {
            return None;
        }
        let inner = inside(frame, outer)?;
        let is_whole = inner.fragment.is_none_or(|fragment| fragment.is_atomic());
        let keyed = match &inner.transport {
            // An error belongs to the flow that it quotes, inside a tunnel as outside.
            Transport::IcmpError(wire::IcmpError { quoted: Some(quoted), .. }) => {
                Some(FlowKey::of_quoted(quoted, inner.family, Zone(0)))
            }
            _ => FlowKey::of_packet(&inner, Zone(0)),
        };
        let keyed = keyed.filter(|_| is_whole);
        Some(match keyed {
            Some(keyed) => self.hashed_bucket(&keyed.key, None).1,
            None => self.keyless_bucket(&inner),
        })
    }

    /// The bucket of a flow named by its key, without a packet.
    pub fn bucket_of_key(&self, key: &FlowKey) -> BucketId {
        match key.is_call() {
            true => self.flow_bucket(&key.of_calls(), None).1,
            false => self.flow_bucket(key, None).1,
        }
    }

    /// The ports that a connection to `remote` may have at an inside address so that its replies
    /// come to `bucket`; `None` if its replies are not steered by their port. `key` is the key of
    /// the connection.
    pub fn local_ports(
        &self,
        bucket: BucketId,
        key: &FlowKey,
        remote: Endpoint,
    ) -> Option<BucketPorts> {
        let is_steered_by_port = key.is_identified()
            && self.config.fragments != FragmentSteering::Ordered
            && !self.inside.contains(&remote.address, key.family);
        let remote = FlowKey { low: remote, ..*key };
        let permutation = PortPermutation::new(remote.remote_secret(Side::Low, self.config.key));
        let places = ALL_PORTS / self.config.buckets.get() as u32;
        // A bucket's number is below the count, so the product is below 2^16.
        let first_place = (u32::from(bucket.0) * places) as u16;
        is_steered_by_port.then_some(BucketPorts::new(permutation, first_place, places))
    }

    /// The hash of a flow for the table of its bucket: SipHash-1-3 in both kinds.
    pub fn table_hash(&self, key: &FlowKey) -> u64 {
        key.hash(self.config.key)
    }

    /// [`Self::table_hash`] for the key of a packet.
    #[inline]
    pub fn packet_hash(&self, key: &FlowKey) -> u64 {
        key.packet_hash(self.config.key)
    }

    #[inline(always)]
    fn flow_bucket(&self, key: &FlowKey, supplied: Option<NonZeroU32>) -> (Option<u64>, BucketId) {
        if !self.inside.is_empty()
            && let Some(bucket) = self.crossing_bucket(key)
        {
            let is_sip = self.config.kind == HashKind::Sip;
            return (is_sip.then(|| self.packet_hash(key)), bucket);
        }
        if self.config.fragments == FragmentSteering::Ordered {
            return (None, self.address_bucket(key.low.address, key.high.address));
        }
        self.hashed_bucket(key, supplied)
    }

    /// The bucket of a flow between an inside and an outside end; `None` for other flows.
    #[inline(never)]
    fn crossing_bucket(&self, key: &FlowKey) -> Option<BucketId> {
        // Code of its own for each family: IPv4 addresses are loaded as one word.
        match key.family {
            Family::V4 => self.crossing_bucket_of(key, Family::V4),
            Family::V6 => self.crossing_bucket_of(key, Family::V6),
        }
    }

    #[inline(always)]
    fn crossing_bucket_of(&self, key: &FlowKey, family: Family) -> Option<BucketId> {
        let remote = self.remote([&key.low.address, &key.high.address], family)?;
        if self.config.fragments == FragmentSteering::Ordered {
            let remote = key.endpoint(remote).address;
            return Some(self.address_bucket(remote, remote));
        }
        if !key.is_identified() {
            return None;
        }
        // The end that asks has the identifier, and a key has it as the port of the low end.
        let local = if key.is_query() { Side::Low } else { remote.opposite() };
        let permutation = PortPermutation::new(key.remote_secret(remote, self.config.key));
        let place = permutation.place(key.endpoint(local).port);
        Some(self.config.buckets.bucket_of(u32::from(place) << 16))
    }

    /// The one of two addresses that is outside, if the other is inside.
    #[inline(always)]
    fn remote(&self, [low, high]: [&[u8; 16]; 2], family: Family) -> Option<Side> {
        match (self.inside.contains(low, family), self.inside.contains(high, family)) {
            (true, false) => Some(Side::High),
            (false, true) => Some(Side::Low),
            _ => None,
        }
    }

    /// The bucket of a flow by its hash.
    #[inline(always)]
    fn hashed_bucket(
        &self,
        key: &FlowKey,
        supplied: Option<NonZeroU32>,
    ) -> (Option<u64>, BucketId) {
        match self.config.kind {
            HashKind::Sip => {
                let hash = self.packet_hash(key);
                (Some(hash), self.bucket_of_sip(hash))
            }
            HashKind::ToeplitzSymmetric => {
                let hash =
                    supplied.map_or_else(|| symmetric_toeplitz(folded(key)), NonZeroU32::get);
                (None, self.config.buckets.bucket_of(hash.wrapping_mul(GOLDEN_RATIO)))
            }
        }
    }

    fn fragment_bucket(&self, network: &Network, fragment: FragmentInfo) -> BucketId {
        match self.config.fragments {
            FragmentSteering::Spread => {}
            FragmentSteering::Ordered => return self.keyless_bucket(network),
            FragmentSteering::OneBucket => return BucketId(0),
        }
        let mut hasher = self.address_hasher(network.source, network.destination);
        if network.family == Family::V4 {
            hasher.write_u8(network.protocol);
        }
        hasher.write_u32(fragment.id);
        self.bucket_of_sip(hasher.finish())
    }

    fn keyless_bucket(&self, network: &Network) -> BucketId {
        let ends = [&network.source, &network.destination];
        let remote = match self.config.fragments {
            FragmentSteering::Ordered => self.remote(ends, network.family),
            _ => None,
        };
        match remote {
            Some(side) => self.address_bucket(*ends[side.index()], *ends[side.index()]),
            None => self.address_bucket(network.source, network.destination),
        }
    }

    fn address_bucket(&self, a: [u8; 16], b: [u8; 16]) -> BucketId {
        self.bucket_of_sip(self.address_hasher(a, b).finish())
    }

    /// A keyed hasher that has taken in two addresses, in either order.
    fn address_hasher(&self, a: [u8; 16], b: [u8; 16]) -> SipHasher13 {
        let mut hasher = SipHasher13::new_with_keys(self.config.key.0, self.config.key.1);
        hasher.write(&a.min(b));
        hasher.write(&a.max(b));
        hasher
    }

    const fn bucket_of_sip(&self, hash: u64) -> BucketId {
        self.config.buckets.bucket_of((hash >> 32) as u32)
    }
}

/// Number of ports, 0 included.
const ALL_PORTS: u32 = 1 << 16;

/// 2^32 over the golden ratio. The Toeplitz hash is linear, so flows that differ
/// in few bits, as those of one client network do, can leave half of the buckets
/// empty; multiplying first (Knuth, "The Art of Computer Programming" 6.4)
/// spreads them.
const GOLDEN_RATIO: u32 = 0x9e37_79b1;

/// The exclusive or of all 16-bit words of addresses and ports.
#[inline]
fn folded(key: &FlowKey) -> u16 {
    // The exclusive or does not depend on the byte order, so only the last step converts it.
    let sum = u128::from_ne_bytes(key.low.address) ^ u128::from_ne_bytes(key.high.address);
    let sum = (sum >> 64) as u64 ^ sum as u64;
    let sum = (sum >> 32) as u32 ^ sum as u32;
    u16::from_be((sum >> 16) as u16 ^ sum as u16) ^ key.low.port ^ key.high.port
}

/// True for packets that every interface with the symmetric key hashes as
/// [`symmetric_toeplitz`] does.
#[inline]
fn may_trust_supplied(network: &Network) -> bool {
    const ETHERNET_HEADER: u16 = 14;
    let base_header = match network.family {
        Family::V4 => 20,
        Family::V6 => 40,
    };
    matches!(network.protocol, protocol::TCP | protocol::UDP)
        && network.fragment.is_none()
        && network.offset == ETHERNET_HEADER
        && network.transport_offset == ETHERNET_HEADER + base_header
}

#[cfg(test)]
#[path = "hasher_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "crossing_tests.rs"]
mod crossing_tests;
