//! The IP packets that carry pfsync.
//!
//! pfsync has no authentication. A TTL of 255 shows that no router has forwarded a packet, so its
//! sender is on the sync link.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::refusal::Refusal;

/// IP protocol number (IANA).
pub const PROTOCOL: u8 = 240;
/// TTL and hop limit. A packet that arrives with another one is refused.
pub const TTL: u8 = 255;
/// Type of service: low delay (RFC 1349).
pub const TYPE_OF_SERVICE: u8 = 0x10;
/// The group of all gateways on a link.
pub const MULTICAST_V4: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 240);
/// The group over IPv6.
pub const MULTICAST_V6: Ipv6Addr = Ipv6Addr::new(0xff12, 0, 0, 0, 0, 0, 0, 0xf0);

const IPV4_HEADER_BYTES: usize = 20;
const IPV6_HEADER_BYTES: usize = 40;
/// Don't fragment, among the flags and the offset of a fragment.
const DONT_FRAGMENT: u16 = 0x4000;
/// More fragments, and the offset.
const FRAGMENTED: u16 = 0x3fff;

/// The IP header in front of pfsync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// IPv4, with DF set.
    V4 {
        /// The sender.
        source: Ipv4Addr,
        /// The peer, or [`MULTICAST_V4`].
        destination: Ipv4Addr,
    },
    /// IPv6, which FreeBSD speaks from version 1400 on.
    V6 {
        /// The sender.
        source: Ipv6Addr,
        /// The peer, or [`MULTICAST_V6`].
        destination: Ipv6Addr,
    },
}

impl Carrier {
    /// Length of the header, bytes.
    pub const fn header_bytes(&self) -> usize {
        match self {
            Self::V4 { .. } => IPV4_HEADER_BYTES,
            Self::V6 { .. } => IPV6_HEADER_BYTES,
        }
    }

    /// The whole IP packet. Its identification is zero, as that of any packet that must not be cut
    /// may be (RFC 6864 section 4.1).
    pub fn packet(&self, pfsync: &[u8]) -> Vec<u8> {
        let mut packet = Vec::with_capacity(IPV6_HEADER_BYTES + pfsync.len());
        match self {
            Self::V4 { source, destination } => {
                let length = (IPV4_HEADER_BYTES + pfsync.len()) as u16;
                packet.extend([0x45, TYPE_OF_SERVICE]);
                packet.extend(length.to_be_bytes());
                packet.extend([0, 0]);
                packet.extend(DONT_FRAGMENT.to_be_bytes());
                packet.extend([TTL, PROTOCOL, 0, 0]);
                packet.extend(source.octets());
                packet.extend(destination.octets());
                wire::checksum::fill_ipv4_header(&mut packet);
            }
            Self::V6 { source, destination } => {
                let first = 6 << 28 | u32::from(TYPE_OF_SERVICE) << 20;
                packet.extend(first.to_be_bytes());
                packet.extend((pfsync.len() as u16).to_be_bytes());
                packet.extend([PROTOCOL, TTL]);
                packet.extend(source.octets());
                packet.extend(destination.octets());
            }
        }
        packet.extend(pfsync);
        packet
    }
}

/// How a packet arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Its sender.
    pub source: IpAddr,
    /// TTL or hop limit.
    pub ttl: u8,
    /// True if it came by the interface of the sync link.
    pub is_by_sync_link: bool,
}

impl Arrival {
    /// Reads an IP packet, and returns what it carries. Nothing may be between both.
    ///
    /// # Errors
    /// [`Refusal::NotPfsync`]: another protocol, a fragment, or a header that is not right.
    pub fn of_packet(packet: &[u8], is_by_sync_link: bool) -> Result<(Self, &[u8]), Refusal> {
        let arrival = match packet.first().map(|byte| byte >> 4) {
            Some(4) => Self::of_v4(packet),
            Some(6) => Self::of_v6(packet),
            _ => None,
        };
        let (source, ttl, pfsync) = arrival.ok_or(Refusal::NotPfsync)?;
        Ok((Self { source, ttl, is_by_sync_link }, pfsync))
    }

    fn of_v4(packet: &[u8]) -> Option<(IpAddr, u8, &[u8])> {
        let header: &[u8; IPV4_HEADER_BYTES] = packet.first_chunk()?;
        let [first, _, a, b, _, _, c, d, ttl, protocol, _, _, e, f, g, h, ..] = *header;
        let length = usize::from(u16::from_be_bytes([a, b]));
        let header_bytes = usize::from(first & 0xf) * 4;
        let is_whole = u16::from_be_bytes([c, d]) & FRAGMENTED == 0;
        let fits = header_bytes >= IPV4_HEADER_BYTES && protocol == PROTOCOL && is_whole;
        let pfsync = packet.get(header_bytes..length).filter(|_| fits)?;
        Some((Ipv4Addr::new(e, f, g, h).into(), ttl, pfsync))
    }

    fn of_v6(packet: &[u8]) -> Option<(IpAddr, u8, &[u8])> {
        let (header, rest) = packet.split_first_chunk::<IPV6_HEADER_BYTES>()?;
        let [_, _, _, _, a, b, next, ttl, source @ ..] = header;
        let source: &[u8; 16] = source.first_chunk()?;
        let pfsync = rest.get(..usize::from(u16::from_be_bytes([*a, *b])))?;
        (*next == PROTOCOL).then(|| (Ipv6Addr::from(*source).into(), *ttl, pfsync))
    }
}

#[cfg(test)]
#[path = "carrier_tests.rs"]
mod tests;
