use wire::Network;
use wire::build::PacketBuilder;

use super::*;

struct Bench {
    pool: FramePool,
}

/// A frame that leaves: offset, length of the IP packet, more fragments, "don't fragment".
type Shape = (u16, u32, bool, bool);

impl Bench {
    fn new() -> Self {
        Self { pool: FramePool::new(256, 8) }
    }

    fn frame(&mut self, bytes: &[u8]) -> Frame {
        self.pool.copy_of(bytes).unwrap()
    }

    /// A UDP datagram in fragments that carry `piece` bytes.
    fn pieces(&mut self, builder: &PacketBuilder, length: usize, piece: usize) -> Box<Pieces> {
        let mut whole = Vec::new();
        builder.udp(7, 9, &vec![1; length], &mut whole);
        let start = whole.len() - length - 8;
        let frames = builder.fragments(17, &whole[start..], piece);
        let frames: Vec<Frame> = frames.iter().map(|bytes| self.frame(bytes)).collect();
        Pieces::of(frames)
    }

    /// The datagram with a payload of another length, as a stage gets it: without tags.
    fn whole(&mut self, builder: &PacketBuilder, length: usize) -> Frame {
        let mut bytes = Vec::new();
        let payload: Vec<u8> = (0..length).map(|at| at as u8).collect();
        builder.udp(7, 9, &payload, &mut bytes);
        self.frame(&bytes)
    }

    fn refragment(&mut self, whole: &mut Frame, pieces: &Pieces) -> Result<Vec<Frame>, DropReason> {
        let mut out = Vec::new();
        let result = refragment(whole, pieces, &mut self.pool, &mut out);
        assert_eq!(whole.is_empty(), result.is_ok(), "what is refused stays");
        result.map(|()| out)
    }
}

fn network(frame: &Frame) -> Network {
    wire::dissect(frame.bytes()).unwrap().network.unwrap()
}

fn shapes(frames: &[Frame]) -> Vec<Shape> {
    let shape = |frame: &Frame| {
        let network = network(frame);
        let (offset, more) = network.fragment.map_or((0, false), |f| (f.offset, f.more));
        (offset, network.end - u32::from(network.offset), more, network.dont_fragment)
    };
    frames.iter().map(shape).collect()
}

/// The payload behind the UDP header.
fn payload(frames: &[Frame]) -> Vec<u8> {
    let part = |frame: &Frame| {
        let network = network(frame);
        let start = network.fragment.map_or(network.transport_offset, |f| f.payload_offset);
        frame.bytes()[start.into()..network.end as usize].to_vec()
    };
    frames.iter().flat_map(part).skip(8).collect()
}

fn v4() -> PacketBuilder {
    PacketBuilder::v4([192, 0, 2, 1], [192, 0, 2, 2]).id(77)
}

fn v6() -> PacketBuilder {
    PacketBuilder::v6([0x20; 16], [0x21; 16]).id(0x1_0007)
}

fn counted(length: usize) -> Vec<u8> {
    (0..length).map(|at| at as u8).collect()
}

#[test]
fn a_datagram_that_grew_leaves_in_fragments_as_long_as_those_that_came() {
    let mut bench = Bench::new();
    let pieces = bench.pieces(&v4(), 2000, 800);
    let mut whole = bench.whole(&v4(), 2100);
    let out = bench.refragment(&mut whole, &pieces).unwrap();
    let expected = [(0, 820, true, false), (800, 820, true, false), (1600, 528, false, false)];
    assert_eq!(shapes(&out), expected);
    assert_eq!(payload(&out), counted(2100));
    assert_eq!(network(&out[2]).fragment.unwrap().id, 77);
}

#[test]
fn dont_fragment_stays_where_the_largest_fragment_had_it() {
    let mut bench = Bench::new();
    let forbidden = v4().dont_fragment();
    let pieces = bench.pieces(&forbidden, 2000, 1000);
    let mut whole = bench.whole(&forbidden, 1900);
    let out = bench.refragment(&mut whole, &pieces).unwrap();
    assert_eq!(shapes(&out), [(0, 1020, true, true), (1000, 928, false, true)]);
}

#[test]
fn a_datagram_is_not_cut_at_the_length_of_a_packet_that_is_no_fragment() {
    let mut bench = Bench::new();
    let pieces = Pieces::of(vec![bench.whole(&v4(), 1000)]);
    let mut whole = bench.whole(&v4(), 2000);
    let refused = bench.refragment(&mut whole, &pieces).unwrap_err();
    assert_eq!(refused, DropReason::OutputTooLong);
}

#[test]
fn ipv6_keeps_its_identification_and_may_fill_what_every_link_takes() {
    let mut bench = Bench::new();
    let pieces = bench.pieces(&v6(), 2000, 1352);
    let mut whole = bench.whole(&v6(), 2500);
    let out = bench.refragment(&mut whole, &pieces).unwrap();
    assert_eq!(shapes(&out), [(0, 1400, true, false), (1352, 1204, false, false)]);
    assert_eq!(payload(&out), counted(2500));
    assert!(out.iter().all(|frame| network(frame).fragment.unwrap().id == 0x1_0007));

    let pieces = bench.pieces(&v6(), 2000, 600);
    let mut whole = bench.whole(&v6(), 2000);
    let out = bench.refragment(&mut whole, &pieces).unwrap();
    assert_eq!(shapes(&out), [(0, 1280, true, false), (1232, 824, false, false)]);
}

#[test]
fn a_datagram_that_fits_now_leaves_whole_with_the_tags_that_came() {
    for builder in [v4(), v6()] {
        let mut bench = Bench::new();
        let pieces = bench.pieces(&builder.clone().vlan(5), 2000, 1000);
        let mut whole = bench.whole(&builder, 300);
        let out = bench.refragment(&mut whole, &pieces).unwrap();
        assert_eq!((out.len(), network(&out[0]).offset), (1, 18));
        assert_eq!(network(&out[0]).fragment, None);
        assert_eq!(payload(&out), counted(300));
    }
}
