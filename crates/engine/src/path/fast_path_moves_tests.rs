//! Recorded decisions, and packets in flight, while buckets move and workers learn of changes one
//! after the other.

use flow::DropReason;

use crate::path::stages::observer::take;
use crate::path::step::{End, Stage};
use crate::testing::many_workers::TestGateway;
use crate::testing::router::*;
use crate::worker::command::Command;

const CLIENT: [u8; 4] = [192, 0, 2, 1];

/// Passes a packet; true if it took the fast path.
fn is_fast(gateway: &mut TestGateway, port: usize, frame: &[u8]) -> bool {
    take();
    gateway.pass(port, frame);
    take().last() == Some(&(Stage::FastPath, Some(End::Forward)))
}

/// A worker that is hired later may have the number of one that has ended, and the numbers of its
/// generations.
#[test]
fn a_bucket_that_arrives_brings_no_recorded_decision() {
    let mut gateway = gateway(2);
    let question = gateway.question(CLIENT, 0);
    let [(_, port), _] = ends(&gateway.pass(0, &question));
    gateway.pass(1, &udp(&from_outside(SERVER, OWN), (53, port), b"answer"));
    gateway.pass(0, &question);
    assert!(is_fast(&mut gateway, 0, &question));
    for owner in [1, 0] {
        let bucket = gateway.bucket_of(&question);
        gateway.start_move(bucket.0, owner);
        gateway.run_until_idle();
    }
    assert!(!is_fast(&mut gateway, 0, &question), "the worker has its generation of before");
    assert!(is_fast(&mut gateway, 0, &question));
}

#[test]
fn a_packet_in_flight_is_checked_by_the_routes_of_the_worker_that_sends_it() {
    // By the new routes, the sender's address is the router's own.
    const SENDER: [u8; 4] = [203, 0, 113, 9];
    for knows in [false, true] {
        let mut gateway = gateway(2);
        let question = gateway.question(SENDER, 1);
        if knows {
            let routing = routing_with("203.0.113.9");
            gateway.handles[1].tell(Command::Routing(routing)).unwrap();
            gateway.turn(1);
        }
        // Worker 0 takes it from its queue, by the old routes.
        gateway.arrive(0, &question);
        gateway.turn(0);
        assert_eq!(gateway.dropped(), 0);
        gateway.run_until_idle();
        assert_eq!(gateway.sent(1).len(), usize::from(!knows), "{:?}", gateway.reasons());
        assert_eq!(gateway.reasons().contains(&DropReason::Martian), knows);
    }
}
