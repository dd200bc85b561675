//! From a packet to its bucket.
//!
//! # What decides the bucket
//!
//! | packet | bucket from |
//! | --- | --- |
//! | of or to a translation address (see [`crate::Translated`]) | its port |
//! | names a flow (TCP, UDP, ICMP query, GRE, ...) | hash of its flow key; all calls of GRE version 1 between two hosts have one |
//! | of a tunnel that is looked into ([`TunnelSteering`]) | hash of the key of the innermost packet; of its addresses if that is a fragment or names no flow, of what it quotes if that is an ICMP error |
//! | ICMP error with a quote | hash of the quoted flow's key |
//! | fragment, first or later | SipHash of (addresses, identification, protocol) |
//! | anything else | SipHash of (sorted addresses) |
//!
//! The zone has no part in it: rules may put a packet into another when it has come to its
//! bucket, and look for it in several. Equal flows of different zones share a bucket, where the
//! table tells them apart.
//!
//! A packet of a tunnel belongs to the flow that its outermost header names, and to no other: its
//! inside, which nobody has judged, chooses the bucket and nothing else. So one flow, the tunnel,
//! has packets in many buckets.
//!
//! The first fragment carries ports and could name its flow, but the others can
//! not: all of them take the fragment's way, and the whole datagram is steered
//! again after reassembly. For IPv6 the protocol is left out: RFC 8200 section
//! 4.5 identifies a datagram by addresses and identification alone, and behind
//! the fragment header the pieces may name different next headers. An atomic
//! fragment (RFC 6946) is a whole datagram and is steered as one.
//!
//! With [`FragmentSteering::Ordered`] every packet takes the last row's way, of tunnels by the
//! outermost addresses: what
//! comes in pieces and what comes whole meet at one worker, in the order in which
//! it arrived. Replies to translation addresses are the exception: they have to come to the
//! bucket of their port.
//!
//! # Two hashes
//!
//! [`HashKind::Sip`] is keyed: nobody outside can aim at a bucket. Its high half
//! chooses the bucket and its low half the place in the bucket's table, so
//! that the places of one bucket's flows are still spread.
//!
//! [`HashKind::ToeplitzSymmetric`] is what an interface with the symmetric RSS
//! key computes. It exists for one reason: to take the bucket from the hash that
//! the interface supplies. Replies, ICMP errors and everything that the
//! interface hashed differently are computed here by the same function, so it
//! never matters which of the two computed it. It has 16 bits of entropy, ignores
//! the zone, and can be aimed at by anyone; the table hash stays SipHash.
//!
//! # When a supplied hash counts
//!
//! Only where every interface that claims to hash (addresses, ports) with the
//! symmetric key computes exactly that: TCP and UDP, not fragmented, without
//! options or extension headers (the home address option and routing headers
//! replace addresses in some hash types), directly behind an untagged Ethernet
//! header (behind tags, PPPoE, MPLS and tunnels interfaces differ in what they
//! descend into). Everything else is computed here at the price of a few
//! nanoseconds. Zero never counts: interfaces mean "none" by it. A packet whose
//! hash is zero is computed here, to zero.

use std::hash::Hasher;
use std::num::NonZeroU32;

use flow::{FlowKey, HashKey, KeyedPacket, Side, Zone};
use siphasher::sip::SipHasher13;
use wire::{Family, FragmentInfo, Network, Transport, inside, protocol};

use crate::{BucketCount, BucketId, Translated, symmetric_toeplitz};

/// Which hash chooses the bucket of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum HashKind {
    /// SipHash-1-3 under the secret of the process.
    #[default]
    Sip,
    /// Toeplitz with the symmetric key over addresses and ports; may be supplied
    /// by the interface.
    ToeplitzSymmetric,
}

/// What keeps fragments together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum FragmentSteering {
    /// Each datagram by itself: spreads best; datagrams of one flow that arrive
    /// in fragments may overtake each other and those that arrive whole.
    #[default]
    Spread,
    /// Everything between two addresses together, so that a datagram leaves in its
    /// turn whether it came whole or in fragments. The flows between two hosts
    /// share one worker.
    Ordered,
    /// All fragments in one bucket, and everything else as in `Spread`: replays,
    /// where the number of workers must not show.
    OneBucket,
}

/// What chooses the bucket of a packet of a tunnel: IP in IP, or GRE version 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum TunnelSteering {
    /// The tunnel, which so has one worker for each direction at most.
    Outer,
    /// The flow inside, so that one tunnel spreads over the workers.
    #[default]
    Inner,
    /// As [`TunnelSteering::Inner`], and what is inside is judged as well: each packet of a tunnel
    /// is [told apart](Steered::Carrying).
    Judged,
}

/// How packets are mapped to buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SteeringConfig {
    /// Which hash chooses the bucket of a flow.
    pub kind: HashKind,
    /// Secret of the keyed hash, needed with either kind.
    pub key: HashKey,
    /// How many buckets there are.
    pub buckets: BucketCount,
    /// What keeps fragments together.
    pub fragments: FragmentSteering,
    /// What chooses the bucket of a tunnel's packet.
    pub tunnels: TunnelSteering,
}

/// What steering found out about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Steered {
    /// The packet belongs to the flow that its outermost headers name.
    Flow {
        /// The flow and which end sent the packet.
        keyed: KeyedPacket,
        /// The table hash of the flow, where choosing the bucket needed it
        /// ([`HashKind::Sip`]); otherwise the owner computes it
        /// ([`SteeringHasher::table_hash`]).
        hash: Option<u64>,
        /// Its bucket.
        bucket: BucketId,
    },
    /// As [`Steered::Flow`], a packet of a tunnel whose inside is to be judged
    /// ([`TunnelSteering::Judged`]).
    Carrying {
        /// The tunnel and which end sent the packet.
        keyed: KeyedPacket,
        /// As in [`Steered::Flow`].
        hash: Option<u64>,
        /// The bucket of the flow inside, or that of the tunnel if nothing inside has a say.
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
    /// A piece of a datagram that must be reassembled first.
    Fragment {
        /// Bucket of all pieces of the datagram.
        bucket: BucketId,
    },
    /// Names no flow; packets between the same two addresses stay in order.
    Keyless {
        /// Bucket of the pair of addresses.
        bucket: BucketId,
    },
}

impl Steered {
    /// The bucket, whatever decided it.
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
    translated: Translated,
}

impl SteeringHasher {
    /// A hasher; two with equal configurations and translation addresses agree on every
    /// packet. In the beginning there are no such addresses.
    pub fn new(config: SteeringConfig) -> Self {
        Self { config, translated: Translated::default() }
    }

    /// How packets are mapped.
    pub const fn config(&self) -> &SteeringConfig {
        &self.config
    }

    /// The addresses that connections are translated to.
    pub const fn translated(&self) -> &Translated {
        &self.translated
    }

    /// Steers by these translation addresses from now on.
    pub fn set_translated(&mut self, translated: Translated) {
        self.translated = translated;
    }

    /// The bucket of a packet, of a tunnel as [`TunnelSteering::Outer`] says.
    #[inline(always)]
    pub fn steer(&self, network: &Network, zone: Zone, supplied: Option<NonZeroU32>) -> Steered {
        self.steer_frame(&[], network, zone, supplied)
    }

    /// The bucket of the packet in `frame` that `network` describes.
    ///
    /// `supplied` is the hash that the interface delivered with the packet, to be
    /// passed only if the interface is declared to hash with the symmetric
    /// Toeplitz key over addresses and ports. It is used only in
    /// [`HashKind::ToeplitzSymmetric`] and only for packets that every such
    /// interface hashes alike; see the description of this module.
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
        let receiver = keyed.sender.opposite();
        let (hash, bucket) = self.flow_bucket(&keyed.key, receiver, supplied);
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
            // The quoted packet went out, so its reply would be for its sender.
            let (hash, bucket) = self.flow_bucket(&keyed.key, keyed.sender, None);
            return Steered::Quoted { keyed, hash, bucket };
        }
        Steered::Keyless { bucket: self.keyless_bucket(network) }
    }

    /// The bucket of a packet of a tunnel.
    fn steer_tunnel(&self, frame: &[u8], network: &Network, keyed: KeyedPacket) -> Steered {
        let (hash, bucket) = match self.bucket_inside(frame, network) {
            Some(bucket) => (None, bucket),
            None => self.flow_bucket(&keyed.key, keyed.sender.opposite(), None),
        };
        match self.config.tunnels {
            TunnelSteering::Judged => Steered::Carrying { keyed, hash, bucket },
            _ => Steered::Flow { keyed, hash, bucket },
        }
    }

    /// The bucket of a packet of a tunnel by what is inside; `None` if that has no say.
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

    /// The bucket of a flow named by an operator or a helper, without a packet.
    pub fn bucket_of_key(&self, key: &FlowKey) -> BucketId {
        self.flow_bucket(&key.of_calls(), Side::Low, None).1
    }

    /// The bucket of packets of a flow that one of its ends receives.
    pub fn bucket_towards(&self, key: &FlowKey, receiver: Side) -> BucketId {
        self.flow_bucket(&key.of_calls(), receiver, None).1
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

    /// `first` is the end that is looked at first for a translation address.
    #[inline(always)]
    fn flow_bucket(
        &self,
        key: &FlowKey,
        first: Side,
        supplied: Option<NonZeroU32>,
    ) -> (Option<u64>, BucketId) {
        if let Some(bucket) = self.translated.bucket(key, first, self.config.buckets) {
            return (None, bucket);
        }
        if self.config.fragments == FragmentSteering::Ordered {
            return (None, self.address_bucket(key.low.address, key.high.address));
        }
        self.hashed_bucket(key, supplied)
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
        self.address_bucket(network.source, network.destination)
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

/// 2^32 over the golden ratio. The Toeplitz hash is linear, so flows that differ
/// in few bits, as those of one client network do, can leave half of the buckets
/// empty; multiplying first (Knuth, "The Art of Computer Programming" 6.4)
/// spreads them.
const GOLDEN_RATIO: u32 = 0x9e37_79b1;

/// The exclusive or of all 16-bit words of addresses and ports.
#[inline]
fn folded(key: &FlowKey) -> u16 {
    // Adding without carry knows no byte order until the last step.
    let sum = u128::from_ne_bytes(key.low.address) ^ u128::from_ne_bytes(key.high.address);
    let sum = (sum >> 64) as u64 ^ sum as u64;
    let sum = (sum >> 32) as u32 ^ sum as u32;
    u16::from_be((sum >> 16) as u16 ^ sum as u16) ^ key.low.port ^ key.high.port
}

/// True for packets of which every interface with the symmetric key computes the
/// same hash as [`symmetric_toeplitz`].
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
