//! Protocols that ask all hosts on the link: SNMP (RFC 3416) and the NetBIOS name service (RFC
//! 1002). Each host answers from its own address, so its answer does not match the connection.
//!
//! A bridge does not know the addresses of the network that was asked, so every host may answer
//! that does so in time and from the port that was asked.

use wire::protocol;

use super::{Announced, Class, Facts, Inspect, Inspected, Request, UDP, Watched};
use crate::Direction;

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
    fn inspect(&mut self, packet: &Watched<'_>, ask: &mut dyn FnMut(Request)) -> Inspected {
        if packet.group && packet.direction == Direction::Original {
            ask(Request::Keep { seconds: self.wait_s });
            ask(Request::Expect(Announced {
                source_port: Some(packet.destination_port),
                permanent: true,
                ..Announced::new(protocol::UDP, packet.source, packet.source_port)
            }));
        }
        Inspected::Pass
    }
}

#[cfg(test)]
#[path = "broadcast_tests.rs"]
mod tests;
