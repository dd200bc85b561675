//! Queues and claims that another process goes on with; here it is the same process.

use std::os::fd::{AsFd, OwnedFd};

use netio::afpacket::{AfPacketOptions, AfPacketPort, AfPacketRx, Claim};
use netio::{
    FramePool, PortError, PortId, QueuePosition, RingPosition, RxQueue, TxQueue, link_named,
};

use crate::machine::ip;
use crate::namespace::isolated;
use crate::{PATIENCE, cable, drain, number, numbered, open};

/// The queue as another process would get it.
fn handed(queue: &AfPacketRx) -> (OwnedFd, QueuePosition) {
    let (socket, position) = queue.to_hand_over().unwrap();
    (socket.try_clone_to_owned().unwrap(), position)
}

#[test]
fn frames_that_wait_come_in_order_at_the_next_owner_of_the_queue() {
    isolated("hand_over::frames_that_wait_come_in_order_at_the_next_owner_of_the_queue", || {
        cable();
        ip("link set here mtu 9000");
        ip("link set there mtu 9000");
        let (mut a, mut pool) = (open("here").unwrap(), FramePool::new(64, 64));
        // The smallest ring, so that it turns.
        let options =
            AfPacketOptions { receive_buffer_bytes: 65_536, ..AfPacketOptions::default() };
        let mut port = AfPacketPort::open("there", PortId(0), &options).unwrap();
        let mut queue = port.receive.remove(0);
        let link = link_named("there").unwrap().unwrap();
        let lengths = [60, 5000, 61, 1959];
        let mut last = None;
        for start in (0..200).step_by(10) {
            let mut frames: Vec<_> = (start..start + 10)
                .map(|n| numbered(n, lengths[n as usize % lengths.len()], &mut pool))
                .collect();
            assert_eq!(a.transmit[0].transmit(&mut frames, &mut pool).unwrap().sent, 10);
            // Some are taken before the queue changes hands, and the others wait.
            let mut received = Vec::new();
            while received.len() < 3 {
                queue.receive(&mut received, 3, &mut pool).unwrap();
            }
            let taken = received.len();
            let (socket, position) = handed(&queue);
            let next = AfPacketRx::take_over(socket, position, &link, PortId(0)).unwrap();
            drop(std::mem::replace(&mut queue, next));
            received.extend(drain(&mut queue, 10 - taken, &mut pool).unwrap());
            let numbers: Vec<_> = received.iter().map(number).collect();
            assert_eq!(numbers, (start..start + 10).collect::<Vec<_>>());
            for frame in received {
                assert!(last < Some(frame.sequence));
                last = Some(frame.sequence);
                pool.give_back(frame);
            }
        }
        assert_eq!(queue.take_lost(), 0);
    });
}

/// The other process takes some frames, or none, or all, and ends.
#[test]
fn a_queue_that_another_process_has_read_goes_on_with_the_oldest_frame() {
    isolated(
        "hand_over::a_queue_that_another_process_has_read_goes_on_with_the_oldest_frame",
        || {
            cable();
            let (mut a, mut pool) = (open("here").unwrap(), FramePool::new(256, 64));
            let options =
                AfPacketOptions { receive_buffer_bytes: 65_536, ..AfPacketOptions::default() };
            let mut port = AfPacketPort::open("there", PortId(0), &options).unwrap();
            let mut queue = port.receive.remove(0);
            let link = link_named("there").unwrap().unwrap();
            let slots = handed(&queue).1.ring.unwrap().slots as usize;
            let mut send = |frames: std::ops::Range<usize>, pool: &mut FramePool| {
                let mut frames: Vec<_> = frames.map(|n| numbered(n as u32, 60, pool)).collect();
                a.transmit[0].transmit(&mut frames, pool).unwrap();
            };
            let mut start = 0;
            // The last two fill the ring, which turns in between.
            for (waiting, taken, later) in
                [(10, 4, 0), (10, 0, 3), (7, 7, 5), (1, 1, 0), (9, 9, 30)]
                    .into_iter()
                    .chain([(slots, 0, 0), (slots, 5, 5)])
            {
                send(start..start + waiting, &mut pool);
                let (socket, position) = handed(&queue);
                let mut other = AfPacketRx::take_over(socket, position, &link, PortId(0)).unwrap();
                let mut of_other = Vec::new();
                while of_other.len() < taken {
                    let more = taken - of_other.len();
                    other.receive(&mut of_other, more, &mut pool).unwrap();
                }
                of_other.into_iter().for_each(|frame| pool.give_back(frame));
                drop(other);
                queue.find_place();
                send(start + waiting..start + waiting + later, &mut pool);
                let rest = waiting - taken + later;
                let received = drain(&mut queue, rest, &mut pool).unwrap();
                let numbers: Vec<_> = received.iter().map(|it| number(it) as usize).collect();
                start += waiting + later;
                assert_eq!(numbers, (start - rest..start).collect::<Vec<_>>());
                received.into_iter().for_each(|frame| pool.give_back(frame));
                // Without a frame, nobody can go on from here either.
                if rest == 0 {
                    assert!(queue.to_hand_over().is_none());
                    send(start..start + 1, &mut pool);
                    let received = drain(&mut queue, 1, &mut pool).unwrap();
                    received.into_iter().for_each(|frame| pool.give_back(frame));
                    start += 1;
                }
            }
            assert_eq!(queue.take_lost(), 0);
        },
    );
}

#[test]
fn descriptors_and_positions_that_do_not_fit_are_refused() {
    isolated("hand_over::descriptors_and_positions_that_do_not_fit_are_refused", || {
        cable();
        let port = open("there").unwrap();
        let [here, there] = ["here", "there"].map(|name| link_named(name).unwrap().unwrap());
        let (_, position) = handed(&port.receive[0]);
        let ring = position.ring.unwrap();
        let take = |socket: OwnedFd, ring: RingPosition, link| {
            let position = QueuePosition { ring: Some(ring), ..position };
            AfPacketRx::take_over(socket, position, link, PortId(0)).map(drop)
        };
        let socket = || handed(&port.receive[0]).0;
        take(socket(), ring, &there).unwrap();
        let file = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let (pair, _) = std::os::unix::net::UnixStream::pair().unwrap();
        let refused = [
            take(socket(), ring, &here),
            take(file, ring, &there),
            take(pair.into(), ring, &there),
            take(socket(), RingPosition { slots: 0, next: 0 }, &there),
            take(socket(), RingPosition { next: ring.slots, ..ring }, &there),
            take(socket(), RingPosition { slots: ring.slots / 2, next: 0 }, &there),
            take(socket(), RingPosition { slots: u32::MAX, next: 0 }, &there),
        ];
        for (number, refused) in refused.into_iter().enumerate() {
            assert!(matches!(refused, Err(PortError::System { .. })), "{number}: {refused:?}");
        }
    });
}

#[test]
fn a_claim_that_has_passed_on_holds_until_its_last_owner_has_gone() {
    isolated("hand_over::a_claim_that_has_passed_on_holds_until_its_last_owner_has_gone", || {
        cable();
        let link = link_named("here").unwrap().unwrap();
        let first = Claim::take(&link).unwrap();
        let copy = first.as_fd().try_clone_to_owned().unwrap();
        let second = Claim::take_over(copy, &link).unwrap();
        drop(first);
        assert!(matches!(Claim::take(&link), Err(PortError::Claimed { .. })));
        drop(second);
        Claim::take(&link).unwrap();
    });
}

/// A socket in a group of several does not take in what this machine sends, as one alone does not.
#[test]
fn several_queues_do_not_receive_what_is_sent() {
    isolated("hand_over::several_queues_do_not_receive_what_is_sent", || {
        cable();
        let options = AfPacketOptions { receive_queues: 2, ..AfPacketOptions::default() };
        let mut here = AfPacketPort::open("here", PortId(0), &options).unwrap();
        let (mut there, mut pool) = (open("there").unwrap(), FramePool::new(64, 8));
        let mut frames: Vec<_> = (0..10).map(|n| numbered(n, 60, &mut pool)).collect();
        assert_eq!(here.transmit[0].transmit(&mut frames, &mut pool).unwrap().sent, 10);
        assert_eq!(drain(&mut there.receive[0], 10, &mut pool).unwrap().len(), 10);
        // One frame shows that all before it were seen.
        let mut frames = vec![numbered(77, 60, &mut pool)];
        assert_eq!(there.transmit[0].transmit(&mut frames, &mut pool).unwrap().sent, 1);
        let (mut received, start) = (Vec::new(), std::time::Instant::now());
        while received.is_empty() && start.elapsed() < PATIENCE {
            for queue in &mut here.receive {
                queue.receive(&mut received, 64, &mut pool).unwrap();
            }
        }
        assert_eq!(received.iter().map(number).collect::<Vec<_>>(), [77]);
    });
}
