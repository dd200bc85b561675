//! Random packets with headers, options, extension headers, tunnels, quotes and fragments, some of
//! them malformed. This code shares nothing with the parsers under test.

use std::net::IpAddr;

use lab::{Family, Random};

use super::World;

/// Protocol numbers (IANA "Assigned Internet Protocol Numbers").
const ICMP: u8 = 1;
const IPIP: u8 = 4;
const TCP: u8 = 6;
const UDP: u8 = 17;
const IPV6: u8 = 41;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const GRE: u8 = 47;
const AUTHENTICATION: u8 = 51;
const ICMPV6: u8 = 58;
const NO_NEXT: u8 = 59;
const DESTINATION_OPTIONS: u8 = 60;
/// The deepest nesting of tunnels: one more than a gateway looks into.
const DEEPEST: usize = 5;

/// The EtherType of a family.
pub fn ethertype(family: Family) -> u16 {
    match family {
        Family::V4 => 0x0800,
        Family::V6 => 0x86dd,
    }
}

/// An IP packet.
pub struct Packet {
    pub family: Family,
    pub bytes: Vec<u8>,
}

/// The payload of an IP packet.
struct Payload {
    protocol: u8,
    bytes: Vec<u8>,
    /// True if the packet belongs to the flow that the rules let through, given the right
    /// addresses.
    is_open: bool,
}

/// Makes packets between the hosts of a world.
pub struct Maker<'a> {
    pub random: Random,
    pub world: &'a World,
}

impl Maker<'_> {
    /// One packet, whole or in fragments.
    pub fn packets(&mut self) -> Vec<Packet> {
        let family = self.random.one_of(&[Family::V4, Family::V6]);
        let payload = self.payload(family, 0);
        let ends = self.ends(family, payload.is_open);
        if self.random.once_in(4) {
            return self.pieces(family, ends, &payload);
        }
        vec![self.whole(family, ends, payload)]
    }

    /// A whole packet at nesting depth `depth`.
    fn packet(&mut self, depth: usize) -> Packet {
        let family = self.random.one_of(&[Family::V4, Family::V6]);
        let payload = self.payload(family, depth);
        let ends = self.ends(family, payload.is_open);
        self.whole(family, ends, payload)
    }

    /// The addresses of a packet. A payload of the open flow mostly gets the addresses of that
    /// flow.
    fn ends(&mut self, family: Family, is_open: bool) -> (IpAddr, IpAddr) {
        let hosts = self.world.of(family);
        if is_open && !self.random.once_in(4) {
            return hosts.open;
        }
        let source = self.random.one_of(&hosts.sources);
        (source, self.random.one_of(&hosts.destinations))
    }

    fn payload(&mut self, family: Family, depth: usize) -> Payload {
        let carries = |protocol, bytes| Payload { protocol, bytes, is_open: false };
        match self.random.between(0, 9) {
            0..3 => Payload { protocol: UDP, bytes: self.open_datagram(family), is_open: true },
            3..6 if depth < DEEPEST => {
                let inside = self.packet(depth + 1);
                let (protocol, bytes) = self.tunnel(&inside);
                carries(protocol, bytes)
            }
            6 => {
                let (protocol, bytes) = self.error(family);
                carries(protocol, bytes)
            }
            7 => carries(UDP, self.datagram(family, (4000, 53))),
            8 => carries(TCP, self.syn(family)),
            _ => {
                let (protocol, bytes) = self.echo(family);
                carries(protocol, bytes)
            }
        }
    }

    fn open_datagram(&mut self, family: Family) -> Vec<u8> {
        let ports = self.world.open_ports;
        self.datagram(family, ports)
    }

    /// A UDP datagram. It has no checksum yet; IPv4 allows that, and `sum_up` writes one when the
    /// addresses are known.
    fn datagram(&mut self, _family: Family, (from, to): (u16, u16)) -> Vec<u8> {
        let length = self.random.between(0, 64);
        let mut bytes = Vec::from(from.to_be_bytes());
        bytes.extend(to.to_be_bytes());
        bytes.extend((8 + length as u16).to_be_bytes());
        bytes.extend([0, 0]);
        bytes.extend(self.random.bytes(length));
        bytes
    }

    fn syn(&mut self, _family: Family) -> Vec<u8> {
        let mut bytes = Vec::from(self.random.one_of(&[1025_u16, 4000]).to_be_bytes());
        bytes.extend(self.random.one_of(&[22_u16, 80, 9]).to_be_bytes());
        bytes.extend(self.random.bytes(4));
        bytes.extend([0, 0, 0, 0, 0x50, 2, 0xff, 0xff, 0, 0, 0, 0]);
        bytes
    }

    fn echo(&mut self, family: Family) -> (u8, Vec<u8>) {
        let (protocol, kind) = match family {
            Family::V4 => (ICMP, 8),
            Family::V6 => (ICMPV6, self.random.one_of(&[128, 135])),
        };
        let mut bytes = vec![kind, 0, 0, 0];
        bytes.extend(self.random.bytes(28));
        (protocol, bytes)
    }

    /// An ICMP error about the open flow, or about a packet inside a tunnel.
    fn error(&mut self, family: Family) -> (u8, Vec<u8>) {
        let payload = Payload { protocol: UDP, bytes: self.open_datagram(family), is_open: true };
        let (from, to) = self.world.of(family).open;
        let mut quoted = self.plain(family, (to, from), &payload);
        if self.random.once_in(3) {
            quoted = self.packet(DEEPEST);
        }
        let kind = match family {
            Family::V4 => self.random.one_of(&[[3, 1], [3, 4], [11, 0], [5, 1], [12, 0]]),
            Family::V6 => self.random.one_of(&[[1, 0], [2, 0], [3, 0], [137, 0], [4, 1]]),
        };
        let mut bytes = Vec::from(kind);
        bytes.extend([0, 0, 0, 0, 5, 0]);
        bytes.extend(quoted.bytes);
        (if matches!(family, Family::V4) { ICMP } else { ICMPV6 }, bytes)
    }

    /// A protocol number and the payload of a tunnel that carries this packet.
    fn tunnel(&mut self, inside: &Packet) -> (u8, Vec<u8>) {
        let plain = match inside.family {
            Family::V4 => IPIP,
            Family::V6 => IPV6,
        };
        if self.random.once_in(2) {
            // Sometimes the protocol number is that of the other family.
            let number = if self.random.once_in(20) { IPIP + IPV6 - plain } else { plain };
            return (number, inside.bytes.clone());
        }
        let flags = self.random.one_of(&[0, 0, 0, 0x2000, 0x8000, 0x1000, 0xb000, 0x4000, 1_u16]);
        let mut bytes = Vec::from(flags.to_be_bytes());
        let is_frame = self.random.once_in(3);
        let ethertype = if is_frame { 0x6558 } else { ethertype(inside.family) };
        bytes.extend(ethertype.to_be_bytes());
        for field in [0x8000, 0x2000, 0x1000] {
            if flags & field != 0 {
                bytes.extend([0, 0, 0, 0]);
            }
        }
        if is_frame {
            bytes.extend(self.world.destination_mac);
            bytes.extend(self.world.source_mac);
            bytes.extend(self::ethertype(inside.family).to_be_bytes());
        }
        bytes.extend(&inside.bytes);
        (GRE, bytes)
    }

    /// A packet with options or extension headers. Some of them are damaged.
    fn whole(&mut self, family: Family, ends: (IpAddr, IpAddr), mut payload: Payload) -> Packet {
        sum_up(ends, &mut payload);
        let mut packet = match family {
            Family::V4 => {
                let options = self.options(ends);
                v4(ends, payload.protocol, FragmentPosition::WHOLE, &options, &payload.bytes)
            }
            Family::V6 => {
                let (first, mut chain) = self.chain(ends, payload.protocol);
                chain.extend(&payload.bytes);
                v6(ends, first, &chain)
            }
        };
        if self.random.once_in(12) {
            self.damage(&mut packet);
        }
        packet
    }

    /// A packet without options or extension headers, never damaged.
    fn plain(&mut self, family: Family, ends: (IpAddr, IpAddr), payload: &Payload) -> Packet {
        match family {
            Family::V4 => v4(ends, payload.protocol, FragmentPosition::WHOLE, &[], &payload.bytes),
            Family::V6 => v6(ends, payload.protocol, &payload.bytes),
        }
    }

    /// Writes a wrong version, length or checksum, or appends bytes.
    fn damage(&mut self, packet: &mut Packet) {
        let extra = self.random.between(1, 40);
        let bytes = &mut packet.bytes;
        let length_at = if matches!(packet.family, Family::V4) { 2 } else { 4 };
        match self.random.between(0, 5) {
            0 => bytes[0] = (bytes[0] & 0x0f) | self.random.one_of(&[0x40, 0x50, 0x60, 0]),
            1 => bytes[0] ^= 1 << self.random.between(0, 3),
            2 => bytes[length_at + 1] ^= 1 << self.random.between(0, 6),
            3 => bytes.truncate(bytes.len().saturating_sub(extra).max(1)),
            4 => bytes.extend(vec![0; extra]),
            _ => {
                let at = self.random.between(0, bytes.len() - 1);
                bytes[at] ^= 1 << self.random.between(0, 7);
            }
        }
        if matches!(packet.family, Family::V4) && !self.random.once_in(4) {
            sum_header(bytes);
        }
    }

    /// IPv4 options (RFC 791 section 3.1), for about one packet in three.
    fn options(&mut self, (_, destination): (IpAddr, IpAddr)) -> Vec<u8> {
        if !self.random.once_in(3) {
            return Vec::new();
        }
        let closed = octets(self.world.of(Family::V4).destinations[1]);
        let destination = octets(destination);
        let mut options = match self.random.between(0, 7) {
            0 => [&[131, 7, 4][..], &closed].concat(),
            1 => [&[137, 7, 4][..], &closed].concat(),
            2 => [&[131, 7, 8][..], &destination].concat(),
            3 => [&[7, 7, 4][..], &[0; 4]].concat(),
            4 => vec![68, 8, 5, 0, 0, 0, 0, 0],
            5 => vec![148, 4, 0, 0],
            6 => vec![1, 1, 1, 0],
            _ => {
                let length = self.random.between(1, 36);
                self.random.bytes(length)
            }
        };
        while options.len() % 4 != 0 {
            options.push(self.random.one_of(&[0, 1]));
        }
        options
    }

    /// Extension headers (RFC 8200 section 4) in front of a header with the number `last`. Returns
    /// the number of the first header, and the bytes.
    fn chain(&mut self, ends: (IpAddr, IpAddr), last: u8) -> (u8, Vec<u8>) {
        let count = if self.random.once_in(2) { 0 } else { self.random.between(1, 10) };
        let mut headers: Vec<(u8, Vec<u8>)> = (0..count).map(|_| self.extension(ends)).collect();
        if self.random.once_in(20) {
            headers.push((NO_NEXT, Vec::new()));
        }
        let mut bytes = Vec::new();
        for index in 0..headers.len() {
            let next = headers.get(index + 1).map_or(last, |(number, _)| *number);
            let header = &mut headers[index].1;
            if let Some(first) = header.first_mut() {
                *first = next;
            }
            bytes.extend(header.iter());
        }
        (headers.first().map_or(last, |(number, _)| *number), bytes)
    }

    fn extension(&mut self, (_, destination): (IpAddr, IpAddr)) -> (u8, Vec<u8>) {
        match self.random.between(0, 6) {
            0 => (0, vec![0, 0, 1, 4, 0, 0, 0, 0]),
            1 => (DESTINATION_OPTIONS, vec![0, 0, 1, 4, 0, 0, 0, 0]),
            2 => {
                // The home address option (RFC 6275 section 6.3).
                let mut bytes = vec![0, 2, 1, 2, 0, 0, 0xc9, 16];
                bytes.extend(octets(self.world.of(Family::V6).sources[0]));
                (DESTINATION_OPTIONS, bytes)
            }
            3 => {
                let left = self.random.one_of(&[0, 1]);
                let kind = self.random.one_of(&[0, 2, 3, 4, 253]);
                let mut bytes = vec![0, 2, kind, left, 0, 0, 0, 0];
                bytes.extend(octets(destination));
                (ROUTING, bytes)
            }
            4 => {
                let mut bytes = vec![0, 0, 0, 0];
                bytes.extend(self.random.bytes(4));
                (FRAGMENT, bytes)
            }
            5 => {
                let mut bytes = vec![0, 4, 0, 0];
                bytes.extend(self.random.bytes(20));
                (AUTHENTICATION, bytes)
            }
            _ => {
                let number = self.random.one_of(&[0, DESTINATION_OPTIONS, 135, 139, 140, 253]);
                let mut bytes = self.random.bytes(8);
                bytes[1] = self.random.one_of(&[0, 0, 1, 255]);
                (number, bytes)
            }
        }
    }

    /// The fragments of a packet. They fit together, overlap, or belong to two different packets.
    fn pieces(&mut self, family: Family, ends: (IpAddr, IpAddr), payload: &Payload) -> Vec<Packet> {
        let id = self.random.bits() as u32;
        let mut bytes = payload.bytes.clone();
        bytes.resize(bytes.len().max(48), 0);
        let cut = 8 * self.random.between(1, 4);
        let mut other = bytes.clone();
        // Another source port and another destination port, which the rules drop.
        other[..4].copy_from_slice(&[0x0f, 0xa0, 0, 53]);
        let piece = |offset: usize, more, part: &[u8]| (offset, more, part.to_vec());
        let mut pieces = match self.random.between(0, 5) {
            0 => vec![piece(0, true, &bytes[..cut]), piece(cut, false, &bytes[cut..])],
            // The second fragment overwrites the ports in the first (RFC 1858 section 4).
            1 => vec![piece(0, true, &bytes[..cut]), piece(0, false, &other)],
            2 => vec![
                piece(0, true, &other[..cut]),
                piece(0, true, &bytes[..cut]),
                piece(cut, false, &bytes[cut..]),
            ],
            3 => vec![
                piece(0, true, &bytes[..cut]),
                piece(8, true, &other[8..cut + 8]),
                piece(cut, false, &bytes[cut..]),
            ],
            // A fragment behind the end, and a first fragment that claims to be the last.
            4 => vec![
                piece(0, false, &bytes[..cut]),
                piece(cut, false, &other[cut..]),
                piece(0, true, &other[..cut]),
            ],
            _ => vec![piece(cut, false, &bytes[cut..]), piece(0, true, &bytes[..cut])],
        };
        if self.random.once_in(2) {
            self.random.shuffle(&mut pieces);
        }
        let written = pieces.into_iter().map(|(offset, more, part)| {
            let place = FragmentPosition { id, offset: offset as u16, more };
            match family {
                Family::V4 => v4(ends, payload.protocol, place, &[], &part),
                Family::V6 => {
                    let mut bytes = vec![payload.protocol, 0];
                    bytes.extend((place.offset | u16::from(more)).to_be_bytes());
                    bytes.extend(id.to_be_bytes());
                    bytes.extend(part);
                    v6(ends, FRAGMENT, &bytes)
                }
            }
        });
        written.collect()
    }
}

/// The position of a fragment in its datagram.
#[derive(Clone, Copy)]
struct FragmentPosition {
    id: u32,
    offset: u16,
    more: bool,
}

impl FragmentPosition {
    const WHOLE: Self = Self { id: 7, offset: 0, more: false };
}

fn v4(
    ends: (IpAddr, IpAddr),
    protocol: u8,
    place: FragmentPosition,
    options: &[u8],
    payload: &[u8],
) -> Packet {
    let words = 5 + options.len() / 4;
    let length = 4 * words + payload.len();
    let mut bytes = vec![0x40 | words as u8, 0];
    bytes.extend((length as u16).to_be_bytes());
    bytes.extend((place.id as u16).to_be_bytes());
    bytes.extend(((u16::from(place.more) << 13) | (place.offset / 8)).to_be_bytes());
    bytes.extend([64, protocol, 0, 0]);
    bytes.extend(octets(ends.0));
    bytes.extend(octets(ends.1));
    bytes.extend(options);
    sum_header(&mut bytes);
    bytes.extend(payload);
    Packet { family: Family::V4, bytes }
}

fn v6(ends: (IpAddr, IpAddr), first: u8, payload: &[u8]) -> Packet {
    let mut bytes = vec![0x60, 0, 0, 0];
    bytes.extend((payload.len() as u16).to_be_bytes());
    bytes.extend([first, 64]);
    bytes.extend(octets(ends.0));
    bytes.extend(octets(ends.1));
    bytes.extend(payload);
    Packet { family: Family::V6, bytes }
}

/// Writes the checksum of an IPv4 header.
fn sum_header(bytes: &mut [u8]) {
    let length = (4 * usize::from(bytes[0] & 0x0f)).clamp(20, bytes.len().max(20));
    let Some(header) = bytes.get_mut(..length) else { return };
    header[10..12].fill(0);
    let sum = !ones_sum(&[header]);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// Writes the checksum of the payload, so that the receiver accepts it.
fn sum_up(ends: (IpAddr, IpAddr), payload: &mut Payload) {
    let length = payload.bytes.len() as u32;
    let at = match payload.protocol {
        UDP => 6,
        TCP => 16,
        ICMP | ICMPV6 => 2,
        _ => return,
    };
    let mut pseudo = Vec::new();
    if payload.protocol != ICMP {
        pseudo.extend(octets(ends.0));
        pseudo.extend(octets(ends.1));
        pseudo.extend(length.to_be_bytes());
        pseudo.extend([0, 0, 0, payload.protocol]);
    }
    payload.bytes[at..at + 2].fill(0);
    let sum = !ones_sum(&[&pseudo, &payload.bytes]);
    payload.bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
}

/// The Internet checksum (RFC 1071). All parts but the last have an even length.
fn ones_sum(parts: &[&[u8]]) -> u16 {
    let words = parts.iter().flat_map(|part| part.chunks(2));
    let mut sum: u64 = words
        .map(|word| u64::from(u16::from_be_bytes([word[0], word.get(1).copied().unwrap_or(0)])))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}
