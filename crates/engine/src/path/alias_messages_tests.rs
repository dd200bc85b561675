//! Aliases while workers take their turns in any order and buckets move.

use flow::KeyedPacket;
use netio::{Frame, FramePool};
use proptest::prelude::*;
use steer::BucketCount;
use wire::build::PacketBuilder;

use conntrack::syn_proxy::Screening;

use super::*;
use crate::path::nat::port_search::Search;
use crate::path::packet::TrackedFlow;
use crate::path::scratch::{Exit, Progress};
use crate::testing::many_workers::TestGateway as Rig;
use crate::{Config, REPLAY_SECRET};

const WORKERS: u16 = 3;
const BUCKETS: u16 = 16;
const FLOWS: u16 = 12;
const NOW: Timestamp = Timestamp::from_secs(1000);

/// A gateway with numbered flows.
struct TestGateway {
    rig: Rig,
    /// Packets of each flow that were sent.
    sent: [u32; FLOWS as usize],
}

impl std::ops::Deref for TestGateway {
    type Target = Rig;

    fn deref(&self) -> &Rig {
        &self.rig
    }
}

impl std::ops::DerefMut for TestGateway {
    fn deref_mut(&mut self) -> &mut Rig {
        &mut self.rig
    }
}

impl TestGateway {
    fn new() -> Self {
        let mut config = Config::new(REPLAY_SECRET);
        config.buckets = BucketCount::new(BUCKETS.into()).unwrap();
        Self { rig: Rig::new(&config, WORKERS, false), sent: [0; FLOWS as usize] }
    }

    /// The next packet of a flow.
    fn frame(&mut self, flow: u16) -> Frame {
        let number = &mut self.sent[usize::from(flow)];
        let mut bytes = Vec::new();
        let payload = [&flow.to_be_bytes()[..], &number.to_be_bytes()].concat();
        PacketBuilder::v4([192, 0, 2, 1], [198, 51, 100, 2]).udp(
            3000 + flow,
            53,
            &payload,
            &mut bytes,
        );
        *number += 1;
        FramePool::new(0, 0).copy_of(&bytes).unwrap()
    }

    fn packet(&self, frame: Frame) -> Packet {
        let network = wire::dissect(frame.bytes()).unwrap().network.unwrap();
        let mut packet = self.workers[0].path.steer(
            frame,
            &network,
            crate::path::zones::Origin::default(),
            None,
        );
        packet.flow.as_mut().unwrap().table_hash(&self.hasher);
        packet
    }

    /// Opens a connection for a flow in a bucket that the flow is not steered to, and files an
    /// alias. Returns that bucket, the bucket that the flow is steered to, the key and its hash.
    fn open(&mut self, flow: u16) -> (BucketId, BucketId, KeyedPacket, u64) {
        let frame = self.frame(flow);
        let mut packet = self.packet(frame);
        let home = packet.bucket;
        let away = BucketId((home.0 + 1 + flow % (BUCKETS - 1)) % BUCKETS);
        packet.bucket = away;
        let Some(TrackedFlow { keyed: key, hash: Some(hash) }) = packet.flow else {
            panic!("a flow")
        };
        let owner = self.owners[away.index()].index();
        let worker = &mut self.rig.workers[owner];
        let passed = opened(&mut worker.path, &mut packet);
        match worker.path.file_alias(away, (key, hash), ((key, hash), None), home, NOW) {
            Some(Filing::Filed) => worker.path.send_out(&mut packet, &passed, NOW),
            Some(other) => panic!("{other:?}"),
            None => {
                let bucket = worker.path.buckets.get_mut(away).unwrap();
                let search = Search::new(None, 0);
                let opener = Opener { packet: packet.take(), exit: passed, generation: 0, search };
                bucket.openings.push(&key, Waiting::Opener(opener));
            }
        }
        (away, home, key, hash)
    }

    /// Checks that all packets came out in their order.
    fn check(&mut self) {
        let mut seen = [0; FLOWS as usize];
        for frame in self.rig.sent(1) {
            let payload = &frame.bytes()[42..];
            let flow = usize::from(u16::from_be_bytes(payload[..2].try_into().unwrap()));
            let number = u32::from_be_bytes(payload[2..6].try_into().unwrap());
            assert_eq!(number, seen[flow], "flow {flow}");
            seen[flow] += 1;
        }
        assert_eq!(seen, self.sent);
        assert_eq!(self.dropped(), 0);
    }
}

/// Takes a packet that opens a connection through the stages. Returns how it leaves.
fn opened(path: &mut PacketPath, packet: &mut Packet) -> Exit {
    let mut scratch = Scratch::new(packet, Progress::Untracked, Screening::Off, 0, NOW);
    let end = path.walk(packet, &mut scratch);
    assert!(matches!(end, End::Forward | End::Wait(Wait::Alias)), "{end:?}");
    scratch.exit
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]
    /// Worker 0 receives all packets, and hands on those of other workers. So each flow goes
    /// through two buckets that move.
    #[test]
    fn packets_that_follow_aliases_stay_in_order_while_buckets_move(
        steps in prop::collection::vec((0..6_u8, any::<u16>(), any::<u16>()), 100..1500),
    ) {
        let mut gateway = TestGateway::new();
        let homes: Vec<_> = (0..FLOWS).map(|flow| gateway.open(flow)).collect();
        gateway.run_until_idle();
        for (step, a, b) in steps {
            match step {
                0 => {
                    // Mostly the buckets of a flow move.
                    let (away, home, ..) = homes[usize::from(a) % homes.len()];
                    gateway.start_move(if b & 4 == 0 { home.0 } else { away.0 }, b % WORKERS);
                }
                1 | 2 => {
                    let frame = gateway.frame(a % FLOWS);
                    gateway.inputs[0].put([frame]);
                }
                _ => {
                    gateway.turn(usize::from(a % WORKERS));
                }
            }
        }
        gateway.run_until_idle();
        for (away, home, key, hash) in homes {
            prop_assert_eq!(gateway.bucket(home).aliases.owner(&key, hash), Some(away));
            prop_assert!(!gateway.bucket(home).connections.has(&key, hash, NOW));
        }
        gateway.check();
    }

    /// Aliases are asked for while buckets move. Packets of a connection without its alias wait
    /// behind the first packet.
    #[test]
    fn openings_wait_for_their_aliases_in_order_while_buckets_move(
        steps in prop::collection::vec((0..6_u8, any::<u16>(), any::<u16>()), 100..800),
    ) {
        let mut gateway = TestGateway::new();
        let mut homes: Vec<Option<(BucketId, BucketId, KeyedPacket, u64)>> = vec![None; usize::from(FLOWS)];
        for (step, a, b) in steps {
            let flow = a % FLOWS;
            match (step, homes[usize::from(flow)]) {
                (0, _) => gateway.start_move(a, b),
                // Nobody can open a connection in a bucket that is between two workers.
                (1, None) => {
                    let frame = gateway.frame(flow);
                    gateway.sent[usize::from(flow)] -= 1;
                    let home = gateway.packet(frame).bucket;
                    let away = BucketId((home.0 + 1 + flow % (BUCKETS - 1)) % BUCKETS);
                    if gateway.moving != Some(away) {
                        homes[usize::from(flow)] = Some(gateway.open(flow));
                    }
                }
                // The packet has the first key, so it goes to the bucket of the connection.
                (2, Some((away, ..))) if gateway.moving != Some(away) => {
                    let frame = gateway.frame(flow);
                    let mut packet = Packet { bucket: away, ..gateway.packet(frame) };
                    let owner = gateway.owners[away.index()].index();
                    gateway.workers[owner].path.process(&mut packet, NOW);
                }
                _ => {
                    gateway.turn(usize::from(a % WORKERS));
                }
            }
        }
        gateway.run_until_idle();
        for (away, home, key, hash) in homes.into_iter().flatten() {
            prop_assert_eq!(gateway.bucket(home).aliases.owner(&key, hash), Some(away));
            prop_assert!(gateway.bucket(away).openings.is_empty());
        }
        gateway.check();
    }
}

#[test]
fn an_alias_that_leads_nowhere_goes_and_its_packet_is_judged_at_home() {
    let mut gateway = TestGateway::new();
    let (away, home, key, hash) = gateway.open(1);
    gateway.run_until_idle();
    let owner = gateway.owners[away.index()].index();
    let worker = &mut gateway.rig.workers[owner];
    let mut context = worker.path.tracking.context(NOW, &mut worker.path.counters);
    worker.path.buckets.get_mut(away).unwrap().connections.end(&key, hash, &mut context);
    for _ in 0..3 {
        let frame = gateway.frame(1);
        gateway.inputs[0].put([frame]);
        gateway.run_until_idle();
        assert!(gateway.bucket(home).aliases.is_empty());
        assert!(gateway.bucket(home).connections.has(&key, hash, NOW));
    }
    gateway.check();
}

#[test]
fn a_key_that_is_in_use_gets_no_alias_and_waiting_packets_are_dropped() {
    let mut gateway = TestGateway::new();
    // The flow is tracked in the bucket that it is steered to.
    let frame = gateway.frame(2);
    gateway.inputs[0].put([frame]);
    gateway.run_until_idle();
    let frame = gateway.frame(2);
    let mut packet = gateway.packet(frame);
    let home = packet.bucket;
    let other =
        gateway.owners.iter().position(|owner| *owner != gateway.owners[home.index()]).unwrap();
    let away = BucketId(other as u16);
    packet.bucket = away;
    let Some(TrackedFlow { keyed, hash: Some(hash) }) = packet.flow else { panic!("a flow") };
    let owner = gateway.owners[other].index();
    let worker = &mut gateway.workers[owner];
    let passed = opened(&mut worker.path, &mut packet);
    let alias = (keyed, hash);
    assert_eq!(worker.path.file_alias(away, alias, (alias, None), home, NOW), None);
    let bucket = worker.path.buckets.get_mut(away).unwrap();
    let packet = packet.take();
    let opener = Opener { packet, exit: passed, generation: 0, search: Search::OVER };
    bucket.openings.push(&keyed, Waiting::Opener(opener));
    gateway.run_until_idle();
    assert!(gateway.bucket(home).aliases.is_empty());
    assert_eq!(gateway.bucket(away).connections.len(), 0);
    let dropped = gateway.workers.iter().map(|it| it.path.counters.dropped(DropReason::AliasTaken));
    assert_eq!(dropped.sum::<u64>(), 1);
}
