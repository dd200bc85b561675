//! TFTP (RFC 1350): the server answers a request from a port of its own choice
//! (section 4).

use super::{Announced, Class, Facts, HelperPacket, Inspect, Inspected, Request, UDP};
use crate::Direction;
use wire::protocol;

pub(super) const FACTS: Facts = Facts {
    name: "tftp",
    protocols: UDP,
    port: 69,
    classes: &[Class { name: "transfer", maximum: 1, timeout_s: 300 }],
};

/// Opcodes of requests, RFC 1350 section 5.
const READ: u16 = 1;
const WRITE: u16 = 2;

/// Transfer modes, RFC 1350 section 1.
const MODES: [&[u8]; 3] = [b"octet", b"netascii", b"mail"];

/// TFTP needs no state.
#[derive(Debug)]
pub(super) struct Tftp;

impl Inspect for Tftp {
    fn write(&self, _: &mut Vec<u8>) {}

    fn inspect(&mut self, packet: &HelperPacket<'_>, ask: &mut dyn FnMut(Request)) -> Inspected {
        if packet.direction == Direction::Original && is_request(packet.payload) {
            ask(Request::Expect(Announced {
                source: Some(packet.destination),
                ..Announced::new(protocol::UDP, packet.source, packet.source_port)
            }));
        }
        Inspected::Pass
    }
}

/// True for an opcode, a file name and a mode, the latter two with a zero behind them.
fn is_request(payload: &[u8]) -> bool {
    let Some((opcode, texts)) = payload.split_first_chunk() else { return false };
    let mut texts = texts.split_inclusive(|&byte| byte == 0);
    let mut text = || texts.next().and_then(|text| text.strip_suffix(&[0]));
    let is_name = text().is_some_and(|name| !name.is_empty());
    let is_mode = |text: &[u8]| MODES.iter().any(|mode| text.eq_ignore_ascii_case(mode));
    matches!(u16::from_be_bytes(*opcode), READ | WRITE) && is_name && text().is_some_and(is_mode)
}

#[cfg(test)]
#[path = "tftp_tests.rs"]
mod tests;
