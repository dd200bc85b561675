use flow::DropReason;
use wire::build::PacketBuilder;
use wire::{IcmpError, Network, Transport};

use super::*;

const NOW: u64 = 1_000_000_000;

struct Bench {
    pool: FramePool,
    answers: IcmpAnswers,
}

/// A frame that leaves: offset, length of the IP packet, more fragments, "don't fragment".
type Shape = (u16, u32, bool, bool);

impl Bench {
    fn new() -> Self {
        Self { pool: FramePool::new(256, 8), answers: IcmpAnswers::default() }
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

    fn refragment(
        &mut self,
        whole: &mut Frame,
        pieces: &Pieces,
        mtu: u32,
    ) -> Result<Vec<Frame>, Refused> {
        let mut out = Vec::new();
        let answers = Some((&mut self.answers, NOW));
        let result = refragment(whole, pieces, mtu, answers, &mut self.pool, &mut out);
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
    let out = bench.refragment(&mut whole, &pieces, 1500).unwrap();
    let expected = [(0, 820, true, false), (800, 820, true, false), (1600, 528, false, false)];
    assert_eq!(shapes(&out), expected);
    assert_eq!(payload(&out), counted(2100));
    assert_eq!(network(&out[2]).fragment.unwrap().id, 77);
}

#[test]
fn a_narrow_link_gets_shorter_ones_and_dont_fragment_stays() {
    let mut bench = Bench::new();
    let pieces = bench.pieces(&v4(), 2000, 1400);
    let mut whole = bench.whole(&v4(), 2000);
    let out = bench.refragment(&mut whole, &pieces, 1020).unwrap();
    let expected = [(0, 1020, true, false), (1000, 1020, true, false), (2000, 28, false, false)];
    assert_eq!(shapes(&out), expected);

    let forbidden = v4().dont_fragment();
    let pieces = bench.pieces(&forbidden, 2000, 1000);
    let mut whole = bench.whole(&forbidden, 1900);
    let out = bench.refragment(&mut whole, &pieces, 1020).unwrap();
    assert_eq!(shapes(&out), [(0, 1020, true, true), (1000, 928, false, true)]);
}

#[test]
fn the_sender_of_what_may_not_be_cut_is_told() {
    for (builder, expected) in [(v4().dont_fragment(), (3, 4)), (v6(), (2, 0))] {
        let mut bench = Bench::new();
        let pieces = bench.pieces(&builder, 3000, 1400);
        let mut whole = bench.whole(&builder, 3000);
        let refused = bench.refragment(&mut whole, &pieces, 1300).unwrap_err();
        assert_eq!(refused.reason, DropReason::FragNeeded);
        let answer = refused.answer.expect("its sender is told");
        let Transport::IcmpError(IcmpError { kind, code, .. }) = network(&answer).transport else {
            panic!("{answer:?}");
        };
        assert_eq!((kind, code), expected);
    }
}

#[test]
fn ipv6_keeps_its_identification_and_may_fill_what_every_link_takes() {
    let mut bench = Bench::new();
    let pieces = bench.pieces(&v6(), 2000, 1352);
    let mut whole = bench.whole(&v6(), 2500);
    let out = bench.refragment(&mut whole, &pieces, 1500).unwrap();
    assert_eq!(shapes(&out), [(0, 1400, true, false), (1352, 1204, false, false)]);
    assert_eq!(payload(&out), counted(2500));
    assert!(out.iter().all(|frame| network(frame).fragment.unwrap().id == 0x1_0007));

    let pieces = bench.pieces(&v6(), 2000, 600);
    let mut whole = bench.whole(&v6(), 2000);
    let out = bench.refragment(&mut whole, &pieces, 1500).unwrap();
    assert_eq!(shapes(&out), [(0, 1280, true, false), (1232, 824, false, false)]);
}

#[test]
fn a_datagram_that_fits_now_leaves_whole_with_the_tags_that_came() {
    for builder in [v4(), v6()] {
        let mut bench = Bench::new();
        let pieces = bench.pieces(&builder.clone().vlan(5), 2000, 1000);
        let mut whole = bench.whole(&builder, 300);
        let out = bench.refragment(&mut whole, &pieces, 1500).unwrap();
        assert_eq!((out.len(), network(&out[0]).offset), (1, 18));
        assert_eq!(network(&out[0]).fragment, None);
        assert_eq!(payload(&out), counted(300));
    }
}
