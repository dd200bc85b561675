use std::sync::mpsc::sync_channel;

use flow::HashKey;
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
