//! Lanes: the kernel gives each packet to the queue of its service.

use std::net::IpAddr;

use netio::afpacket::{AfPacketOptions, AfPacketPort, AfPacketRx};
use netio::{Frame, FramePool, PortId, RxQueue, Selector, Selectors, Service, TxQueue, Waiter};
use wire::build::PacketBuilder;

use crate::namespace::isolated;
use crate::{PATIENCE, cable, open};

const CLIENT6: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
const SERVER6: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];

/// A UDP packet between these ports with a number in it.
fn numbered(is_v4: bool, ports: [u16; 2], number: u32, pool: &mut FramePool) -> Frame {
    let builder = match is_v4 {
        true => PacketBuilder::v4([192, 0, 2, 1], [198, 51, 100, 2]),
        false => PacketBuilder::v6(CLIENT6, SERVER6),
    };
    let mut bytes = Vec::new();
    builder.udp(ports[0], ports[1], &number.to_be_bytes(), &mut bytes);
    pool.copy_of(&bytes).unwrap()
}

fn number(frame: &Frame) -> u32 {
    let bytes = frame.bytes();
    // A short frame may be padded behind the number.
    let start = if bytes[12..14] == [8, 0] { 42 } else { 62 };
    u32::from_be_bytes(bytes[start..start + 4].try_into().unwrap())
}

fn options(bulk_queues: u16) -> AfPacketOptions {
    let address: IpAddr = "203.0.113.0".parse().unwrap();
    let list = [
        Selector::new(Service::Bulk, None, Some((address, 24)), None),
        Selector::new(Service::Latency, Some(17), None, Some(5000..=5010)),
    ];
    let selectors = Selectors::new(list.map(Result::unwrap).to_vec()).unwrap();
    let lanes = Some(selectors);
    AfPacketOptions { lanes, receive_queues: bulk_queues, ..AfPacketOptions::default() }
}

/// The numbers of the next frames, so many.
fn numbers(queue: &mut AfPacketRx, count: usize, pool: &mut FramePool) -> Vec<u32> {
    let (mut frames, mut waiter) = (Vec::new(), Waiter::new());
    while frames.len() < count {
        if queue.receive(&mut frames, count, pool).unwrap() == 0 {
            let handle = queue.wait_handle().unwrap();
            assert!(!waiter.wait([handle], Some(PATIENCE)).unwrap().is_empty(), "{}", frames.len());
        }
    }
    frames
        .into_iter()
        .map(|frame| {
            let number = number(&frame);
            pool.give_back(frame);
            number
        })
        .collect()
}

#[test]
fn each_packet_comes_once_and_in_order_by_the_queue_of_its_service() {
    isolated("lanes::each_packet_comes_once_and_in_order_by_the_queue_of_its_service", || {
        cable();
        let (mut sender, mut pool) = (open("here").unwrap(), FramePool::new(512, 16));
        let mut port = AfPacketPort::open("there", PortId(0), &options(1)).unwrap();
        let services: Vec<_> = port.receive.iter().map(RxQueue::service).collect();
        assert_eq!(services, [Service::Bulk, Service::Latency]);
        for start in (0..2000).step_by(40) {
            let mut frames: Vec<_> = (start..start + 40)
                .map(|n| {
                    let ports = if n % 4 == 0 { [5003, 9] } else { [9, 6000] };
                    numbered(n % 3 == 0, ports, n, &mut pool)
                })
                .collect();
            assert_eq!(sender.transmit[0].transmit(&mut frames, &mut pool).unwrap().sent, 40);
            let of = |is_latency| (start..start + 40).filter(move |n| (n % 4 == 0) == is_latency);
            let [bulk, latency] = &mut port.receive[..] else { panic!("two queues") };
            assert_eq!(numbers(latency, 10, &mut pool), of(true).collect::<Vec<_>>());
            assert_eq!(numbers(bulk, 30, &mut pool), of(false).collect::<Vec<_>>());
        }
        for queue in &mut port.receive {
            assert_eq!(queue.take_lost(), 0);
        }
    });
}

#[test]
fn a_full_queue_of_bulk_takes_no_room_from_latency() {
    isolated("lanes::a_full_queue_of_bulk_takes_no_room_from_latency", || {
        cable();
        let (mut sender, mut pool) = (open("here").unwrap(), FramePool::new(256, 16));
        let options = AfPacketOptions { receive_buffer_bytes: 65_536, ..options(1) };
        let mut port = AfPacketPort::open("there", PortId(0), &options).unwrap();
        // More than the slots of either queue.
        for n in 0..20 {
            let mut frames: Vec<_> =
                (0..10).map(|_| numbered(true, [9, 6000], n, &mut pool)).collect();
            frames.push(numbered(true, [5000, 9], n, &mut pool));
            assert_eq!(sender.transmit[0].transmit(&mut frames, &mut pool).unwrap().sent, 11);
        }
        let [bulk, latency] = &mut port.receive[..] else { panic!("two queues") };
        assert_eq!(numbers(latency, 20, &mut pool), (0..20).collect::<Vec<_>>());
        assert_eq!(latency.take_lost(), 0);
        assert!(bulk.take_lost() > 0, "bulk has more than its slots");
    });
}

#[test]
fn several_queues_of_bulk_keep_each_flow_in_one() {
    isolated("lanes::several_queues_of_bulk_keep_each_flow_in_one", || {
        cable();
        let (mut sender, mut pool) = (open("here").unwrap(), FramePool::new(512, 16));
        let mut port = AfPacketPort::open("there", PortId(0), &options(2)).unwrap();
        let mut frames: Vec<_> = (0..200)
            .map(|n| {
                let ports = [1024 + (n / 2) as u16, 6000];
                let ports = if n % 2 == 0 { ports } else { [ports[1], ports[0]] };
                numbered(true, ports, n, &mut pool)
            })
            .collect();
        frames.push(numbered(true, [5000, 1], 1000, &mut pool));
        assert_eq!(sender.transmit[0].transmit(&mut frames, &mut pool).unwrap().sent, 201);
        let [first, second, latency] = &mut port.receive[..] else { panic!("three queues") };
        assert_eq!(numbers(latency, 1, &mut pool), [1000]);
        let mut all = Vec::new();
        for queue in [first, second] {
            let mut received = Vec::new();
            queue.receive(&mut received, 201, &mut pool).unwrap();
            let came: Vec<_> = received.iter().map(number).collect();
            assert!(came.len() > 20, "{came:?}");
            assert!(came.chunks(2).all(|pair| pair[0] / 2 == pair[1] / 2), "{came:?}");
            all.extend(came);
            received.into_iter().for_each(|frame| pool.give_back(frame));
        }
        all.sort_unstable();
        assert_eq!(all, (0..200).collect::<Vec<_>>());
    });
}
