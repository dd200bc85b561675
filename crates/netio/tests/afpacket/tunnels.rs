//! Packets inside tunnels whose checksums and segmentation were left to a network
//! card: the kernel does not take them as they are.

use std::net::UdpSocket;
use std::process::Command;

use netio::afpacket::AfPacketOptions;
use netio::{Checksum, Frame, FramePool, Offload, RxQueue, Segmentation, TxQueue, Waiter};
use wire::build::{PacketBuilder, Tcp};
use wire::{TcpFlags, Tunnels, dissect};

use crate::forwarder::{Forwarder, Seen};
use crate::machine::{Machine, ip};
use crate::namespace::isolated;
use crate::{PATIENCE, cable, echo, number, numbered, open, transfer, two_machines};

/// Bytes of IPv4, UDP and VXLAN headers with the link header inside.
const OUTER: usize = 14 + 20 + 8 + 8;
const INNER_TCP: usize = OUTER + 14 + 20;

/// TCP with 4000 bytes in a VXLAN tunnel; a partial checksum, as the virtio header
/// tells of it.
fn in_a_tunnel(segment_size: Option<u16>, pool: &mut FramePool) -> Frame {
    let (mut inner, mut bytes) = (Vec::new(), Vec::new());
    let flags = TcpFlags::ACK.with(TcpFlags::PSH);
    let tcp = Tcp { sequence: 1, flags, ..Tcp::default() };
    let length = if segment_size.is_some() { 4000 } else { 1000 };
    PacketBuilder::v4([192, 0, 2, 1], [192, 0, 2, 2]).tcp(&tcp, &vec![7; length], &mut inner);
    // TCP over zeros sums up to the complement of the pseudo header's sum.
    let mut zeros = inner.clone();
    zeros[34..].fill(0);
    let network = dissect(&inner, Tunnels::Outer).unwrap().network.unwrap();
    wire::checksum::fill_transport(&mut zeros, &network);
    let pseudo = !u16::from_be_bytes([zeros[50], zeros[51]]);
    let content = [&[8, 0, 0, 0, 0, 0, 7, 0], &inner[..]].concat();
    PacketBuilder::v4([198, 51, 100, 1], [198, 51, 100, 2]).udp(4789, 4789, &content, &mut bytes);
    // The outer checksum counts on the inner one being completed.
    bytes[INNER_TCP + 16..INNER_TCP + 18].copy_from_slice(&pseudo.to_be_bytes());
    let mut frame = pool.copy_of(&bytes).unwrap();
    frame.offload = Offload {
        checksum: Checksum::Partial { start: INNER_TCP as u16, offset: 16 },
        segmentation: segment_size.map(|segment_size| Segmentation {
            kind: 1,
            segment_size,
            header_length: INNER_TCP as u16 + 20,
        }),
    };
    frame
}

fn sequence_and_length(frame: &Frame) -> (u32, usize) {
    let outer = dissect(frame.bytes(), Tunnels::Outer).unwrap().network.unwrap();
    assert!(wire::checksum::verify_transport(frame.bytes(), &outer), "outer checksum");
    let inner = &frame.bytes()[OUTER..];
    let network = dissect(inner, Tunnels::Outer).unwrap().network.unwrap();
    assert!(wire::checksum::verify_transport(inner, &network), "inner checksum");
    let wire::Transport::Tcp(tcp) = network.transport else { panic!("{network:?}") };
    (tcp.sequence, frame.len() - INNER_TCP - 20)
}

#[test]
fn what_is_left_to_do_in_a_tunnel_is_done_in_order() {
    isolated("tunnels::what_is_left_to_do_in_a_tunnel_is_done_in_order", || {
        cable();
        let (mut a, mut b, mut pool) =
            (open("here").unwrap(), open("there").unwrap(), FramePool::new(512, 8));
        let mut frames: Vec<_> = (0..10).map(|n| numbered(n, 60, &mut pool)).collect();
        frames.insert(6, in_a_tunnel(None, &mut pool));
        frames.insert(4, in_a_tunnel(Some(1100), &mut pool));
        let bytes: usize = frames.iter().map(Frame::len).sum();
        let report = a.transmit[0].transmit(&mut frames, &mut pool).unwrap();
        assert_eq!((report.sent, report.sent_bytes), (12, bytes as u64));
        assert_eq!((report.refused_invalid, report.refused_long, report.refused_full), (0, 0, 0));
        let mut received = Vec::new();
        while received.len() < 15 {
            let handle = b.receive[0].wait_handle().unwrap();
            assert!(!Waiter::new().wait([handle], Some(PATIENCE)).unwrap().is_empty());
            b.receive[0].receive(&mut received, 64, &mut pool).unwrap();
        }
        assert!(received.iter().all(|frame| frame.offload == Offload::default()));
        let seen: Vec<_> = received
            .iter()
            .map(|frame| match frame.bytes()[12] {
                0x88 => Err(number(frame)),
                _ => Ok(sequence_and_length(frame)),
            })
            .collect();
        let mut expected: Vec<_> = (0..10).map(Err).collect();
        expected.insert(6, Ok((1, 1000)));
        let segments = [(1, 1100), (1101, 1100), (2201, 1100), (3301, 700)];
        expected.splice(4..4, segments.map(Ok));
        assert_eq!(seen, expected);
    });
}

#[test]
fn a_super_packet_counts_once_also_when_it_is_refused() {
    isolated("tunnels::a_super_packet_counts_once_also_when_it_is_refused", || {
        cable();
        let (mut a, mut pool) = (open("here").unwrap(), FramePool::new(512, 8));
        // Segments longer than the interface takes, a kind that is none, no size.
        let mut frames: Vec<_> =
            [1500, 1000, 0].map(|size| in_a_tunnel(Some(size), &mut pool)).into();
        frames[1].offload.segmentation.as_mut().unwrap().kind = 3;
        frames.push(in_a_tunnel(Some(1), &mut pool));
        let report = a.transmit[0].transmit(&mut frames, &mut pool).unwrap();
        assert_eq!((report.sent, report.refused_long, report.refused_invalid), (1, 1, 2));
        assert_eq!(report.sent_bytes as usize, INNER_TCP + 20 + 4000);
    });
}

/// Both ways through a forwarder, over devices that `make` has added.
fn exchange(machines: &[Machine; 2]) -> Seen {
    for (number, machine) in machines.iter().enumerate() {
        machine.run(move || {
            ip(&format!("addr add 192.0.2.{}/24 dev tunnel", number + 1));
            ip("link set tunnel up");
        });
    }
    let forwarder = Forwarder::start(["g0", "g1"], &AfPacketOptions::default());
    let [left, right] = machines;
    echo(left, right, "192.0.2.2", &[0, 1, 18, 100, 1400]);
    transfer(left, right, "192.0.2.2");
    transfer(right, left, "192.0.2.1");
    datagrams(left, right);
    forwarder.stop()
}

/// Sends datagrams that are cut out of one super-packet (UDP_SEGMENT, udp(7)).
fn datagrams(from: &Machine, to: &Machine) {
    const SIZE: libc::c_int = 1000;
    let server = to.run(|| UdpSocket::bind("192.0.2.2:4002").unwrap());
    let received = to.start(move || {
        server.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut buffer = [0; 2048];
        let mut receive = |_| server.recv(&mut buffer).map(|length| buffer[..length].to_vec());
        (0..31).map(|n| receive(n).unwrap()).collect::<Vec<_>>()
    });
    let sent: Vec<u8> = (0..30_500).map(|n| (n / 7) as u8).collect();
    let expected: Vec<_> = sent.chunks(SIZE as usize).map(<[u8]>::to_vec).collect();
    from.run(move || {
        let client = UdpSocket::bind("0.0.0.0:0").unwrap();
        // SAFETY: the kernel reads an integer at the address of one.
        let result = unsafe {
            libc::setsockopt(
                std::os::fd::AsRawFd::as_raw_fd(&client),
                libc::SOL_UDP,
                libc::UDP_SEGMENT,
                std::ptr::from_ref(&SIZE).cast(),
                size_of_val(&SIZE) as libc::socklen_t,
            )
        };
        assert_eq!(result, 0);
        client.send_to(&sent, "192.0.2.2:4002").unwrap();
    });
    assert!(received.recv().unwrap() == expected);
}

fn can_make(device: &str) -> bool {
    let arguments = format!("link add probe type {device}");
    let output = Command::new("ip").args(arguments.split_whitespace()).output().unwrap();
    output.status.success() && Command::new("ip").args(["link", "del", "probe"]).status().is_ok()
}

#[test]
fn connections_in_tunnels_of_the_kernel_pass() {
    isolated("tunnels::connections_in_tunnels_of_the_kernel_pass", || {
        for (device, v6) in [
            ("vxlan id 7 dstport 4789 udpcsum", false),
            ("vxlan id 7 dstport 4789", true),
            ("geneve id 7", false),
            ("gretap", false),
            ("gre", false),
            ("ipip", false),
        ] {
            let addresses =
                if v6 { ["2001:db8::1", "2001:db8::2"] } else { ["198.51.100.1", "198.51.100.2"] };
            let ends = |local: &str, remote: &str| match device {
                "geneve id 7" => format!("{device} remote {remote}"),
                _ => format!("{device} local {local} remote {remote}"),
            };
            if !can_make(&ends(addresses[0], addresses[1])) {
                println!("SKIPPED: this kernel has no {device}");
                continue;
            }
            let machines = two_machines();
            for (number, machine) in machines.iter().enumerate() {
                let (local, remote) = (addresses[number], addresses[1 - number]);
                let prefix = if v6 { "64 nodad" } else { "24" };
                let address = format!("addr add {local}/{prefix} dev p{number}");
                let add = format!("link add tunnel type {}", ends(local, remote));
                machine.run(move || [address, add].iter().for_each(|command| ip(command)));
            }
            let seen = exchange(&machines);
            assert!(seen.longest > 20_000, "{device}: {seen:?}");
            assert_eq!(seen.unsent, 0, "{device}: {seen:?}");
            for port in ["g0", "g1"] {
                ip(&format!("link del {port}"));
            }
        }
    });
}
