//! SANE (network protocol 1.05, chapter 5): the reply to `SANE_NET_START` names the port where
//! the scanner's host hands out the picture.

use wire::protocol;

use super::{Announced, Class, Facts, Inspect, Inspected, Request, TCP, Watched};
use crate::Direction;

pub(super) const FACTS: Facts = Facts {
    name: "sane",
    protocols: TCP,
    port: 6566,
    classes: &[Class { name: "picture", maximum: 1, timeout_s: 300 }],
};

/// `SANE_NET_START` and its handle follow in one word each.
const START: [u8; 4] = [0, 0, 0, 7];
const REQUEST_BYTES: u32 = 8;

/// Requests and replies take turns, so each begins where the direction changes. Their lengths
/// need not be known.
#[derive(Debug, Default)]
pub(super) struct Sane {
    turn: Option<Turn>,
    /// The client has asked to start, and the reply has not come.
    asked: bool,
}

/// What one end says before the other does.
#[derive(Debug)]
struct Turn {
    direction: Direction,
    /// Sequence number of the next byte.
    next: u32,
    /// Length so far, bytes.
    length: u32,
    /// Its first two words.
    words: [u8; 8],
}

impl Turn {
    fn new(direction: Direction, sequence: u32) -> Self {
        Self { direction, next: sequence, length: 0, words: [0; 8] }
    }

    /// Bytes that were seen before, and those behind a gap, are left out.
    fn hear(&mut self, payload: &[u8], sequence: u32) {
        let seen = self.next.wrapping_sub(sequence) as usize;
        let Some(fresh) = payload.get(seen..) else { return };
        let place = self.words.iter_mut().skip(self.length as usize);
        place.zip(fresh).for_each(|(place, &byte)| *place = byte);
        self.length = self.length.saturating_add(fresh.len() as u32);
        self.next = sequence.wrapping_add(payload.len() as u32);
    }
}

impl Inspect for Sane {
    fn inspect(&mut self, packet: &Watched<'_>, ask: &mut dyn FnMut(Request)) -> Inspected {
        let Some(sequence) = packet.sequence else { return Inspected::Pass };
        let direction = packet.direction;
        if let Some(last) = self.turn.take_if(|turn| turn.direction != direction) {
            let (said, from) = (&last.words[..4], last.direction);
            self.asked =
                from == Direction::Original && said == START && last.length == REQUEST_BYTES;
        }
        let turn = self.turn.get_or_insert_with(|| Turn::new(direction, sequence));
        turn.hear(packet.payload, sequence);
        // Status, then the port in the low half of a word.
        if let ([0, 0, 0, 0, 0, 0, high, low], 8..) = (turn.words, turn.length)
            && direction == Direction::Reply
            && std::mem::take(&mut self.asked)
        {
            let port = u16::from_be_bytes([high, low]);
            if port != 0 {
                ask(Request::Expect(Announced {
                    source: Some(packet.destination),
                    ..Announced::new(protocol::TCP, packet.source, port)
                }));
            }
        }
        Inspected::Pass
    }
}

#[cfg(test)]
#[path = "sane_tests.rs"]
mod tests;
