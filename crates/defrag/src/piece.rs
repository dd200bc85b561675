//! A fragment, parsed once.

use std::hash::Hasher;

use flow::{DropReason, HashKey, Zone};
use siphasher::sip::SipHasher13;
use wire::{Family, Network};

use crate::coverage::UNIT;

/// The part of the network within which fragments can belong together: one zone and one
/// outermost VLAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Realm(u32);

impl Realm {
    const VLAN_BITS: u32 = 12;
    /// Bits that a realm may have.
    const BITS: u32 = 16 + Self::VLAN_BITS;

    /// The realm of a zone and a VLAN identifier of 12 bits, 0 for frames without a tag.
    #[inline]
    pub const fn new(zone: Zone, vlan: u16) -> Self {
        let vlan = vlan as u32 & ((1 << Self::VLAN_BITS) - 1);
        Self((zone.0 as u32) << Self::VLAN_BITS | vlan)
    }

    /// The zone.
    pub const fn zone(self) -> Zone {
        Zone((self.0 >> Self::VLAN_BITS) as u16)
    }

    /// The outermost VLAN identifier, 0 for none.
    pub const fn vlan(self) -> u16 {
        (self.0 & ((1 << Self::VLAN_BITS) - 1)) as u16
    }

    /// The realm as a number.
    pub(crate) const fn number(self) -> u32 {
        self.0
    }
}

/// The identity of a datagram that comes in fragments: RFC 791 section 3.2 for
/// IPv4; RFC 8200 section 4.5 for IPv6, where the protocol is no part of it.
///
/// Packed, because an incomplete datagram fills exactly two cache lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(8))]
pub struct DatagramKey {
    /// Source address; IPv4 in the IPv4-mapped form.
    pub source: [u8; 16],
    /// Destination address, same form.
    pub destination: [u8; 16],
    /// Identification; for IPv4 with the protocol in the highest byte.
    id: u32,
    /// The realm, with [`IS_V6`] for IPv6.
    realm: u32,
}

/// Flag in the field of the realm: the datagram is of IPv6.
const IS_V6: u32 = 1 << Realm::BITS;
/// Position of the IPv4 protocol in the identification.
const PROTOCOL_SHIFT: u32 = 24;

impl DatagramKey {
    /// The key of no datagram.
    pub(crate) const UNSPECIFIED: Self =
        Self { source: [0; 16], destination: [0; 16], id: 0, realm: 0 };

    /// The key of an IPv4 datagram. The identification has 16 bits; addresses are in the
    /// IPv4-mapped form.
    #[inline]
    pub const fn v4(
        realm: Realm,
        source: [u8; 16],
        destination: [u8; 16],
        protocol: u8,
        id: u32,
    ) -> Self {
        let id = id & ((1 << PROTOCOL_SHIFT) - 1) | (protocol as u32) << PROTOCOL_SHIFT;
        Self { source, destination, id, realm: realm.number() }
    }

    /// The key of an IPv6 datagram.
    #[inline]
    pub const fn v6(realm: Realm, source: [u8; 16], destination: [u8; 16], id: u32) -> Self {
        Self { source, destination, id, realm: realm.number() | IS_V6 }
    }

    /// The same key with another identification.
    #[must_use]
    pub const fn with_id(self, id: u32) -> Self {
        let Self { source, destination, .. } = self;
        match self.family() {
            Family::V4 => Self::v4(self.realm(), source, destination, self.protocol(), id),
            Family::V6 => Self::v6(self.realm(), source, destination, id),
        }
    }

    /// Address family.
    #[inline]
    pub const fn family(&self) -> Family {
        if self.realm & IS_V6 == 0 { Family::V4 } else { Family::V6 }
    }

    /// Identification: 16 bits for IPv4, 32 for IPv6.
    pub const fn id(&self) -> u32 {
        match self.family() {
            Family::V4 => self.id & ((1 << PROTOCOL_SHIFT) - 1),
            Family::V6 => self.id,
        }
    }

    /// IPv4 protocol number, 0 for IPv6.
    pub const fn protocol(&self) -> u8 {
        match self.family() {
            Family::V4 => (self.id >> PROTOCOL_SHIFT) as u8,
            Family::V6 => 0,
        }
    }

    /// The realm of its fragments.
    #[inline]
    pub const fn realm(&self) -> Realm {
        Realm(self.realm & !IS_V6)
    }

    /// The key without the addresses and their family.
    #[inline]
    pub(crate) const fn rest(&self) -> [u32; 2] {
        [self.id, self.realm & !IS_V6]
    }

    /// True if both keys are equal, without a branch for each field.
    #[inline]
    pub(crate) fn is(&self, other: &Self) -> bool {
        let (mine, others) = (self.words(), other.words());
        mine.iter().zip(&others).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
    }

    /// The whole key, in the processor's byte order.
    #[inline]
    fn words(&self) -> [u64; 5] {
        let pair = |address: [u8; 16]| {
            let both = u128::from_ne_bytes(address);
            [both as u64, (both >> 64) as u64]
        };
        let ([a, b], [c, d]) = (pair(self.source), pair(self.destination));
        [a, b, c, d, u64::from(self.id) | u64::from(self.realm) << 32]
    }

    /// The keyed hash of the datagram (SipHash-1-3: an attacker who does not know the key can
    /// not choose datagrams that collide). The low half is the place in the index; the high
    /// half is free for the choice of a bucket.
    #[inline]
    pub fn hash(&self, secret: HashKey) -> u64 {
        let mut hasher = SipHasher13::new_with_keys(secret.0, secret.1);
        // SipHash takes in the length at its end, so the hashes of the families differ.
        match self.family() {
            Family::V4 => hasher.write_u64(
                u64::from(last_word(self.source)) << 32 | u64::from(last_word(self.destination)),
            ),
            Family::V6 => {
                for address in [self.source, self.destination].map(u128::from_be_bytes) {
                    hasher.write_u64((address >> 64) as u64);
                    hasher.write_u64(address as u64);
                }
            }
        }
        hasher.write_u64(u64::from(self.id) << 32 | u64::from(self.realm));
        hasher.finish()
    }
}

/// The IPv4 address of an address in the IPv4-mapped form.
pub(crate) fn last_word(address: [u8; 16]) -> u32 {
    u128::from_be_bytes(address) as u32
}

/// The ECN field of an IP header (RFC 3168 section 5). The values are the bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Ecn {
    /// The sender does not take part.
    NotEct = 0,
    /// ECN-capable transport, ECT(1).
    Ect1 = 1,
    /// ECN-capable transport, ECT(0).
    Ect0 = 2,
    /// Congestion was experienced.
    Ce = 3,
}

impl Ecn {
    /// Its name in RFC 3168.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NotEct => "Not-ECT",
            Self::Ect1 => "ECT(1)",
            Self::Ect0 => "ECT(0)",
            Self::Ce => "CE",
        }
    }

    /// The field in a traffic class octet.
    pub const fn of(traffic_class: u8) -> Self {
        match traffic_class & 3 {
            0 => Self::NotEct,
            1 => Self::Ect1,
            2 => Self::Ect0,
            _ => Self::Ce,
        }
    }
}

/// A fragment as the reassembler needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The datagram that it belongs to.
    pub key: DatagramKey,
    /// Place in the fragmentable part of the datagram, bytes; a multiple of 8.
    pub offset: u16,
    /// Payload, bytes; a multiple of 8 unless this is the last fragment. `offset + length` is
    /// at most 65535.
    pub length: u16,
    /// More fragments follow.
    pub more: bool,
    /// ECN field of this fragment.
    pub ecn: Ecn,
    /// Bytes before the payload that count against the 65535 bytes of the
    /// datagram: the IPv4 header, or the extension headers before the IPv6
    /// fragment header.
    pub header: u16,
}

impl Piece {
    /// The fragment in a packet; `None` for a whole datagram and for an atomic fragment (RFC
    /// 6946), which is one: those have nothing to wait for.
    ///
    /// `network` is the result of [`wire::dissect`], so misaligned and oversized fragments,
    /// empty ones, and first fragments without their header chain (RFC 7112, RFC 1858) never
    /// get here.
    #[inline]
    pub fn of(network: &Network, realm: Realm) -> Option<Self> {
        let fragment = network.fragment.filter(|fragment| !fragment.is_atomic())?;
        let Network { source, destination, protocol, .. } = *network;
        let (key, overhead) = match network.family {
            Family::V4 => (DatagramKey::v4(realm, source, destination, protocol, fragment.id), 0),
            // The fixed header and the fragment header do not count.
            Family::V6 => (DatagramKey::v6(realm, source, destination, fragment.id), 48),
        };
        Some(Self {
            key,
            offset: fragment.offset,
            // The dissector has checked that it ends within 65535 bytes.
            length: (network.end - u32::from(fragment.payload_offset)) as u16,
            more: fragment.more,
            ecn: Ecn::of(network.traffic_class),
            header: (fragment.payload_offset - network.offset).saturating_sub(overhead),
        })
    }

    /// Offset one past its last byte in the datagram.
    pub const fn end(&self) -> u16 {
        self.offset.saturating_add(self.length)
    }

    /// The reason why no datagram can contain this fragment. The dissector lets no such
    /// fragment pass.
    #[inline]
    pub(crate) fn fault(&self) -> Option<DropReason> {
        if self.length == 0 {
            Some(DropReason::FragEmpty)
        } else if self.offset.checked_add(self.length).is_none() {
            Some(DropReason::FragOversize)
        } else if !self.offset.is_multiple_of(UNIT)
            || (self.more & !self.length.is_multiple_of(UNIT))
        {
            Some(DropReason::FragLength)
        } else {
            None
        }
    }
}
