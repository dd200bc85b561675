//! Super-packets of every shape, cut up, against an independent reader: etherparse finds the
//! headers, and a sum that is written here verifies the checksums.

#![allow(clippy::unwrap_used, reason = "only tests call these functions")]

use etherparse::{NetSlice, SlicedPacket};
use proptest::{collection::vec, prelude::*};
use wire::{
    TcpFlags,
    build::{PacketBuilder, Tcp},
    checksum,
    segment::{Segments, SuperPacket},
};

const IPIP: u8 = 4;
const TCP: u8 = 6;
const UDP: u8 = 17;
const IPV6: u8 = 41;
const GRE: u8 = 47;
const DESTINATION_OPTIONS: u8 = 60;
const SEQUENCE: u32 = 0xffff_f000;
const GRE_SEQUENCE: u32 = 0xffff_fffe;
const OUTER_ID: u16 = 0xfffe;
const INNER_ID: u16 = 0x1234;

#[derive(Clone, Copy, Debug)]
enum Shell {
    None,
    Ip,
    /// Flag bits of the first byte.
    Gre(u8),
    GreBridged(u8),
    /// IP over GRE over IP.
    GreInIp,
    /// A tunnel over UDP: bytes of its header, and whether a link header follows.
    Udp {
        header: usize,
        bridged: bool,
        checksum: bool,
    },
}

#[derive(Clone, Debug)]
struct Shape {
    shell: Shell,
    outer_v6: bool,
    inner_v6: bool,
    vlan: bool,
    /// IPv6 extension headers inside.
    extended: bool,
    flags: u8,
    options: Vec<u8>,
    tcp: bool,
    payload: Vec<u8>,
    segment_size: u16,
}

fn shell() -> impl Strategy<Value = Shell> {
    let flags = any::<u8>().prop_map(|flags| flags & 0xb0);
    prop_oneof![
        Just(Shell::None),
        Just(Shell::Ip),
        flags.clone().prop_map(Shell::Gre),
        flags.prop_map(Shell::GreBridged),
        Just(Shell::GreInIp),
        // FOU, GUE, VXLAN, Geneve with and without options.
        (prop_oneof![Just(0_usize), Just(4), Just(8), Just(28)], any::<bool>(), any::<bool>())
            .prop_map(|(header, bridged, checksum)| Shell::Udp { header, bridged, checksum }),
    ]
}

fn shape() -> impl Strategy<Value = Shape> {
    let booleans = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    let payload = prop_oneof![vec(any::<u8>(), 1..3000), vec(any::<u8>(), 64_000..64_001)];
    (shell(), booleans, any::<u8>(), vec(any::<u8>(), 0..40), payload, 100_u16..2000).prop_map(
        |(shell, booleans, flags, options, payload, segment_size)| {
            let (outer_v6, inner_v6, vlan, extended, tcp) = booleans;
            let extended = extended && inner_v6;
            Shape {
                shell,
                outer_v6,
                inner_v6,
                vlan,
                extended,
                flags,
                options,
                tcp,
                payload,
                segment_size,
            }
        },
    )
}

/// One's complement sum, the slow way.
fn sum(parts: &[&[u8]]) -> u16 {
    let mut sum = 0_u32;
    for part in parts {
        for word in part.chunks(2) {
            sum += u32::from(word[0]) << 8 | word.get(1).map_or(0, |&low| u32::from(low));
            sum = (sum & 0xffff) + (sum >> 16);
        }
    }
    sum as u16
}

impl Shape {
    fn builder(&self, v6: bool) -> PacketBuilder {
        if v6 {
            PacketBuilder::v6([0x20; 16], [0x21; 16])
        } else {
            PacketBuilder::v4([192, 0, 2, 1], [198, 51, 100, 2]).options(&[1; 4])
        }
    }

    /// The inner packet as a frame, with a partial checksum, and the offset of its transport.
    fn inner(&self) -> (Vec<u8>, usize) {
        let tcp = Tcp {
            source_port: 1,
            destination_port: 2,
            sequence: SEQUENCE,
            flags: TcpFlags(self.flags),
            options: &self.options,
            ..Tcp::default()
        };
        let mut frame = Vec::new();
        let builder = self.builder(self.inner_v6).id(INNER_ID.into());
        match self.tcp {
            true => builder.tcp(&tcp, &self.payload, &mut frame),
            false => builder.udp(1, 2, &self.payload, &mut frame),
        }
        let mut start = 14 + if self.inner_v6 { 40 } else { 24 };
        if self.extended {
            let protocol = if self.tcp { TCP } else { UDP };
            let content = [&[protocol, 0, 1, 4, 0, 0, 0, 0], &frame[start..]].concat();
            frame.clear();
            builder.raw(DESTINATION_OPTIONS, &content, &mut frame);
            start += 8;
        }
        let addresses = if self.inner_v6 { 14 + 8..14 + 40 } else { 14 + 12..14 + 20 };
        let protocol = if self.tcp { TCP } else { UDP };
        let length = (frame.len() - start) as u16;
        let pseudo = sum(&[&frame[addresses], &length.to_be_bytes(), &[0, protocol]]);
        let field = start + if self.tcp { 16 } else { 6 };
        frame[field..field + 2].copy_from_slice(&pseudo.to_be_bytes());
        (frame, start)
    }

    /// The super-packet and the offset of its transport.
    fn frame(&self) -> (Vec<u8>, usize) {
        let (inner, start) = self.inner();
        let mut outer = self.builder(self.outer_v6).id(OUTER_ID.into());
        if self.vlan {
            outer = outer.vlan(7);
        }
        let (link, ip) = inner.split_at(14);
        let protocol = if self.inner_v6 { IPV6 } else { IPIP };
        let gre = |flags: u8, kind: &[u8]| {
            let mut header = vec![flags, 0, kind[0], kind[1]];
            header.extend([0xaa; 4].iter().filter(|_| flags & 0x80 != 0));
            header.extend([0xbb; 4].iter().filter(|_| flags & 0x20 != 0));
            header.extend(GRE_SEQUENCE.to_be_bytes().iter().take(if flags & 0x10 != 0 {
                4
            } else {
                0
            }));
            header
        };
        let mut frame = Vec::new();
        match self.shell {
            Shell::None if self.vlan => {
                frame = [&inner[..12], &[0x81, 0, 0, 7], &inner[12..]].concat();
            }
            Shell::None => frame = inner.clone(),
            Shell::Ip => outer.raw(protocol, ip, &mut frame),
            Shell::Gre(flags) => {
                outer.raw(GRE, &[&gre(flags, &link[12..]), ip].concat(), &mut frame)
            }
            Shell::GreBridged(flags) => {
                outer.raw(GRE, &[&gre(flags, &[0x65, 0x58]), &inner[..]].concat(), &mut frame);
            }
            Shell::GreInIp => {
                let mut middle = Vec::new();
                let content = [&gre(0xb0, &link[12..]), ip].concat();
                self.builder(!self.outer_v6).id(OUTER_ID.into()).raw(GRE, &content, &mut middle);
                let protocol = if self.outer_v6 { IPIP } else { IPV6 };
                outer.raw(protocol, &middle[14..], &mut frame);
            }
            Shell::Udp { header, bridged, checksum } => {
                let content = if bridged { &inner[..] } else { ip };
                let content = [&vec![0x5a; header], content].concat();
                outer.udp(4789, 4789, &content, &mut frame);
                if !checksum {
                    let field = frame.len() - content.len() - 2;
                    frame[field..field + 2].fill(0);
                }
            }
        }
        let start = frame.len() - (inner.len() - start);
        (frame, start)
    }

    /// Reads the IP packet at `offset`, the whole rest of `segment`, and all above it.
    /// Returns the transport in the end.
    fn read<'a>(&self, segment: &'a [u8], offset: usize, index: usize) -> &'a [u8] {
        let bytes = &segment[offset..];
        let packet = SlicedPacket::from_ip(bytes).unwrap();
        let (payload, addresses, id) = match packet.net.as_ref().unwrap() {
            NetSlice::Ipv4(ip) => {
                let header = ip.header();
                assert_eq!(usize::from(header.total_len()), bytes.len());
                assert_eq!(sum(&[header.slice()]), 0xffff);
                (ip.payload(), &bytes[12..20], Some(header.identification()))
            }
            NetSlice::Ipv6(ip) => {
                assert_eq!(usize::from(ip.header().payload_length()), bytes.len() - 40);
                (ip.payload(), &bytes[8..40], None)
            }
            NetSlice::Arp(_) => unreachable!(),
        };
        let (content, protocol) = (payload.payload, payload.ip_number.0);
        assert_eq!(content.as_ptr_range().end, bytes.as_ptr_range().end);
        let at = segment.len() - content.len();
        let pseudo = [(content.len() as u16).to_be_bytes(), [0, protocol]].concat();
        let verified = sum(&[addresses, &pseudo, content]) == 0xffff;
        let is_outer = |port: &[u8]| port == 4789_u16.to_be_bytes();
        let expected_id = |first: u16| id.is_none_or(|id| id == first.wrapping_add(index as u16));
        match (protocol, self.shell) {
            (UDP, Shell::Udp { header, bridged, checksum }) if is_outer(&content[..2]) => {
                assert!(expected_id(OUTER_ID));
                assert_eq!(content[4..6], (content.len() as u16).to_be_bytes());
                assert_eq!(content[6..8] != [0, 0], checksum);
                assert!(verified || !checksum);
                assert!(content[8..8 + header].iter().all(|&byte| byte == 0x5a));
                self.read(segment, at + 8 + header + if bridged { 14 } else { 0 }, index)
            }
            (GRE, _) => {
                assert!(expected_id(OUTER_ID));
                let flag = |bit| usize::from(content[0] & bit != 0) * 4;
                if flag(0x80) > 0 {
                    assert_eq!(sum(&[content]), 0xffff);
                    assert_eq!(content[6..8], [0xaa; 2]);
                }
                let sequence = 4 + flag(0x80) + flag(0x20);
                if flag(0x10) > 0 {
                    let expected = GRE_SEQUENCE.wrapping_add(index as u32).to_be_bytes();
                    assert_eq!(content[sequence..sequence + 4], expected);
                }
                let link = if content[2..4] == [0x65, 0x58] { 14 } else { 0 };
                self.read(segment, at + sequence + flag(0x10) + link, index)
            }
            (IPIP | IPV6, _) => {
                assert!(expected_id(OUTER_ID));
                self.read(segment, at, index)
            }
            (TCP | UDP, _) => {
                assert!(expected_id(INNER_ID));
                assert!(verified);
                content
            }
            (other, _) => panic!("protocol {other}"),
        }
    }
}

fn field(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes[..4].try_into().unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn segments_are_the_super_packet_cut_up(shape in shape()) {
        let (frame, start) = shape.frame();
        let packet = SuperPacket {
            transport_offset: start as u16,
            segment_size: shape.segment_size,
            partial_checksum: true,
        };
        let segments = Segments::new(&frame, &packet).unwrap();
        let size = usize::from(shape.segment_size);
        let count = shape.payload.len().div_ceil(size);
        prop_assert_eq!(segments.count(), count);
        let mut joined: Vec<u8> = Vec::new();
        for index in 0..count {
            let mut segment = vec![0xcc; segments.length(index)];
            segments.write(index, &mut segment);
            let ip = if shape.vlan { 18 } else { 14 };
            prop_assert_eq!(&segment[..ip], &frame[..ip]);
            let transport = shape.read(&segment, ip, index);
            let header = if shape.tcp {
                let is_last = index + 1 == count;
                prop_assert_eq!(field(&transport[4..]), SEQUENCE.wrapping_add(joined.len() as u32));
                let flags = TcpFlags(shape.flags);
                let flags = if is_last { flags } else { flags.without(TcpFlags(0x09)) };
                let flags = if index > 0 { flags.without(TcpFlags::CWR) } else { flags };
                prop_assert_eq!(TcpFlags(transport[13]), flags);
                usize::from(transport[12] >> 4) * 4
            } else {
                prop_assert_eq!(&transport[4..6], (transport.len() as u16).to_be_bytes());
                8
            };
            let piece = &transport[header..];
            prop_assert!(piece.len() == size || index + 1 == count);
            joined.extend(piece);
        }
        prop_assert_eq!(joined, shape.payload);
    }

    #[test]
    fn a_partial_checksum_is_completed(shape in shape()) {
        let (mut frame, start) = shape.frame();
        let offset = if shape.tcp { 16 } else { 6 };
        prop_assert!(checksum::complete(&mut frame, start as u16, offset));
        let (inner, inner_start) = shape.inner();
        let addresses = if shape.inner_v6 { 22..54 } else { 26..34 };
        let length = (inner.len() - inner_start) as u16;
        let protocol = if shape.tcp { TCP } else { UDP };
        let pseudo = [length.to_be_bytes(), [0, protocol]].concat();
        prop_assert_eq!(sum(&[&inner[addresses], &pseudo, &frame[start..]]), 0xffff);
    }

    #[test]
    fn no_frame_makes_the_segmenter_panic(
        shape in shape(),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in any::<prop::sample::Index>(),
        start in proptest::option::of(any::<u16>()),
        segment_size in 0_u16..3000,
        partial_checksum in any::<bool>(),
    ) {
        let (mut frame, place) = shape.frame();
        for (at, value) in damage {
            // A place among the headers.
            let range = (place + 20).min(frame.len());
            let at = at.index(range);
            frame[at] = value;
        }
        if partial_checksum {
            frame.truncate(cut.index(frame.len()));
        }
        let transport_offset = start.unwrap_or(place as u16);
        let packet = SuperPacket { transport_offset, segment_size, partial_checksum };
        if let Some(segments) = Segments::new(&frame, &packet) {
            for index in 0..segments.count() + 1 {
                segments.write(index, &mut vec![0; segments.length(index)]);
            }
        }
        checksum::complete(&mut frame, transport_offset, segment_size);
    }
}
