use std::sync::mpsc::sync_channel;

use flow::HashKey;
use netpolicy::Policy;
use wire::build::PacketBuilder;

use super::*;
use crate::Config;
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
