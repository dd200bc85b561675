//! ICMP errors that a gateway sends, built from the packet that they are about.

use std::net::IpAddr;

use crate::{
    Dissected, Family, Network, Transport,
    build::{MAX_ICMP_ERROR, MAX_ICMPV6_ERROR},
    checksum, dissect,
    ip_writer::{IpHeader, TTL},
    link,
    link::ethertype,
    protocol,
};

/// Longest frame that [`write()`] writes, bytes: Ethernet, the most VLAN tags that are read,
/// PPPoE, and the longest error.
pub const MAX_FRAME: usize = 14 + 4 * Dissected::MAX_VLAN_TAGS + 8 + MAX_ICMPV6_ERROR;

/// No IPv6 link has a smaller MTU, bytes (RFC 8200 section 5).
pub const MIN_IPV6_MTU: u32 = 1280;

const ICMP_HEADER: usize = 8;
/// The precedence of errors, "internetwork control" (RFC 1812 section 4.3.2.5).
const PRECEDENCE: u8 = 6 << 5;
/// The bits of the type of service that an error has from its packet (the same section).
const TYPE_OF_SERVICE: u8 = 0x1e;

/// The content of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// The packet is longer than the link ahead takes: for IPv4 "fragmentation needed"
    /// (RFC 1191 section 4), for IPv6 "packet too big" (RFC 4443 section 3.2).
    TooBig {
        /// Bytes of IP that the link takes. An IPv6 sender is never told a value below
        /// [`MIN_IPV6_MTU`].
        mtu: u32,
    },
    /// Time to live or hop limit was used up on the way (RFC 792, RFC 4443 section 3.3).
    TimeExceeded,
    /// Fragments of the datagram have not come in time (RFC 792, RFC 4443 section 3.3).
    ReassemblyTime,
    /// The packet does not reach its destination.
    Unreachable {
        /// Why, as RFC 792 and RFC 1812 section 5.2.7.1 number it for IPv4, and RFC 4443
        /// section 3.1 for IPv6.
        code: u8,
    },
    /// A byte of the IPv4 header is wrong (RFC 792, "parameter problem").
    ParameterProblem {
        /// Offset of the byte, from 0.
        pointer: u8,
    },
}

impl Message {
    /// Type, code, and the second word of the header.
    fn header(self, family: Family) -> (u8, u8, u32) {
        match (self, family) {
            (Self::TooBig { mtu }, Family::V4) => (3, 4, mtu.min(u16::MAX.into())),
            (Self::TooBig { mtu }, Family::V6) => (2, 0, mtu.max(MIN_IPV6_MTU)),
            (Self::TimeExceeded, Family::V4) => (11, 0, 0),
            (Self::TimeExceeded, Family::V6) => (3, 0, 0),
            (Self::ReassemblyTime, Family::V4) => (11, 1, 0),
            (Self::ReassemblyTime, Family::V6) => (3, 1, 0),
            (Self::Unreachable { code }, Family::V4) => (3, code, 0),
            (Self::Unreachable { code }, Family::V6) => (1, code, 0),
            (Self::ParameterProblem { pointer }, Family::V4) => (12, 0, u32::from(pointer) << 24),
            (Self::ParameterProblem { pointer }, Family::V6) => (4, 0, pointer.into()),
        }
    }
}

/// Writes an error to the sender of a packet.
///
/// The frame goes back on the link that `frame` came from: Ethernet addresses swapped, the same
/// tags. `from` is the source address. It quotes as much as RFC 1812 section 4.3.2.3 and RFC
/// 4443 section 2.4 (c) allow.
///
/// Returns the length, at most [`MAX_FRAME`]; `None` if `out` is too short, if `from` is of the
/// other family, or if no error may be sent ([`network_of_answered`]).
pub fn write(frame: &[u8], message: Message, from: IpAddr, out: &mut [u8]) -> Option<usize> {
    let network = network_of_answered(frame)?;
    let start = usize::from(network.offset);
    let header_len = IpHeader::length(network.family);
    let (protocol, traffic_class, longest) = match network.family {
        Family::V4 => {
            let class = network.traffic_class & TYPE_OF_SERVICE | PRECEDENCE;
            (protocol::ICMP, class, MAX_ICMP_ERROR)
        }
        Family::V6 => (protocol::ICMPV6, 0, MAX_ICMPV6_ERROR),
    };
    let quoted = &frame[start..network.end as usize];
    let quoted = &quoted[..quoted.len().min(longest - header_len - ICMP_HEADER)];
    let length = start + header_len + ICMP_HEADER + quoted.len();
    let out = out.get_mut(..length)?;

    let (link, packet) = out.split_at_mut(start);
    link.copy_from_slice(&frame[..start]);
    link[..12].rotate_left(6);
    link::fit(link, packet.len());
    let (header, body) = packet.split_at_mut(header_len);
    body[ICMP_HEADER..].copy_from_slice(quoted);
    let to = network.source_ip();
    IpHeader { from, to, protocol, traffic_class, ttl: TTL }.write(header, body.len())?;
    let (kind, code, rest) = message.header(network.family);
    body[..4].copy_from_slice(&[kind, code, 0, 0]);
    body[4..ICMP_HEADER].copy_from_slice(&rest.to_be_bytes());
    let error = dissect(out).ok()?.network?;
    checksum::fill_transport(out, &error);
    Some(length)
}

/// The network header of a packet about which an error may be sent. `None` for others (RFC 1812
/// section 4.3.2.7, RFC 4443 section 2.4 (e)): an ICMP error or redirect, a later fragment, a
/// packet to or from a group, a broadcast address or no single host. RFC 4443 would allow "packet
/// too big" for groups; but then every link that a packet was copied to would answer it. MPLS
/// labels lead one way only, so nothing goes back along them.
pub fn network_of_answered(frame: &[u8]) -> Option<Network> {
    let Dissected { network, ethertype, .. } = dissect(frame).ok()?;
    let is_labelled = matches!(ethertype, ethertype::MPLS | ethertype::MPLS_UPSTREAM);
    network.filter(|network| !is_labelled && is_answered(frame, network))
}

fn is_answered(frame: &[u8], network: &Network) -> bool {
    const GROUP: u8 = 1;
    let among_hosts = frame[0] & GROUP == 0 && frame[6] & GROUP == 0;
    let about_packet = match network.transport {
        Transport::LaterFragment | Transport::IcmpError(_) => false,
        // Redirects (RFC 792: type 5, RFC 4861: type 137) and unknown errors; the types of
        // ICMPv6 errors are below 128.
        Transport::IcmpOther { kind, .. } => match network.family {
            Family::V4 => kind != 5,
            Family::V6 => kind >= 128 && kind != 137,
        },
        _ => true,
    };
    among_hosts
        && about_packet
        && is_single_host(network.source_ip())
        && is_single_host(network.destination_ip())
}

/// False for an address that does not belong to a single host: the network 0, loopback, groups,
/// and for IPv4 the reserved block with the broadcast address.
pub fn is_single_host(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !matches!(address.octets()[0], 0 | 127 | 224..),
        IpAddr::V6(address) => {
            !(address.is_unspecified() || address.is_loopback() || address.is_multicast())
        }
    }
}

#[cfg(test)]
#[path = "icmp_error_tests.rs"]
mod tests;
