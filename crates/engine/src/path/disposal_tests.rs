use netio::FramePool;
use steer::WorkerId;
use wire::icmp_error::Message;
use wire::{IcmpError, QuotedTransport, Transport, dissect};

use super::*;
use crate::path::scratch::Exit;
use crate::path::step::Reply;
use crate::testing::many_workers::TestGateway;
use crate::testing::router::*;

const SYN: u8 = 2;
const WHY: DropReason = DropReason::PolicyRefused;

/// The SYN of a client inside, by its port.
fn syn(port: u16) -> Vec<u8> {
    tcp(&from_inside([192, 0, 2, 1], SERVER), (port, 80), SYN, (100, 0))
}

/// A worker of a gateway.
fn path(gateway: &mut TestGateway, worker: usize) -> &mut PacketPath {
    &mut gateway.workers[worker].path
}

/// The SYN in front of the stages.
fn packet(gateway: &mut TestGateway, port: u16) -> (Packet, Scratch) {
    let now = gateway.now;
    let path = path(gateway, 0);
    let frame = FramePool::new(0, 0).copy_of(&syn(port)).unwrap();
    let network = dissect(frame.bytes()).unwrap().network.unwrap();
    let origin = path.tracking.zones().origin(frame.port, 0);
    let mut packet = path.steer(frame, &network, origin, None);
    packet.flow.as_mut().unwrap().table_hash(&path.hasher);
    let scratch = Scratch::new(&packet, Progress::Untracked, Screening::Off, 0, now);
    (packet, scratch)
}

/// The SYN behind tracking: it has opened a connection.
fn opener(gateway: &mut TestGateway, port: u16) -> (Packet, Scratch) {
    let (mut packet, mut scratch) = packet(gateway, port);
    assert!(path(gateway, 0).track_packet(&mut packet, &mut scratch).is_continue());
    assert!(scratch.tracked.fresh && scratch.tracking == Progress::Accepted);
    assert_eq!(gateway.connections(), 1);
    (packet, scratch)
}

/// Disposes of the SYN, which has opened a connection, in a router of one worker. Returns the
/// router and the frames that its ports have sent.
fn disposed(end: End, change: impl FnOnce(&mut Scratch)) -> (TestGateway, [Vec<Frame>; 2]) {
    let mut gateway = gateway(1);
    let (mut packet, mut scratch) = opener(&mut gateway, 2000);
    change(&mut scratch);
    assert_eq!(path(&mut gateway, 0).dispose(end, &mut packet, &mut scratch), Next::Done);
    assert!(packet.frame.is_empty(), "the packet has left its place");
    gateway.run_until_idle();
    let sent = [0, 1].map(|port| gateway.sent(port));
    (gateway, sent)
}

#[test]
fn a_packet_that_is_dropped_leaves_its_reason_and_no_connection() {
    let (gateway, sent) = disposed(End::Drop(WHY.into(), None), |_| {});
    assert_eq!(sent.map(|frames| frames.len()), [0, 0]);
    let counters = gateway.workers[0].path.counters();
    assert_eq!((counters.dropped(WHY), counters.dropped_total()), (1, 1));
    assert_eq!(counters.classes, [1, 0, 0, 0, 0]);
    assert_eq!((gateway.connections(), gateway.to_host()), (0, 0));
}

#[test]
fn the_sender_of_a_dropped_packet_is_told_by_icmp() {
    let reply = Reply::Icmp(Message::Unreachable { code: 13 });
    let (gateway, [inside, outside]) = disposed(End::Drop(WHY.into(), Some(reply)), |_| {});
    assert_eq!((inside.len(), outside.len()), (1, 0));
    let error = seen(&inside[0]);
    assert_eq!(error.destination_ip(), ip("192.0.2.1"));
    let Transport::IcmpError(IcmpError { quoted: Some(quoted), .. }) = error.transport else {
        panic!("{error:?}")
    };
    assert_eq!(quoted.transport, QuotedTransport::Ports { source: 2000, destination: 80 });
    assert_eq!((gateway.reasons(), gateway.connections()), (vec![WHY], 0));
}

#[test]
fn the_sender_of_a_dropped_segment_is_reset_in_the_name_of_its_receiver() {
    let (gateway, [inside, outside]) = disposed(End::Drop(WHY.into(), Some(Reply::Reset)), |_| {});
    assert_eq!((inside.len(), outside.len()), (1, 0));
    let reset = seen(&inside[0]);
    assert_eq!(ends(&reset), [(SERVER.into(), 80), (ip("192.0.2.1"), 2000)]);
    let Transport::Tcp(segment) = reset.transport else { panic!("{reset:?}") };
    // RFC 9293, section 3.10.7.1: the reset of a SYN acknowledges it.
    assert_eq!((segment.flags.0, segment.acknowledgment), (0x14, 101));
    assert_eq!(gateway.workers[0].path.counters().output.tcp_resets, 1);
    assert_eq!((gateway.reasons(), gateway.connections()), (vec![WHY], 0));
}

#[test]
fn a_packet_for_the_host_is_counted_and_its_connection_withdrawn() {
    let (gateway, sent) = disposed(End::Host, |_| {});
    assert_eq!(sent.map(|frames| frames.len()), [0, 0]);
    assert_eq!((gateway.to_host(), gateway.connections(), gateway.dropped()), (1, 0, 0));
    assert_eq!(gateway.workers[0].path.counters().classes, [0; 5], "the host judges it");
}

#[test]
fn a_packet_leaves_by_the_route_in_its_scratch_area_and_its_connection_stays() {
    let mut route = None;
    let (gateway, [inside, outside]) = disposed(End::Forward, |scratch| {
        scratch.tracking = Progress::Confirmed;
        route = scratch.exit.route;
    });
    assert_eq!((route, inside.len(), outside.len()), (None, 0, 1), "the driver routes it");
    assert_eq!(seen(&outside[0]).ttl, 63);
    assert_eq!((gateway.connections(), gateway.dropped()), (1, 0));
    // The route that a stage has found counts, not the one that the packet would have.
    let (gateway, sent) = disposed(End::Forward, |scratch| {
        scratch.exit = Exit { route: Some(RouteDecision::Host), ..Exit::default() };
    });
    assert_eq!((gateway.to_host(), sent.map(|frames| frames.len())), (1, [0, 0]));
}

#[test]
fn a_packet_waits_for_its_bucket_and_is_sent_when_that_has_come() {
    let mut gateway = gateway(2);
    let (mut packet, mut scratch) = owned_by(&mut gateway, 1);
    gateway.start_move(packet.bucket.0, 0);
    // Worker 0 knows that the bucket is on its way. Worker 1 has not sent it off yet.
    gateway.turn(0);
    let path = path(&mut gateway, 0);
    assert!(path.buckets.get(packet.bucket).is_none() && path.buckets.takes(packet.bucket));
    let end = End::Wait(Wait::Bucket);
    assert_eq!(path.dispose(end, &mut packet, &mut scratch), Next::Done);
    assert_eq!((gateway.sent(1).len(), gateway.dropped()), (0, 0));
    gateway.run_until_idle();
    assert_eq!(gateway.sent(1).len(), 1, "dropped: {:?}", gateway.reasons());
    assert_eq!((gateway.connections(), gateway.dropped()), (1, 0));
}

#[test]
fn a_packet_for_another_bucket_begins_again_here_or_at_the_owner_of_that() {
    for (owner, next) in [(0, Next::Restart), (1, Next::Done)] {
        let mut gateway = gateway(2);
        let (mut packet, mut scratch) = owned_by(&mut gateway, owner);
        let path = path(&mut gateway, 0);
        assert_eq!(path.dispose(End::Steer(None), &mut packet, &mut scratch), next);
        assert_eq!(packet.frame.is_empty(), next == Next::Done, "worker {owner} has it");
        gateway.run_until_idle();
        assert_eq!(gateway.sent(1).len(), usize::from(next == Next::Done));
    }
}

/// A SYN in front of the stages whose bucket this worker has.
fn owned_by(gateway: &mut TestGateway, owner: u16) -> (Packet, Scratch) {
    let owners = gateway.owners.clone();
    (2000..3000)
        .map(|port| packet(gateway, port))
        .find(|(packet, _)| owners[packet.bucket.index()] == WorkerId(owner))
        .unwrap()
}
