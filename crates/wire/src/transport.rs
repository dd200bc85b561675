//! TCP, UDP, SCTP, DCCP and GRE headers.

use crate::{
    Family, Malformed, Network, TcpFlags, TcpInfo, Transport, icmp,
    ip::Header,
    link::{IpPlace, ethertype},
    protocol, tail,
};

/// Longest UDP datagram that the length field can express, bytes.
const MAX_UDP: usize = 65_535;

/// Reads the transport header behind `header`, which is not a later fragment.
/// `packet` ends where the IP packet ends.
#[inline(always)]
pub(crate) fn read(
    packet: &[u8],
    header: &Header<'_>,
    transport: &mut Transport,
) -> Result<(), Malformed> {
    let bytes = tail(packet, header.transport_offset);
    let read = match header.protocol {
        protocol::TCP => tcp(bytes, transport),
        protocol::UDP => udp(bytes, !header.more(), transport),
        _ => read_rare(packet, header).map(|rare| *transport = rare),
    };
    match read {
        Err(malformed) if header.more() && is_cut_short(malformed, bytes) => {
            Err(Malformed::FirstFragment)
        }
        read => read,
    }
}

/// True if the malformed transport header reaches beyond `bytes`.
#[cold]
fn is_cut_short(malformed: Malformed, bytes: &[u8]) -> bool {
    let words = |at: usize, shift| bytes.get(at).map_or(0, |field| usize::from(field >> shift) * 4);
    match malformed {
        Malformed::Tcp => bytes.len() < words(12, 4).max(20),
        Malformed::Udp | Malformed::Icmp => bytes.len() < 8,
        Malformed::Sctp => bytes.len() < 12,
        Malformed::Dccp => bytes.len() < words(4, 0).max(12),
        // The only other fault is source routing.
        Malformed::Gre => bytes.first().is_none_or(|flags| flags & 0x40 == 0),
        _ => false,
    }
}

/// Every transport but TCP and UDP; apart, so that those two keep a short path.
#[inline(never)]
fn read_rare(packet: &[u8], header: &Header<'_>) -> Result<Transport, Malformed> {
    let bytes = tail(packet, header.transport_offset);
    match (header.protocol, header.family()) {
        (protocol::UDPLITE, _) => udp_lite(bytes, !header.more()),
        (protocol::ICMP, family @ Family::V4) | (protocol::ICMPV6, family @ Family::V6) => {
            icmp::read(packet, family, header.transport_offset)
        }
        (protocol::SCTP, _) => sctp(bytes),
        (protocol::DCCP, _) => dccp(bytes),
        (protocol::GRE, _) => gre_transport(bytes),
        _ => Ok(Transport::Other),
    }
}

/// RFC 9293 section 3.1.
#[inline]
fn tcp(bytes: &[u8], transport: &mut Transport) -> Result<(), Malformed> {
    let header: &[u8; 20] = bytes.first_chunk().ok_or(Malformed::Tcp)?;
    let &[s0, s1, d0, d1, q0, q1, q2, q3, a0, a1, a2, a3, offset, flags, w0, w1, _, _, _, _] =
        header;
    let header_len = (offset >> 4) * 4;
    if header_len < 20 || usize::from(header_len) > bytes.len() {
        return Err(Malformed::Tcp);
    }
    *transport = Transport::Tcp(TcpInfo {
        source_port: u16::from_be_bytes([s0, s1]),
        destination_port: u16::from_be_bytes([d0, d1]),
        sequence: u32::from_be_bytes([q0, q1, q2, q3]),
        acknowledgment: u32::from_be_bytes([a0, a1, a2, a3]),
        window: u16::from_be_bytes([w0, w1]),
        flags: TcpFlags(flags),
        header_len,
    });
    Ok(())
}

/// RFC 768. A first fragment (not `whole`) holds less than the length field says. A length
/// shorter than the IP payload is legal; the bytes behind it are no part of the datagram (RFC
/// 9868 gives them a use).
#[inline]
fn udp(bytes: &[u8], whole: bool, transport: &mut Transport) -> Result<(), Malformed> {
    let &[s0, s1, d0, d1, l0, l1, _, _] = bytes.first_chunk().ok_or(Malformed::Udp)?;
    let length = u16::from_be_bytes([l0, l1]);
    let fits = match length {
        // RFC 2675 section 4: the length of a datagram in a jumbogram.
        0 => bytes.len() > MAX_UDP,
        1..8 => false,
        _ => !whole || usize::from(length) <= bytes.len(),
    };
    if !fits {
        return Err(Malformed::Udp);
    }
    *transport = Transport::Udp {
        source_port: u16::from_be_bytes([s0, s1]),
        destination_port: u16::from_be_bytes([d0, d1]),
        length,
    };
    Ok(())
}

/// RFC 3828 section 3.1: the third field is the checksum coverage; 0 means all bytes.
fn udp_lite(bytes: &[u8], whole: bool) -> Result<Transport, Malformed> {
    let &[s0, s1, d0, d1, c0, c1, _, _] = bytes.first_chunk().ok_or(Malformed::Udp)?;
    let length = u16::from_be_bytes([c0, c1]);
    if (1..8).contains(&length) || (whole && usize::from(length) > bytes.len()) {
        return Err(Malformed::Udp);
    }
    Ok(Transport::Udp {
        source_port: u16::from_be_bytes([s0, s1]),
        destination_port: u16::from_be_bytes([d0, d1]),
        length,
    })
}

/// RFC 9260 section 3.1.
fn sctp(bytes: &[u8]) -> Result<Transport, Malformed> {
    let &[s0, s1, d0, d1, t0, t1, t2, t3, _, _, _, _] =
        bytes.first_chunk().ok_or(Malformed::Sctp)?;
    Ok(Transport::Sctp {
        source_port: u16::from_be_bytes([s0, s1]),
        destination_port: u16::from_be_bytes([d0, d1]),
        verification_tag: u32::from_be_bytes([t0, t1, t2, t3]),
    })
}

/// RFC 4340 section 5.1: 12 bytes, or 16 with the X bit.
fn dccp(bytes: &[u8]) -> Result<Transport, Malformed> {
    let &[s0, s1, d0, d1, data_offset, _, _, _, type_x, _, _, _] =
        bytes.first_chunk().ok_or(Malformed::Dccp)?;
    let minimum = if type_x & 1 != 0 { 16 } else { 12 };
    let header_len = usize::from(data_offset) * 4;
    if header_len < minimum || header_len > bytes.len() {
        return Err(Malformed::Dccp);
    }
    Ok(Transport::Dccp {
        source_port: u16::from_be_bytes([s0, s1]),
        destination_port: u16::from_be_bytes([d0, d1]),
        kind: (type_x >> 1) & 0x0f,
    })
}

/// The fields of a GRE header.
pub(crate) struct Gre {
    pub(crate) version: u8,
    /// As in [`Transport::Gre`].
    pub(crate) key: u32,
    /// EtherType of the payload.
    pub(crate) ethertype: u16,
    /// Header length, bytes: 4 to 16.
    pub(crate) header_len: u16,
    /// True if it has a sequence number.
    is_numbered: bool,
}

/// Reads a GRE header: RFC 2784 and RFC 2890, version 1 RFC 2637 section 4.1.
///
/// Only the part up to the key has to be present, so that a header quoted by an ICMP error can
/// be read too; `header_len` may lie beyond `bytes`.
pub(crate) fn gre(bytes: &[u8]) -> Result<Gre, Malformed> {
    const CHECKSUM: u16 = 0x8000;
    const ROUTING: u16 = 0x4000;
    const KEY: u16 = 0x2000;
    const SEQUENCE: u16 = 0x1000;
    const ACKNOWLEDGMENT: u16 = 0x0080;
    let &[f0, f1, t0, t1] = bytes.first_chunk().ok_or(Malformed::Gre)?;
    let flags = u16::from_be_bytes([f0, f1]);
    if flags & ROUTING != 0 {
        return Err(Malformed::Gre);
    }
    let version = f1 & 0x07;
    let has = |flag| u16::from(flags & flag != 0);
    let key_offset = 4 + 4 * has(CHECKSUM);
    let key = if flags & KEY != 0 {
        u32::from_be_bytes(*tail(bytes, key_offset).first_chunk().ok_or(Malformed::Gre)?)
    } else {
        0
    };
    // In version 1 the high half is the length of the payload.
    let key = if version == 1 { key & 0xffff } else { key };
    let acknowledged = if version == 1 { has(ACKNOWLEDGMENT) } else { 0 };
    Ok(Gre {
        version,
        key,
        ethertype: u16::from_be_bytes([t0, t1]),
        header_len: key_offset + 4 * (has(KEY) + has(SEQUENCE) + acknowledged),
        is_numbered: flags & SEQUENCE != 0,
    })
}

/// A GRE header that is present in full.
fn whole_gre(bytes: &[u8]) -> Result<Gre, Malformed> {
    let header = gre(bytes)?;
    if usize::from(header.header_len) > bytes.len() {
        return Err(Malformed::Gre);
    }
    Ok(header)
}

fn gre_transport(bytes: &[u8]) -> Result<Transport, Malformed> {
    let Gre { version, key, .. } = whole_gre(bytes)?;
    Ok(if version > 1 { Transport::Other } else { Transport::Gre { version, key } })
}

/// The payload of a tunnel's packet.
pub(crate) struct Load {
    pub(crate) what: Loaded,
    /// True if its receiver wants all packets of the tunnel in order.
    pub(crate) is_numbered: bool,
}

/// The place of the payload.
pub(crate) enum Loaded {
    Packet(IpPlace),
    /// An Ethernet frame, from this offset on.
    Frame(u16),
}

/// The payload of a tunnel's packet: IPIP (RFC 2003), 6in4 (RFC 4213), 4in6 and 6in6 (RFC
/// 2473), GRE version 0 with IP or Ethernet inside.
pub(crate) fn load(frame: &[u8], outer: &Network) -> Option<Load> {
    let is_whole = outer.fragment.is_none_or(|fragment| fragment.is_atomic());
    let packet = frame.get(..outer.end as usize).filter(|_| is_whole)?;
    let start = outer.transport_offset;
    let ip = |family, offset| {
        Loaded::Packet(IpPlace { family, offset, end: packet.len(), guessed: false })
    };
    let plain = |what| Some(Load { what, is_numbered: false });
    match outer.protocol {
        protocol::IPIP => plain(ip(Family::V4, start)),
        protocol::IPV6 => plain(ip(Family::V6, start)),
        protocol::GRE => {
            let gre = whole_gre(tail(packet, start)).ok()?;
            let inner = start.checked_add(gre.header_len)?;
            let what = match (gre.version, gre.ethertype) {
                (0, ethertype::IPV4) => ip(Family::V4, inner),
                (0, ethertype::IPV6) => ip(Family::V6, inner),
                (0, ethertype::BRIDGING) => Loaded::Frame(inner),
                _ => return None,
            };
            Some(Load { what, is_numbered: gre.is_numbered })
        }
        _ => None,
    }
}
