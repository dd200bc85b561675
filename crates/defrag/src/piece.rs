//! A fragment, parsed once.

use std::hash::Hasher;

use flow::{DropReason, HashKey, Zone};
use siphasher::sip::SipHasher13;
use wire::{Family, Network};

use crate::coverage::UNIT;

/// The identity of a datagram that comes in fragments: RFC 791 section 3.2 for
/// IPv4; RFC 8200 section 4.5 for IPv6, where the protocol is no part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(8))]
pub struct DatagramKey {
    /// Source address; IPv4 in the IPv4-mapped form.
    pub source: [u8; 16],
    /// Destination address, same form.
    pub destination: [u8; 16],
    /// Identification: 16 bits for IPv4, 32 for IPv6.
    pub id: u32,
    /// Zone: fragments of different zones never meet.
    pub zone: Zone,
    /// IPv4 protocol number, 0 for IPv6.
    pub protocol: u8,
    /// Address family.
    pub family: Family,
}

impl DatagramKey {
    /// That of no datagram.
    pub(crate) const UNSPECIFIED: Self = Self {
        source: [0; 16],
        destination: [0; 16],
        id: 0,
        zone: Zone(0),
        protocol: 0,
        family: Family::V4,
    };

    /// Whether both are the same, without a branch for each field.
    #[inline]
    pub(crate) fn is(&self, other: &Self) -> bool {
        let (mine, others) = (self.words(), other.words());
        mine.iter().zip(&others).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
    }

    /// All of it, in the processor's order.
    #[inline]
    fn words(&self) -> [u64; 5] {
        let pair = |address: [u8; 16]| {
            let both = u128::from_ne_bytes(address);
            [both as u64, (both >> 64) as u64]
        };
        let ([a, b], [c, d]) = (pair(self.source), pair(self.destination));
        let rest = u64::from(self.zone.0)
            | u64::from(self.protocol) << 16
            | u64::from(self.family as u8) << 24;
        [a, b, c, d, u64::from(self.id) | rest << 32]
    }

    /// The keyed hash of the datagram (SipHash-1-3: an attacker who does not know
    /// the key can not choose datagrams that collide). The low half is the place
    /// in the index; the high half is free to choose a bucket by.
    #[inline]
    pub fn hash(&self, secret: HashKey) -> u64 {
        let mut hasher = SipHasher13::new_with_keys(secret.0, secret.1);
        // The length tells the families apart: SipHash takes it in at the end.
        match self.family {
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
        hasher.write_u64(
            u64::from(self.id) << 32 | u64::from(self.zone.0) << 8 | u64::from(self.protocol),
        );
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

/// What the reassembler needs to know of a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The datagram that it is a piece of.
    pub key: DatagramKey,
    /// Place in the fragmentable part of the datagram, bytes; a multiple of 8.
    pub offset: u16,
    /// Payload, bytes; a multiple of 8 unless this is the last piece.
    /// `offset + length` is at most 65535.
    pub length: u16,
    /// More pieces follow.
    pub more: bool,
    /// ECN field of this piece.
    pub ecn: Ecn,
    /// Bytes before the payload that count against the 65535 bytes of the
    /// datagram: the IPv4 header, or the extension headers before the IPv6
    /// fragment header.
    pub header: u16,
}

impl Piece {
    /// The piece that a packet is; `None` for a whole datagram and for an atomic
    /// fragment (RFC 6946), which is one: those have nothing to wait for.
    ///
    /// `network` is what [`wire::dissect`] found, so that misaligned and oversized
    /// fragments, empty ones, and first fragments without their header chain (RFC
    /// 7112, RFC 1858) never get here.
    #[inline]
    pub fn of(network: &Network, zone: Zone) -> Option<Self> {
        let fragment = network.fragment.filter(|fragment| !fragment.is_atomic())?;
        let (protocol, overhead) = match network.family {
            Family::V4 => (network.protocol, 0),
            // The fixed header and the fragment header do not count.
            Family::V6 => (0, 48),
        };
        Some(Self {
            key: DatagramKey {
                source: network.source,
                destination: network.destination,
                id: fragment.id,
                zone,
                protocol,
                family: network.family,
            },
            offset: fragment.offset,
            // The dissector has checked that it ends within 65535 bytes.
            length: (network.end - u32::from(fragment.payload_offset)) as u16,
            more: fragment.more,
            ecn: Ecn::of(network.traffic_class),
            header: (fragment.payload_offset - network.offset).saturating_sub(overhead),
        })
    }

    /// One past the last byte in the datagram.
    pub const fn end(&self) -> u16 {
        self.offset.saturating_add(self.length)
    }

    /// Why no datagram may contain this piece, whatever else it consists of. The
    /// dissector lets no such piece pass.
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
