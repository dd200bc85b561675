//! The connections that the kernel tracks in a network namespace.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "only tests call these functions")]

// All tests that need a namespace of their own share this file.
#[path = "../../netio/tests/afpacket/namespace.rs"]
mod namespace;

use std::net::{SocketAddr, UdpSocket};
use std::process::Command;

use namespace::isolated;
use netlink::{Ends, LinkId, SocketProtocol, Tracked};

/// Has the kernel track both families, and translate the source of what is sent to one port.
const RULES: &str = "table inet t { chain out { type nat hook postrouting priority 100; \
                     ct state invalid drop; \
                     udp dport 5001 meta nfproto ipv4 snat to 127.0.0.9:6000; }; }";

fn run(program: &str, arguments: &[&str]) {
    assert!(Command::new(program).args(arguments).status().unwrap().success(), "{program}");
}

#[test]
fn a_packet_of_a_connection_of_the_kernel_is_found_by_its_ends() {
    isolated("a_packet_of_a_connection_of_the_kernel_is_found_by_its_ends", || {
        run("ip", &["link", "set", "lo", "up"]);
        run("nft", &[RULES]);
        let mut tracked = Tracked::new().unwrap();
        let has = |tracked: &mut Tracked, protocol, source: SocketAddr, destination: SocketAddr| {
            tracked.has(&Ends { protocol, source, destination, link: LinkId(1) }).unwrap()
        };
        for (own, receiver) in [("127.0.0.1:0", "127.0.0.1:5001"), ("[::1]:0", "[::1]:5001")] {
            let (sender, receiver) =
                (UdpSocket::bind(own).unwrap(), UdpSocket::bind(receiver).unwrap());
            let (from, to) = (sender.local_addr().unwrap(), receiver.local_addr().unwrap());
            assert!(!has(&mut tracked, SocketProtocol::Udp, from, to));
            sender.send_to(b"x", to).unwrap();
            let (_, seen) = receiver.recv_from(&mut [0; 9]).unwrap();
            assert_eq!(seen != from, to.is_ipv4(), "only IPv4 is translated");
            // The packet itself, and the reply that comes to the translated source.
            assert!(has(&mut tracked, SocketProtocol::Udp, from, to));
            assert!(has(&mut tracked, SocketProtocol::Udp, to, seen));
            assert_eq!(has(&mut tracked, SocketProtocol::Udp, to, from), to.is_ipv6());
            assert!(!has(&mut tracked, SocketProtocol::Tcp, from, to));
        }
    });
}
