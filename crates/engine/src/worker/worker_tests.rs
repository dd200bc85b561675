use std::sync::mpsc::sync_channel;

use flow::HashKey;
use netio::memory::Source;
use netio::{FramePool, PortId, RxQueue, Service};
use netpolicy::Policy;
use wire::build::PacketBuilder;

use super::*;
use crate::Config;
use crate::testing::line::Line;
use crate::testing::one_worker::Rig;
use crate::worker::command::Question;

#[test]
fn packets_wait_for_one_question_at_most() {
    let mut rig = Rig::new(&Config::new(HashKey(1, 2)));
    let mut frame = Vec::new();
    PacketBuilder::v4([192, 0, 2, 1], [198, 51, 100, 2]).udp(1000, 2000, &[], &mut frame);
    assert_eq!(rig.pass([frame.clone()]), 1);
    let before = rig.worker.path.counters().transmitted;
    let mut answers = Vec::new();
    for _ in 0..3 {
        let (reply, answer) = sync_channel(1);
        rig.commands.push(Command::Ask(Question::Report(reply))).ok().unwrap();
        answers.push(answer);
    }
    for answered in 1..=3 {
        rig.arrive(0, [frame.clone()]);
        assert_eq!(rig.worker.turn(rig.now), Turn::Worked);
        assert_eq!(rig.worker.path.counters().transmitted, before + answered);
        let seen = answers.iter().filter(|answer| answer.try_recv().is_ok()).count();
        assert_eq!(seen, 1, "one answer and one packet in turn {answered}");
    }
}

#[test]
fn a_queue_gives_as_many_packets_as_the_policy_of_its_device_says() {
    let mut config = Config::new(HashKey(1, 2));
    config.settings.set("dev_weight", 5).unwrap();
    let mut rig = Rig::new(&config);
    let mut frame = Vec::new();
    PacketBuilder::v4([192, 0, 2, 1], [198, 51, 100, 2]).udp(1000, 2000, &[], &mut frame);
    // The first turn takes the commands that give it the queues.
    rig.worker.turn(rig.now);
    for (policies, batch, waits_by) in [
        ([Policy::None, Policy::None], 5, Policy::None),
        ([Policy::Latency, Policy::None], 16, Policy::Latency),
        ([Policy::Bulk, Policy::None], 256, Policy::None),
        ([Policy::Bulk, Policy::Bulk], 256, Policy::Bulk),
        ([Policy::Cpu, Policy::Bulk], 256, Policy::Bulk),
        ([Policy::None, Policy::None], 5, Policy::None),
    ] {
        rig.commands.push(Command::Policies(policies.into())).ok().unwrap();
        let before = rig.worker.path.counters().transmitted;
        rig.arrive(0, std::iter::repeat_n(frame.clone(), 300));
        rig.worker.turn(rig.now);
        let taken = rig.worker.path.counters().transmitted - before;
        assert_eq!((taken, rig.worker.report(rig.now).policy), (batch, waits_by), "{policies:?}");
        while rig.worker.turn(rig.now) == Turn::Worked {}
    }
}

/// A frame of a flow with this port.
fn frame(port: u16) -> Vec<u8> {
    let mut frame = Vec::new();
    PacketBuilder::v4([192, 0, 2, 1], [198, 51, 100, 2]).udp(1000, port, &[], &mut frame);
    frame
}

/// A worker whose first port has a queue of latency beside that of bulk.
fn with_lanes(source: impl RxQueue + 'static, policies: [Policy; 2]) -> Rig {
    let mut rig = Rig::new(&Config::new(HashKey(1, 2)));
    rig.worker.turn(rig.now);
    let queue = Queue::new(7, PortId(0), Box::new(source));
    let queue = Queue { service: Service::Latency, ..queue };
    rig.commands.push(Command::AddQueue(queue)).ok().unwrap();
    rig.commands.push(Command::Policies(policies.into())).ok().unwrap();
    rig
}

/// The frames that came by the first port.
fn received(rig: &mut Rig, service: Service) -> u64 {
    let queues = rig.worker.report(rig.now).queues.into_iter();
    let of = queues.filter(|(port, of, _)| (*port, *of) == (PortId(0), service));
    of.map(|(_, _, received)| received.frames).sum()
}

#[test]
fn a_flood_of_latency_leaves_bulk_its_share() {
    for (policies, latency) in
        [([Policy::Mix, Policy::None], 816), ([Policy::None, Policy::None], 3200)]
    {
        let flood = frame(5000);
        let source = Source::generate(PortId(0), move |pool| pool.copy_of(&flood));
        let mut rig = with_lanes(source, policies);
        rig.arrive(0, std::iter::repeat_n(frame(9), 3200));
        while received(&mut rig, Service::Bulk) < 3200 {
            rig.worker.turn(rig.now);
        }
        assert_eq!(received(&mut rig, Service::Latency), latency, "{policies:?}");
    }
}

#[test]
fn packets_of_latency_leave_before_bulk_that_came_first() {
    let line = Line::default();
    let mut rig = with_lanes(line.clone(), [Policy::Mix, Policy::None]);
    let mut pool = FramePool::new(0, 0);
    let mut copy = |port| pool.copy_of(&frame(port)).unwrap();
    let bulk: Vec<_> = (0..100).map(|_| copy(9)).collect();
    line.put((0..3).map(|_| copy(5000)));
    let [_, sent] = rig.exchange(0, bulk);
    let port = |frame: &Frame| u16::from_be_bytes([frame.bytes()[36], frame.bytes()[37]]);
    let places = sent.iter().enumerate().filter(|(_, it)| port(it) == 5000).map(|(at, _)| at);
    assert_eq!((places.collect::<Vec<_>>(), sent.len()), (vec![0, 1, 2], 103));
}

#[test]
fn a_worker_without_a_queue_waits_by_the_strictest_policy_of_all_devices() {
    let mut rig = Rig::new(&Config::new(HashKey(1, 2)));
    let policies = [Policy::Cpu, Policy::Latency].into();
    rig.commands.push(Command::Policies(policies)).ok().unwrap();
    for (id, waits_by) in [(1, Policy::Cpu), (0, Policy::Latency)] {
        rig.commands.push(Command::ReleaseQueue { id, marker: 0 }).ok().unwrap();
        rig.worker.turn(rig.now);
        assert_eq!(rig.worker.report(rig.now).policy, waits_by);
    }
}
