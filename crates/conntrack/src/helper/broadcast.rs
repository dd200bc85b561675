//! Protocols that ask everybody on the link: each host answers from its own address, which no
//! answer of the connection would come from. SNMP (RFC 3416) and the NetBIOS name service
//! (RFC 1002).
//!
//! A bridge does not know which addresses are those of the network that was asked, so anybody
//! may answer who does so from the port that was asked, in time.

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

/// Waits for the answers of many.
#[derive(Debug)]
pub(super) struct Broadcast {
    /// How long answers may come, seconds.
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
