//! Amanda: the backup server asks a client by UDP, and the reply names the ports to which the
//! server shall connect for data, messages and index.

use wire::protocol;

use super::text::{Lines, number, place};
use super::{Announced, Class, Facts, HelperPacket, Inspect, Inspected, Request, UDP};
use crate::Direction;
use flow::codec::{DecodeError, Reader, Write};

pub(super) const FACTS: Facts = Facts {
    name: "amanda",
    protocols: UDP,
    port: 10080,
    classes: &[Class { name: "stream", maximum: 4, timeout_s: 180 }],
};

/// Time that the client has for its reply, seconds: it first estimates its file systems.
const KEEP_S: u32 = 300;
const STREAMS: [&[u8]; 4] = [b"DATA", b"MESG", b"INDEX", b"STATE"];

/// The first word of the packets of both ends, and the possible words between their second and
/// third blank.
const NAME: &[u8] = b"Amanda";
const REQUEST: &[u8] = b"REQ";
const REPLIES: [&[u8]; 2] = [b"REP", b"PREP"];

/// The state of the conversation.
#[derive(Debug, Default)]
pub(super) struct Amanda {
    /// True if the backup server has sent a request.
    asked: bool,
}

/// The kind of a packet: `Amanda 2.6 REP HANDLE 000-0 SEQ 1`.
fn kind(payload: &[u8]) -> Option<&[u8]> {
    let mut words = Lines::of(payload).next()?.split(|&byte| byte == b' ');
    words.next().filter(|&name| name == NAME)?;
    words.nth(1)
}

impl Amanda {
    pub fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self { asked: from.flag()? })
    }
}

impl Inspect for Amanda {
    fn write(&self, to: &mut Vec<u8>) {
        to.flag(self.asked);
    }

    fn inspect(&mut self, packet: &HelperPacket<'_>, ask: &mut dyn FnMut(Request)) -> Inspected {
        let kind = kind(packet.payload);
        if packet.direction == Direction::Original {
            self.asked |= kind == Some(REQUEST);
            return Inspected::Pass;
        }
        ask(Request::Keep { seconds: KEEP_S });
        if !(self.asked && kind.is_some_and(|kind| REPLIES.contains(&kind))) {
            return Inspected::Pass;
        }
        let line = Lines::of(packet.payload).find_map(|line| line.strip_prefix(b"CONNECT "));
        let words = line.unwrap_or_default().split(|&byte| byte == b' ');
        let mut words = words.filter(|word| !word.is_empty());
        while let Some(name) = words.next() {
            let text = words.next().unwrap_or_default();
            // Without an index the reply has no port for it, but the words behind it count.
            let Some((port, rest)) = number(text) else { continue };
            let port = u16::try_from(port).unwrap_or(0);
            if port == 0 || !STREAMS.contains(&name) {
                continue;
            }
            ask(Request::Expect(Announced {
                source: Some(packet.destination),
                place: place(packet.payload, &text[..text.len() - rest.len()]),
                ..Announced::new(protocol::TCP, packet.source, port)
            }));
        }
        Inspected::Pass
    }
}

#[cfg(test)]
#[path = "amanda_tests.rs"]
mod tests;
