//! IRC: clients offer each other direct connections (DCC, Rollo's specification of 1994) in
//! private messages (RFC 2812 section 3.3.1) that go through their servers.
//!
//! Only offers of the client that opened the connection count, and only after it has registered
//! (RFC 2812 section 3.1) with its first lines. `RESUME` and `ACCEPT` name the port of an
//! earlier offer, so they announce nothing; nor do offers of port 0, which ask the other client
//! to listen. Any host may accept an offer, because the client does not know the address of the
//! other.

use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;

use wire::protocol;

use super::record::HelperStore;
use super::stream::{Framing, Stream};
use super::text::number;
use super::{Announced, Class, Facts, HelperPacket, Inspect, Inspected, Request, TCP};
use crate::Direction;
use flow::codec::{DecodeError, Reader, Write};

pub(super) const FACTS: Facts = Facts {
    name: "irc",
    protocols: TCP,
    port: 6667,
    classes: &[Class { name: "dcc", maximum: 8, timeout_s: 300 }],
};

/// Offers that name the address and port of the listener.
const OFFERS: [&[u8]; 5] = [b"SEND", b"CHAT", b"MOVE", b"TSEND", b"SCHAT"];
/// The byte around a request of one client to another (CTCP).
const QUOTE: u8 = 1;

/// The state of a connection.
#[derive(Debug, Default)]
pub(super) struct Irc {
    lines: Stream,
    session: Session,
}

/// The client's progress in registering.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Session {
    /// It has sent no line.
    #[default]
    Opening,
    /// It has sent a command of IRC.
    Begun,
    /// It has sent its nickname.
    Named,
    /// It has sent its user name.
    Identified,
    /// It has sent both: it is registered, unless the server refuses.
    Registered,
}

/// The command of a line, as far as registration goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    Nick,
    User,
    /// A command that may come before: PASS, the capabilities of IRCv3, encryption, and
    /// gateways from the web that name their client.
    Before,
    Other,
}

impl Word {
    /// `None` for a line without a word.
    fn of(line: &[u8]) -> Option<Self> {
        const BEFORE: [&[u8]; 4] = [b"PASS", b"CAP", b"STARTTLS", b"WEBIRC"];
        let word = line.split(u8::is_ascii_whitespace).find(|word| !word.is_empty())?;
        let is = |name: &[u8]| word.eq_ignore_ascii_case(name);
        Some(match () {
            () if is(b"NICK") => Self::Nick,
            () if is(b"USER") => Self::User,
            () if BEFORE.into_iter().any(is) => Self::Before,
            () => Self::Other,
        })
    }
}

impl Session {
    /// The next state; `None` if this is not IRC.
    fn after(self, word: Word) -> Option<Self> {
        use Word::{Before, Nick, Other, User};
        Some(match (self, word) {
            (Self::Opening, Other) => return None,
            (Self::Opening, Before) => Self::Begun,
            (Self::Opening | Self::Begun, Nick) => Self::Named,
            (Self::Opening | Self::Begun, User) => Self::Identified,
            (Self::Named, User) | (Self::Identified, Nick) => Self::Registered,
            (
                Self::Begun | Self::Named | Self::Identified | Self::Registered,
                Nick | User | Before | Other,
            ) => self,
        })
    }
}

/// In the order of their numbers in a record.
const SESSIONS: [Session; 5] =
    [Session::Opening, Session::Begun, Session::Named, Session::Identified, Session::Registered];

impl Irc {
    pub fn read(from: &mut Reader<'_>, store: &HelperStore<'_>) -> Result<Self, DecodeError> {
        Ok(Self { session: from.one_of(&SESSIONS)?, lines: Stream::read_record(from, store)? })
    }
}

impl Inspect for Irc {
    fn keeps_beginning(&self) -> bool {
        self.lines.keeps_beginning()
    }

    fn write(&self, to: &mut Vec<u8>) {
        to.u8(SESSIONS.iter().position(|session| *session == self.session).unwrap_or(0) as u8);
        self.lines.write(to);
    }

    fn inspect(&mut self, packet: &HelperPacket<'_>, ask: &mut dyn FnMut(Request)) -> Inspected {
        if packet.direction == Direction::Reply {
            return Inspected::Pass;
        }
        let Self { lines, session } = self;
        if packet.start.is_none() && packet.settings.expect_picked_up {
            *session = Session::Registered;
        }
        let mut is_other = false;
        let inspected = lines.feed(packet, framing, |line, at| {
            let Some(word) = Word::of(line) else { return };
            let after = session.after(word).filter(|_| !is_other);
            is_other |= after.is_none();
            *session = after.unwrap_or(*session);
            let Some(Offer { address, port, place }) = offer(line) else { return };
            if *session == Session::Registered {
                ask(Request::Expect(Announced {
                    place: at.map_or(0..0, |at| at + place.start..at + place.end),
                    ..Announced::new(protocol::TCP, address, port)
                }));
            }
        });
        if is_other { Inspected::Left } else { inspected }
    }
}

fn framing(bytes: &[u8]) -> Framing {
    match bytes.iter().position(|&byte| byte == b'\n') {
        Some(end) => Framing::Length(end + 1),
        None => Framing::Unknown,
    }
}

struct Offer {
    address: IpAddr,
    port: u16,
    /// The place of address and port in the line.
    place: Range<usize>,
}

/// Reads `[:prefix] PRIVMSG target :^ADCC SEND file address port [size]^A`. The name of the
/// file may be in quotes. An IPv4 address is one decimal number. A text with blanks must have a
/// colon in front (RFC 2812 section 2.3.1).
fn offer(line: &[u8]) -> Option<Offer> {
    // Servers skip leading blanks.
    let mut command = line.trim_ascii_start();
    if command.starts_with(b":") {
        command = after(command, b' ')?;
    }
    let (name, rest) = command.split_at_checked(b"PRIVMSG ".len())?;
    if !name.eq_ignore_ascii_case(b"PRIVMSG ") {
        return None;
    }
    let start = rest.windows(2).position(|pair| pair == b" :")?;
    let text = after(&rest[start..], QUOTE)?.strip_prefix(b"DCC ")?;
    let kind = &text[..text.iter().position(|&byte| byte == b' ')?];
    if !OFFERS.iter().any(|offer| kind.eq_ignore_ascii_case(offer)) {
        return None;
    }
    let argument = text[kind.len()..].trim_ascii_start();
    let argument = match argument.strip_prefix(b"\"") {
        Some(quoted) => after(quoted, b'"')?,
        None => &argument[argument.iter().position(|&byte| byte == b' ')?..],
    };
    let numbers = argument.trim_ascii_start();
    let end = numbers.iter().position(|&byte| byte == b' ')?;
    let address = address(&numbers[..end])?;
    let (port, rest) = number(&numbers[end..])?;
    let port = u16::try_from(port).ok().filter(|&port| port != 0)?;
    let place = line.len() - numbers.len()..line.len() - rest.len();
    Some(Offer { address, port, place })
}

/// Another address and port, with a blank between them.
pub(super) fn rewrite(address: IpAddr, port: u16) -> Vec<u8> {
    let text = match address {
        IpAddr::V4(address) => format!("{} {port}", address.to_bits()),
        IpAddr::V6(address) => format!("{address} {port}"),
    };
    text.into_bytes()
}

fn address(text: &[u8]) -> Option<IpAddr> {
    match number(text) {
        Some((bits, [])) => Some(Ipv4Addr::from_bits(bits).into()),
        _ => std::str::from_utf8(text).ok()?.parse().ok().filter(IpAddr::is_ipv6),
    }
}

/// The text behind the first `byte`.
fn after(text: &[u8], byte: u8) -> Option<&[u8]> {
    Some(&text[text.iter().position(|&other| other == byte)? + 1..])
}

#[cfg(test)]
#[path = "irc_tests.rs"]
mod tests;
