//! Cutting super-packets up, as a network card with segmentation offload does.
//!
//! These super-packets are the ones that the kernel can not cut up: inside a tunnel, every
//! header in front of the payload has to change, also those of the tunnel.

use crate::{
    Dissected, Family, Network, TcpFlags, Transport,
    checksum::{self, Sum},
    ip::{self, Header},
    link::{self, IpPlace, ethertype},
    protocol, tail, transport,
};

/// Most headers of a super-packet that change from segment to segment: IP and the header of a
/// tunnel or the transport on each level.
const MAX_LAYERS: usize = 2 * (Dissected::MAX_TUNNELS + 1);
/// Length of a UDP header, bytes.
const UDP_LEN: u16 = 8;
/// Longest IP header that is looked for inside a tunnel, with its extension headers, bytes.
const LONGEST_INNER_HEADER: u16 = 512;
/// Protocols that carry packets or frames, beside those of [`protocol`] (IANA "Assigned Internet
/// Protocol Numbers"): EtherIP, L2TP, MPLS and Ethernet in IP.
const CARRIERS: [u8; 4] = [97, 115, 137, 143];

/// The offload fields of a super-packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SuperPacket {
    /// Frame offset of the TCP or UDP header whose payload is to be cut up, the
    /// innermost one.
    pub transport_offset: u16,
    /// Payload bytes of each segment but the last, at least 1.
    pub segment_size: u16,
    /// The checksum of that header holds the sum of the pseudo header only. A UDP header
    /// without a checksum gets none unless this is set.
    pub partial_checksum: bool,
}

/// A super-packet ready to be cut up.
///
/// The segments have the headers of the super-packet, except that
/// - lengths and checksums of all IP, UDP and GRE headers fit the segment; a UDP or GRE header
///   without a checksum gets none (RFC 6935, RFC 7348);
/// - IPv4 identifications, of all levels, and GRE sequence numbers count up;
/// - TCP sequence numbers count up by the payload; only the last segment has FIN and PSH, only
///   the first has CWR (RFC 3168 section 6.1.2: it is sent once).
///
/// Checksums are complete.
#[derive(Clone, Copy, Debug)]
pub struct Segments<'a> {
    frame: &'a [u8],
    headers: usize,
    segment_size: usize,
    layers: [Layer; MAX_LAYERS],
    used: usize,
}

/// A header that changes, with its frame offset.
#[derive(Clone, Copy, Debug)]
enum Layer {
    Ipv4(u16),
    Ipv6(u16),
    Gre(u16),
    /// With the sum of the pseudo header without the length, if it has a checksum.
    Udp(u16, Option<Sum>),
    Tcp(u16, Sum),
}

/// The place of a segment in the super-packet.
#[derive(Clone, Copy)]
struct Position {
    index: usize,
    is_last: bool,
    /// Payload bytes before it.
    before: usize,
}

impl<'a> Segments<'a> {
    /// Finds the headers of a super-packet in an Ethernet frame.
    ///
    /// Descends as [`crate::dissect`] does, and in addition into any tunnel over UDP (VXLAN,
    /// Geneve, GUE, FOU and others). It copies the bytes between the UDP header and the IP
    /// header that ends at `packet.transport_offset` into all segments, which is right for all
    /// of these.
    ///
    /// `None` if the headers do not lead to TCP or UDP at that place, if they state another
    /// length than that of the frame, or if they would have to change in a way that is not
    /// known here (PPPoE, fragments, jumbograms).
    pub fn new(frame: &'a [u8], packet: &SuperPacket) -> Option<Self> {
        let start = packet.transport_offset;
        let mut segments = Self {
            frame,
            headers: 0,
            segment_size: usize::from(packet.segment_size),
            layers: [Layer::Ipv4(0); MAX_LAYERS],
            used: 0,
        };
        let mut place = on_ethernet(frame, 0)?;
        let innermost = loop {
            let header = read_ip(frame, &place)?;
            segments.push(match place.family {
                Family::V4 => Layer::Ipv4(place.offset),
                Family::V6 => Layer::Ipv6(place.offset),
            })?;
            if header.transport_offset >= start {
                break header;
            }
            let at = header.transport_offset;
            place = match header.protocol {
                protocol::IPIP => ip_at(frame, Family::V4, at),
                protocol::IPV6 => ip_at(frame, Family::V6, at),
                protocol::GRE => {
                    segments.push(Layer::Gre(at))?;
                    inside_gre(frame, at)?
                }
                protocol::UDP => {
                    let datagram = tail(frame, at);
                    let &[_, _, _, _, l0, l1, c0, c1] = datagram.first_chunk()?;
                    if u16::from_be_bytes([l0, l1]) != length_of(datagram) {
                        return None;
                    }
                    let has_checksum = [c0, c1] != [0, 0];
                    segments.push(Layer::Udp(at, has_checksum.then(|| pseudo_header(&header))))?;
                    ip_before(frame, at.checked_add(UDP_LEN)?, start)?
                }
                _ => return None,
            };
        };
        segments.push_transport(&innermost, packet)?;
        (segments.segment_size > 0 && segments.headers <= frame.len()).then_some(segments)
    }

    fn push_transport(&mut self, header: &Header<'_>, packet: &SuperPacket) -> Option<()> {
        let start = packet.transport_offset;
        let bytes = tail(self.frame, start);
        let pseudo_header = |field: usize| match packet.partial_checksum {
            // The sum in the field counts, not the addresses: with a routing header, the
            // destination of the pseudo header is another (RFC 8200 section 8.1).
            true => Some(Sum::ZERO.bytes(bytes.get(field..field + 2)?).word(!length_of(bytes))),
            false => Some(pseudo_header(header)),
        };
        if header.transport_offset != start {
            return None;
        }
        let length = match header.protocol {
            protocol::TCP => {
                self.push(Layer::Tcp(start, pseudo_header(16)?))?;
                u16::from(bytes.get(12)? >> 4) * 4
            }
            protocol::UDP => {
                let has_checksum = packet.partial_checksum || bytes.get(6..8)? != [0, 0];
                let pseudo_header = if has_checksum { Some(pseudo_header(6)?) } else { None };
                self.push(Layer::Udp(start, pseudo_header))?;
                UDP_LEN
            }
            _ => return None,
        };
        self.headers = usize::from(start) + usize::from(length);
        (header.protocol == protocol::UDP || length >= 20).then_some(())
    }

    fn push(&mut self, layer: Layer) -> Option<()> {
        *self.layers.get_mut(self.used)? = layer;
        self.used += 1;
        Some(())
    }

    /// How many segments there are, at least 1.
    pub fn count(&self) -> usize {
        self.payload().len().div_ceil(self.segment_size).max(1)
    }

    /// Length of segment `index`, counted from 0, with all headers, bytes. A segment
    /// beyond the last has no payload.
    pub fn length(&self, index: usize) -> usize {
        self.headers + self.piece(index).len()
    }

    /// Writes segment `index`.
    ///
    /// # Panics
    /// If `out` is not [`length(index)`](Self::length) bytes long.
    pub fn write(&self, index: usize, out: &mut [u8]) {
        let (headers, payload) = out.split_at_mut(self.headers);
        headers.copy_from_slice(&self.frame[..self.headers]);
        payload.copy_from_slice(self.piece(index));
        let is_last = index + 1 >= self.count();
        let place = Position { index, is_last, before: index * self.segment_size };
        // From the innermost header to the outermost: a checksum covers the headers inside.
        for layer in self.layers[..self.used].iter().rev() {
            layer.write(place, out);
        }
    }

    fn payload(&self) -> &'a [u8] {
        &self.frame[self.headers..]
    }

    fn piece(&self, index: usize) -> &'a [u8] {
        self.payload().chunks(self.segment_size).nth(index).unwrap_or_default()
    }
}

impl Layer {
    /// Makes the header fit the segment that `frame` holds.
    fn write(self, place: Position, frame: &mut [u8]) {
        match self {
            Self::Ipv4(at) => {
                let header = &mut frame[usize::from(at)..];
                let length = length_of(header);
                put(header, 2, length);
                put(header, 4, get(header, 4).wrapping_add(place.index as u16));
                checksum::fill_ipv4_header(header);
            }
            Self::Ipv6(at) => {
                let header = &mut frame[usize::from(at)..];
                let length = length_of(&header[40..]);
                put(header, 4, length);
            }
            Self::Gre(at) => write_gre(place, &mut frame[usize::from(at)..]),
            Self::Udp(at, pseudo_header) => {
                let datagram = &mut frame[usize::from(at)..];
                let length = length_of(datagram);
                put(datagram, 4, length);
                if let Some(pseudo_header) = pseudo_header {
                    fill(datagram, 6, pseudo_header.word(length));
                    // Zero is "none" (RFC 768).
                    if get(datagram, 6) == 0 {
                        put(datagram, 6, 0xffff);
                    }
                }
            }
            Self::Tcp(at, pseudo_header) => {
                let segment = &mut frame[usize::from(at)..];
                add(segment, 4, place.before as u32);
                let mut flags = TcpFlags(segment[13]);
                if !place.is_last {
                    flags = flags.without(TcpFlags::FIN.with(TcpFlags::PSH));
                }
                if place.index > 0 {
                    flags = flags.without(TcpFlags::CWR);
                }
                segment[13] = flags.0;
                let length = length_of(segment);
                fill(segment, 16, pseudo_header.word(length));
            }
        }
    }
}

/// RFC 2784 section 2.3, RFC 2890 section 2.
fn write_gre(place: Position, packet: &mut [u8]) {
    const CHECKSUM: u8 = 0x80;
    const KEY: u8 = 0x20;
    const SEQUENCE: u8 = 0x10;
    let flags = packet[0];
    let length = |flag| if flags & flag != 0 { 4 } else { 0 };
    if flags & SEQUENCE != 0 {
        add(packet, 4 + length(CHECKSUM) + length(KEY), place.index as u32);
    }
    if flags & CHECKSUM != 0 {
        fill(packet, 4, Sum::ZERO);
    }
}

/// The IP header in the Ethernet frame at `at`; `None` for PPPoE, whose length field
/// would have to change.
fn on_ethernet(frame: &[u8], at: u16) -> Option<IpPlace> {
    let place = link::read(frame, at).ok()?.ip?;
    let ethertype = get(tail(frame, place.offset - 2), 0);
    let is_plain = matches!(ethertype, ethertype::IPV4 | ethertype::IPV6);
    (is_plain || place.guessed).then_some(place)
}

fn inside_gre(frame: &[u8], at: u16) -> Option<IpPlace> {
    let gre = transport::gre(tail(frame, at)).ok()?;
    let offset = at.checked_add(gre.header_len)?;
    match (gre.version, gre.ethertype) {
        (0, ethertype::IPV4) => Some(ip_at(frame, Family::V4, offset)),
        (0, ethertype::IPV6) => Some(ip_at(frame, Family::V6, offset)),
        (0, ethertype::BRIDGING) => on_ethernet(frame, offset),
        _ => None,
    }
}

fn ip_at(frame: &[u8], family: Family, offset: u16) -> IpPlace {
    IpPlace { family, offset, end: frame.len(), guessed: false }
}

/// The family and protocol of the transport that begins at `start`, inside `outer`, the packet of a
/// tunnel that reaches to the end of `frame`. `None` if `outer` carries no packets or there is no
/// such transport. The function takes any bytes between the headers of the tunnel and the IP header as
/// they are.
pub fn inner_transport(frame: &[u8], outer: &Network, start: u16) -> Option<(Family, u8)> {
    let is_carrier =
        matches!(outer.protocol, protocol::IPIP | protocol::IPV6 | protocol::GRE | protocol::UDP);
    if !is_carrier && !CARRIERS.contains(&outer.protocol) {
        return None;
    }
    let place = ip_before(frame, outer.transport_offset, start)?;
    Some((place.family, read_ip(frame, &place)?.protocol))
}

/// The IP header at or behind `from` that ends at `start`, where the transport begins. Its
/// length, its chain of headers and, for IPv4, its checksum have to be right, so that no other
/// bytes pass for a header.
fn ip_before(frame: &[u8], from: u16, start: u16) -> Option<IpPlace> {
    let from = from.max(start.saturating_sub(LONGEST_INNER_HEADER));
    let offsets = (from..start).rev().filter(|offset| (start - offset).is_multiple_of(4));
    let place = |offset| {
        let family = match frame.get(usize::from(offset))? >> 4 {
            4 => Family::V4,
            6 => Family::V6,
            _ => return None,
        };
        let place = ip_at(frame, family, offset);
        let header = read_ip(frame, &place)?;
        (header.transport_offset == start).then_some(place)
    };
    offsets.filter_map(place).next()
}

/// Reads the IP header at `place` if its packet is whole and ends with the frame.
fn read_ip<'a>(frame: &'a [u8], place: &IpPlace) -> Option<Header<'a>> {
    let header = match place.family {
        Family::V4 => ip::ipv4(frame, place.offset),
        Family::V6 => ip::ipv6(frame, place.offset),
    };
    let header = header.ok()?;
    let is_jumbo = header.end - u32::from(place.offset) > 40 + u32::from(u16::MAX);
    let is_whole = header.fragment.is_none() && header.end as usize == frame.len();
    (is_whole && !is_jumbo).then_some(header)
}

fn pseudo_header(header: &Header<'_>) -> Sum {
    Sum::ZERO.pseudo_header(&header.with_transport(Transport::Other), 0)
}

/// [`read_ip`] refuses packets that are longer than a length field can express, so the length
/// fits.
fn length_of(bytes: &[u8]) -> u16 {
    bytes.len() as u16
}

fn get(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn put(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// Adds to a 32-bit field.
fn add(bytes: &mut [u8], at: usize, value: u32) {
    let field = u32::from(get(bytes, at)) << 16 | u32::from(get(bytes, at + 2));
    bytes[at..at + 4].copy_from_slice(&field.wrapping_add(value).to_be_bytes());
}

/// Writes the checksum over `bytes` and the bytes summed up in `before`.
fn fill(bytes: &mut [u8], at: usize, before: Sum) {
    put(bytes, at, 0);
    let sum = before.bytes(bytes).finish();
    put(bytes, at, sum);
}

#[cfg(test)]
#[path = "segment_tests.rs"]
mod tests;
