//! Protocols that ask all hosts on the link: SNMP (RFC 3416) and the NetBIOS name service (RFC
//! 1002). Each host answers from its own address, so its answer does not match the connection.
//!
//! A bridge does not know the addresses of the networks on its links. A broadcast address tells
//! the largest network that it may be of, whose hosts may answer. Every host may answer what goes
//! to 255.255.255.255 or to a multicast group. Answers have to come in time, and from the port that
//! was asked. A question can be forged, so none to a privileged port is expected, unless a name
//! service asks its own network from its own port.

use std::net::IpAddr;

use wire::protocol;

use super::{Announced, Class, Facts, HelperPacket, Inspect, Inspected, Request, UDP};
use crate::Direction;
use crate::connection::Prefix;

pub(super) const SNMP: Facts = Facts {
    name: "snmp",
    protocols: UDP,
    port: 161,
    classes: &[Class { name: "answer", maximum: 1, timeout_s: Broadcast::SNMP.wait_s }],
};

pub(super) const NETBIOS_NS: Facts = Facts {
    name: "netbios-ns",
    protocols: UDP,
    port: 137,
    classes: &[Class { name: "answer", maximum: 1, timeout_s: Broadcast::NETBIOS_NS.wait_s }],
};

/// Waits for the answers of many hosts.
#[derive(Debug)]
pub(super) struct Broadcast {
    /// Time during which answers may come, seconds.
    wait_s: u32,
}

impl Broadcast {
    pub const SNMP: Self = Self { wait_s: 30 };
    pub const NETBIOS_NS: Self = Self { wait_s: 3 };
}

impl Inspect for Broadcast {
    fn write(&self, _: &mut Vec<u8>) {}

    fn inspect(&mut self, packet: &HelperPacket<'_>, ask: &mut dyn FnMut(Request)) -> Inspected {
        let is_question = packet.group && packet.direction == Direction::Original;
        if is_question && let Some(source_network) = asked(packet.source, packet.destination) {
            ask(Request::Keep { seconds: self.wait_s });
            ask(Request::Expect(Announced {
                source_network,
                source_port: Some(packet.destination_port),
                permanent: true,
                ..Announced::new(protocol::UDP, packet.source, packet.source_port)
            }));
        }
        Inspected::Pass
    }
}

/// Fewest last bits of a broadcast address that are all 1: in smaller networks nobody is asked.
const FEWEST_ONES: u32 = 2;

/// The network whose hosts a question to this address asks, `Some(None)` if that is not known.
/// `None` if the address is one of a single host, or of a network without the asker.
fn asked(asker: IpAddr, address: IpAddr) -> Option<Option<Prefix>> {
    match address {
        IpAddr::V4(it) if it.is_multicast() || it.is_broadcast() => Some(None),
        IpAddr::V4(it) => {
            let ones = it.to_bits().trailing_ones();
            let network = Prefix::new(address, 32 - ones as u8).network();
            (ones >= FEWEST_ONES && network.contains(asker)).then_some(Some(network))
        }
        IpAddr::V6(it) => it.is_multicast().then_some(None),
    }
}

#[cfg(test)]
#[path = "broadcast_tests.rs"]
mod tests;
