//! Datagrams that two hosts exchange: one sends now and then, and the other one answers each.

use std::net::Ipv4Addr;

use wire::build::PacketBuilder;

use crate::failure::{Invariant, Violation};

/// The port that answers.
pub const ANSWERS_AT: u16 = 53;

/// A flow of datagrams from a host inside.
pub struct Chat {
    pub id: u32,
    /// The host inside.
    pub host: usize,
    pub from: u16,
    pub to: Ipv4Addr,
    pub pause: u64,
    pub ends_at: u64,
    /// Datagrams that it has sent.
    pub sent: u32,
    /// The address and port from which the other end hears it.
    pub outside: Option<(Ipv4Addr, u16)>,
    /// Its address and port outside must not change.
    pub is_protected: bool,
}

/// An IPv4 packet with a datagram. Its number makes its checksum another one.
pub fn datagram(from: (Ipv4Addr, u16), to: (Ipv4Addr, u16), (id, number): (u32, u32)) -> Vec<u8> {
    let mut frame = Vec::new();
    PacketBuilder::v4(from.0.octets(), to.0.octets()).dont_fragment().udp(
        from.1,
        to.1,
        &[id.to_be_bytes(), number.to_be_bytes()].concat(),
        &mut frame,
    );
    frame.split_off(14)
}

/// Addresses, ports and number of a datagram.
pub fn read(packet: &[u8]) -> Option<([(Ipv4Addr, u16); 2], u32)> {
    let address = |at: usize| -> Option<Ipv4Addr> {
        let octets: [u8; 4] = packet.get(at..at + 4)?.try_into().ok()?;
        Some(octets.into())
    };
    let port = |at: usize| Some(u16::from_be_bytes(packet.get(at..at + 2)?.try_into().ok()?));
    let id = u32::from_be_bytes(packet.get(28..32)?.try_into().ok()?);
    Some(([(address(12)?, port(20)?), (address(16)?, port(22)?)], id))
}

impl Chat {
    /// The other end has heard it from there.
    pub fn heard_from(&mut self, from: (Ipv4Addr, u16)) -> Result<(), Violation> {
        match self.outside.replace(from) {
            Some(before) if before != from && self.is_protected => {
                let what = format!(
                    "chat {:x} from port {} came from {}:{} and comes from {}:{} now",
                    self.id, self.from, before.0, before.1, from.0, from.1
                );
                Err(Violation::new(Invariant::OutsideStays, what))
            }
            _ => Ok(()),
        }
    }
}
