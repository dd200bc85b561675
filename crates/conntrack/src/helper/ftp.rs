//! FTP (RFC 959, RFC 2428): the ends agree on the control connection where the next
//! data connection goes to.
//!
//! A command or reply counts only at the start of a line. Where lines start is known
//! inside a segment, and between segments if the last one before ended with a line. A
//! line that a segment cuts off is not taken apart: the segment is dropped, and the
//! sender puts it together with the rest when it sends it again.

use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;

use wire::protocol;

use super::{Announced, Class, Facts, Inspect, Inspected, Request, TCP, Watched};
use crate::Direction;

pub(super) const FACTS: Facts = Facts {
    name: "ftp",
    protocols: TCP,
    port: 21,
    classes: &[Class { name: "data", maximum: 1, timeout_s: 300 }],
};

/// A longer line announces nothing, bytes.
const LONGEST_LINE: usize = 256;

/// What is remembered of a control connection.
#[derive(Debug, Default)]
pub(super) struct Ftp {
    /// By [`Direction::index`].
    lines: [Lines; 2],
}

/// Where the lines of one direction are known to start or to be cut off, by sequence
/// numbers.
#[derive(Clone, Copy, Debug, Default)]
struct Lines {
    /// Behind the line ends at the ends of segments. Two, because a segment that is
    /// sent again follows an earlier line than the newest.
    starts: [Option<u32>; 2],
    /// The end of the last segment that was dropped for a line inside it.
    refused: Option<u32>,
}

/// Why a line announces nothing.
enum Silent {
    /// It is about something else.
    Other,
    /// It is cut off by the end of the segment.
    Cut,
}

/// Where a data connection will go to, and where in the line that stands.
struct Target {
    address: IpAddr,
    port: u16,
    place: Range<usize>,
}

impl Inspect for Ftp {
    fn inspect(&mut self, packet: &Watched<'_>, ask: &mut dyn FnMut(Request)) -> Inspected {
        let Some(sequence) = packet.sequence else { return Inspected::Pass };
        let (payload, side) = (packet.payload, packet.direction.index());
        let end = sequence.wrapping_add(payload.len() as u32);
        let follows_line = self.lines[side].starts.contains(&Some(sequence));
        let mut next = if follows_line { Some(0) } else { after_line(payload, 0) };
        while let Some(start) = next {
            match read_line(packet, start) {
                Ok(announced) => ask(Request::Expect(announced)),
                Err(Silent::Cut) if self.lines[side].waits_for_rest(start, end) => {
                    return Inspected::Incomplete;
                }
                Err(_) => {}
            }
            next = after_line(payload, start);
        }
        if payload.ends_with(b"\n") {
            self.lines[side].remember(end);
        }
        Inspected::Pass
    }
}

/// What a line announces that starts at `start`.
fn read_line(packet: &Watched<'_>, start: usize) -> Result<Announced, Silent> {
    let rest = &packet.payload[start..];
    let mut line = Line { bytes: &rest[..rest.len().min(LONGEST_LINE)], at: 0 };
    let target = line.read(packet.direction, packet.source).map_err(|silent| match silent {
        Silent::Cut if rest.len() <= LONGEST_LINE => Silent::Cut,
        _ => Silent::Other,
    })?;
    // Or anybody could open the way to anybody else (RFC 2577 section 3).
    let honest = target.address == packet.source
        || target.address == packet.seen_as
        || packet.settings.ftp_loose && target.address.is_ipv4() == packet.source.is_ipv4();
    if !honest || target.port == 0 {
        return Err(Silent::Other);
    }
    Ok(Announced {
        source: Some(packet.destination),
        place: start + target.place.start..start + target.place.end,
        ..Announced::new(protocol::TCP, target.address, target.port)
    })
}

/// Another address and port as the three ways of saying them have them: six numbers,
/// `|1|address|port|` and `|||port|`.
pub(super) fn rewrite(old: &[u8], address: IpAddr, port: u16) -> Option<Vec<u8>> {
    let (&first, rest) = old.split_first()?;
    let text = match address {
        IpAddr::V4(address) if first.is_ascii_digit() => {
            let ([a, b, c, d], [high, low]) = (address.octets(), port.to_be_bytes());
            format!("{a},{b},{c},{d},{high},{low}")
        }
        _ if first.is_ascii_digit() => return None,
        address => {
            let delimiter = char::from(first);
            let known = match address {
                _ if rest.first() == Some(&first) => delimiter.to_string(),
                IpAddr::V4(address) => format!("1{delimiter}{address}"),
                IpAddr::V6(address) => format!("2{delimiter}{address}"),
            };
            format!("{delimiter}{known}{delimiter}{port}{delimiter}")
        }
    };
    Some(text.into_bytes())
}

/// Where the next line starts inside the payload.
fn after_line(payload: &[u8], from: usize) -> Option<usize> {
    let end = payload[from..].iter().position(|&byte| byte == b'\n')?;
    Some(from + end + 1).filter(|&start| start < payload.len())
}

impl Lines {
    /// True if a segment that cuts off a line at offset `start` is to be dropped. A
    /// sender that has the rest and room for it will send both in one segment. If the
    /// same end comes again behind other lines, the segment is as long as it can be.
    fn waits_for_rest(&mut self, start: usize, end: u32) -> bool {
        start == 0 || self.refused.replace(end) != Some(end)
    }

    /// Remembers the start of a line in place of the earlier of the two.
    fn remember(&mut self, start: u32) {
        if self.starts.contains(&Some(start)) {
            return;
        }
        let earlier = match self.starts {
            [Some(a), Some(b)] => usize::from(b.wrapping_sub(a) as i32 <= 0),
            [first, _] => usize::from(first.is_some()),
        };
        self.starts[earlier] = Some(start);
    }
}

/// A line, read byte by byte.
struct Line<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Line<'_> {
    /// Reads a command of the client or a reply of the server.
    fn read(&mut self, direction: Direction, sender: IpAddr) -> Result<Target, Silent> {
        match direction {
            Direction::Original if self.begins(b"PORT ")? => self.port_command(),
            Direction::Original if self.begins(b"EPRT ")? => self.extended_port_command(),
            Direction::Reply if self.begins(b"227 ")? => self.passive_reply(),
            Direction::Reply if self.begins(b"229 ")? => self.extended_passive_reply(sender),
            _ => Err(Silent::Other),
        }
    }

    /// `PORT h1,h2,h3,h4,p1,p2`, RFC 959 section 5.3.2.
    fn port_command(&mut self) -> Result<Target, Silent> {
        self.skip_blanks()?;
        let target = self.six_numbers()?;
        match self.next()? {
            b'\r' | b'\n' => Ok(target),
            _ => Err(Silent::Other),
        }
    }

    /// `227` with six numbers in any text: RFC 1123 section 4.1.2.6 has the client look
    /// for the first digit.
    fn passive_reply(&mut self) -> Result<Target, Silent> {
        while !self.peek()?.is_ascii_digit() {
            self.next_in_line()?;
        }
        self.six_numbers()
    }

    /// `EPRT |1|192.0.2.1|6275|`, RFC 2428 section 2.
    fn extended_port_command(&mut self) -> Result<Target, Silent> {
        self.skip_blanks()?;
        let start = self.at;
        let delimiter = self.delimiter()?;
        let family = self.next()?;
        self.exactly(delimiter)?;
        let from = self.at;
        while self.next_in_line()? != delimiter {}
        let address = std::str::from_utf8(&self.bytes[from..self.at - 1]).unwrap_or_default();
        let address = match family {
            b'1' => address.parse().map(IpAddr::V4),
            b'2' => address.parse().map(IpAddr::V6),
            _ => return Err(Silent::Other),
        };
        let address = address.map_err(|_| Silent::Other)?;
        let port = self.number(u16::MAX)?;
        self.exactly(delimiter)?;
        Ok(Target { address, port, place: start..self.at })
    }

    /// `229` with `(|||6446|)` behind any text, RFC 2428 section 3. The address is that
    /// of the control connection.
    fn extended_passive_reply(&mut self, sender: IpAddr) -> Result<Target, Silent> {
        while self.next_in_line()? != b'(' {}
        let start = self.at;
        let delimiter = self.delimiter()?;
        self.exactly(delimiter)?;
        self.exactly(delimiter)?;
        let port = self.number(u16::MAX)?;
        self.exactly(delimiter)?;
        Ok(Target { address: sender, port, place: start..self.at })
    }

    fn six_numbers(&mut self) -> Result<Target, Silent> {
        let start = self.at;
        let mut numbers = [0; 6];
        for (index, number) in numbers.iter_mut().enumerate() {
            if index > 0 {
                self.exactly(b',')?;
            }
            *number = self.number(u8::MAX.into())? as u8;
        }
        let [a, b, c, d, high, low] = numbers;
        Ok(Target {
            address: Ipv4Addr::new(a, b, c, d).into(),
            port: u16::from_be_bytes([high, low]),
            place: start..self.at,
        })
    }

    /// A decimal number up to `max`. What ends it must be there: it could go on.
    fn number(&mut self, max: u16) -> Result<u16, Silent> {
        let mut value = None;
        while self.peek()?.is_ascii_digit() {
            let digit = u32::from(self.next()? - b'0');
            value = Some(value.unwrap_or(0) * 10 + digit).filter(|&value| value <= max.into());
            if value.is_none() {
                return Err(Silent::Other);
            }
        }
        value.map(|value| value as u16).ok_or(Silent::Other)
    }

    /// RFC 2428 section 2: any printable character, by which no digit can be meant.
    fn delimiter(&mut self) -> Result<u8, Silent> {
        let byte = self.next()?;
        let fits = byte.is_ascii_graphic() && !byte.is_ascii_digit();
        fits.then_some(byte).ok_or(Silent::Other)
    }

    /// True if the line goes on with `word`, which is passed then.
    fn begins(&mut self, word: &[u8]) -> Result<bool, Silent> {
        let rest = &self.bytes[self.at..];
        let common = rest.len().min(word.len());
        if !rest[..common].eq_ignore_ascii_case(&word[..common]) {
            return Ok(false);
        }
        if common < word.len() {
            return Err(Silent::Cut);
        }
        self.at += common;
        Ok(true)
    }

    fn skip_blanks(&mut self) -> Result<(), Silent> {
        while self.peek()? == b' ' {
            self.at += 1;
        }
        Ok(())
    }

    fn exactly(&mut self, wanted: u8) -> Result<(), Silent> {
        if self.next()? == wanted { Ok(()) } else { Err(Silent::Other) }
    }

    /// The next byte if it does not end the line.
    fn next_in_line(&mut self) -> Result<u8, Silent> {
        match self.next()? {
            b'\r' | b'\n' => Err(Silent::Other),
            byte => Ok(byte),
        }
    }

    fn next(&mut self) -> Result<u8, Silent> {
        let byte = self.peek()?;
        self.at += 1;
        Ok(byte)
    }

    fn peek(&self) -> Result<u8, Silent> {
        self.bytes.get(self.at).copied().ok_or(Silent::Cut)
    }
}

#[cfg(test)]
#[path = "ftp_tests.rs"]
mod tests;
