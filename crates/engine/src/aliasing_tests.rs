//! Several workers on one thread, which take their turns in any order while buckets move.

use std::collections::VecDeque;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};

use conntrack::Expectations;
use flow::KeyedPacket;
use netio::{Frame, FramePool, PortError, PortId, RxQueue, TxQueue, TxReport};
use proptest::prelude::*;
use steer::{BucketCount, SteeringHasher, WorkerId};
use wire::build::PacketBuilder;

use super::*;
use crate::command::{Command, Notice, Queue};
use crate::crew::{Member, introduce};
use crate::judging::Passed;
use crate::ownership::Move;
use crate::views::Received;
use crate::worker::{Equipment, TimeSource, Turn};
use crate::{Config, REPLAY_SECRET, Zones};

const WORKERS: u16 = 3;
const BUCKETS: u16 = 16;
const FLOWS: u16 = 12;
const NOW: Timestamp = Timestamp::from_secs(1000);

#[derive(Clone, Default)]
struct Line(Arc<Mutex<VecDeque<Frame>>>);

impl RxQueue for Line {
    fn receive(
        &mut self,
        frames: &mut Vec<Frame>,
        max: usize,
        _: &mut FramePool,
    ) -> Result<usize, PortError> {
        let mut waiting = self.0.lock().unwrap();
        let count = max.min(waiting.len());
        frames.extend(waiting.drain(..count));
        Ok(count)
    }

    fn wait_handle(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }
}

impl TxQueue for Line {
    fn transmit(
        &mut self,
        frames: &mut Vec<Frame>,
        _: &mut FramePool,
    ) -> Result<TxReport, PortError> {
        let report = TxReport { sent: frames.len() as u64, ..TxReport::default() };
        self.0.lock().unwrap().extend(frames.drain(..));
        Ok(report)
    }
}

struct Crew {
    workers: Vec<Worker>,
    members: Vec<Member>,
    notices: Receiver<Notice>,
    input: Line,
    output: Line,
    owners: Vec<WorkerId>,
    /// The bucket that is on its way.
    moving: Option<BucketId>,
    hasher: SteeringHasher,
    /// Packets of each flow that were sent.
    sent: [u32; FLOWS as usize],
    next_turn: usize,
}

impl Crew {
    fn new() -> Self {
        let mut config = Config::new(REPLAY_SECRET);
        config.buckets = BucketCount::new(BUCKETS.into()).unwrap();
        let hasher = SteeringHasher::new(config.steering());
        let owners: Vec<WorkerId> = (0..BUCKETS).map(|bucket| WorkerId(bucket % WORKERS)).collect();
        let pools = config.limit_pools().unwrap();
        let (notify, notices) = mpsc::channel();
        let (input, output) = (Line::default(), Line::default());
        let (mut workers, mut members) = (Vec::new(), Vec::<Member>::new());
        for id in (0..WORKERS).map(WorkerId) {
            let (mut member, inbox) = Member::new(id, None).unwrap();
            let mut worker = Worker::new(Equipment {
                id,
                hasher: hasher.clone(),
                tunnels: config.tunnels,
                routes: owners.clone(),
                refuses_new: vec![false; 2],
                outputs: 2,
                settings: config.settings.clone(),
                zones: Zones::new(&config.zones, 2).unwrap(),
                limits: pools.limits(config.secret),
                expectations: Expectations::new(config.secret),
                fragment_memory: defrag::Pools::new(&config.settings.defrag).memory(1),
                time: TimeSource::Turn,
                inbox,
                notices: notify.clone(),
                wakeup: member.wakeup.clone(),
                resolver: None,
            });
            for bucket in config.buckets.iter().filter(|bucket| owners[bucket.index()] == id) {
                worker.install(bucket, Box::new(Bucket::new(NOW)));
            }
            for other in &mut members {
                introduce(other, &mut member, &config.settings.steer).unwrap();
            }
            let sink = Box::new(output.clone());
            member.tell(Command::SetOutput(PortId(1), Some(sink))).unwrap();
            workers.push(worker);
            members.push(member);
        }
        let queue = Queue {
            id: 0,
            port: PortId(0),
            supplies_hash: false,
            received: Received::default(),
            source: Box::new(input.clone()),
        };
        members[0].tell(Command::AddQueue(queue)).unwrap();
        let mut crew = Self {
            workers,
            members,
            notices,
            input,
            output,
            owners,
            moving: None,
            hasher,
            sent: [0; FLOWS as usize],
            next_turn: 0,
        };
        crew.settle();
        crew
    }

    fn turn(&mut self, worker: usize) -> bool {
        let worked = self.workers[worker].turn(NOW) == Turn::Worked;
        while let Ok(notice) = self.notices.try_recv() {
            if let Notice::Arrived(bucket) = notice {
                assert_eq!(self.moving.take(), Some(bucket));
            }
        }
        worked
    }

    fn settle(&mut self) {
        let mut idle = 0;
        while idle < 3 * usize::from(WORKERS) {
            self.next_turn += 1;
            idle = if self.turn(self.next_turn % usize::from(WORKERS)) { 0 } else { idle + 1 };
        }
        assert_eq!(self.moving, None, "a bucket has arrived");
    }

    fn start_move(&mut self, bucket: u16, to: u16) {
        let (bucket, to) = (BucketId(bucket % BUCKETS), WorkerId(to % WORKERS));
        let from = self.owners[bucket.index()];
        if self.moving.is_some() || from == to {
            return;
        }
        let order = Move { bucket, from, to, workers: WORKERS };
        for member in &mut self.members {
            member.tell(Command::Switch(vec![order])).unwrap();
        }
        self.owners[bucket.index()] = to;
        self.moving = Some(bucket);
    }

    /// The next packet of a flow; `as_if` it had another flow's number.
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
        let network = wire::dissect(frame.bytes(), wire::Tunnels::Inner).unwrap().network.unwrap();
        let mut packet =
            self.workers[0].packet(frame, network, crate::zones::Origin::default(), None);
        packet.flow.as_mut().unwrap().table_hash(&self.hasher);
        packet
    }

    /// Opens a connection for a flow in a bucket that the flow is not steered to, and has an
    /// alias filed. Returns that bucket, its home, the key and the hash.
    fn open(&mut self, flow: u16) -> (BucketId, BucketId, FlowKey, u64) {
        let frame = self.frame(flow);
        let mut packet = self.packet(frame);
        let home = packet.bucket;
        let away = BucketId((home.0 + 1 + flow % (BUCKETS - 1)) % BUCKETS);
        packet.bucket = away;
        let Some(TrackedFlow { keyed: KeyedPacket { key, .. }, hash: Some(hash) }) = packet.flow
        else {
            panic!("a flow")
        };
        let owner = self.owners[away.index()].index();
        let worker = &mut self.workers[owner];
        worker.admit(&mut packet, false, NOW).unwrap();
        let frame = packet.take().frame;
        match worker.file_alias(away, (key, hash), (key, hash), home, NOW) {
            Some(Filing::Filed) => worker.send_frames(frame, None, Passed::default(), NOW),
            Some(other) => panic!("{other:?}"),
            None => {
                let bucket = worker.ownership.get_mut(away).unwrap();
                bucket
                    .openings
                    .push(&key, Waiting::Opener { frame, pieces: None, passed: Passed::default() });
            }
        }
        (away, home, key, hash)
    }

    fn bucket(&self, bucket: BucketId) -> &Bucket {
        self.workers[self.owners[bucket.index()].index()].ownership.get(bucket).unwrap()
    }

    /// Checks that everything came out in its order.
    fn check(&mut self) {
        let mut seen = [0; FLOWS as usize];
        for frame in self.output.0.lock().unwrap().drain(..) {
            let payload = &frame.bytes()[42..];
            let flow = usize::from(u16::from_be_bytes(payload[..2].try_into().unwrap()));
            let number = u32::from_be_bytes(payload[2..6].try_into().unwrap());
            assert_eq!(number, seen[flow], "flow {flow}");
            seen[flow] += 1;
        }
        assert_eq!(seen, self.sent);
        let dropped = self.workers.iter().map(|worker| worker.counters.dropped_total());
        assert_eq!(dropped.sum::<u64>(), 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]
    /// Worker 0 receives everything, and hands on what it does not own, so each flow goes by
    /// way of two buckets that move.
    #[test]
    fn what_follows_aliases_stays_in_order_while_buckets_move(
        steps in prop::collection::vec((0..6_u8, any::<u16>(), any::<u16>()), 100..1500),
    ) {
        let mut crew = Crew::new();
        let homes: Vec<_> = (0..FLOWS).map(|flow| crew.open(flow)).collect();
        crew.settle();
        for (step, a, b) in steps {
            match step {
                0 => {
                    // Mostly the buckets that matter.
                    let (away, home, ..) = homes[usize::from(a) % homes.len()];
                    crew.start_move(if b & 4 == 0 { home.0 } else { away.0 }, b % WORKERS);
                }
                1 | 2 => {
                    let frame = crew.frame(a % FLOWS);
                    crew.input.0.lock().unwrap().push_back(frame);
                }
                _ => {
                    crew.turn(usize::from(a % WORKERS));
                }
            }
        }
        crew.settle();
        for (away, home, key, hash) in homes {
            prop_assert_eq!(crew.bucket(home).aliases.owner(&key, hash), Some(away));
            prop_assert!(!crew.bucket(home).connections.has(&key, hash, NOW));
        }
        crew.check();
    }

    /// Aliases are asked for while everything moves, and what comes for a connection whose
    /// alias is not there yet waits behind its first packet.
    #[test]
    fn openings_wait_for_their_aliases_in_order_while_buckets_move(
        steps in prop::collection::vec((0..6_u8, any::<u16>(), any::<u16>()), 100..800),
    ) {
        let mut crew = Crew::new();
        let mut homes: Vec<Option<(BucketId, BucketId, FlowKey, u64)>> = vec![None; usize::from(FLOWS)];
        for (step, a, b) in steps {
            let flow = a % FLOWS;
            match (step, homes[usize::from(flow)]) {
                (0, _) => crew.start_move(a, b),
                // Where the bucket is between two workers nobody can open anything in it.
                (1, None) => {
                    let frame = crew.frame(flow);
                    crew.sent[usize::from(flow)] -= 1;
                    let home = crew.packet(frame).bucket;
                    let away = BucketId((home.0 + 1 + flow % (BUCKETS - 1)) % BUCKETS);
                    if crew.moving != Some(away) {
                        homes[usize::from(flow)] = Some(crew.open(flow));
                    }
                }
                // By its first key, that is to the bucket of the connection.
                (2, Some((away, ..))) if crew.moving != Some(away) => {
                    let frame = crew.frame(flow);
                    let mut packet = Packet { bucket: away, ..crew.packet(frame) };
                    crew.workers[crew.owners[away.index()].index()].process(&mut packet, NOW);
                }
                _ => {
                    crew.turn(usize::from(a % WORKERS));
                }
            }
        }
        crew.settle();
        for (away, home, key, hash) in homes.into_iter().flatten() {
            prop_assert_eq!(crew.bucket(home).aliases.owner(&key, hash), Some(away));
            prop_assert!(crew.bucket(away).openings.is_empty());
        }
        crew.check();
    }
}

#[test]
fn an_alias_that_leads_nowhere_goes_and_its_packet_is_judged_at_home() {
    let mut crew = Crew::new();
    let (away, home, key, hash) = crew.open(1);
    crew.settle();
    let owner = crew.owners[away.index()].index();
    let worker = &mut crew.workers[owner];
    let mut context = worker.tracking.context(NOW, &mut worker.counters);
    worker.ownership.get_mut(away).unwrap().connections.end(&key, hash, &mut context);
    for _ in 0..3 {
        let frame = crew.frame(1);
        crew.input.0.lock().unwrap().push_back(frame);
        crew.settle();
        assert!(crew.bucket(home).aliases.is_empty());
        assert!(crew.bucket(home).connections.has(&key, hash, NOW));
    }
    crew.check();
}

#[test]
fn a_key_that_is_in_use_gets_no_alias_and_what_waits_is_dropped() {
    let mut crew = Crew::new();
    // The flow is tracked where it is steered to.
    let frame = crew.frame(2);
    crew.input.0.lock().unwrap().push_back(frame);
    crew.settle();
    let frame = crew.frame(2);
    let mut packet = crew.packet(frame);
    let home = packet.bucket;
    let other = crew.owners.iter().position(|owner| *owner != crew.owners[home.index()]).unwrap();
    let away = BucketId(other as u16);
    packet.bucket = away;
    let Some(TrackedFlow { keyed, hash: Some(hash) }) = packet.flow else { panic!("a flow") };
    let worker = &mut crew.workers[crew.owners[other].index()];
    worker.admit(&mut packet, false, NOW).unwrap();
    let alias = (keyed.key, hash);
    assert_eq!(worker.file_alias(away, alias, alias, home, NOW), None);
    let frame = packet.take().frame;
    let bucket = worker.ownership.get_mut(away).unwrap();
    bucket
        .openings
        .push(&keyed.key, Waiting::Opener { frame, pieces: None, passed: Passed::default() });
    crew.settle();
    assert!(crew.bucket(home).aliases.is_empty());
    assert_eq!(crew.bucket(away).connections.len(), 0);
    let dropped = crew.workers.iter().map(|it| it.counters.dropped(DropReason::AliasTaken));
    assert_eq!(dropped.sum::<u64>(), 1);
}
