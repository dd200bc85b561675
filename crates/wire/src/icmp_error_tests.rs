use std::net::{Ipv4Addr, Ipv6Addr};

use super::*;
use crate::{
    IcmpError, QuotedTransport,
    build::{PacketBuilder, Tcp},
};

const TOO_BIG: Message = Message::TooBig { mtu: 1500 };
const V4: [[u8; 4]; 2] = [[192, 0, 2, 1], [198, 51, 100, 2]];
const V6: [[u8; 16]; 2] = [
    [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
    [0x20, 1, 0xd, 0xb8, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2],
];

fn v4() -> PacketBuilder {
    PacketBuilder::v4(V4[0], V4[1])
}

fn v6() -> PacketBuilder {
    PacketBuilder::v6(V6[0], V6[1])
}

fn udp(builder: &PacketBuilder, payload: usize) -> Vec<u8> {
    let mut frame = Vec::new();
    builder.udp(7, 9, &vec![0xa5; payload], &mut frame);
    frame
}

/// The error about a frame, in the name of its destination.
fn answer(frame: &[u8], mtu: u32) -> Option<Vec<u8>> {
    let network = dissect(frame).unwrap().network.unwrap();
    let mut out = vec![0; MAX_FRAME];
    let length = write(frame, Message::TooBig { mtu }, network.destination_ip(), &mut out)?;
    out.truncate(length);
    Some(out)
}

#[test]
fn an_error_names_the_mtu_and_quotes_what_it_may() {
    for (builder, kind, code, longest) in [(v4(), 3, 4, 576), (v6(), 2, 0, 1280)] {
        for payload in [100, 5000] {
            let frame = udp(&builder.clone().vlan(7).vlan(9).dont_fragment(), payload);
            let error = answer(&frame, 1400).unwrap();
            assert_eq!((&error[..6], &error[6..12]), (&frame[6..12], &frame[..6]));
            assert_eq!(error[12..22], frame[12..22], "the tags");
            let asked = dissect(&frame).unwrap().network.unwrap();
            let network = dissect(&error).unwrap().network.unwrap();
            assert_eq!(network.source, asked.destination);
            assert_eq!(network.destination, asked.source);
            assert!(checksum::verify_transport(&error, &network));
            let Transport::IcmpError(IcmpError { quoted: Some(quoted), .. }) = network.transport
            else {
                panic!("{network:?}");
            };
            assert_eq!(quoted.transport, QuotedTransport::Ports { source: 7, destination: 9 });
            let message = &error[usize::from(network.transport_offset)..];
            assert_eq!((message[0], message[1]), (kind, code));
            assert_eq!(message[4..8], 1400u32.to_be_bytes());
            let quote = &message[8..];
            assert_eq!(*quote, frame[22..22 + quote.len()]);
            let room = longest - (usize::from(network.transport_offset) - 22) - 8;
            assert_eq!(quote.len(), room.min(frame.len() - 22));
        }
    }
}

/// RFC 1812 section 4.3.2.5; ICMPv6 errors of the kernel have the class 0.
#[test]
fn an_error_has_the_type_of_service_of_its_packet() {
    let class = |builder: PacketBuilder, class| {
        let error = answer(&udp(&builder.traffic_class(class), 100), 1400).unwrap();
        dissect(&error).unwrap().network.unwrap().traffic_class
    };
    assert_eq!(
        [0, 0xb8, 0x02, 0x01, 0xff].map(|it| class(v4(), it)),
        [0xc0, 0xd8, 0xc2, 0xc0, 0xde]
    );
    assert_eq!([0, 0xb8].map(|it| class(v6(), it)), [0, 0]);
}

#[test]
fn etherparse_reads_the_errors() {
    use etherparse::icmpv4::{DestUnreachableHeader as V4Code, TimeExceededCode as V4Time};
    use etherparse::icmpv6::{DestUnreachableCode as V6Code, TimeExceededCode as V6Time};
    use etherparse::{Icmpv4Type, Icmpv6Type, TransportSlice};

    let v4_code = |code| Icmpv4Type::DestinationUnreachable(code);
    let cases = [
        (
            TOO_BIG,
            v4_code(V4Code::FragmentationNeeded { next_hop_mtu: 1500 }),
            Icmpv6Type::PacketTooBig { mtu: 1500 },
        ),
        (
            Message::TimeExceeded,
            Icmpv4Type::TimeExceeded(V4Time::TtlExceededInTransit),
            Icmpv6Type::TimeExceeded(V6Time::HopLimitExceeded),
        ),
        (
            Message::ReassemblyTime,
            Icmpv4Type::TimeExceeded(V4Time::FragmentReassemblyTimeExceeded),
            Icmpv6Type::TimeExceeded(V6Time::FragmentReassemblyTimeExceeded),
        ),
        (
            Message::Unreachable { code: 3 },
            v4_code(V4Code::Port),
            Icmpv6Type::DestinationUnreachable(V6Code::Address),
        ),
        (
            Message::Unreachable { code: 1 },
            v4_code(V4Code::Host),
            Icmpv6Type::DestinationUnreachable(V6Code::Prohibited),
        ),
    ];
    for (message, in_v4, in_v6) in cases {
        for builder in [v4(), v6()] {
            let frame = udp(&builder, 3000);
            let asked = dissect(&frame).unwrap().network.unwrap();
            let mut error = [0; MAX_FRAME];
            let length = write(&frame, message, asked.destination_ip(), &mut error).unwrap();
            let read = etherparse::SlicedPacket::from_ethernet(&error[..length]).unwrap();
            match read.transport.unwrap() {
                TransportSlice::Icmpv4(icmp) => assert_eq!(icmp.header().icmp_type, in_v4),
                TransportSlice::Icmpv6(icmp) => assert_eq!(icmp.header().icmp_type, in_v6),
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn an_mtu_is_never_below_what_the_protocol_promises_nor_beyond_the_field() {
    let mtu = |builder: &PacketBuilder, mtu| {
        let error = answer(&udp(builder, 3000), mtu).unwrap();
        let network = dissect(&error).unwrap().network.unwrap();
        let field = &error[usize::from(network.transport_offset) + 4..][..4];
        u32::from_be_bytes(field.try_into().unwrap())
    };
    assert_eq!(mtu(&v6(), 1000), 1280);
    assert_eq!(mtu(&v4(), 1000), 1000);
    assert_eq!(mtu(&v4(), 70_000), 65_535);
}

#[test]
fn a_pppoe_session_is_answered_inside() {
    let error = answer(&udp(&v4().pppoe(9), 3000), 1492).unwrap();
    assert_eq!(error.len(), 14 + 8 + 576);
    assert_eq!(error[18..22], [0x02, 0x42, 0x00, 0x21], "PPPoE length of 578");
    assert!(dissect(&error).unwrap().network.is_some());
}

#[test]
fn some_packets_are_never_answered() {
    let silent = |frame: Vec<u8>| assert_eq!(answer(&frame, 1500), None, "{frame:02x?}");
    let group = [1, 0, 0x5e, 0, 0, 1];
    let host = [2, 0, 0, 0, 0, 1];
    silent(udp(&v4().macs(host, group), 3000));
    silent(udp(&v4().macs(group, host), 3000));
    for source in [[0, 0, 0, 0], [127, 0, 0, 1], [224, 0, 0, 1], [255; 4]] {
        silent(udp(&PacketBuilder::v4(source, V4[1]), 3000));
    }
    for destination in [[224, 0, 0, 1], [255; 4], [240, 0, 0, 1]] {
        silent(udp(&PacketBuilder::v4(V4[0], destination), 3000));
    }
    let loopback = Ipv6Addr::LOCALHOST.octets();
    let all_nodes = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    silent(udp(&PacketBuilder::v6([0; 16], V6[1]), 3000));
    silent(udp(&PacketBuilder::v6(loopback, V6[1]), 3000));
    silent(udp(&PacketBuilder::v6(V6[0], all_nodes), 3000));
    for (builder, kinds) in [(v4(), [3, 4, 5, 11, 12]), (v6(), [1, 2, 3, 100, 137])] {
        for kind in kinds {
            let mut frame = Vec::new();
            builder.icmp(kind, 0, [0; 4], &[0; 3000], &mut frame);
            silent(frame);
        }
        let mut later = Vec::new();
        builder.fragment(17, 1600, true, &[0; 1600], &mut later);
        silent(later);
    }
}

#[test]
fn queries_first_fragments_and_segments_are_answered() {
    for builder in [v4(), v6()] {
        let (mut echo, mut first, mut segment) = (Vec::new(), Vec::new(), Vec::new());
        builder.echo(false, 1, 2, &[0; 3000], &mut echo);
        builder.fragment(17, 0, true, &[9; 3000], &mut first);
        builder.tcp(&Tcp::default(), &[0; 3000], &mut segment);
        for frame in [echo, first, segment] {
            assert!(answer(&frame, 1500).is_some());
        }
    }
}

#[test]
fn a_buffer_that_is_too_short_and_a_name_of_the_other_family_give_nothing() {
    let frame = udp(&v4(), 3000);
    let name = Ipv4Addr::from(V4[1]).into();
    assert_eq!(write(&frame, TOO_BIG, name, &mut [0; 14 + 575]), None);
    assert_eq!(write(&frame, TOO_BIG, name, &mut [0; 14 + 576]), Some(14 + 576));
    let name = Ipv6Addr::from(V6[1]).into();
    assert_eq!(write(&frame, TOO_BIG, name, &mut [0; MAX_FRAME]), None);
}
