//! FTP (RFC 959, RFC 2428): the ends agree on the control connection on the address and port of
//! the next data connection.
//!
//! A command counts only at the start of a line, and only if the connection has begun as FTP
//! does ([`session`]). A reply counts only if the client has asked for it, and not inside a
//! reply of several lines, which may hold any text (RFC 959 section 4.2). A line that a segment
//! cuts off is not read: the segment is dropped, and the sender puts the line together with the
//! rest when it sends it again.

mod record;
mod session;

use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;

use wire::protocol;

use self::session::{Event, Session};
use super::{Announced, Class, Facts, HelperPacket, Inspect, Inspected, Request, TCP};
use crate::Direction;

pub(super) const FACTS: Facts = Facts {
    name: "ftp",
    protocols: TCP,
    port: 21,
    classes: &[Class { name: "data", maximum: 1, timeout_s: 300 }],
};

/// Longest line that can announce a connection, bytes.
const LONGEST_LINE: usize = 256;
/// Bytes that tell commands, and replies, apart: four letters or three digits, and the
/// character behind.
const HEAD: usize = 5;

/// The state of a control connection.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ftp {
    session: Session,
    /// By [`Direction::index`].
    sides: [Side; 2],
    /// How many requests of the client for an address are not answered yet.
    asked: u8,
    /// The code of the reply of several lines that is being sent.
    reply: Option<[u8; 3]>,
}

/// How far one direction has been read, in sequence numbers.
#[derive(Clone, Copy, Debug, Default)]
struct Side {
    /// Sequence number of the next byte; `None` before the first.
    next: Option<u32>,
    line: Line,
    /// The ranges of the announcements in the last two segments with any: from the beginning of
    /// the first to the end of the last. They are read again when the sender repeats them,
    /// which may be after the next segment.
    announced: [Option<(u32, u32)>; 2],
    /// The end of the last segment that was dropped for a line inside it.
    refused: Option<u32>,
}

/// The state of the line that continues with the next byte.
#[derive(Clone, Copy, Debug, Default)]
enum Line {
    /// The line does not matter: its beginning was not seen, or the part that counts has been
    /// read.
    #[default]
    Passing,
    /// The first bytes of the line and their number; line ends fill the rest.
    Begun([u8; HEAD], u8),
}

/// The reason why a line announces nothing.
enum Silent {
    /// It says something else.
    Other,
    /// The end of the segment cuts it off.
    Cut,
}

/// The address and port of a data connection, with their place in the line.
struct Target {
    address: IpAddr,
    port: u16,
    place: Range<usize>,
}

impl Inspect for Ftp {
    fn write(&self, to: &mut Vec<u8>) {
        record::write(self, to);
    }

    fn inspect(&mut self, packet: &HelperPacket<'_>, ask: &mut dyn FnMut(Request)) -> Inspected {
        let Some(sequence) = packet.sequence else { return Inspected::Pass };
        let seen = match self.find(packet, sequence) {
            Ok(seen) => seen,
            Err(inspected) => return inspected,
        };
        if self.repeat(packet, sequence, seen, ask) == Inspected::Incomplete {
            return Inspected::Incomplete;
        }
        if seen == packet.payload.len() {
            return Inspected::Pass;
        }
        let before = *self;
        let inspected = self.read(packet, sequence, seen, ask);
        if inspected == Inspected::Incomplete {
            // The whole segment comes again.
            let side = packet.direction.index();
            let refused = self.sides[side].refused;
            *self = before;
            self.sides[side].refused = refused;
        }
        inspected
    }
}

impl Ftp {
    /// The number of bytes of a segment that were read before.
    ///
    /// # Errors
    /// [`Inspected`] if nothing can be read: bytes in front of it are missing on which
    /// everything depends, or for the reasons of [`HelperPacket::seen`].
    fn find(&mut self, packet: &HelperPacket<'_>, sequence: u32) -> Result<usize, Inspected> {
        let side = &mut self.sides[packet.direction.index()];
        if side.next.is_none() && packet.start.is_none() {
            if matches!(self.session, Session::Opening | Session::Greeted) {
                self.session = Session::joined(packet.settings);
            }
            return Ok(0);
        }
        let seen = packet.seen(sequence, side.next)?;
        if side.next.is_none() {
            side.line = Line::NEW;
        }
        if seen < 0 {
            if self.session.needs_all_of(packet.direction) {
                return Err(Inspected::Pass);
            }
            side.line = Line::Passing;
            if packet.direction == Direction::Reply {
                self.reply = None;
            }
        }
        Ok(packet.payload.len().min(seen.max(0) as usize))
    }

    /// Reads announcements again that lie in the part that was read before.
    fn repeat(
        &mut self,
        packet: &HelperPacket<'_>,
        sequence: u32,
        seen: usize,
        ask: &mut dyn FnMut(Request),
    ) -> Inspected {
        let side = &mut self.sides[packet.direction.index()];
        for (start, end) in side.announced.into_iter().flatten() {
            let [start, end] = [start, end].map(|place| place.wrapping_sub(sequence) as usize);
            if start >= seen {
                continue;
            }
            // The state at that time: no reply of several lines had begun.
            let mut again = Self { session: Session::Commands, asked: u8::MAX, ..Self::default() };
            let twin = &mut again.sides[packet.direction.index()];
            *twin = Side { line: Line::NEW, refused: side.refused, ..Side::default() };
            let payload = &packet.payload[..seen.min(end.max(start))];
            let inspected = again.read(&HelperPacket { payload, ..*packet }, sequence, start, ask);
            side.refused = again.sides[packet.direction.index()].refused;
            if inspected == Inspected::Incomplete {
                return inspected;
            }
        }
        Inspected::Pass
    }

    /// Reads the lines of a segment behind the part that was read before.
    fn read(
        &mut self,
        packet: &HelperPacket<'_>,
        sequence: u32,
        seen: usize,
        ask: &mut dyn FnMut(Request),
    ) -> Inspected {
        let (payload, direction) = (packet.payload, packet.direction);
        let end = sequence.wrapping_add(payload.len() as u32);
        let mut found: Option<(usize, usize)> = None;
        let mut at = seen;
        while at < payload.len() {
            let rest = &payload[at..];
            let length = rest.iter().position(|&byte| byte == b'\n');
            let line = &rest[..length.unwrap_or(rest.len())];
            let announces = self.announces(direction);
            let side = &mut self.sides[direction.index()];
            if announces && side.line.is_new() {
                match read_line(packet, at) {
                    Ok(announced) => {
                        ask(Request::Expect(announced));
                        found = Some((found.map_or(at, |found| found.0), at + line.len()));
                        self.asked -= u8::from(direction == Direction::Reply);
                    }
                    Err(Silent::Cut) if side.waits_for_rest(at, end) => {
                        return Inspected::Incomplete;
                    }
                    Err(_) => {}
                }
            }
            let side = &mut self.sides[direction.index()];
            if let Some(head) = side.line.go_on(line, length.is_some())
                && !self.hear(direction, head)
            {
                return Inspected::Left;
            }
            if length.is_some() {
                self.sides[direction.index()].line = Line::NEW;
            }
            at += line.len() + 1;
        }
        let side = &mut self.sides[direction.index()];
        side.next = Some(end);
        if let Some((first, last)) = found {
            let place = |at: usize| sequence.wrapping_add(at as u32);
            side.announced = [Some((place(first), place(last + 1))), side.announced[0]];
        }
        Inspected::Pass
    }

    /// True if the next line of an end may be an announcement.
    fn announces(&self, speaker: Direction) -> bool {
        let is_due = speaker == Direction::Original || self.asked > 0 && self.reply.is_none();
        is_due && self.session.believes(speaker)
    }

    /// Handles the first bytes of a line; false if the helper has no more to read.
    fn hear(&mut self, speaker: Direction, head: [u8; HEAD]) -> bool {
        let event = match speaker {
            Direction::Original => {
                let ends = |byte: &u8| byte.is_ascii_whitespace();
                let word = &head[..head.iter().position(ends).unwrap_or(HEAD)];
                let asks = [b"PASV", b"EPSV"].iter().any(|ask| word.eq_ignore_ascii_case(*ask));
                self.asked = self.asked.saturating_add(asks.into());
                Some(Event::of_command(word))
            }
            Direction::Reply => self.reply_of(head).map(Event::of_reply),
        };
        let Some(event) = event else { return true };
        let after = self.session.after(event);
        self.session = after.unwrap_or(self.session);
        after.is_some()
    }

    /// The code of the reply that a line begins; `None` for the lines inside a reply (RFC 959
    /// section 4.2).
    fn reply_of(&mut self, [a, b, c, behind, _]: [u8; HEAD]) -> Option<[u8; 3]> {
        let code = [a, b, c];
        let is_code = code.iter().all(u8::is_ascii_digit) && b"- \r\n".contains(&behind);
        match self.reply {
            Some(begun) => {
                let is_last = begun == code && is_code && behind != b'-';
                self.reply = self.reply.filter(|_| !is_last);
                None
            }
            None => {
                self.reply = Some(code).filter(|_| is_code && behind == b'-');
                Some(code).filter(|_| is_code)
            }
        }
    }
}

/// The announcement in the line that starts at `start`.
fn read_line(packet: &HelperPacket<'_>, start: usize) -> Result<Announced, Silent> {
    let rest = &packet.payload[start..];
    let mut line = Text { bytes: &rest[..rest.len().min(LONGEST_LINE)], at: 0 };
    let target = line.read(packet.direction, packet.source).map_err(|silent| match silent {
        Silent::Cut if rest.len() <= LONGEST_LINE => Silent::Cut,
        _ => Silent::Other,
    })?;
    if target.address.is_ipv4() != packet.source.is_ipv4() || target.port == 0 {
        return Err(Silent::Other);
    }
    Ok(Announced {
        source: Some(packet.destination),
        place: start + target.place.start..start + target.place.end,
        ..Announced::new(protocol::TCP, target.address, target.port)
    })
}

/// Another address and port in the form of the old one: six numbers, `|1|address|port|` or
/// `|||port|`.
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

impl Side {
    /// True if a segment that cuts off a line at offset `start` has to be dropped. A sender
    /// with the rest and room for it will send both in one segment. If the same end comes again
    /// behind other lines, the segment can not become longer.
    fn waits_for_rest(&mut self, start: usize, end: u32) -> bool {
        start == 0 || self.refused.replace(end) != Some(end)
    }
}

impl Line {
    const NEW: Self = Self::Begun([b'\n'; HEAD], 0);

    fn is_new(&self) -> bool {
        matches!(self, Self::Begun(_, 0))
    }

    /// Adds bytes to the line, which ends with them if `is_over`. Returns its first bytes as
    /// soon as they are complete.
    fn go_on(&mut self, bytes: &[u8], is_over: bool) -> Option<[u8; HEAD]> {
        let Self::Begun(head, length) = self else { return None };
        let place = head.iter_mut().skip((*length).into());
        *length += place.zip(bytes).map(|(place, &byte)| *place = byte).count() as u8;
        let head = Some(*head).filter(|_| is_over || usize::from(*length) == HEAD)?;
        *self = Self::Passing;
        Some(head)
    }
}

/// A line, read byte by byte.
struct Text<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Text<'_> {
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

    /// `227` with six numbers in any text: a client looks for the first digit (RFC 1123 section
    /// 4.1.2.6).
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

    /// A decimal number up to `max`. The character behind it must be present, because the
    /// number could continue.
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

    /// RFC 2428 section 2: any printable character except a digit.
    fn delimiter(&mut self) -> Result<u8, Silent> {
        let byte = self.next()?;
        let fits = byte.is_ascii_graphic() && !byte.is_ascii_digit();
        fits.then_some(byte).ok_or(Silent::Other)
    }

    /// Skips `word` and returns true if the line continues with it.
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
