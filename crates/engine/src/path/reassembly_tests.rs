use flow::{Counters, DropReason};
use netio::FramePool;
use proptest::prelude::*;
use wire::build::{PacketBuilder, Tcp};
use wire::{TcpFlags, protocol};

use crate::replay::ReplayReport;
use crate::replay::lockstep::Lockstep;
use crate::{Config, REPLAY_SECRET};

fn v4() -> PacketBuilder {
    PacketBuilder::v4([192, 0, 2, 1], [198, 51, 100, 2])
}

fn v6() -> PacketBuilder {
    PacketBuilder::v6([0x20; 16], [0x21; 16])
}

/// Cuts the packet of a frame into fragments of at most `piece` bytes. `builder` has made the
/// frame.
fn cut(builder: &PacketBuilder, id: u32, frame: &[u8], piece: usize) -> Vec<Vec<u8>> {
    let network = wire::dissect(frame).unwrap().network.unwrap();
    let body = &frame[network.transport_offset.into()..network.end as usize];
    builder.clone().id(id).fragments(network.protocol, body, piece)
}

fn udp(builder: &PacketBuilder, payload: usize) -> Vec<u8> {
    let payload: Vec<u8> = (0..payload).map(|at| (at * 7 + payload) as u8).collect();
    let mut whole = Vec::new();
    builder.udp(1000, 2000, &payload, &mut whole);
    whole
}

/// Plays frames, a millisecond apart. Returns the frames that came out and the report.
fn play(frames: &[Vec<u8>], config: &Config, workers: u16) -> (Vec<Vec<u8>>, ReplayReport) {
    let mut lockstep = Lockstep::new(config, workers, &[]).unwrap();
    let (mut pool, mut report) = (FramePool::new(8, 8), ReplayReport::default());
    let mut passed = Vec::new();
    for (index, bytes) in (1..).zip(frames) {
        let mut frame = pool.copy_of(bytes).unwrap();
        frame.timestamp = index * 1_000_000;
        lockstep.play(frame);
        passed.extend(lockstep.take_passed().iter().map(|frame| frame.bytes().to_vec()));
    }
    report.counters = lockstep.finish(&mut report);
    let accounted = passed.len() as u64 + report.counters.dropped_total();
    assert_eq!(accounted, frames.len() as u64, "every frame leaves or is dropped for a reason");
    (passed, report)
}

fn config() -> Config {
    Config::new(REPLAY_SECRET)
}

fn drops(counters: &Counters) -> Vec<(&'static str, u64)> {
    let counted = |&reason: &DropReason| (reason.name(), counters.dropped(reason));
    DropReason::ALL.iter().map(counted).filter(|(_, count)| *count > 0).collect()
}

#[test]
fn the_fragments_leave_as_they_came_and_the_datagram_is_one_packet_of_its_flow() {
    for builder in [v4().options(&[1; 4]), v6()] {
        let mut frames = cut(&builder, 7, &udp(&builder, 4000), 1000);
        let in_order = frames.clone();
        frames.reverse();
        frames.push(udp(&builder, 100));
        for workers in [1, 3] {
            let (passed, report) = play(&frames, &config(), workers);
            assert_eq!(passed[..in_order.len()], in_order, "in the order of their offsets");
            assert_eq!(passed.len(), frames.len());
            assert_eq!(report.flows.get(&(protocol::UDP, "")), Some(&1), "{:?}", report.flows);
            assert_eq!(report.counters.classes, [2, 0, 0, 0, 0], "the datagram and the short one");
            assert_eq!(report.counters.defrag.reasm_oks, 1);
        }
    }
}

#[test]
fn a_datagram_whose_checksum_is_wrong_is_dropped_with_all_its_fragments() {
    let mut whole = udp(&v4(), 3000);
    let last = whole.len() - 1;
    whole[last] ^= 1;
    let (passed, report) = play(&cut(&v4(), 7, &whole, 1000), &config(), 2);
    assert!(passed.is_empty());
    assert_eq!(drops(&report.counters), [("bad_checksum", 4)]);
    assert_eq!(report.counters.classes[3], 1, "one invalid packet");
}

#[test]
fn incomplete_datagrams_are_counted_and_never_sent() {
    let mut frames = cut(&v4(), 7, &udp(&v4(), 4000), 1000);
    frames.remove(2);
    let (passed, report) = play(&frames, &config(), 1);
    assert!(passed.is_empty());
    assert_eq!(drops(&report.counters), [("frag_incomplete", 4)]);
    // Frames follow until the datagram has timed out.
    frames.resize(40_000, udp(&v4(), 10));
    let (passed, report) = play(&frames, &config(), 1);
    assert_eq!(passed.len(), frames.len() - 4);
    assert_eq!(drops(&report.counters), [("frag_timeout", 4)]);
    assert_eq!(report.counters.defrag.reasm_timeout, 1);
}

#[test]
fn tcp_in_fragments_keeps_its_connection() {
    let segment = |reply: bool, flags: TcpFlags, sequence, acknowledgment, payload: usize| {
        let builder =
            if reply { PacketBuilder::v4([198, 51, 100, 2], [192, 0, 2, 1]) } else { v4() };
        let (source_port, destination_port) = if reply { (80, 4000) } else { (4000, 80) };
        let tcp = Tcp {
            source_port,
            destination_port,
            sequence,
            acknowledgment,
            flags,
            window: 60_000,
            // NOP, then window scale 7.
            options: if flags.contains(TcpFlags::SYN) { &[1, 3, 3, 7] } else { &[] },
        };
        let mut frame = Vec::new();
        builder.tcp(&tcp, &vec![9; payload], &mut frame);
        (builder, frame)
    };
    let (client, syn) = segment(false, TcpFlags::SYN, 100, 0, 40);
    let (_, syn_ack) = segment(true, TcpFlags::SYN.with(TcpFlags::ACK), 500, 101, 0);
    let (_, data) = segment(false, TcpFlags::ACK, 101, 501, 5000);
    let (_, ack) = segment(true, TcpFlags::ACK, 501, 5101, 0);
    let mut frames = cut(&client, 1, &syn, 24);
    frames.push(syn_ack);
    frames.extend(cut(&client, 2, &data, 512));
    frames.push(ack);
    let (passed, report) = play(&frames, &config(), 2);
    assert_eq!(passed, frames);
    assert_eq!(report.flows.get(&(protocol::TCP, "ESTABLISHED")), Some(&1), "{:?}", report.flows);
}

#[test]
fn a_tunnel_is_one_flow_whatever_was_fragmented() {
    let tunnel = PacketBuilder::v4([203, 0, 113, 1], [203, 0, 113, 2]);
    let carried = |inner: &[u8]| {
        let mut outer = Vec::new();
        tunnel.raw(protocol::IPIP, &inner[14..], &mut outer);
        outer
    };
    // The tunnel's packet comes in fragments, then the inner one, then both.
    let whole = udp(&v4(), 2000);
    let outer_only = cut(&tunnel, 1, &carried(&whole), 800);
    let inner: Vec<_> = cut(&v4(), 2, &whole, 800).iter().map(|piece| carried(piece)).collect();
    let both: Vec<_> =
        (3..).zip(&inner).flat_map(|(id, packet)| cut(&tunnel, id, packet, 400)).collect();
    for frames in [outer_only, inner, both] {
        for workers in [1, 4] {
            let (passed, report) = play(&frames, &config(), workers);
            assert_eq!(passed, frames);
            let flows: Vec<_> = report.flows.iter().collect();
            assert_eq!(flows, [(&(protocol::IPIP, ""), &1)], "the tunnel, and nothing inside");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// It does not show either if memory is so short that datagrams are given up.
    #[test]
    fn the_number_of_workers_never_shows_in_fragments(
        datagrams in prop::collection::vec((0u32..6, 100usize..6000, any::<bool>()), 1..40),
        order in any::<prop::sample::Index>(),
        memory in prop::sample::select(vec![8_000u64, 30_000, 4_000_000]),
    ) {
        let mut frames: Vec<_> = datagrams
            .iter()
            .flat_map(|&(id, payload, is_v6)| {
                let builder = if is_v6 { v6() } else { v4() };
                cut(&builder, id, &udp(&builder, payload), 512)
            })
            .collect();
        // The frames are interleaved: every n-th comes first.
        let step = 1 + order.index(7);
        let keys: Vec<usize> = (0..frames.len()).map(|at| at % step).collect();
        let mut keyed: Vec<_> = keys.into_iter().zip(std::mem::take(&mut frames)).collect();
        keyed.sort_by_key(|(key, _)| *key);
        let frames: Vec<_> = keyed.into_iter().map(|(_, frame)| frame).collect();
        let mut config = config();
        config.settings.set("ipfrag_high_thresh", memory).unwrap();
        config.settings.set("ip6frag_high_thresh", memory).unwrap();
        let one = play(&frames, &config, 1);
        for workers in [2, 4] {
            let other = play(&frames, &config, workers);
            prop_assert_eq!(&other.1, &one.1);
            prop_assert!(other.0 == one.0, "the frames differ");
        }
    }
}

#[test]
fn fragments_of_different_vlans_are_never_put_together() {
    let fragments = |vlan| cut(&v4().vlan(vlan), 7, &udp(&v4().vlan(vlan), 2000), 1200);
    let (ten, twenty) = (fragments(10), fragments(20));
    let frames = [&ten[0], &twenty[0], &twenty[1], &ten[1]].map(Vec::clone);
    for workers in [1, 3] {
        let (passed, report) = play(&frames, &config(), workers);
        assert_eq!(passed, [&twenty[..], &ten[..]].concat());
        assert_eq!(report.counters.defrag.reasm_oks, 2);
    }
}

/// Hop-by-hop options in front of the fragment header are longer than the frames of most links.
#[test]
fn a_datagram_with_long_headers_is_put_together() {
    const FRAGMENT: u8 = 44;
    let whole = udp(&v6(), 3000);
    let body = &whole[14 + 40..];
    let mut options = [0; 2048];
    options[..2].copy_from_slice(&[FRAGMENT, u8::MAX]);
    let frames: Vec<Vec<u8>> = (0u16..)
        .zip(body.chunks(1600))
        .map(|(at, piece)| {
            let more = u16::from(at == 0);
            let [high, low] = (at * 1600 + more).to_be_bytes();
            let header = [protocol::UDP, 0, high, low, 0, 0, 0, 7];
            let mut frame = Vec::new();
            v6().raw(0, &[&options[..], &header, piece].concat(), &mut frame);
            frame
        })
        .collect();
    assert_eq!(frames.len(), 2);
    let (passed, report) = play(&frames, &config(), 1);
    assert_eq!(drops(&report.counters), []);
    assert_eq!(passed, frames);
    assert_eq!(report.counters.classes, [1, 0, 0, 0, 0], "its checksum is right");
}
