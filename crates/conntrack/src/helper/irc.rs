//! IRC: clients offer each other direct connections (DCC, Rollo's specification of 1994) in
//! private messages (RFC 2812 section 3.3.1) that go through their servers.
//!
//! Only offers of the client count that has opened the connection, and only if they name its
//! own address. `RESUME` and `ACCEPT` name the port of an offer that was made before, so they
//! announce nothing; nor do offers of port 0, which ask the other client to listen.

use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;

use wire::protocol;

use super::stream::{Framing, Stream};
use super::text::number;
use super::{Announced, Class, Facts, Inspect, Inspected, Request, TCP, Watched};
use crate::Direction;

pub(super) const FACTS: Facts = Facts {
    name: "irc",
    protocols: TCP,
    port: 6667,
    classes: &[Class { name: "dcc", maximum: 8, timeout_s: 300 }],
};

/// Offers that name who listens.
const OFFERS: [&[u8]; 5] = [b"SEND", b"CHAT", b"MOVE", b"TSEND", b"SCHAT"];
/// The byte around a request of one client to another (CTCP).
const QUOTE: u8 = 1;

/// Lines of the client.
#[derive(Debug, Default)]
pub(super) struct Irc {
    lines: Stream,
}

impl Inspect for Irc {
    fn inspect(&mut self, packet: &Watched<'_>, ask: &mut dyn FnMut(Request)) -> Inspected {
        if packet.direction == Direction::Reply {
            return Inspected::Pass;
        }
        self.lines.feed(packet, line, |line, at| {
            let Some(Offer { address, port, place }) = offer(line) else { return };
            if address != packet.source && address != packet.seen_as {
                return;
            }
            ask(Request::Expect(Announced {
                place: at.map_or(0..0, |at| at + place.start..at + place.end),
                ..Announced::new(protocol::TCP, address, port)
            }));
        });
        Inspected::Pass
    }
}

fn line(bytes: &[u8]) -> Framing {
    match bytes.iter().position(|&byte| byte == b'\n') {
        Some(end) => Framing::Length(end + 1),
        None => Framing::Unknown,
    }
}

struct Offer {
    address: IpAddr,
    port: u16,
    /// Where address and port stand in the line.
    place: Range<usize>,
}

/// `[:prefix] PRIVMSG target :^ADCC SEND file address port [size]^A`; the name of the file may
/// be in quotes. An IPv4 address is one decimal number. Only behind a colon may a text have
/// blanks (RFC 2812 section 2.3.1).
fn offer(line: &[u8]) -> Option<Offer> {
    // Servers pass over blanks in front.
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

/// Another address and port, with a blank between.
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

/// What follows the first `byte`.
fn after(text: &[u8], byte: u8) -> Option<&[u8]> {
    Some(&text[text.iter().position(|&other| other == byte)? + 1..])
}

#[cfg(test)]
#[path = "irc_tests.rs"]
mod tests;
