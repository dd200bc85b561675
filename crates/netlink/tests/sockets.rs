//! The sockets of a network namespace, as the kernel tells of them.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "only tests call these functions")]

// All tests that need a namespace of their own share this file.
#[path = "../../netio/tests/afpacket/namespace.rs"]
mod namespace;

use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;

use namespace::isolated;
use netlink::{Ends, LinkId, Receiver, SocketProtocol, Sockets};

const PROTOCOLS: [SocketProtocol; 2] = [SocketProtocol::Tcp, SocketProtocol::Udp];
const LOOPBACKS: [&str; 2] = ["127.0.0.1", "::1"];
const REMOTE_PORT: u16 = 40_000;

fn address(ip: &str, port: u16) -> SocketAddr {
    SocketAddr::new(ip.parse().unwrap(), port)
}

/// A packet from one loopback address to another.
fn from_to(protocol: SocketProtocol, source: SocketAddr, destination: SocketAddr) -> Ends {
    Ends { protocol, source, destination, link: LinkId(1) }
}

/// The sockets of the namespace. They can be asked for before its loopback interface is set up.
fn sockets() -> Sockets {
    Sockets::new().unwrap();
    let up = Command::new("ip").args(["link", "set", "lo", "up"]).status().unwrap();
    assert!(up.success());
    Sockets::new().unwrap()
}

/// Whether a socket waits for a packet from elsewhere: one of TCP over IPv4, one of UDP, and the same over
/// IPv6.
fn waits(sockets: &mut Sockets, port: u16) -> [bool; 4] {
    let mut answers =
        LOOPBACKS.iter().flat_map(|ip| PROTOCOLS.map(|it| (ip, it))).map(|(ip, protocol)| {
            let ends = from_to(protocol, address(ip, REMOTE_PORT), address(ip, port));
            sockets.receiver(&ends).unwrap() == Receiver::Waiting
        });
    std::array::from_fn(|_| answers.next().unwrap())
}

#[test]
fn a_packet_for_anybody_finds_the_socket_that_would_get_it() {
    isolated("a_packet_for_anybody_finds_the_socket_that_would_get_it", || {
        let mut sockets = sockets();
        assert_eq!(waits(&mut sockets, 5000), [false; 4]);
        let tcp = TcpListener::bind("127.0.0.1:5000").unwrap();
        assert_eq!(waits(&mut sockets, 5000), [true, false, false, false]);
        let udp = UdpSocket::bind("0.0.0.0:5000").unwrap();
        assert_eq!(waits(&mut sockets, 5000), [true, true, false, false]);
        drop((tcp, udp));
        assert_eq!(waits(&mut sockets, 5000), [false; 4]);
        // Sockets of both families.
        let both = (TcpListener::bind("[::]:5000").unwrap(), UdpSocket::bind("[::]:5000").unwrap());
        assert_eq!(waits(&mut sockets, 5000), [true; 4]);
        assert_eq!(waits(&mut sockets, 5001), [false; 4]);
        drop(both);
        std::fs::write("/proc/sys/net/ipv6/bindv6only", "1").unwrap();
        let _one = (TcpListener::bind("[::]:5000").unwrap(), UdpSocket::bind("[::]:5000").unwrap());
        assert_eq!(waits(&mut sockets, 5000), [false, false, true, true]);
    });
}

#[test]
fn a_connected_socket_gets_the_packets_of_its_other_end_alone() {
    isolated("a_connected_socket_gets_the_packets_of_its_other_end_alone", || {
        let mut sockets = sockets();
        for ip in LOOPBACKS {
            let udp = UdpSocket::bind(address(ip, 6000)).unwrap();
            udp.connect(address(ip, 7000)).unwrap();
            let listener = TcpListener::bind(address(ip, 7000)).unwrap();
            let near = TcpStream::connect(address(ip, 7000)).unwrap();
            let far = listener.accept().unwrap().0;
            drop(listener);
            let (here, there) = (far.local_addr().unwrap(), near.local_addr().unwrap());
            let ends = [
                (from_to(SocketProtocol::Udp, address(ip, 7000), address(ip, 6000)), true),
                (from_to(SocketProtocol::Udp, address(ip, 7001), address(ip, 6000)), false),
                (from_to(SocketProtocol::Udp, address(ip, 6000), address(ip, 7000)), false),
                (from_to(SocketProtocol::Tcp, there, here), true),
                (from_to(SocketProtocol::Tcp, here, there), true),
                (from_to(SocketProtocol::Tcp, address(ip, 9), here), false),
            ];
            for (ends, expected) in ends {
                let expected = if expected { Receiver::Connected } else { Receiver::Nobody };
                assert_eq!(sockets.receiver(&ends).unwrap(), expected, "{ends:?}");
            }
        }
    });
}

#[test]
fn a_socket_of_one_interface_gets_no_packets_of_another() {
    const BOUND: &str = "
import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b'lo')
s.bind(('0.0.0.0', 8000))
print('bound', flush=True)
sys.stdin.read()";
    isolated("a_socket_of_one_interface_gets_no_packets_of_another", || {
        let mut sockets = sockets();
        use std::io::{BufRead, BufReader};
        use std::process::Stdio;
        let mut bound = Command::new("python3")
            .args(["-c", BOUND])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(bound.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "bound\n");
        let (source, destination) = (address("192.0.2.1", 9), address("127.0.0.1", 8000));
        for (link, expected) in [(1, Receiver::Waiting), (2, Receiver::Nobody)] {
            let link = LinkId(link);
            let ends = Ends { protocol: SocketProtocol::Udp, source, destination, link };
            assert_eq!(sockets.receiver(&ends).unwrap(), expected, "{link:?}");
        }
        drop(bound.stdin.take());
        assert!(bound.wait().unwrap().success());
    });
}
