//! Amanda: the backup server asks a client by UDP, and the reply says to which ports the
//! server shall connect for data, messages and index.

use wire::protocol;

use super::text::{Lines, number, place};
use super::{Announced, Class, Facts, Inspect, Inspected, Request, UDP, Watched};
use crate::Direction;

pub(super) const FACTS: Facts = Facts {
    name: "amanda",
    protocols: UDP,
    port: 10080,
    classes: &[Class { name: "stream", maximum: 4, timeout_s: 180 }],
};

/// How long the client may take for its reply, seconds: it first estimates its file systems.
const KEEP_S: u32 = 300;
const STREAMS: [&[u8]; 4] = [b"DATA", b"MESG", b"INDEX", b"STATE"];

/// Amanda has nothing to remember.
#[derive(Debug)]
pub(super) struct Amanda;

impl Inspect for Amanda {
    fn inspect(&mut self, packet: &Watched<'_>, ask: &mut dyn FnMut(Request)) -> Inspected {
        if packet.direction == Direction::Original {
            return Inspected::Pass;
        }
        ask(Request::Keep { seconds: KEEP_S });
        let line = Lines::of(packet.payload).find_map(|line| line.strip_prefix(b"CONNECT "));
        let words = line.unwrap_or_default().split(|&byte| byte == b' ');
        let mut words = words.filter(|word| !word.is_empty());
        while let Some(name) = words.next() {
            let text = words.next().unwrap_or_default();
            // Without an index there is no port for it, but those behind it count.
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
