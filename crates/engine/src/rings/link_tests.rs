use wire::build::PacketBuilder;

use super::*;
use crate::path::packet::{Item, Packet};
use crate::path::reassembly::Pieces;

/// The ends of the rings between workers 0 and 1, with this many slots: first the link that leads
/// to worker 1, then the one that leads to worker 0.
fn pair(slots: usize) -> (Link<Item>, Link<Item>) {
    let wakeup = || Wakeup::new(Waker::new().unwrap());
    let limits = |_| BacklogLimits::default();
    let [(_, to_b), (_, to_a)] =
        connect(slots, (WorkerId(0), &wakeup()), (WorkerId(1), &wakeup()), limits);
    (to_b, to_a)
}

/// The number of free buffers for frames of this length in a pool.
fn free(pool: &mut FramePool, length: usize) -> usize {
    std::iter::from_fn(|| pool.take_free(length)).count()
}

#[test]
fn a_large_buffer_is_paid_back_with_a_large_buffer() {
    let (mut receiver, mut owner) = pair(8);
    let (mut receiver_pool, mut owner_pool) = (FramePool::new(8, 8), FramePool::new(8, 8));
    let frame = receiver_pool.take(MAX_FRAME).unwrap();
    owner.owe(&frame);
    owner_pool.give_back(frame);
    owner.exchange_buffers(&mut owner_pool);
    receiver.exchange_buffers(&mut receiver_pool);
    assert_eq!(free(&mut receiver_pool, MAX_FRAME), 1);
    assert_eq!(free(&mut owner_pool, MAX_FRAME), 0);
}

#[test]
fn buffers_that_can_not_be_returned_do_not_add_up() {
    const SLOTS: usize = 8;
    let (mut receiver, mut owner) = pair(SLOTS);
    let (mut receiver_pool, mut owner_pool) = (FramePool::new(1000, 0), FramePool::new(1000, 0));
    // These frames stay where they were sent, so no buffer can be returned.
    for _ in 0..100 {
        owner.owe(&owner_pool.take(60).unwrap());
        owner.exchange_buffers(&mut owner_pool);
    }
    for frame in (0..100).map(|_| FramePool::new(0, 0).take(60).unwrap()) {
        owner_pool.give_back(frame);
    }
    for _ in 0..10 {
        owner.exchange_buffers(&mut owner_pool);
        receiver.exchange_buffers(&mut receiver_pool);
    }
    assert_eq!(free(&mut receiver_pool, 60), SLOTS);
}

#[test]
fn all_buffers_of_a_full_turn_come_back_with_the_next() {
    let (mut receiver, mut owner) = pair(1000);
    let (mut receiver_pool, mut owner_pool) = (FramePool::new(1000, 0), FramePool::new(1000, 0));
    let frames: Vec<_> = (0..300).map(|_| receiver_pool.take(60).unwrap()).collect();
    for frame in frames {
        owner.owe(&frame);
        owner_pool.give_back(frame);
    }
    owner.exchange_buffers(&mut owner_pool);
    receiver.exchange_buffers(&mut receiver_pool);
    assert_eq!(free(&mut receiver_pool, 60), 300);
}

#[test]
fn a_control_item_comes_behind_the_packets_of_latency_that_were_staged_before() {
    let (mut to_owner, mut from_receiver) = pair(2);
    // The other ring is full of packets that nobody takes, and control items wait with their sender.
    for _ in 0..4 {
        to_owner.stage_packet(Service::Bulk, Item::Packet(datagram(0)));
    }
    for waiting in 0..LATENCY_SLOTS {
        assert!(to_owner.admit(Service::Latency, || waiting as u64).is_ok(), "{waiting}");
        to_owner.stage_packet(Service::Latency, Item::Packet(datagram(0)));
    }
    assert_eq!(to_owner.admit(Service::Latency, || 0), Err(DropReason::BacklogFull));
    assert!(to_owner.admit(Service::Bulk, || 0).is_ok(), "each ring has a backlog of its own");
    to_owner.stage(Item::Marker(0));
    to_owner.flush();
    assert_eq!((from_receiver.waiting(), from_receiver.latency_slots()), (514, 512));
    let mut latency = 0;
    let marker = loop {
        match from_receiver.take() {
            None => to_owner.flush(),
            Some(Item::Marker(_)) => break from_receiver.latency_slots(),
            Some(_) => latency += usize::from(from_receiver.take_latency().is_some()),
        }
    };
    assert_eq!(
        latency + marker,
        LATENCY_SLOTS,
        "all of them can be taken before the marker counts"
    );
}

/// A datagram that came in this many fragments, or whole for 0.
fn datagram(fragments: usize) -> Packet {
    let (mut pool, mut bytes) = (FramePool::new(0, 0), Vec::new());
    PacketBuilder::v4([192, 0, 2, 1], [192, 0, 2, 2]).udp(7, 9, &[0; 100], &mut bytes);
    let frame = pool.copy_of(&bytes).unwrap();
    let network = wire::dissect(frame.bytes()).unwrap().network.unwrap();
    let piece = |_| pool.copy_of(&[0; 60]).unwrap();
    let pieces = (fragments > 0).then(|| Pieces::of((0..fragments).map(piece)));
    Packet {
        frame,
        network,
        flow: None,
        bucket: steer::BucketId(0),
        origin: crate::path::zones::Origin::default(),
        zones: None,
        mark: 0,
        passed_raw: false,
        untracked: false,
        carries: false,
        pieces,
        is_checked: true,
        is_local: false,
        per_packet: false,
        guess: conntrack::Guess::NONE,
        alias_in: None,
    }
}

#[test]
fn a_datagram_takes_as_much_of_the_backlog_as_its_fragments() {
    const LIMIT: usize = 1000;
    let (mut to_owner, mut from_receiver) = pair(LIMIT + CONTROL_RESERVE);
    let weights = [0, 2, 45, 0, 400, 7];
    // The weights of the items between the two, counted by the test.
    let mut waits = std::collections::VecDeque::new();
    let mut fullest = 0;
    for round in 0..2000 {
        let fragments = weights[round % weights.len()];
        let waiting: usize = waits.iter().sum();
        let admitted = to_owner.admit(Service::Bulk, || round as u64);
        assert_eq!(admitted.is_ok(), waiting < LIMIT, "{waiting} wait in round {round}");
        if admitted.is_ok() {
            to_owner.stage(Item::Packet(datagram(fragments)));
            waits.push_back(fragments.max(1));
        }
        if round % 7 == 0 {
            to_owner.stage(Item::Marker(0));
            waits.push_back(1);
        }
        fullest = fullest.max(waits.iter().sum());
        if round % 3 == 0 {
            to_owner.flush();
        }
        // The owner is sometimes slower and sometimes faster.
        for _ in 0..(round / 200) % 4 {
            if from_receiver.take().is_some() {
                waits.pop_front();
            }
        }
    }
    assert!((LIMIT..LIMIT + 400 + 300).contains(&fullest), "{fullest}");
}
