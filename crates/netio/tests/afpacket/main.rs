//! Packet sockets against the real kernel, in network namespaces.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "only tests call these functions")]

mod bare;
mod claims;
mod forwarder;
mod hand_over;
mod lanes;
mod machine;
mod namespace;
mod tunnels;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant};

use forwarder::{Forwarder, Seen};
use machine::{Machine, ip, wait_until_running};
use namespace::isolated;
use netio::afpacket::{AfPacketOptions, AfPacketPort};
use netio::{
    Checksum, Frame, FramePool, Offload, PortError, PortId, RxQueue, Segmentation, TxQueue, Waiter,
    link_named,
};
use wire::build::PacketBuilder;

/// Time limit for events that are certain to happen.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of a TCP transfer.
const TRANSFER: usize = 8 << 20;

/// Two machines: `p0` of the first is connected to `g0` here, and `p1` of the second to `g1`.
fn two_machines() -> [Machine; 2] {
    [0, 1].map(|number| {
        let machine = Machine::new();
        machine.connect(&format!("g{number}"), &format!("p{number}"));
        machine
    })
}

/// Transfers a pattern over TCP and checks it at the far end.
fn transfer(from: &Machine, to: &Machine, address: &str) {
    let address: SocketAddr = format!("{address}:4000").parse().unwrap();
    let listener = to.run(move || TcpListener::bind(address).unwrap());
    let sent: Vec<u8> = (0..TRANSFER).map(|n| ((n * n) >> 7) as u8).collect();
    let expected = sent.clone();
    let received = to.start(move || {
        let mut received = Vec::new();
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.read_to_end(&mut received).unwrap();
        received
    });
    from.run(move || {
        let mut stream = TcpStream::connect_timeout(&address, PATIENCE).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(&sent).unwrap();
    });
    assert!(received.recv().unwrap() == expected, "the bytes arrive as they were sent");
}

/// Sends datagrams of these lengths to an echo server and checks the answers.
fn echo(from: &Machine, to: &Machine, address: &str, lengths: &'static [usize]) {
    let address: SocketAddr = format!("{address}:4001").parse().unwrap();
    let server = to.run(move || UdpSocket::bind(address).unwrap());
    let _served = to.start(move || {
        server.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut buffer = [0; 2048];
        for _ in lengths {
            let (length, peer) = server.recv_from(&mut buffer).unwrap();
            server.send_to(&buffer[..length], peer).unwrap();
        }
    });
    from.run(move || {
        let client = UdpSocket::bind("0.0.0.0:0").unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        for &length in lengths {
            let sent: Vec<u8> = (0..length).map(|n| n as u8).collect();
            client.send_to(&sent, address).unwrap();
            let mut buffer = [0; 2048];
            let (received, _) = client.recv_from(&mut buffer).unwrap();
            assert_eq!(buffer[..received], sent);
        }
    });
}

/// Runs transfers both ways through a forwarder, on these interfaces of the machines.
fn exchange(machines: &[Machine; 2], interfaces: [&str; 2], options: &AfPacketOptions) -> Seen {
    for (number, (machine, interface)) in machines.iter().zip(interfaces).enumerate() {
        let address = format!("addr add 192.0.2.{}/24 dev {interface}", number + 1);
        machine.run(move || ip(&address));
    }
    let forwarder = Forwarder::start(["g0", "g1"], options);
    let [left, right] = machines;
    echo(left, right, "192.0.2.2", &[0, 1, 18, 100, 1471, 1472]);
    transfer(left, right, "192.0.2.2");
    transfer(right, left, "192.0.2.1");
    forwarder.stop()
}

#[test]
fn connections_of_the_kernel_pass() {
    isolated("connections_of_the_kernel_pass", || {
        let seen = exchange(&two_machines(), ["p0", "p1"], &AfPacketOptions::default());
        assert!(seen.partial > 0 && seen.super_packets > 0 && seen.longest > 20_000, "{seen:?}");
        assert_eq!((seen.tagged, seen.unsent), (0, 0), "{seen:?}");
    });
}

#[test]
fn connections_pass_without_the_queueing_discipline() {
    isolated("connections_pass_without_the_queueing_discipline", || {
        let options = AfPacketOptions { qdisc_bypass: true, ..AfPacketOptions::default() };
        let seen = exchange(&two_machines(), ["p0", "p1"], &options);
        assert!(seen.super_packets > 0 && seen.unsent == 0, "{seen:?}");
    });
}

fn can_make_vlan_devices() -> bool {
    let arguments = "link add link g0 name probe type vlan id 7";
    Command::new("ip").args(arguments.split(' ')).output().unwrap().status.success()
}

#[test]
fn connections_over_a_vlan_pass() {
    isolated("connections_over_a_vlan_pass", || {
        let machines = two_machines();
        if !can_make_vlan_devices() {
            println!("SKIPPED: this kernel has no VLAN devices");
            return;
        }
        for (machine, interface) in machines.iter().zip(["p0", "p1"]) {
            machine.run(move || {
                ip(&format!("link add link {interface} name vlan7 type vlan id 7"));
                ip("link set vlan7 up");
            });
        }
        let seen = exchange(&machines, ["vlan7", "vlan7"], &AfPacketOptions::default());
        assert!(seen.partial > 0 && seen.tagged_super_packets > 0, "{seen:?}");
        assert_eq!(seen.super_packets, seen.tagged_super_packets);
        assert_eq!(seen.unsent, 0, "{seen:?}");
    });
}

/// A cable between interfaces `here` and `there`, on which only the test speaks.
fn cable() {
    for end in ["default", "all"] {
        // Without IPv6 the kernel sends nothing by itself.
        let file = format!("/proc/sys/net/ipv6/conf/{end}/disable_ipv6");
        std::fs::write(file, "1").ok();
    }
    ip("link add here type veth peer name there");
    ip("link set here up");
    ip("link set there up");
    wait_until_running("here");
}

fn open(interface: &str) -> Result<AfPacketPort, PortError> {
    AfPacketPort::open(interface, PortId(5), &AfPacketOptions::default())
}

/// A frame of an experimental EtherType with a number in it.
fn numbered(number: u32, length: usize, pool: &mut FramePool) -> Frame {
    let mut frame = pool.take(length).unwrap();
    let bytes = frame.bytes_mut();
    bytes.fill(0);
    bytes[..6].fill(0xff);
    bytes[6] = 2;
    bytes[12..14].copy_from_slice(&[0x88, 0xb5]);
    bytes[14..18].copy_from_slice(&number.to_be_bytes());
    frame
}

fn number(frame: &Frame) -> u32 {
    u32::from_be_bytes(frame.bytes()[14..18].try_into().unwrap())
}

/// Receives our frames until there are `expected` of them and no more come.
fn drain(
    queue: &mut dyn RxQueue,
    expected: usize,
    pool: &mut FramePool,
) -> Result<Vec<Frame>, PortError> {
    let (mut all, mut frames, mut waiter) = (Vec::new(), Vec::new(), Waiter::new());
    loop {
        while queue.receive(&mut frames, 64, pool)? > 0 {}
        all.extend(frames.drain(..).filter(|frame| frame.bytes()[12..14] == [0x88, 0xb5]));
        let silence = if all.len() < expected { PATIENCE } else { Duration::from_millis(20) };
        let handle = queue.wait_handle().unwrap();
        if waiter.wait([handle], Some(silence)).unwrap().is_empty() {
            return Ok(all);
        }
    }
}

/// A TCP super-packet in a UDP tunnel, as a packet socket receives it from VXLAN. The virtio header
/// describes the inner segments and not the tunnel.
fn super_packet_in_a_tunnel(pool: &mut FramePool) -> Frame {
    const OUTER: usize = 14 + 20 + 8 + 8;
    const INNER_TCP: usize = OUTER + 14 + 20;
    let mut bytes = vec![0; INNER_TCP + 20 + 4000];
    for (ethernet, protocol) in [(0, 17), (OUTER, 6)] {
        bytes[ethernet + 12..ethernet + 14].copy_from_slice(&[0x08, 0x00]);
        let length = (bytes.len() - ethernet - 14) as u16;
        bytes[ethernet + 14] = 0x45;
        bytes[ethernet + 16..ethernet + 18].copy_from_slice(&length.to_be_bytes());
        bytes[ethernet + 22..ethernet + 24].copy_from_slice(&[64, protocol]);
    }
    let udp = (bytes.len() - 34) as u16;
    bytes[36..40].copy_from_slice(&[0x12, 0xb5, udp.to_be_bytes()[0], udp.to_be_bytes()[1]]);
    bytes[INNER_TCP + 12] = 0x50;
    let mut frame = pool.copy_of(&bytes).unwrap();
    frame.offload.checksum = Checksum::Partial { start: INNER_TCP as u16, offset: 16 };
    frame.offload.segmentation =
        Some(Segmentation { kind: 1, segment_size: 1000, header_length: INNER_TCP as u16 + 20 });
    frame
}

#[test]
fn a_super_packet_that_can_not_be_cut_up_takes_no_other_with_it() {
    isolated("a_super_packet_that_can_not_be_cut_up_takes_no_other_with_it", || {
        cable();
        let (mut a, mut b, mut pool) =
            (open("here").unwrap(), open("there").unwrap(), FramePool::new(512, 8));
        let mut frames: Vec<_> = (0..10).map(|n| numbered(n, 60, &mut pool)).collect();
        frames.insert(4, super_packet_in_a_tunnel(&mut pool));
        let report = a.transmit[0].transmit(&mut frames, &mut pool).unwrap();
        assert_eq!((report.sent, report.refused_invalid, report.refused_full), (10, 1, 0));
        let received = drain(&mut b.receive[0], 10, &mut pool).unwrap();
        assert_eq!(received.iter().map(number).collect::<Vec<_>>(), (0..10).collect::<Vec<_>>());
    });
}

#[test]
fn frames_that_are_too_long_are_refused_and_the_rest_are_sent() {
    isolated("frames_that_are_too_long_are_refused_and_the_rest_are_sent", || {
        cable();
        let (mut a, mut b, mut pool) =
            (open("here").unwrap(), open("there").unwrap(), FramePool::new(512, 8));
        let mut frames: Vec<_> =
            (0..200).map(|n| numbered(n, if n % 10 == 3 { 3000 } else { 60 }, &mut pool)).collect();
        let mut short = pool.copy_of(&[0; 13]).unwrap();
        short.sequence = 1;
        frames.insert(100, short);
        let report = a.transmit[0].transmit(&mut frames, &mut pool).unwrap();
        assert!(frames.is_empty());
        assert_eq!((report.sent, report.sent_bytes), (180, 180 * 60));
        assert_eq!((report.refused_long, report.refused_invalid, report.refused_full), (20, 1, 0));
        let received = drain(&mut b.receive[0], 180, &mut pool).unwrap();
        let numbers: Vec<_> = received.iter().map(number).collect();
        assert_eq!(numbers, (0..200).filter(|n| n % 10 != 3).collect::<Vec<_>>());
        assert!(received.windows(2).all(|pair| pair[0].sequence < pair[1].sequence));
        assert!(received.iter().all(|frame| frame.port == PortId(5) && frame.len() == 60));
        assert!(
            drain(&mut a.receive[0], 0, &mut pool).unwrap().is_empty(),
            "own frames are not seen"
        );
    });
}

#[test]
fn a_jumbo_frame_keeps_its_bytes() {
    isolated("a_jumbo_frame_keeps_its_bytes", || {
        cable();
        ip("link set here mtu 9000");
        ip("link set there mtu 9000");
        let (mut a, mut b, mut pool) =
            (open("here").unwrap(), open("there").unwrap(), FramePool::new(8, 8));
        for length in [2043, 2044, 2045, 2048, 2049, 9014] {
            let mut frame = numbered(0, length, &mut pool);
            frame.bytes_mut()[18..].iter_mut().enumerate().for_each(|(n, byte)| *byte = n as u8);
            let expected = frame.bytes().to_vec();
            a.transmit[0].transmit(&mut vec![frame], &mut pool).unwrap();
            let received = drain(&mut b.receive[0], 1, &mut pool).unwrap();
            assert_eq!(received.len(), 1);
            assert_eq!(received[0].bytes(), expected);
        }
    });
}

/// The receiving side of the kernel takes the tag off and passes it beside the frame. It has to be
/// put back, and everything that points into the frame behind it has to move.
#[test]
fn a_vlan_tag_is_put_back() {
    isolated("a_vlan_tag_is_put_back", || {
        cable();
        let (mut a, mut b) = (open("here").unwrap(), open("there").unwrap());
        let mut pool = FramePool::new(8, 8);
        let segmentation = Segmentation { kind: 1, segment_size: 1440, header_length: 58 };
        let partial = Checksum::Partial { start: 38, offset: 16 };
        for (tags, length, offload) in [
            ([0x81, 0, 0xa0, 7, 8, 0, 0x45, 0], 64, Offload::default()),
            ([0x81, 0, 0x0f, 0xff, 8, 0, 0x45, 0], 1518, Offload::default()),
            // Tags that only carry a priority, also several.
            ([0x81, 0, 0, 0, 8, 0, 0x45, 0], 64, Offload::default()),
            ([0x88, 0xa8, 0xe0, 0, 0x81, 0, 0, 0], 64, Offload::default()),
            // The kernel sends these only up to the length of an untagged frame.
            ([0x88, 0xa8, 0, 1, 0x81, 0, 0, 2], 1514, Offload::default()),
            (
                [0x81, 0, 0, 7, 8, 0, 0x45, 0],
                1000,
                Offload { checksum: partial, segmentation: None },
            ),
            (
                [0x81, 0, 0, 7, 8, 0, 0x45, 0],
                60_000,
                Offload { checksum: partial, segmentation: Some(segmentation) },
            ),
        ] {
            let mut frame = numbered(0, length, &mut pool);
            let bytes = frame.bytes_mut();
            bytes[18..].iter_mut().enumerate().for_each(|(n, byte)| *byte = n as u8);
            bytes[12..20].copy_from_slice(&tags);
            // Lengths and protocol of IPv4, and the header length of TCP.
            bytes[20..22].copy_from_slice(&((length - 18) as u16).to_be_bytes());
            (bytes[27], bytes[50]) = (6, 0x50);
            frame.offload = offload;
            let expected = bytes_of(&frame);
            let report = a.transmit[0].transmit(&mut vec![frame], &mut pool).unwrap();
            assert_eq!(report.sent, 1, "{tags:x?}");
            let handle = b.receive[0].wait_handle().unwrap();
            assert!(!Waiter::new().wait([handle], Some(PATIENCE)).unwrap().is_empty());
            let mut frames = Vec::new();
            assert_eq!(b.receive[0].receive(&mut frames, 64, &mut pool).unwrap(), 1);
            assert!(bytes_of(&frames[0]) == expected, "{tags:x?} {length}");
            assert_eq!(frames[0].offload, offload);
        }
    });
}

fn bytes_of(frame: &Frame) -> Vec<u8> {
    frame.bytes().to_vec()
}

#[test]
fn an_interface_that_goes_is_reported_and_can_come_back() {
    isolated("an_interface_that_goes_is_reported_and_can_come_back", || {
        let mut pool = FramePool::new(8, 8);
        let is_gone = |error: Option<PortError>| matches!(error, Some(PortError::Gone { .. }));
        for how in ["link delete here", "link set here down"] {
            cable();
            let mut a = open("here").unwrap();
            assert!(drain(&mut a.receive[0], 0, &mut pool).unwrap().is_empty());
            ip(how);
            let handle = a.receive[0].wait_handle().unwrap();
            assert!(Waiter::new().wait([handle], Some(PATIENCE)).unwrap().contains(0));
            for _ in 0..2 {
                assert!(is_gone(drain(&mut a.receive[0], 0, &mut pool).err()), "{how}");
                let mut frames = vec![numbered(0, 60, &mut pool)];
                assert!(is_gone(a.transmit[0].transmit(&mut frames, &mut pool).err()), "{how}");
                assert!(frames.is_empty());
            }
        }
        assert!(is_gone(open("here").err()), "it is down");
        let state = link_named("here").unwrap().unwrap();
        assert!(!state.up && state.mtu == 1500 && state.mac != [0; 6]);
        ip("link set here up");
        wait_until_running("there");
        let (mut a, mut b) = (open("here").unwrap(), open("there").unwrap());
        assert_eq!(a.index, state.index);
        b.transmit[0].transmit(&mut vec![numbered(7, 60, &mut pool)], &mut pool).unwrap();
        assert_eq!(number(&drain(&mut a.receive[0], 1, &mut pool).unwrap()[0]), 7);
        ip("link delete here");
        assert!(matches!(open("here"), Err(PortError::NoInterface { .. })));
        assert_eq!(link_named("here").unwrap(), None);
    });
}

/// Takes all capabilities from the calling thread.
fn drop_capabilities() {
    // Header of version 3 for the calling thread, and no capability at all.
    let (header, none) = ([0x2008_0522_u32, 0], [0_u32; 6]);
    // SAFETY: the kernel reads the 8 bytes of `header` and 24 of `none`.
    let result = unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr()) };
    assert_eq!(result, 0);
}

#[test]
fn without_permission_it_says_so() {
    isolated("without_permission_it_says_so", || {
        cable();
        drop_capabilities();
        assert!(matches!(open("here"), Err(PortError::NoPermission { .. })));
    });
}

#[test]
fn fanout_gives_each_flow_to_one_queue() {
    isolated("fanout_gives_each_flow_to_one_queue", || {
        cable();
        let options = AfPacketOptions { receive_queues: 2, ..AfPacketOptions::default() };
        let mut a = AfPacketPort::open("here", PortId(0), &options).unwrap();
        let (mut b, mut pool) = (open("there").unwrap(), FramePool::new(512, 8));
        // UDP, each flow in both directions, three times over.
        for round in 0..3 {
            let mut frames: Vec<_> =
                (0..64).map(|n| datagram(n / 2, n % 2 == 1, &mut pool)).collect();
            assert_eq!(b.transmit[0].transmit(&mut frames, &mut pool).unwrap().sent, 64, "{round}");
        }
        let mut counts = [[0_u32; 32]; 2];
        let start = Instant::now();
        while counts.as_flattened().iter().sum::<u32>() < 192 && start.elapsed() < PATIENCE {
            for (queue, counts) in a.receive.iter_mut().zip(&mut counts) {
                let mut frames = Vec::new();
                queue.receive(&mut frames, 64, &mut pool).unwrap();
                for frame in frames.iter().filter(|frame| frame.bytes()[23] == 17) {
                    let mut ports = frame.bytes()[34..38].iter();
                    let flow = ports.find(|&&byte| byte >= 0x80).unwrap() - 0x80;
                    counts[usize::from(flow)] += 1;
                }
            }
        }
        for (flow, seen) in counts[0].iter().zip(counts[1]).enumerate() {
            let seen = [*seen.0, seen.1];
            assert!(seen == [6, 0] || seen == [0, 6], "flow {flow}: {seen:?}");
        }
        assert!(counts.iter().all(|counts| counts.contains(&6)), "both queues have work");
    });
}

/// A UDP packet without checksum between port 1 and a port of the flow.
fn datagram(flow: u8, reply: bool, pool: &mut FramePool) -> Frame {
    let mut frame = numbered(0, 60, pool);
    let bytes = frame.bytes_mut();
    bytes[12..14].copy_from_slice(&[8, 0]);
    bytes[14..24].copy_from_slice(&[0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17]);
    let (client, server) = ([192, 0, 2, 1], [192, 0, 2, 2]);
    let (client_port, server_port) = ([0x80 + flow, 0], [0, 1]);
    let ends = if reply { [server, client] } else { [client, server] };
    bytes[26..34].copy_from_slice(ends.as_flattened());
    let ports = if reply { [server_port, client_port] } else { [client_port, server_port] };
    bytes[34..38].copy_from_slice(ports.as_flattened());
    bytes[38..40].copy_from_slice(&[0, 26]);
    frame
}

/// Short frames lie in the ring, long ones in the queue beside it.
#[test]
fn short_and_long_frames_keep_their_order() {
    isolated("short_and_long_frames_keep_their_order", || {
        cable();
        ip("link set here mtu 9000");
        ip("link set there mtu 9000");
        let (mut a, mut pool) = (open("here").unwrap(), FramePool::new(64, 64));
        // The smallest ring, so that it turns many times.
        let options =
            AfPacketOptions { receive_buffer_bytes: 65_536, ..AfPacketOptions::default() };
        let mut b = AfPacketPort::open("there", PortId(0), &options).unwrap();
        let lengths = [60, 5000, 61, 1958, 1959, 2048, 1514];
        let mut sequence = None;
        for start in (0..1000).step_by(10) {
            let mut frames: Vec<_> = (start..start + 10)
                .map(|n| numbered(n, lengths[n as usize % lengths.len()], &mut pool))
                .collect();
            frames.iter_mut().for_each(|frame| frame.bytes_mut()[20..].fill(0xa5));
            let expected: Vec<_> = frames.iter().map(bytes_of).collect();
            assert_eq!(a.transmit[0].transmit(&mut frames, &mut pool).unwrap().sent, 10);
            let received = drain(&mut b.receive[0], 10, &mut pool).unwrap();
            assert!(received.iter().map(bytes_of).eq(expected), "{start}");
            for frame in received {
                assert!(sequence < Some(frame.sequence));
                sequence = Some(frame.sequence);
                pool.give_back(frame);
            }
        }
        assert_eq!(b.receive[0].take_lost(), 0);
    });
}

/// The receiver reads long after the kernel has used the slots of the ring again.
#[test]
fn frames_sent_from_the_ring_keep_their_bytes() {
    isolated("frames_sent_from_the_ring_keep_their_bytes", || {
        const COUNT: usize = 150;
        let machine = Machine::new();
        machine.connect("g0", "p0");
        let (socket, mac) = machine.run(|| {
            ip("addr add 192.0.2.2/24 dev p0");
            let socket = UdpSocket::bind("192.0.2.2:4002").unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            (socket, link_named("p0").unwrap().unwrap().mac)
        });
        let mut port = open("g0").unwrap();
        assert!(port.granted.transmit_ring);
        let packet = PacketBuilder::v4([192, 0, 2, 1], [192, 0, 2, 2]).macs([2; 6], mac);
        let payload = |n: usize| vec![n as u8; 1 + n];
        let (mut pool, mut bytes) = (FramePool::new(64, 0), Vec::new());
        for batch in (0..COUNT).collect::<Vec<_>>().chunks(50) {
            let mut frames = Vec::new();
            for &n in batch {
                bytes.clear();
                packet.udp(4001, 4002, &payload(n), &mut bytes);
                frames.extend(pool.copy_of(&bytes));
            }
            let report = port.transmit[0].transmit(&mut frames, &mut pool).unwrap();
            assert_eq!(report.sent, 50);
        }
        machine.run(move || {
            let mut buffer = [0; 2048];
            for n in 0..COUNT {
                let length = socket.recv(&mut buffer).unwrap();
                assert!(buffer[..length] == payload(n), "datagram {n}");
            }
        });
    });
}

#[test]
fn frames_that_came_before_an_interface_went_are_delivered() {
    isolated("frames_that_came_before_an_interface_went_are_delivered", || {
        cable();
        let (mut a, mut b, mut pool) =
            (open("here").unwrap(), open("there").unwrap(), FramePool::new(16, 8));
        let mut frames: Vec<_> = (0..5).map(|n| numbered(n, 60, &mut pool)).collect();
        assert_eq!(b.transmit[0].transmit(&mut frames, &mut pool).unwrap().sent, 5);
        ip("link delete here");
        let (mut received, mut error) = (Vec::new(), None);
        let start = Instant::now();
        while error.is_none() && start.elapsed() < PATIENCE {
            error = a.receive[0].receive(&mut received, 2, &mut pool).err();
        }
        assert!(matches!(error, Some(PortError::Gone { .. })), "{error:?}");
        assert_eq!(received.iter().map(number).collect::<Vec<_>>(), (0..5).collect::<Vec<_>>());
    });
}

#[test]
fn losses_are_counted() {
    isolated("losses_are_counted", || {
        cable();
        ip("link set here mtu 9000");
        ip("link set there mtu 9000");
        let options =
            AfPacketOptions { receive_buffer_bytes: 65_536, ..AfPacketOptions::default() };
        let mut pool = FramePool::new(1024, 64);
        // Too many frames for the ring, and too long ones for the queue beside it.
        for (length, batches, batch) in [(60, 16, 64), (9000, 1, 31)] {
            let mut b = AfPacketPort::open("there", PortId(0), &options).unwrap();
            let mut a = open("here").unwrap();
            let mut sent = 0;
            for _ in 0..batches {
                let mut frames: Vec<_> =
                    (0..batch).map(|n| numbered(n, length, &mut pool)).collect();
                sent += a.transmit[0].transmit(&mut frames, &mut pool).unwrap().sent;
            }
            let (mut received, mut lost) = (0, 0);
            let start = Instant::now();
            while received + lost < sent && start.elapsed() < PATIENCE {
                received += drain(&mut b.receive[0], 0, &mut pool).unwrap().len() as u64;
                lost += b.receive[0].take_lost();
            }
            assert!(received > 0 && lost > 0, "{length}: {received} {lost}");
            assert_eq!((sent, received + lost), (u64::from(batches * batch), sent));
            assert_eq!(b.receive[0].take_lost(), 0);
        }
    });
}
