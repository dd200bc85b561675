//! SANE (network protocol 1.05, chapter 5): the reply to `SANE_NET_START` names the port at
//! which the scanner's host offers the picture. It counts if the client has begun in this
//! protocol.

use wire::protocol;

use super::{Announced, Class, Facts, HelperPacket, Inspect, Inspected, Request, TCP};
use crate::Direction;
use flow::codec::{DecodeError, Reader, Write};

pub(super) const FACTS: Facts = Facts {
    name: "sane",
    protocols: TCP,
    port: 6566,
    classes: &[Class { name: "picture", maximum: 1, timeout_s: 300 }],
};

/// The first request of a client: `SANE_NET_INIT` with a version of the protocol, 1.x.
const INIT: [u8; 5] = [0, 0, 0, 0, 1];
/// A request `SANE_NET_START`: this word, and a handle in the next.
const START: [u8; 4] = [0, 0, 0, 7];
const REQUEST_BYTES: u32 = 8;

/// Requests and replies take turns, so each begins where the direction changes. The helper need
/// not know their lengths.
#[derive(Debug, Default)]
pub(super) struct Sane {
    session: Session,
    turn: Option<Turn>,
    /// Sequence numbers of the next bytes, by [`Direction::index`].
    next: [Option<u32>; 2],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Session {
    /// The client has to send its first request.
    #[default]
    Opening,
    Open,
    /// The client has asked to start, and the reply has not come.
    Asked,
}

/// The bytes that one end sends before the other does.
#[derive(Debug)]
struct Turn {
    direction: Direction,
    /// Length so far, bytes.
    length: u32,
    /// Its first two words.
    words: [u8; 8],
    /// A part of it is missing.
    is_cut: bool,
}

impl Turn {
    fn new(direction: Direction) -> Self {
        Self { direction, length: 0, words: [0; 8], is_cut: false }
    }

    fn hear(&mut self, fresh: &[u8]) {
        let place = self.words.iter_mut().skip(self.length as usize);
        place.zip(fresh).for_each(|(place, &byte)| *place = byte);
        self.length = self.length.saturating_add(fresh.len() as u32);
    }

    /// The first two words, as soon as they have come.
    fn words(&self) -> Option<[u8; 8]> {
        (self.length >= REQUEST_BYTES && !self.is_cut).then_some(self.words)
    }

    fn is_start(&self) -> bool {
        self.direction == Direction::Original
            && self.length == REQUEST_BYTES
            && self.words().is_some_and(|words| words.starts_with(&START))
    }
}

impl Session {
    /// The state after this turn, when the other end speaks.
    fn after(self, turn: &Turn) -> Self {
        match self {
            Self::Opening => Self::Opening,
            Self::Open | Self::Asked if turn.is_start() => Self::Asked,
            Self::Open | Self::Asked => Self::Open,
        }
    }
}

/// In the order of their numbers in a record.
const SESSIONS: [Session; 3] = [Session::Opening, Session::Open, Session::Asked];

impl Sane {
    pub fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let session = from.one_of(&SESSIONS)?;
        let turn = from.option(|from| {
            let direction = from.one_of(&[Direction::Original, Direction::Reply])?;
            let (length, words) = (from.u32()?, from.array()?);
            Ok(Turn { direction, length, words, is_cut: from.flag()? })
        })?;
        Ok(Self { session, turn, next: [from.option(Reader::u32)?, from.option(Reader::u32)?] })
    }
}

impl Inspect for Sane {
    fn write(&self, to: &mut Vec<u8>) {
        to.u8(SESSIONS.iter().position(|session| *session == self.session).unwrap_or(0) as u8);
        to.option(self.turn.as_ref(), |to, Turn { direction, length, words, is_cut }| {
            to.u8(*direction as u8);
            to.u32(*length);
            to.bytes(words);
            to.flag(*is_cut);
        });
        self.next.into_iter().for_each(|next| to.option(next, |to, number| to.u32(number)));
    }

    fn inspect(&mut self, packet: &HelperPacket<'_>, ask: &mut dyn FnMut(Request)) -> Inspected {
        let Some(sequence) = packet.sequence else { return Inspected::Pass };
        let (direction, payload) = (packet.direction, packet.payload);
        if packet.start.is_none() && packet.settings.expect_picked_up {
            self.session = self.session.max(Session::Open);
        }
        let next = &mut self.next[direction.index()];
        let seen = match packet.seen(sequence, *next) {
            Ok(seen) => seen,
            Err(inspected) => return inspected,
        };
        let Some(fresh) = payload.get(seen.max(0) as usize..).filter(|fresh| !fresh.is_empty())
        else {
            // These bytes were read before.
            return Inspected::Pass;
        };
        *next = Some(sequence.wrapping_add(payload.len() as u32));
        if let Some(last) = self.turn.take_if(|turn| turn.direction != direction) {
            self.session = self.session.after(&last);
        }
        let turn = self.turn.get_or_insert_with(|| Turn::new(direction));
        turn.is_cut |= seen < 0;
        turn.hear(fresh);
        match (self.session, direction, turn.words()) {
            (Session::Opening, Direction::Original, None) if !turn.is_cut => {}
            (Session::Opening, Direction::Original, Some(words)) if words.starts_with(&INIT) => {
                self.session = Session::Open;
            }
            (Session::Opening, ..) => return Inspected::Left,
            // Status, then the port in the low half of a word.
            (Session::Asked, Direction::Reply, Some([0, 0, 0, 0, 0, 0, high, low])) => {
                self.session = Session::Open;
                let port = u16::from_be_bytes([high, low]);
                if port != 0 {
                    ask(Request::Expect(Announced {
                        source: Some(packet.destination),
                        ..Announced::new(protocol::TCP, packet.source, port)
                    }));
                }
            }
            (Session::Open | Session::Asked, ..) => {}
        }
        Inspected::Pass
    }
}

#[cfg(test)]
#[path = "sane_tests.rs"]
mod tests;
