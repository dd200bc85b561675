//! Writing packets: for tests, traffic generators, and the ICMP errors that a
//! gateway sends.
//!
//! A [`PacketBuilder`] holds the headers up to IP; a finishing method appends one frame with
//! correct lengths and checksums to a buffer.
//!
//! ```
//! use wire::{build::PacketBuilder, dissect};
//!
//! let mut frame = Vec::new();
//! PacketBuilder::v4([192, 0, 2, 1], [198, 51, 100, 2])
//!     .vlan(7)
//!     .udp(5353, 53, b"question", &mut frame);
//! assert_eq!(dissect(&frame)?.vlan, 7);
//! # Ok::<(), wire::Malformed>(())
//! ```

pub mod sctp;

use std::net::IpAddr;

use crate::{
    Family, TcpFlags, checksum, dissect, extension,
    link::{ETHERNET_LEN, ethertype},
    mapped, protocol,
};

/// Longest ICMP error with its IP header, bytes (RFC 1812 section 4.3.2.3).
pub const MAX_ICMP_ERROR: usize = 576;
/// Longest ICMPv6 error with its IP header, bytes (RFC 4443 section 2.4 (c)).
pub const MAX_ICMPV6_ERROR: usize = 1280;

/// The headers up to IP. The default is an untagged frame with TTL 64.
///
/// A payload that is too long for the length fields is cut: no packet is longer than 65,535
/// bytes of IP.
#[derive(Clone, Debug)]
pub struct PacketBuilder {
    source_mac: [u8; 6],
    destination_mac: [u8; 6],
    tags: Vec<u16>,
    pppoe_session: Option<u16>,
    source: IpAddr,
    destination: IpAddr,
    ttl: u8,
    traffic_class: u8,
    id: u32,
    dont_fragment: bool,
    options: Vec<u8>,
}

/// A TCP header to write.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tcp<'a> {
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
    /// Sequence number.
    pub sequence: u32,
    /// Acknowledgment number.
    pub acknowledgment: u32,
    /// Control bits.
    pub flags: TcpFlags,
    /// Window, unscaled.
    pub window: u16,
    /// Options, at most 40 bytes (the rest is cut); padded with "end of options".
    pub options: &'a [u8],
}

impl PacketBuilder {
    /// An IPv4 packet.
    pub fn v4(source: [u8; 4], destination: [u8; 4]) -> Self {
        Self::between(source.into(), destination.into())
    }

    /// An IPv6 packet.
    pub fn v6(source: [u8; 16], destination: [u8; 16]) -> Self {
        Self::between(source.into(), destination.into())
    }

    fn between(source: IpAddr, destination: IpAddr) -> Self {
        Self {
            // Locally administered.
            source_mac: [2, 0, 0, 0, 0, 1],
            destination_mac: [2, 0, 0, 0, 0, 2],
            tags: Vec::new(),
            pppoe_session: None,
            source,
            destination,
            ttl: 64,
            traffic_class: 0,
            id: 0,
            dont_fragment: false,
            options: Vec::new(),
        }
    }

    /// Ethernet addresses.
    #[must_use]
    pub fn macs(mut self, source: [u8; 6], destination: [u8; 6]) -> Self {
        (self.source_mac, self.destination_mac) = (source, destination);
        self
    }

    /// Adds a VLAN tag with control information `tag` (priority and identifier) inside the tags
    /// added before; every tag but the last is a service tag.
    #[must_use]
    pub fn vlan(mut self, tag: u16) -> Self {
        self.tags.push(tag);
        self
    }

    /// Puts the packet into a PPPoE session.
    #[must_use]
    pub fn pppoe(mut self, session: u16) -> Self {
        self.pppoe_session = Some(session);
        self
    }

    /// Time to live or hop limit.
    #[must_use]
    pub fn ttl(mut self, ttl: u8) -> Self {
        self.ttl = ttl;
        self
    }

    /// Traffic class octet.
    #[must_use]
    pub fn traffic_class(mut self, traffic_class: u8) -> Self {
        self.traffic_class = traffic_class;
        self
    }

    /// Identification, for IPv4 its low 16 bits; for IPv6 only fragments carry it.
    #[must_use]
    pub fn id(mut self, id: u32) -> Self {
        self.id = id;
        self
    }

    /// Sets the IPv4 "don't fragment" bit.
    #[must_use]
    pub fn dont_fragment(mut self) -> Self {
        self.dont_fragment = true;
        self
    }

    /// IPv4 options, at most 40 bytes (the rest is cut); padded with zeros.
    /// Without effect for IPv6.
    #[must_use]
    pub fn options(mut self, options: &[u8]) -> Self {
        self.options = padded(options);
        self
    }

    /// Appends a TCP segment to `out`.
    pub fn tcp(&self, tcp: &Tcp<'_>, payload: &[u8], out: &mut Vec<u8>) {
        let options = padded(tcp.options);
        let mut segment = Vec::with_capacity(20 + options.len() + payload.len());
        segment.extend(tcp.source_port.to_be_bytes());
        segment.extend(tcp.destination_port.to_be_bytes());
        segment.extend(tcp.sequence.to_be_bytes());
        segment.extend(tcp.acknowledgment.to_be_bytes());
        segment.extend([(20 + options.len() as u8) << 2, tcp.flags.0]);
        segment.extend(tcp.window.to_be_bytes());
        segment.extend([0; 4]);
        segment.extend(options);
        segment.extend(payload);
        self.transport(protocol::TCP, &segment, out);
    }

    /// Appends a UDP datagram to `out`.
    pub fn udp(&self, source_port: u16, destination_port: u16, payload: &[u8], out: &mut Vec<u8>) {
        let payload = &payload[..payload.len().min(self.room() - 8)];
        let mut datagram = Vec::with_capacity(8 + payload.len());
        datagram.extend(source_port.to_be_bytes());
        datagram.extend(destination_port.to_be_bytes());
        datagram.extend((8 + payload.len() as u16).to_be_bytes());
        datagram.extend([0; 2]);
        datagram.extend(payload);
        self.transport(protocol::UDP, &datagram, out);
    }

    /// Appends an ICMP or ICMPv6 echo request, or the reply to one, to `out`.
    pub fn echo(&self, reply: bool, id: u16, sequence: u16, payload: &[u8], out: &mut Vec<u8>) {
        let kind = match (self.family(), reply) {
            (Family::V4, false) => 8,
            (Family::V4, true) => 0,
            (Family::V6, false) => 128,
            (Family::V6, true) => 129,
        };
        let [i0, i1] = id.to_be_bytes();
        let [s0, s1] = sequence.to_be_bytes();
        self.icmp(kind, 0, [i0, i1, s0, s1], payload, out);
    }

    /// Appends an ICMP or ICMPv6 error about the IP packet that begins `quoted`, and quotes as
    /// much of it as an error may carry. `rest` is the second word of the header: the next-hop
    /// MTU, a pointer, or zero.
    pub fn icmp_error(&self, kind: u8, code: u8, rest: [u8; 4], quoted: &[u8], out: &mut Vec<u8>) {
        let room = match self.family() {
            Family::V4 => MAX_ICMP_ERROR - 20 - self.options.len() - 8,
            Family::V6 => MAX_ICMPV6_ERROR - 40 - 8,
        };
        self.icmp(kind, code, rest, &quoted[..quoted.len().min(room)], out);
    }

    /// Appends an ICMP or ICMPv6 message to `out`.
    pub fn icmp(&self, kind: u8, code: u8, rest: [u8; 4], body: &[u8], out: &mut Vec<u8>) {
        let protocol = match self.family() {
            Family::V4 => protocol::ICMP,
            Family::V6 => protocol::ICMPV6,
        };
        let mut message = Vec::with_capacity(8 + body.len());
        message.extend([kind, code, 0, 0]);
        message.extend(rest);
        message.extend(body);
        self.transport(protocol, &message, out);
    }

    /// Appends a packet with `payload` behind the IP header to `out` and writes the checksum of
    /// a transport that is known. For IPv6 `payload` may begin with extension headers.
    pub fn transport(&self, protocol: u8, payload: &[u8], out: &mut Vec<u8>) {
        let start = out.len();
        self.raw(protocol, payload, out);
        let frame = &mut out[start..];
        if let Ok(dissected) = dissect(frame)
            && let Some(network) = dissected.network
        {
            checksum::fill_transport(frame, &network);
        }
    }

    /// Appends a packet with the unchanged `payload` behind the IP header to `out`.
    pub fn raw(&self, protocol: u8, payload: &[u8], out: &mut Vec<u8>) {
        let payload = &payload[..payload.len().min(self.room())];
        self.headers(protocol, payload.len(), None, out);
        out.extend_from_slice(payload);
    }

    /// Appends the fragment of a datagram that begins at `offset`, a multiple of 8 bytes, to
    /// `out`. `protocol` is that of the datagram.
    pub fn fragment(&self, protocol: u8, offset: u16, more: bool, piece: &[u8], out: &mut Vec<u8>) {
        let piece = &piece[..piece.len().min(self.room() - 8)];
        self.headers(protocol, piece.len(), Some((offset, more)), out);
        out.extend_from_slice(piece);
    }

    /// The fragments of `datagram`, in order, each a frame with at most `piece` bytes of it
    /// (rounded down to a multiple of 8, at least 8).
    pub fn fragments(&self, protocol: u8, datagram: &[u8], piece: usize) -> Vec<Vec<u8>> {
        let piece = (piece & !7).max(8);
        let datagram = &datagram[..datagram.len().min(self.room())];
        let count = datagram.len().div_ceil(piece);
        let frame = |(index, bytes): (usize, &[u8])| {
            let mut out = Vec::new();
            self.fragment(protocol, (index * piece) as u16, index + 1 < count, bytes, &mut out);
            out
        };
        datagram.chunks(piece).enumerate().map(frame).collect()
    }

    fn family(&self) -> Family {
        if self.source.is_ipv4() { Family::V4 } else { Family::V6 }
    }

    /// Bytes that fit behind the IP header.
    fn room(&self) -> usize {
        match self.family() {
            Family::V4 => 65_535 - 20 - self.options.len(),
            Family::V6 => 65_535,
        }
    }

    fn headers(
        &self,
        protocol: u8,
        length: usize,
        fragment: Option<(u16, bool)>,
        out: &mut Vec<u8>,
    ) {
        let fragment_header = if fragment.is_some() { 8 } else { 0 };
        let ip_length = match self.family() {
            Family::V4 => 20 + self.options.len() + length,
            Family::V6 => 40 + fragment_header + length,
        };
        self.link(ip_length, out);
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let start = out.len();
                let (offset, more) = fragment.unwrap_or_default();
                let flags = (u16::from(self.dont_fragment) << 14) | (u16::from(more) << 13);
                out.extend([0x45 + (self.options.len() / 4) as u8, self.traffic_class]);
                out.extend((ip_length as u16).to_be_bytes());
                out.extend((self.id as u16).to_be_bytes());
                out.extend((flags | (offset / 8)).to_be_bytes());
                out.extend([self.ttl, protocol, 0, 0]);
                out.extend(source.octets());
                out.extend(destination.octets());
                out.extend(&self.options);
                checksum::fill_ipv4_header(&mut out[start..]);
            }
            (source, destination) => {
                out.extend([0x60 | (self.traffic_class >> 4), self.traffic_class << 4, 0, 0]);
                out.extend(((fragment_header + length) as u16).to_be_bytes());
                out.extend([if fragment.is_some() { extension::FRAGMENT } else { protocol }]);
                out.extend([self.ttl]);
                out.extend(mapped(source));
                out.extend(mapped(destination));
                if let Some((offset, more)) = fragment {
                    out.extend([protocol, 0]);
                    out.extend(((offset & 0xfff8) | u16::from(more)).to_be_bytes());
                    out.extend(self.id.to_be_bytes());
                }
            }
        }
    }

    fn link(&self, ip_length: usize, out: &mut Vec<u8>) {
        out.reserve(usize::from(ETHERNET_LEN) + 4 * self.tags.len() + 8 + ip_length);
        out.extend(self.destination_mac);
        out.extend(self.source_mac);
        for (index, tag) in self.tags.iter().enumerate() {
            let last = index + 1 == self.tags.len();
            let kind = if last { ethertype::VLAN } else { ethertype::SERVICE_VLAN };
            out.extend(kind.to_be_bytes());
            out.extend(tag.to_be_bytes());
        }
        let (ethertype, ppp) = match self.family() {
            Family::V4 => (ethertype::IPV4, crate::link::PPP_IPV4),
            Family::V6 => (ethertype::IPV6, crate::link::PPP_IPV6),
        };
        if let Some(session) = self.pppoe_session {
            out.extend(ethertype::PPPOE.to_be_bytes());
            out.extend([0x11, 0]);
            out.extend(session.to_be_bytes());
            out.extend((ip_length as u16).saturating_add(2).to_be_bytes());
            out.extend(ppp.to_be_bytes());
        } else {
            out.extend(ethertype.to_be_bytes());
        }
    }
}

/// At most 40 bytes, filled up with zeros to a multiple of 4.
fn padded(options: &[u8]) -> Vec<u8> {
    let mut padded = options[..options.len().min(40)].to_vec();
    padded.resize(padded.len().next_multiple_of(4), 0);
    padded
}

#[cfg(test)]
#[path = "build_tests.rs"]
mod tests;
