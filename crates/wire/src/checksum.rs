//! The Internet checksum (RFC 1071), its incremental update (RFC 1624), and the
//! checksums of the transports.

use crate::{Family, Network, Transport, crc32c::crc32c, extension, protocol};

/// A running one's complement sum of 16-bit words in network order.
///
/// Only the last part added may have an odd length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum(u64);

impl Sum {
    /// The sum of nothing.
    pub const ZERO: Self = Self(0);

    /// Adds `bytes`; an odd last byte counts as the high half of a word.
    #[must_use]
    #[inline(always)]
    pub fn bytes(self, bytes: &[u8]) -> Self {
        // 32-bit words in the machine's order: apart from a swap of its bytes the sum does not
        // depend on the order (RFC 1071 section 2 (B)), and a 64-bit accumulator takes 2^32
        // words without a carry.
        let (words, rest) = bytes.as_chunks::<4>();
        let mut sum: u64 = words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum();
        let mut last = [0; 4];
        last[..rest.len()].copy_from_slice(rest);
        sum += u64::from(u32::from_ne_bytes(last));
        Self(self.0 + u64::from(u16::from_be(fold(sum))))
    }

    /// Adds one word.
    #[must_use]
    pub const fn word(self, word: u16) -> Self {
        Self(self.0 + word as u64)
    }

    /// Adds the pseudo header (RFC 9293 section 3.1, RFC 8200 section 8.1) for a
    /// transport of `length` bytes.
    #[must_use]
    pub fn pseudo_header(self, network: &Network, length: u32) -> Self {
        // Slices of constant length, so that no length is checked at run time.
        let addresses = match network.family {
            Family::V4 => self.bytes(&network.source[12..]).bytes(&network.destination[12..]),
            Family::V6 => self.bytes(&network.source).bytes(&network.destination),
        };
        addresses.bytes(&length.to_be_bytes()).word(network.protocol.into())
    }

    /// The checksum: the complement of the sum.
    pub const fn finish(self) -> u16 {
        !fold(self.0)
    }
}

const fn fold(sum: u64) -> u16 {
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + ((sum >> 16) & 0xffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

/// The checksum of `bytes`.
#[inline(always)]
pub fn checksum(bytes: &[u8]) -> u16 {
    Sum::ZERO.bytes(bytes).finish()
}

/// True if `bytes`, which contain their checksum, sum up to nothing.
#[inline(always)]
pub fn is_intact(bytes: &[u8]) -> bool {
    checksum(bytes) == 0
}

/// The effect that a change of covered bytes has on a checksum (RFC 1624 equation 3).
///
/// A UDP checksum of 0 means that there is none and must not be updated; a result
/// of 0 has to be sent as 0xffff for UDP (RFC 768).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change(Sum);

impl Change {
    /// The change of covered bytes from the sum `before` to the sum `after`.
    pub const fn between(before: Sum, after: Sum) -> Self {
        // The complement of the sum is the sum of the complements.
        Self(after.word(before.finish()))
    }

    /// This change and the replacement of a run of words, such as an address. `old` and `new`
    /// have the same even length and begin at an even offset of the covered bytes.
    #[must_use]
    #[inline(always)]
    pub fn replace(self, old: &[u8], new: &[u8]) -> Self {
        self.and(Self::between(Sum::ZERO.bytes(old), Sum::ZERO.bytes(new)))
    }

    /// Adds to this change that of 32 bits at an even offset: equation 3 of RFC 1624 for two
    /// words at once, since 2^32 - 1 is a multiple of 2^16 - 1.
    #[must_use]
    #[inline(always)]
    pub const fn replace_word(self, old: u32, new: u32) -> Self {
        Self(Sum(self.0.0 + !old as u64 + new as u64))
    }

    /// Both changes together.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(Sum(self.0.0 + other.0.0))
    }

    /// Returns the checksum that `checksum` becomes.
    pub const fn apply(self, checksum: u16) -> u16 {
        self.0.word(!checksum).finish()
    }

    /// Updates the checksum `at` an offset of `bytes`, if the field lies within them.
    pub fn update(self, bytes: &mut [u8], at: usize) {
        if let Some(field) = bytes.get_mut(at..).and_then(<[u8]>::first_chunk_mut) {
            *field = self.apply(u16::from_be_bytes(*field)).to_be_bytes();
        }
    }
}

/// Writes the checksum of the IPv4 header that begins `header`. Leaves a header that is cut
/// short as it is.
pub fn fill_ipv4_header(header: &mut [u8]) {
    let length = header.first().map_or(0, |first| usize::from(first & 0x0f) * 4);
    if let Some(header) = header.get_mut(..length)
        && header.len() >= 20
    {
        header[10..12].fill(0);
        let sum = checksum(header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
    }
}

/// True if the transport checksum of `network` is right or can not be verified.
///
/// `network` is the result of [`crate::dissect`] for `frame`. This function verifies TCP, UDP
/// (zero is "none", which tunnels over IPv6 may use too: RFC 6935 section 5), UDP-Lite, ICMP,
/// ICMPv6, DCCP and SCTP; it accepts other protocols. It can not verify a fragment, nor an IPv6
/// packet with a routing header that is not used up, whose pseudo header has another
/// destination. The caller has to recognise partial checksums, as virtual interfaces deliver
/// them.
pub fn verify_transport(frame: &[u8], network: &Network) -> bool {
    let Some(bytes) = frame.get(transport_range(network)) else { return false };
    if !is_verifiable(frame, network) {
        return true;
    }
    if network.protocol == protocol::SCTP {
        return bytes.len() >= 12 && bytes[8..12] == sctp_checksum(bytes).to_le_bytes();
    }
    let Some(covered) = Covered::of(bytes, network) else { return true };
    let Some(part) = bytes.get(..covered.length) else { return false };
    let field = bytes.get(covered.field..covered.field + 2);
    match network.protocol {
        protocol::UDP if field == Some(&[0, 0]) => true,
        protocol::UDPLITE if field == Some(&[0, 0]) => false,
        _ => covered.pseudo_header.bytes(part).finish() == 0,
    }
}

/// Writes the transport checksum of `network`, for the protocols that [`verify_transport`]
/// verifies. Returns false if it writes none: for other protocols, and for packets whose
/// checksum can not be verified.
pub fn fill_transport(frame: &mut [u8], network: &Network) -> bool {
    if !is_verifiable(frame, network) {
        return false;
    }
    let Some(bytes) = frame.get_mut(transport_range(network)) else { return false };
    if network.protocol == protocol::SCTP {
        if bytes.len() < 12 {
            return false;
        }
        let sum = sctp_checksum(bytes);
        bytes[8..12].copy_from_slice(&sum.to_le_bytes());
        return true;
    }
    let Some(covered) = Covered::of(bytes, network) else { return false };
    if bytes.len() < covered.length || covered.length < covered.field + 2 {
        return false;
    }
    bytes[covered.field..covered.field + 2].fill(0);
    let sum = covered.pseudo_header.bytes(&bytes[..covered.length]).finish();
    let sum = match network.protocol {
        protocol::UDP | protocol::UDPLITE if sum == 0 => 0xffff,
        _ => sum,
    };
    bytes[covered.field..covered.field + 2].copy_from_slice(&sum.to_be_bytes());
    true
}

/// Offset of the checksum in the header of a transport, in bytes; `None` for a transport without
/// one and for an unknown one.
pub fn field(protocol: u8, family: Family) -> Option<usize> {
    if protocol == protocol::SCTP { Some(SCTP_FIELD) } else { sum_field(protocol, family) }
}

/// Completes a partial checksum, as a network card does. The field `offset` bytes behind
/// `start` holds the sum of a pseudo header; this function adds the bytes from `start` to the
/// end of `frame`. False if the field lies beyond the frame.
///
/// SCTP is the only transport with a checksum at offset 8, and that is a CRC32c.
pub fn complete(frame: &mut [u8], start: u16, offset: u16) -> bool {
    let field = usize::from(offset);
    let Some(bytes) = frame.get_mut(usize::from(start)..) else { return false };
    let length = if field == SCTP_FIELD { 4 } else { 2 };
    if bytes.len() < field + length {
        return false;
    }
    if field == SCTP_FIELD {
        let sum = sctp_checksum(bytes);
        bytes[field..field + length].copy_from_slice(&sum.to_le_bytes());
        return true;
    }
    let sum = match checksum(bytes) {
        // "None" in UDP; the same number elsewhere.
        0 => 0xffff,
        sum => sum,
    };
    bytes[field..field + length].copy_from_slice(&sum.to_be_bytes());
    true
}

/// Offset of the checksum in the common header of SCTP.
const SCTP_FIELD: usize = 8;
/// Offset of the checksum in an ICMP or ICMPv6 header.
pub(crate) const ICMP_FIELD: usize = 2;

/// Offset of the Internet checksum in the header of a transport; `None` for a transport without
/// one.
pub(crate) fn sum_field(protocol: u8, family: Family) -> Option<usize> {
    match (protocol, family) {
        (protocol::TCP, _) => Some(16),
        (protocol::UDP | protocol::UDPLITE | protocol::DCCP, _) => Some(6),
        (protocol::ICMP, Family::V4) | (protocol::ICMPV6, Family::V6) => Some(ICMP_FIELD),
        _ => None,
    }
}

/// The bytes that an Internet checksum covers, and its place.
struct Covered {
    pseudo_header: Sum,
    /// Covered bytes of the transport, from its start.
    length: usize,
    /// Offset of the checksum in the transport header.
    field: usize,
}

impl Covered {
    /// `None` for a protocol without an Internet checksum.
    fn of(bytes: &[u8], network: &Network) -> Option<Self> {
        let all = bytes.len();
        let field = sum_field(network.protocol, network.family)?;
        let with_pseudo = |counted: u32, length| {
            let pseudo_header = Sum::ZERO.pseudo_header(network, counted);
            Some(Self { pseudo_header, length, field })
        };
        let total = network.transport_len();
        match (network.protocol, network.transport) {
            (protocol::TCP, _) => with_pseudo(total, all),
            (protocol::UDP, Transport::Udp { length: 0, .. }) => with_pseudo(total, all),
            (protocol::UDP, Transport::Udp { length, .. }) => {
                with_pseudo(length.into(), length.into())
            }
            (protocol::UDPLITE, Transport::Udp { length: 0, .. }) => with_pseudo(total, all),
            (protocol::UDPLITE, Transport::Udp { length, .. }) => with_pseudo(total, length.into()),
            (protocol::ICMP, _) => Some(Self { pseudo_header: Sum::ZERO, length: all, field }),
            (protocol::ICMPV6, _) => with_pseudo(total, all),
            (protocol::DCCP, _) => {
                // RFC 4340 section 9.2: coverage 0 is everything, n is the
                // header and n - 1 words of data.
                let header = usize::from(*bytes.get(4)?) * 4;
                let length = match bytes.get(5)? & 0x0f {
                    0 => all,
                    words => header + (usize::from(words) - 1) * 4,
                };
                with_pseudo(total, length)
            }
            _ => None,
        }
    }
}

/// RFC 9260 section 6.8: the CRC covers the packet with a checksum field of zero.
fn sctp_checksum(packet: &[u8]) -> u32 {
    let (before, rest) = packet.split_at(8);
    crc32c(&[before, &[0; 4], &rest[4..]])
}

fn transport_range(network: &Network) -> std::ops::Range<usize> {
    usize::from(network.transport_offset)..network.end as usize
}

fn is_verifiable(frame: &[u8], network: &Network) -> bool {
    let whole = network.fragment.is_none_or(|fragment| fragment.is_atomic());
    whole && (network.family == Family::V4 || !is_source_routed(frame, network))
}

/// True if a routing header names further stops behind the destination address of the packet.
pub(crate) fn is_source_routed(frame: &[u8], network: &Network) -> bool {
    let mut offset = usize::from(network.offset) + 40;
    let end = usize::from(network.transport_offset);
    let Some(&next) = frame.get(usize::from(network.offset) + 6) else { return false };
    let mut header = next;
    while offset < end
        && let Some(&[next, length, _, segments_left]) =
            frame.get(offset..).and_then(<[u8]>::first_chunk)
    {
        if header == extension::ROUTING && segments_left != 0 {
            return true;
        }
        offset += usize::from(extension::length(header, length));
        header = next;
    }
    false
}

#[cfg(test)]
#[path = "checksum_tests.rs"]
mod tests;
