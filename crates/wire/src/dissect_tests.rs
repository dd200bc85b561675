use super::*;
use crate::{
    Malformed, Transport,
    build::{PacketBuilder, Tcp},
    checksum, protocol,
};

#[test]
fn reads_a_udp_packet() {
    let mut frame = vec![0; 12];
    frame.extend([0x08, 0x00, 0x45, 0, 0, 28, 0, 1, 0x40, 0, 64, 17, 0, 0]);
    frame.extend([192, 0, 2, 1, 198, 51, 100, 2, 0x30, 0x39, 0, 53, 0, 8, 0, 0]);
    let sum = checksum::checksum(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame.resize(60, 0);
    let dissected = dissect(&frame).unwrap();
    let network = dissected.network.unwrap();
    assert_eq!(
        network.transport,
        Transport::Udp { source_port: 12345, destination_port: 53, length: 8 }
    );
    assert_eq!(network.source_ip().to_string(), "192.0.2.1");
    assert_eq!((network.offset, network.transport_offset, network.end), (14, 34, 42));
    frame[24] ^= 1;
    assert_eq!(dissect(&frame), Err(Malformed::Ipv4Header));
}

fn v4() -> PacketBuilder {
    PacketBuilder::v4([192, 0, 2, 1], [192, 0, 2, 2])
}

fn v6() -> PacketBuilder {
    PacketBuilder::v6([0x20; 16], [0x21; 16])
}

/// The fault of a fragment, if it has one.
fn fault(
    builder: &PacketBuilder,
    protocol: u8,
    offset: u16,
    more: bool,
    piece: &[u8],
) -> Option<Malformed> {
    let mut frame = Vec::new();
    builder.fragment(protocol, offset, more, piece, &mut frame);
    dissect(&frame).err()
}

#[test]
fn a_fragment_has_a_length_and_an_end_that_are_possible() {
    for builder in [v4(), v6()] {
        let of = |offset, more, length| fault(&builder, 200, offset, more, &vec![0; length]);
        assert_eq!(of(0, true, 16), None);
        assert_eq!(of(0, true, 15), Some(Malformed::FragmentLength));
        assert_eq!(of(16, true, 15), Some(Malformed::FragmentLength));
        assert_eq!(of(16, false, 15), None);
        assert_eq!(of(0, true, 0), Some(Malformed::FragmentEmpty));
        assert_eq!(of(16, false, 0), Some(Malformed::FragmentEmpty));
        assert_eq!(of(0, false, 0), None, "a whole datagram");
        assert_eq!(of(65_528, false, 8), Some(Malformed::FragmentOversize));
    }
    // The IPv4 header counts (RFC 791: total length), that of IPv6 does not.
    let of = |builder: &PacketBuilder, length| fault(builder, 200, 65_504, false, &vec![0; length]);
    assert_eq!(of(&v4(), 11), None);
    assert_eq!(of(&v4(), 12), Some(Malformed::FragmentOversize));
    assert_eq!(of(&v6(), 31), None);
    assert_eq!(of(&v6(), 32), Some(Malformed::FragmentOversize));
    assert_eq!(
        of(&v4().options(&[1; 4]), 8),
        Some(Malformed::FragmentOversize),
        "options count too"
    );
}

#[test]
fn a_header_tells_an_impossible_end_also_without_its_piece() {
    let cut = |offset| {
        let mut frame = Vec::new();
        v4().fragment(200, offset, false, &[0; 1000], &mut frame);
        frame.truncate(14 + 20);
        dissect(&frame).err()
    };
    assert_eq!(cut(65_000), Some(Malformed::FragmentOversize));
    assert_eq!(cut(8), Some(Malformed::Ipv4Header), "the frame is too short for it");
}

/// A transport header with a payload of 40 bytes, and the header's length.
fn transports() -> Vec<(u8, Vec<u8>, usize)> {
    let mut segment = Vec::new();
    v4().tcp(&Tcp { options: &[1; 12], ..Tcp::default() }, &[0; 40], &mut segment);
    let mut dccp = vec![0; 56];
    dccp[4] = 4;
    let udp = [&[0, 1, 0, 2, 0, 48, 0, 0][..], &[0; 40]].concat();
    let gre = [&[0x20, 0, 8, 0, 0, 0, 0, 7][..], &[0; 40]].concat();
    vec![
        (protocol::TCP, segment.split_off(34), 32),
        (protocol::UDP, udp.clone(), 8),
        (protocol::UDPLITE, udp, 8),
        (protocol::SCTP, vec![0; 56], 12),
        (protocol::DCCP, dccp, 16),
        (protocol::GRE, gre, 8),
    ]
}

#[test]
fn a_first_fragment_holds_the_whole_transport_header() {
    for builder in [v4(), v6()] {
        for (protocol, datagram, header) in transports() {
            for length in (8..=48).step_by(8) {
                let piece = &datagram[..length];
                let expected = (length < header).then_some(Malformed::FirstFragment);
                assert_eq!(fault(&builder, protocol, 0, true, piece), expected, "{protocol}");
            }
        }
    }
    let (_, mut segment, _) = transports().swap_remove(0);
    segment[12] = 4 << 4;
    assert_eq!(
        fault(&v4(), protocol::TCP, 0, true, &segment[..40]),
        Some(Malformed::Tcp),
        "all of it is there, but it is wrong"
    );
}

#[test]
fn tcp_does_not_go_on_inside_its_header() {
    assert_eq!(fault(&v4(), protocol::TCP, 8, true, &[0; 16]), Some(Malformed::FirstFragment));
    assert_eq!(fault(&v4(), protocol::TCP, 16, true, &[0; 16]), None);
    assert_eq!(fault(&v4(), protocol::UDP, 8, true, &[0; 16]), None);
    // The protocol in a later fragment of IPv6 has no meaning (RFC 8200 section 4.5).
    assert_eq!(fault(&v6(), protocol::TCP, 8, true, &[0; 16]), None);
}

#[test]
fn a_first_fragment_holds_the_whole_chain_of_extension_headers() {
    // Destination options of 24 bytes, then UDP.
    let mut datagram = vec![17, 2, 1, 20];
    datagram.extend([0; 20]);
    datagram.extend([0, 1, 0, 2, 0, 16, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
    let of = |length: usize, more| fault(&v6(), 60, 0, more, &datagram[..length]);
    for length in [8, 16, 24] {
        assert_eq!(of(length, true), Some(Malformed::FirstFragment));
    }
    assert_eq!(of(32, true), None);
    assert_eq!(of(40, false), None, "an atomic fragment");
    assert_eq!(of(16, false), Some(Malformed::ExtensionHeaders), "no other piece has the rest");
}

#[test]
fn a_quote_of_something_without_a_flow_names_none() {
    let mut echo = Vec::new();
    v4().echo(false, 7, 1, b"", &mut echo);
    let names_one = |packet: &[u8]| {
        let mut frame = Vec::new();
        v4().icmp_error(3, 1, [0; 4], packet, &mut frame);
        let transport = dissect(&frame).unwrap().network.unwrap().transport;
        let Transport::IcmpError(error) = transport else { panic!("{transport:?}") };
        error.quoted.is_some()
    };
    let packet = &echo[14..];
    assert!(names_one(packet));
    // An error or any other message: not even the query with the identifier zero.
    for kind in [3, 11, 30] {
        let mut other = packet.to_vec();
        other[20] = kind;
        assert!(!names_one(&other), "{kind}");
    }
    // Options that reach beyond the end of the quote.
    let mut generic = packet.to_vec();
    (generic[0], generic[9]) = (0x4f, 253);
    assert!(!names_one(&generic));
    generic[0] = 0x45;
    assert!(names_one(&generic));
}

/// The types of ICMPv6 errors are below 128, also of those that nobody has defined (RFC 4443 section 2.1).
#[test]
fn an_unknown_error_of_icmpv6_quotes_a_packet() {
    let mut quoted = Vec::new();
    v6().udp(7, 9, b"asked", &mut quoted);
    let is_error = |kind| {
        let mut frame = Vec::new();
        v6().icmp_error(kind, 0, [0; 4], &quoted[14..], &mut frame);
        let transport = dissect(&frame).unwrap().network.unwrap().transport;
        matches!(transport, Transport::IcmpError(error) if error.quoted.is_some())
    };
    for kind in [1, 4, 5, 100, 127] {
        assert!(is_error(kind), "{kind}");
    }
    for kind in [128, 137, 200] {
        assert!(!is_error(kind), "{kind}");
    }
}

#[test]
fn packets_of_a_pptp_call_share_a_key_whatever_their_length() {
    let key = |length: u16| {
        // Key and sequence number present, version 1, PPP; then length and call id.
        let mut gre = vec![0x30, 0x01, 0x88, 0x0b];
        gre.extend(length.to_be_bytes());
        gre.extend([0, 7, 0, 0, 0, 1]);
        gre.extend(vec![0; length.into()]);
        let mut frame = Vec::new();
        v4().raw(protocol::GRE, &gre, &mut frame);
        dissect(&frame).unwrap().network.unwrap().transport
    };
    for length in [0, 1, 1400] {
        assert_eq!(key(length), Transport::Gre { version: 1, key: 7 });
    }
}

/// IPv4 in IPv4, `depth` times, around a UDP packet.
fn nested(depth: usize) -> Vec<u8> {
    let mut frame = Vec::new();
    v4().udp(1, 2, b"inside", &mut frame);
    for level in 0..depth {
        let inner = std::mem::take(&mut frame);
        let tunnel = PacketBuilder::v4([203, 0, 113, level as u8], [203, 0, 113, 9]);
        tunnel.raw(4, &inner[14..], &mut frame);
    }
    frame
}

fn inside_of(frame: &[u8]) -> Option<Network> {
    let outer = dissect(frame).unwrap().network.unwrap();
    inside(frame, &outer)
}

#[test]
fn a_dissection_shows_the_outermost_packet_and_the_innermost_one() {
    assert_eq!(inside_of(&nested(0)), None);
    for depth in 1..=6 {
        let frame = nested(depth);
        let outer = dissect(&frame).unwrap().network.unwrap();
        assert_eq!((outer.protocol, outer.offset, outer.transport), (4, 14, Transport::Other));
        let inner = inside(&frame, &outer).unwrap();
        assert_eq!(usize::from(inner.offset), 14 + 20 * depth.min(Dissected::MAX_TUNNELS));
        assert_eq!(inner.protocol == protocol::UDP, depth <= Dissected::MAX_TUNNELS);
    }
}

#[test]
fn a_malformed_inner_packet_is_no_fault_of_the_tunnel() {
    let frame = nested(1);
    // Cut short inside the UDP header, so that only the addresses are known, and in front of
    // it.
    let carried = |length: usize| {
        let mut inner = frame[34..].to_vec();
        inner.truncate(length);
        inner[2..4].copy_from_slice(&(length as u16).to_be_bytes());
        checksum::fill_ipv4_header(&mut inner[..20]);
        let mut frame = Vec::new();
        v6().raw(4, &inner, &mut frame);
        inside_of(&frame)
    };
    let cut = carried(24).unwrap();
    assert_eq!(
        (cut.transport, cut.source_ip().to_string()),
        (Transport::Other, "192.0.2.1".into())
    );
    assert_eq!(carried(28).unwrap().transport.ports(), None, "its length is beyond its end");
    let mut broken = frame.clone();
    broken[34 + 10] ^= 1;
    assert_eq!(inside_of(&broken), None);
}

#[test]
fn a_tunnel_that_wants_order_is_not_looked_into() {
    let inner = nested(0).split_off(14);
    let gre = |flags: u8, words: usize| {
        let mut frame = Vec::new();
        let header = [&[flags, 0, 8, 0][..], &vec![0; 4 * words], &inner].concat();
        v4().raw(protocol::GRE, &header, &mut frame);
        inside_of(&frame).is_some()
    };
    let (checksum, key, sequence) = (0x80, 0x20, 0x10);
    assert_eq!([gre(0, 0), gre(checksum, 1), gre(key, 1), gre(checksum | key, 2)], [true; 4]);
    assert_eq!([gre(sequence, 1), gre(checksum | key | sequence, 3)], [false; 2]);
}

#[test]
fn a_piece_of_a_tunnel_packet_is_not_looked_into() {
    let mut frame = Vec::new();
    v4().fragment(4, 0, true, &[&nested(0)[14..], &[0; 6]].concat(), &mut frame);
    assert_eq!(inside_of(&frame), None);
}

#[test]
fn inner_packets_are_read_one_level_deep_and_only_if_they_are_valid() {
    let read = |frame: &[u8]| carried(frame, &dissect(frame).unwrap().network.unwrap());
    let gre = |flags: u8, words: usize, ethertype: u16, load: &[u8]| {
        let mut frame = Vec::new();
        let header = [&[flags, 0][..], &ethertype.to_be_bytes(), &vec![0; 4 * words]].concat();
        v4().raw(protocol::GRE, &[&header, load].concat(), &mut frame);
        read(&frame)
    };
    let offset = |carried| match carried {
        Some(Carried::Packet { network, vlan }) => (network.offset, network.protocol, vlan),
        other => panic!("{other:?}"),
    };
    assert_eq!(read(&nested(0)), None);
    assert_eq!(offset(read(&nested(1))), (34, protocol::UDP, 0));
    assert_eq!(offset(read(&nested(3))), (34, protocol::IPIP, 0));
    let plain = nested(0);
    let packet = &plain[14..];
    // The outer packet is carried also if its receiver wants order.
    assert_eq!(offset(gre(0x30, 2, 0x0800, packet)), (46, protocol::UDP, 0));
    let tagged = [&plain[..12], &[0x81, 0, 0, 7], &plain[12..]].concat();
    assert_eq!(offset(gre(0, 0, 0x6558, &tagged)), (56, protocol::UDP, 7));
    let arp = [&plain[..12], &[8, 6], &[0; 28]].concat();
    assert_eq!(gre(0, 0, 0x6558, &arp), Some(Carried::Frame(38)));
    for length in [0, 10, 19, 20, 27] {
        assert_eq!(gre(0, 0, 0x0800, &packet[..length]), None, "{length}");
    }
    for (ethertype, load) in [(0x86dd, packet), (0x8847, packet), (0, b""), (0x6558, &plain[..13])]
    {
        assert_eq!(gre(0, 0, ethertype, load), None, "{ethertype:#x}");
    }
}

/// A UDP datagram behind `chain`, whose first header has the number `first`.
fn behind(first: u8, chain: &[u8]) -> Result<Dissected, Malformed> {
    let (mut bytes, mut frame) = (chain.to_vec(), Vec::new());
    bytes.extend([0x0f, 0xa0, 0, 9, 0, 8, 0, 0]);
    PacketBuilder::v6([0x20; 16], [0x21; 16]).transport(first, &bytes, &mut frame);
    dissect(&frame)
}

#[test]
fn ports_behind_an_authentication_or_mobility_header_are_not_read() {
    let authentication = [17, 4, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let mobility = [17, 0, 0, 0, 0, 0, 0, 0];
    for (number, header) in [(51, &authentication[..]), (135, &mobility)] {
        let network = behind(number, header).unwrap().network.unwrap();
        assert_eq!((network.protocol, network.transport), (number, Transport::Other));
    }
}

#[test]
fn a_hop_by_hop_header_is_the_first_or_is_refused() {
    let hop_by_hop = |next| [next, 0, 1, 4, 0, 0, 0, 0];
    let network = behind(0, &hop_by_hop(17)).unwrap().network.unwrap();
    assert_eq!(network.protocol, 17);
    for first in [0, 60] {
        let chain = [hop_by_hop(0), hop_by_hop(17)].concat();
        assert_eq!(behind(first, &chain), Err(Malformed::ExtensionHeaders), "behind {first}");
    }
}
