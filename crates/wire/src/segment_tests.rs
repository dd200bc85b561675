use super::*;
use crate::{
    build::{PacketBuilder, Tcp},
    dissect,
};

fn outermost(frame: &[u8], segment_size: u16) -> SuperPacket {
    let network = dissect(frame).unwrap().network.unwrap();
    let transport_offset = network.transport_offset;
    SuperPacket { transport_offset, segment_size, partial_checksum: false }
}

fn all(frame: &[u8], packet: &SuperPacket) -> Option<Vec<Vec<u8>>> {
    let segments = Segments::new(frame, packet)?;
    let write = |index| {
        let mut out = vec![0; segments.length(index)];
        segments.write(index, &mut out);
        out
    };
    Some((0..segments.count()).map(write).collect())
}

/// Datagrams that were merged on receipt have a complete checksum each, or none.
#[test]
fn datagrams_without_partial_checksum() {
    for without in [false, true] {
        let mut frame = Vec::new();
        PacketBuilder::v4([192, 0, 2, 1], [192, 0, 2, 2]).udp(7, 9, &[5; 2500], &mut frame);
        if without {
            frame[40..42].fill(0);
        }
        let segments = all(&frame, &outermost(&frame, 1000)).unwrap();
        let lengths: Vec<_> = segments.iter().map(Vec::len).collect();
        assert_eq!(lengths, [1042, 1042, 542]);
        for segment in &segments {
            let network = dissect(segment).unwrap().network.unwrap();
            assert!(checksum::verify_transport(segment, &network));
            assert_eq!(segment[40..42] == [0, 0], without);
        }
    }
}

#[test]
fn a_packet_with_one_segment_or_no_payload_is_one_segment() {
    for length in [0, 1, 1000] {
        let mut frame = Vec::new();
        let tcp = Tcp { flags: TcpFlags::FIN.with(TcpFlags::CWR), ..Tcp::default() };
        PacketBuilder::v6([0x20; 16], [0x21; 16]).tcp(&tcp, &vec![7; length], &mut frame);
        assert_eq!(all(&frame, &outermost(&frame, 1000)).unwrap(), [frame]);
    }
}

#[test]
fn packets_whose_segments_would_change_in_unknown_ways_are_refused() {
    let builder = PacketBuilder::v4([192, 0, 2, 1], [192, 0, 2, 2]);
    let mut good = Vec::new();
    builder.udp(7, 9, &[5; 2500], &mut good);
    let packet = outermost(&good, 1000);
    assert!(Segments::new(&good, &packet).is_some());

    let padded = [&good[..], &[0; 4]].concat();
    let mut session = Vec::new();
    builder.clone().pppoe(1).udp(7, 9, &[5; 2500], &mut session);
    let mut piece = Vec::new();
    builder.fragment(protocol::UDP, 0, true, &good[34..][..2000], &mut piece);
    let mut echo = Vec::new();
    builder.echo(false, 1, 1, &[0; 2500], &mut echo);
    for frame in [padded, session, piece, echo] {
        assert!(Segments::new(&frame, &outermost(&frame, 1000)).is_none());
    }
    for packet in [
        SuperPacket { segment_size: 0, ..packet },
        SuperPacket { transport_offset: 33, ..packet },
        SuperPacket { transport_offset: 42, ..packet },
        SuperPacket { transport_offset: u16::MAX, ..packet },
    ] {
        assert!(Segments::new(&good, &packet).is_none(), "{packet:?}");
    }
}
