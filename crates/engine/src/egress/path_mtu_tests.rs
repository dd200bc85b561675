use wire::build::{PacketBuilder, Tcp};
use wire::icmp_error::Message;
use wire::{IcmpError, Transport};

use super::*;
use crate::egress::icmp_errors::IcmpAnswers;

const MTU: u32 = 1500;

fn v4() -> PacketBuilder {
    PacketBuilder::v4([192, 0, 2, 1], [192, 0, 2, 2])
}

fn v6() -> PacketBuilder {
    PacketBuilder::v6([0x20; 16], [0x21; 16])
}

struct Bench {
    pool: FramePool,
    answers: IcmpAnswers,
}

impl Bench {
    fn new() -> Self {
        Self { pool: FramePool::new(64, 8), answers: IcmpAnswers::default() }
    }

    fn datagram(&mut self, builder: &PacketBuilder, payload: usize) -> Frame {
        let mut bytes = Vec::new();
        builder.udp(7, 9, &vec![0xa5; payload], &mut bytes);
        self.pool.copy_of(&bytes).unwrap()
    }

    fn super_packet(&mut self, builder: &PacketBuilder, kind: u8, segment_size: u16) -> Frame {
        let mut bytes = Vec::new();
        builder.tcp(&Tcp::default(), &[0; 20_000], &mut bytes);
        let header_length = (bytes.len() - 20_000) as u16;
        let mut frame = self.pool.copy_of(&bytes).unwrap();
        frame.offload.segmentation = Some(Segmentation { kind, segment_size, header_length });
        frame
    }

    fn shorten(&mut self, mut frame: Frame) -> (Shortened, Vec<Frame>) {
        let mut pieces = Vec::new();
        let shortened = shorten(&mut frame, MTU, &mut self.pool, &mut pieces);
        let goes_on = shortened == Shortened::Pieces;
        assert_eq!((frame.is_empty(), pieces.is_empty()), (goes_on, !goes_on));
        (shortened, pieces)
    }

    fn pieces(&mut self, frame: Frame) -> Vec<Frame> {
        self.shorten(frame).1
    }

    /// Type, code and MTU of the error about a frame that may not be cut.
    fn told(&mut self, frame: Frame) -> (u8, u8, u32) {
        let about = self.pool.copy_of(frame.bytes()).unwrap();
        let (Shortened::MayNotBeCut { mtu }, _) = self.shorten(frame) else { panic!("it is cut") };
        let told = self.answers.about(&about, Message::TooBig { mtu }, 0, &mut self.pool);
        error(&told.unwrap())
    }
}

/// Type, code and MTU of an ICMP error.
fn error(frame: &Frame) -> (u8, u8, u32) {
    let network = wire::dissect(frame.bytes()).unwrap().network.unwrap();
    let Transport::IcmpError(IcmpError { kind, code, .. }) = network.transport else {
        panic!("{network:?}");
    };
    let field = &frame.bytes()[usize::from(network.transport_offset) + 4..][..4];
    (kind, code, u32::from_be_bytes(field.try_into().unwrap()))
}

#[test]
fn a_vlan_tag_is_not_counted_but_a_service_tag_is() {
    let mut bench = Bench::new();
    let payload = MTU as usize - 28;
    for (builder, room) in [(v4(), 0), (v4().vlan(1), 0), (v4().vlan(1).vlan(2), 8)] {
        let frame = bench.datagram(&builder, payload - room);
        assert!(!is_exceeded(MTU, &frame));
        let frame = bench.datagram(&builder, payload - room + 1);
        assert!(is_exceeded(MTU, &frame));
    }
}

#[test]
fn a_super_packet_is_as_long_as_its_segments() {
    let mut bench = Bench::new();
    let header = 14 + 40;
    let fits = MTU as u16 + 14 - header;
    assert!(!is_exceeded(MTU, &bench.super_packet(&v4(), 1, fits)));
    assert!(is_exceeded(MTU, &bench.super_packet(&v4(), 1, fits + 1)));
    // This super-packet holds less than one segment.
    let mut small = bench.datagram(&v4(), 100);
    small.offload.segmentation = bench.super_packet(&v4(), 1, 60_000).offload.segmentation;
    assert!(!is_exceeded(MTU, &small));
}

#[test]
fn a_datagram_is_cut_with_a_complete_checksum() {
    let mut bench = Bench::new();
    let mut frame = bench.datagram(&v4().id(77), 4000);
    frame.port = netio::PortId(3);
    frame.sequence = 9;
    let complete = frame.bytes().to_vec();
    // A local sender leaves the sum of the pseudo header there, not complemented.
    let network = wire::dissect(&complete).unwrap().network.unwrap();
    let sum = !checksum::Sum::ZERO.pseudo_header(&network, network.transport_len()).finish();
    frame.bytes_mut()[40..42].copy_from_slice(&sum.to_be_bytes());
    frame.offload.checksum = Checksum::Partial { start: 34, offset: 6 };
    let pieces = bench.pieces(frame);
    let lengths: Vec<_> = pieces.iter().map(Frame::len).collect();
    assert_eq!(lengths, [1514, 1514, 14 + 20 + 4008 - 2960]);
    let joined: Vec<u8> = pieces.iter().flat_map(|piece| &piece.bytes()[34..]).copied().collect();
    assert_eq!(joined, &complete[34..]);
    for piece in &pieces {
        assert_eq!(piece.offload, netio::Offload::default());
        assert_eq!((piece.port, piece.sequence), (netio::PortId(3), 9));
        assert!(!is_exceeded(MTU, piece));
    }
}

#[test]
fn a_sender_that_forbids_fragmentation_is_told() {
    let mut bench = Bench::new();
    for (builder, expected) in [
        (v4().dont_fragment(), (3, 4, 1500)),
        (v4().dont_fragment().vlan(1).vlan(2), (3, 4, 1492)),
        (v4().dont_fragment().pppoe(1), (3, 4, 1492)),
        (v6(), (2, 0, 1500)),
    ] {
        let frame = bench.datagram(&builder, 4000);
        assert_eq!(bench.told(frame), expected);
    }
}

#[test]
fn a_long_frame_without_ip_is_refused_as_too_long() {
    let mut bench = Bench::new();
    let mut frame = bench.datagram(&v4(), 4000);
    frame.bytes_mut()[12..14].copy_from_slice(&[0x88, 0xb5]);
    assert_eq!(bench.shorten(frame).0, Shortened::CanNotBeCut);
}

#[test]
fn bytes_behind_the_packet_are_nobodys_packet() {
    let mut bench = Bench::new();
    for builder in [v4(), v4().dont_fragment(), v6()] {
        let mut bytes = bench.datagram(&builder, 1000).bytes().to_vec();
        bytes.resize(1600, 0);
        let frame = bench.pool.copy_of(&bytes).unwrap();
        assert_eq!(bench.shorten(frame).0, Shortened::CanNotBeCut);
    }
}

#[test]
fn segments_of_tcp_are_made_shorter_or_the_sender_is_told() {
    let mut bench = Bench::new();
    for kind in [1, 0x81] {
        let frame = bench.super_packet(&v4().vlan(5), kind, 8948);
        let pieces = bench.pieces(frame);
        assert_eq!(pieces.len(), 1);
        assert!(!is_exceeded(MTU, &pieces[0]));
        assert_eq!(pieces[0].offload.segmentation.unwrap().segment_size, 1460);
    }
    let frame = bench.super_packet(&v4().dont_fragment(), 1, 8948);
    assert_eq!(bench.told(frame), (3, 4, 1500));
    let frame = bench.super_packet(&v6(), 4, 8948);
    assert_eq!(bench.told(frame), (2, 0, 1500));
    // The segmentation in the header does not fit the packet.
    let datagrams = bench.super_packet(&v4(), 3, 8948);
    assert_eq!(bench.shorten(datagrams).0, Shortened::CanNotBeCut);
}

/// The datagrams that fragments and whole frames make, by identification: in the order of their
/// first frame, and put together by offset.
fn datagrams(pieces: &[Frame]) -> Vec<Vec<u8>> {
    let mut whole: Vec<(u32, Vec<u8>)> = Vec::new();
    for piece in pieces {
        let network = wire::dissect(piece.bytes()).unwrap().network.unwrap();
        let id = u32::from(u16::from_be_bytes(piece.bytes()[18..20].try_into().unwrap()));
        let offset = network.fragment.map_or(0, |it| it.offset);
        if offset == 0 {
            whole.push((id, Vec::new()));
        }
        let (last, bytes) = whole.last_mut().unwrap();
        assert_eq!((*last, bytes.len()), (id, usize::from(offset)));
        bytes.extend(&piece.bytes()[34..network.end as usize]);
    }
    whole.into_iter().map(|(_, bytes)| bytes).collect()
}

#[test]
fn a_super_packet_of_datagrams_is_cut_into_these_and_their_fragments() {
    const SEGMENT: usize = 4000;
    let mut bench = Bench::new();
    for payload in [20_000, 21_000, SEGMENT, 100] {
        for partial in [false, true] {
            let bytes: Vec<u8> = (0..payload).map(|n: usize| (n / 100) as u8).collect();
            let mut packet = Vec::new();
            v4().id(0xffff).udp(7, 9, &bytes, &mut packet);
            let mut frame = bench.pool.copy_of(&packet).unwrap();
            frame.sequence = 9;
            frame.offload.segmentation =
                Some(Segmentation { kind: 5, segment_size: SEGMENT as u16, header_length: 42 });
            if partial {
                let network = wire::dissect(&packet).unwrap().network.unwrap();
                let sum = checksum::Sum::ZERO.pseudo_header(&network, network.transport_len());
                frame.bytes_mut()[40..42].copy_from_slice(&(!sum.finish()).to_be_bytes());
                frame.offload.checksum = Checksum::Partial { start: 34, offset: 6 };
            }
            let pieces = bench.pieces(frame);
            for piece in &pieces {
                assert!(!is_exceeded(MTU, piece));
                assert_eq!((piece.sequence, piece.offload), (9, netio::Offload::default()));
            }
            let datagrams = datagrams(&pieces);
            assert_eq!(datagrams.len(), payload.div_ceil(SEGMENT));
            for (datagram, expected) in datagrams.iter().zip(bytes.chunks(SEGMENT)) {
                assert_eq!(&datagram[8..], expected);
                let mut frame = Vec::new();
                v4().udp(7, 9, expected, &mut frame);
                assert_eq!(datagram[..], frame[34..], "with its own length and checksum");
            }
        }
    }
}
