//! Packets are on their way to the worker that owns their flow, or wait, when a bridge goes on standby.

use flow::{DropReason, HashKey};
use steer::BucketCount;
use wire::build::PacketBuilder;

use crate::Config;
use crate::path::stages::observer::take;
use crate::path::step::{End, Stage, Wait};
use crate::testing::many_workers::TestGateway;
use crate::testing::router::udp;
use crate::worker::command::Command;

const CLIENT: ([u8; 4], [u8; 6]) = ([192, 0, 2, 1], [2, 0, 0, 0, 0, 1]);
const SERVER: ([u8; 4], [u8; 6]) = ([192, 0, 2, 9], [2, 0, 0, 0, 0, 9]);
/// The worker that owns the flow. Worker 0 polls the queue that its packets come in by.
const OWNER: usize = 1;

/// A bridge that two workers share, and the first packet of a flow of the second worker.
fn bridge() -> (TestGateway, Vec<u8>) {
    let mut config = Config::new(HashKey(3, 4));
    config.buckets = BucketCount::new(16).unwrap();
    let gateway = TestGateway::new(&config, 2, false);
    let builder = PacketBuilder::v4(CLIENT.0, SERVER.0).macs(CLIENT.1, SERVER.1);
    let frames = (2000..3000).map(|port| udp(&builder, (port, 53), b"ask"));
    let question = gateway.owned_by(OWNER, frames);
    (gateway, question)
}

/// Both workers hear that they are on standby. Returns how many frames leave from now on.
fn stand_by(gateway: &mut TestGateway) -> usize {
    for handle in &mut gateway.handles {
        handle.tell(Command::StandBy(true)).unwrap();
    }
    gateway.run_until_idle();
    (0..2).map(|port| gateway.sent(port).len()).sum()
}

#[test]
fn a_packet_in_a_ring_does_not_leave_a_bridge_that_goes_on_standby() {
    let (mut gateway, question) = bridge();
    gateway.arrive(0, &question);
    gateway.turn(0);
    assert_eq!((stand_by(&mut gateway), gateway.reasons()), (0, vec![DropReason::Standby]));
}

#[test]
fn a_recorded_decision_does_not_lead_out_of_a_bridge_on_standby() {
    let (mut gateway, question) = bridge();
    let port = u16::from_be_bytes([question[34], question[35]]);
    let back = PacketBuilder::v4(SERVER.0, CLIENT.0).macs(SERVER.1, CLIENT.1);
    let answer = udp(&back, (53, port), b"answer");
    for (port, frame) in [(0, &question), (1, &answer), (0, &question), (1, &answer)] {
        gateway.arrive(port, frame);
        gateway.run_until_idle();
    }
    gateway.arrive(0, &question);
    gateway.turn(0);
    gateway.sent(0);
    gateway.sent(1);
    take();
    assert_eq!((stand_by(&mut gateway), gateway.reasons()), (0, vec![DropReason::Standby]));
    assert!(take().contains(&(Stage::FastPath, Some(End::Forward))));
}

#[test]
fn a_packet_that_waits_for_its_bucket_does_not_leave_a_bridge_that_goes_on_standby() {
    let (mut gateway, question) = bridge();
    let bucket = gateway.bucket_of(&question);
    gateway.start_move(bucket.0, 0);
    take();
    gateway.arrive(0, &question);
    gateway.turn(0);
    gateway.turn(0);
    assert!(take().contains(&(Stage::Bucket, Some(End::Wait(Wait::Bucket)))));
    assert_eq!((stand_by(&mut gateway), gateway.reasons()), (0, vec![DropReason::Standby]));
}

#[test]
fn a_bridge_that_leaves_standby_forwards_again() {
    let (mut gateway, question) = bridge();
    assert_eq!(stand_by(&mut gateway), 0);
    for handle in &mut gateway.handles {
        handle.tell(Command::StandBy(false)).unwrap();
    }
    gateway.arrive(0, &question);
    gateway.run_until_idle();
    assert_eq!((gateway.sent(1).len(), gateway.dropped()), (1, 0));
}
