//! For tests: packets of tunnels through a router.

use wire::build::PacketBuilder;
use wire::protocol;

use crate::testing::many_workers::TestGateway;
use crate::testing::router::udp;

/// The near end of tunnels, behind the router.
pub const CLIENT: [u8; 4] = [192, 0, 2, 1];
/// The far end of tunnels.
pub const PEER: [u8; 4] = [203, 0, 113, 8];

/// The header between the outer and the inner IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Ipip,
    Gre,
    GreWithKey(u32),
    SixInFour,
}

pub const KINDS: [Kind; 4] = [Kind::Ipip, Kind::Gre, Kind::GreWithKey(7), Kind::SixInFour];

/// The outer packet of a tunnel.
pub fn wrap(kind: Kind, outer: &PacketBuilder, inner: &[u8]) -> Vec<u8> {
    let ethertype = &inner[12..14];
    let (number, header) = match kind {
        Kind::Ipip => (protocol::IPIP, vec![]),
        Kind::SixInFour => (protocol::IPV6, vec![]),
        Kind::Gre => (protocol::GRE, [&[0, 0], ethertype].concat()),
        Kind::GreWithKey(key) => {
            (protocol::GRE, [&[0x20, 0], ethertype, &key.to_be_bytes()].concat())
        }
    };
    let mut bytes = Vec::new();
    outer.raw(number, &[&header, &inner[14..]].concat(), &mut bytes);
    bytes
}

/// An inner packet of a flow with this number, of the family that the tunnel carries.
pub fn inner(kind: Kind, flow: u16, back: bool) -> Vec<u8> {
    let builder = match kind {
        Kind::SixInFour => {
            let end =
                |host: u16| std::net::Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, host).octets();
            let (from, to) = if back { (end(2), end(1)) } else { (end(1), end(2)) };
            PacketBuilder::v6(from, to)
        }
        _ if back => PacketBuilder::v4([10, 0, 0, 2], [10, 0, 0, 1]),
        _ => PacketBuilder::v4([10, 0, 0, 1], [10, 0, 0, 2]),
    };
    let ports = if back { (53, flow) } else { (flow, 53) };
    udp(&builder, ports, b"inside")
}

impl TestGateway {
    /// Sends a packet in by a port. Returns the packet that leaves by the other port, if any.
    pub fn offer(&mut self, port: usize, bytes: &[u8]) -> Option<Vec<u8>> {
        self.arrive(port, bytes);
        self.run_until_idle();
        let mut sent = self.sent(1 - port);
        assert!(sent.len() <= 1);
        sent.pop().map(|frame| frame.bytes().to_vec())
    }
}
