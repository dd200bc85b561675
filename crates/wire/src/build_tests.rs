use super::*;
use crate::{IcmpError, QuotedTransport, Transport};

#[test]
fn fragments_join_to_the_datagram() {
    let datagram: Vec<u8> = (0..100).collect();
    for builder in [
        PacketBuilder::v4([192, 0, 2, 1], [192, 0, 2, 2]),
        PacketBuilder::v6([0x20; 16], [0x21; 16]),
    ] {
        let frames = builder.id(77).fragments(protocol::UDPLITE + 1, &datagram, 30);
        assert_eq!(frames.len(), 5);
        let mut joined: Vec<u8> = Vec::new();
        for frame in &frames {
            let network = dissect(frame).unwrap().network.unwrap();
            let fragment = network.fragment.unwrap();
            assert_eq!(usize::from(fragment.offset), joined.len());
            assert_eq!((fragment.id, fragment.more), (77, joined.len() < 96));
            joined.extend(&frame[usize::from(fragment.payload_offset)..network.end as usize]);
        }
        assert_eq!(joined, datagram);
    }
}

#[test]
fn an_icmp_error_quotes_as_much_as_it_may() {
    let mut about = Vec::new();
    PacketBuilder::v4([192, 0, 2, 1], [192, 0, 2, 2]).udp(7, 9, &[0; 1000], &mut about);
    let mut frame = Vec::new();
    PacketBuilder::v4([192, 0, 2, 9], [192, 0, 2, 1]).icmp_error(
        3,
        4,
        [0, 0, 2, 0],
        &about[14..],
        &mut frame,
    );
    assert_eq!(frame.len(), 14 + MAX_ICMP_ERROR);
    let network = dissect(&frame).unwrap().network.unwrap();
    assert!(checksum::verify_transport(&frame, &network));
    let Transport::IcmpError(IcmpError { kind: 3, code: 4, quoted: Some(quoted) }) =
        network.transport
    else {
        panic!("{network:?}");
    };
    assert_eq!(quoted.transport, QuotedTransport::Ports { source: 7, destination: 9 });
}

type Writer = fn(&PacketBuilder, &[u8], &mut Vec<u8>);

#[test]
fn payloads_that_are_too_long_are_cut() {
    let long = vec![0; 70_000];
    for builder in [
        PacketBuilder::v4([192, 0, 2, 1], [192, 0, 2, 2]),
        PacketBuilder::v6([0x20; 16], [0x21; 16]),
    ] {
        let writers: [Writer; 3] = [
            |builder, long, out| builder.udp(1, 2, long, out),
            |builder, long, out| builder.tcp(&Tcp::default(), long, out),
            |builder, long, out| builder.echo(true, 1, 2, long, out),
        ];
        for write in writers {
            let mut frame = Vec::new();
            write(&builder, &long, &mut frame);
            let network = dissect(&frame).unwrap().network.unwrap();
            assert_eq!(network.end as usize, frame.len());
            assert!(checksum::verify_transport(&frame, &network));
        }
    }
}
