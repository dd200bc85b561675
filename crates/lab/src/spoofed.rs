//! Packets of floods from senders that do not exist.

use std::net::Ipv4Addr;

use wire::TcpFlags;
use wire::build::{PacketBuilder, Tcp};

/// The kind of such packets. Each comes from another address of 203.0.113.0/24 and another port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spoofed {
    /// Packets that ask a server for a connection.
    Syn,
    /// Packets of connections that do not exist.
    Ack,
    /// Packets to the discard service (RFC 863).
    Udp,
}

const DISCARD: u16 = 9;
/// The first source port.
const FIRST_PORT: u16 = 1024;

impl Spoofed {
    /// `count` frames to a port of a server behind this hardware address.
    #[must_use]
    pub fn frames(self, count: u32, to: (Ipv4Addr, u16), by: [u8; 6]) -> Vec<Vec<u8>> {
        (0..count).map(|number| self.frame(number, to, by)).collect()
    }

    fn frame(self, number: u32, (server, port): (Ipv4Addr, u16), by: [u8; 6]) -> Vec<u8> {
        let [_, .., host] = number.to_be_bytes();
        let source_port = FIRST_PORT.saturating_add((number >> 8) as u16);
        let packet = PacketBuilder::v4([203, 0, 113, host], server.octets())
            .macs([0, 0, 0x5e, 0, 0x53, 0x02], by);
        let segment = |flags| Tcp {
            source_port,
            destination_port: port,
            sequence: number,
            flags,
            window: 1000,
            ..Tcp::default()
        };
        let mut frame = Vec::new();
        match self {
            Self::Syn => packet.tcp(&segment(TcpFlags::SYN), &[], &mut frame),
            Self::Ack => packet.tcp(&segment(TcpFlags::ACK), &[], &mut frame),
            Self::Udp => packet.udp(source_port, DISCARD, b"spoofed", &mut frame),
        }
        frame
    }
}
