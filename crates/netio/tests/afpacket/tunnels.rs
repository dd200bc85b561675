//! Packets inside tunnels whose checksums and segmentation were left to a network card. The kernel
//! does not take them as they are.

use std::fs::File;
use std::io::Write;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::time::Instant;

use netio::afpacket::AfPacketOptions;
use netio::{Checksum, Frame, FramePool, Offload, RxQueue, Segmentation, TxQueue, Waiter};
use wire::build::{PacketBuilder, Tcp};
use wire::{TcpFlags, dissect};

use crate::forwarder::{Forwarder, Seen};
use crate::machine::{Machine, ip};
use crate::namespace::isolated;
use crate::{PATIENCE, cable, drain, echo, number, numbered, open, transfer, two_machines};

/// Bytes of IPv4, UDP and VXLAN headers with the link header inside.
const OUTER: usize = 14 + 20 + 8 + 8;
const INNER_TCP: usize = OUTER + 14 + 20;

/// TCP with 4000 bytes in a VXLAN tunnel, with a partial checksum as the virtio header describes
/// it.
fn in_a_tunnel(segment_size: Option<u16>, pool: &mut FramePool) -> Frame {
    let (mut inner, mut bytes) = (Vec::new(), Vec::new());
    let flags = TcpFlags::ACK.with(TcpFlags::PSH);
    let tcp = Tcp { sequence: 1, flags, ..Tcp::default() };
    let length = if segment_size.is_some() { 4000 } else { 1000 };
    PacketBuilder::v4([192, 0, 2, 1], [192, 0, 2, 2]).tcp(&tcp, &vec![7; length], &mut inner);
    // TCP over zeros sums up to the complement of the pseudo header's sum.
    let mut zeros = inner.clone();
    zeros[34..].fill(0);
    let network = dissect(&inner).unwrap().network.unwrap();
    wire::checksum::fill_transport(&mut zeros, &network);
    let pseudo = !u16::from_be_bytes([zeros[50], zeros[51]]);
    let content = [&[8, 0, 0, 0, 0, 0, 7, 0], &inner[..]].concat();
    PacketBuilder::v4([198, 51, 100, 1], [198, 51, 100, 2]).udp(4789, 4789, &content, &mut bytes);
    // The outer checksum is right once the inner one is complete.
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
    let outer = dissect(frame.bytes()).unwrap().network.unwrap();
    assert!(wire::checksum::verify_transport(frame.bytes(), &outer), "outer checksum");
    let inner = &frame.bytes()[OUTER..];
    let network = dissect(inner).unwrap().network.unwrap();
    assert!(wire::checksum::verify_transport(inner, &network), "inner checksum");
    let wire::Transport::Tcp(tcp) = network.transport else { panic!("{network:?}") };
    (tcp.sequence, frame.len() - INNER_TCP - 20)
}

#[test]
fn offloads_inside_a_tunnel_are_carried_out_in_order() {
    isolated("tunnels::offloads_inside_a_tunnel_are_carried_out_in_order", || {
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
        // Segments that are longer than the interface allows, an unknown kind, and no size.
        let mut frames: Vec<_> =
            [1500, 1000, 0].map(|size| in_a_tunnel(Some(size), &mut pool)).into();
        frames[1].offload.segmentation.as_mut().unwrap().kind = 3;
        frames.push(in_a_tunnel(Some(1), &mut pool));
        let report = a.transmit[0].transmit(&mut frames, &mut pool).unwrap();
        assert_eq!((report.sent, report.refused_long, report.refused_invalid), (1, 1, 2));
        assert_eq!(report.sent_bytes as usize, INNER_TCP + 20 + 4000);
    });
}

/// Runs transfers both ways through a forwarder, over the tunnel devices of the machines.
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
                client.as_raw_fd(),
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

/// Switches an offload; false if ethtool(8) or the interface can not do so.
fn ethtool(arguments: &str) -> bool {
    let output = Command::new("ethtool").args(arguments.split_whitespace()).output();
    output.is_ok_and(|output| output.status.success())
}

/// An interface that merges datagrams for forwarding makes such super-packets: each datagram has a
/// checksum of its own, and the kernel takes no such super-packet back.
#[test]
fn datagrams_that_were_merged_on_receipt_pass() {
    isolated("tunnels::datagrams_that_were_merged_on_receipt_pass", || {
        let machines = two_machines();
        for (number, machine) in machines.iter().enumerate() {
            machine.run(move || ip(&format!("addr add 192.0.2.{}/24 dev p{number}", number + 1)));
        }
        let [left, right] = &machines;
        let cut = left.run(|| ethtool("-K p0 tx off tx-udp-segmentation off"));
        if !cut || !ethtool("-K g0 gro on rx-gro-list on") {
            println!("SKIPPED: ethtool(8) or the kernel can not merge datagrams of a veth");
            return;
        }
        let forwarder = Forwarder::start(["g0", "g1"], &AfPacketOptions::default());
        datagrams(left, right);
        let seen = forwarder.stop();
        assert!(seen.longest > 2000, "nothing was merged: {seen:?}");
        assert_eq!(seen.unsent, 0, "{seen:?}");
    });
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

/// Writes a frame with a virtio header into a TAP interface, as a virtual machine does.
fn into_tap(tap: &mut File, virtio: [u8; 10], frame: &Frame) {
    tap.write_all(&[&virtio, frame.bytes()].concat()).unwrap();
}

fn open_tap(name: &str) -> File {
    let tap = File::options().read(true).write(true).open("/dev/net/tun").unwrap();
    // SAFETY: zero is a valid value of every field.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    // SAFETY: the kernel reads and writes one `ifreq` at the address of one.
    let result = unsafe { libc::ioctl(tap.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    tap
}

/// The kernel can not pass the packet on, and the queue goes on behind it.
#[test]
fn a_super_packet_that_can_not_be_described_is_counted() {
    isolated("tunnels::a_super_packet_that_can_not_be_described_is_counted", || {
        if File::open("/dev/net/tun").is_err() {
            println!("SKIPPED: there is no /dev/net/tun");
            return;
        }
        cable();
        let (mut tap, mut pool) = (open_tap("tap0"), FramePool::new(8, 8));
        ip("link set tap0 up");
        let mut port = open("tap0").unwrap();
        let mut bytes = Vec::new();
        PacketBuilder::v4([192, 0, 2, 1], [192, 0, 2, 2]).udp(7, 9, &[5; 4000], &mut bytes);
        let fragmented = pool.copy_of(&bytes).unwrap();
        // Flags, kind 3 (a datagram to be cut into fragments), header length, size, start of the
        // checksum and its offset.
        let ufo = [1, 3, 42, 0, 200, 5, 34, 0, 6, 0];
        into_tap(&mut tap, ufo, &fragmented);
        // The ring gets stuck at this packet. The queue has to notice and go on without it.
        let (mut frames, start) = (Vec::new(), Instant::now());
        while frames.is_empty() && start.elapsed() < PATIENCE {
            into_tap(&mut tap, [0; 10], &numbered(0, 60, &mut pool));
            for _ in 0..64 {
                port.receive[0].receive(&mut frames, 64, &mut pool).unwrap();
            }
        }
        assert!(port.receive[0].take_lost() > 0);
        // From then on nothing else is lost.
        into_tap(&mut tap, [0; 10], &numbered(1, 60, &mut pool));
        into_tap(&mut tap, ufo, &fragmented);
        into_tap(&mut tap, [0; 10], &numbered(2, 60, &mut pool));
        let received = drain(&mut port.receive[0], 2, &mut pool).unwrap();
        assert_eq!(received.iter().map(number).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(port.receive[0].take_lost(), 1);
    });
}
