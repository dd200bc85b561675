//! A SIP message (RFC 3261 section 7): the parts that the helper uses.

use std::net::IpAddr;
use std::ops::Range;

use wire::protocol;

use crate::helper::stream::Framing;
use crate::helper::text::{Lines, number, place};

const VERSION: &[u8] = b"SIP/2.0";
/// The port of a SIP URI without one.
const DEFAULT_PORT: u16 = 5060;

/// The kind of the first line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    Request,
    /// With its status code.
    Response(u32),
}

/// A message that is well formed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message<'a> {
    pub start: Start,
    /// The number and the method of the request that this is or answers.
    pub sequence: u32,
    pub method: &'a [u8],
    bytes: &'a [u8],
    first_line: &'a [u8],
    headers: &'a [u8],
    pub body: &'a [u8],
}

/// A numerical address in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Host<'a> {
    pub address: IpAddr,
    pub port: u16,
    /// Its text in the message.
    pub text: &'a [u8],
}

/// The address at which a user accepts requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Contact<'a> {
    pub host: Host<'a>,
    /// IP protocol, if the message names one.
    pub protocol: Option<u8>,
    /// Lifetime in seconds, if the message names one.
    pub expires: Option<u32>,
}

impl<'a> Message<'a> {
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let head = head_length(bytes)?;
        let mut lines = Lines::of(&bytes[..head]);
        let first_line = lines.next()?;
        let start = start(first_line)?;
        let headers = lines.rest();
        let mut body = &bytes[head..];
        if let Some((length, _)) = header(headers, b"content-length", b"l").and_then(number) {
            body = &body[..body.len().min(length as usize)];
        }
        let (sequence, method) = header(headers, b"cseq", b"").and_then(number)?;
        let method = method.trim_ascii();
        let named = first_line.split(|&byte| byte == b' ').next()?;
        if start == Start::Request && !named.eq_ignore_ascii_case(method) {
            return None;
        }
        Some(Self { start, sequence, method, bytes, first_line, headers, body })
    }

    /// The range of a part of the message.
    pub fn place(&self, part: &[u8]) -> Range<usize> {
        place(self.bytes, part)
    }

    /// The digits of the body's length.
    pub fn length(&self) -> Option<&'a [u8]> {
        let value = header(self.headers, b"content-length", b"l")?;
        let (_, rest) = number(value)?;
        Some(&value[..value.len() - rest.len()])
    }

    /// The last hop (RFC 3261 section 20.42), with the parameters that its receiver has added.
    pub fn via(&self) -> Option<Via<'a>> {
        let value = header(self.headers, b"via", b"v")?;
        let element = Elements(value).next()?;
        let blank = element.iter().position(u8::is_ascii_whitespace)?;
        let mut fields = element[blank..].split(|&byte| byte == b';');
        let sent_by = host_port(fields.next()?.trim_ascii())?;
        let [maddr, received, rport] =
            [&b"maddr"[..], b"received", b"rport"].map(|name| parameter(fields.clone(), name));
        let host = |text: &'a [u8]| host_port(text);
        let bare = |text: &'a [u8]| {
            let address = std::str::from_utf8(text).ok()?.parse().ok()?;
            Some(Host { address, port: DEFAULT_PORT, text })
        };
        Some(Via {
            sent_by,
            maddr: maddr.and_then(host),
            received: received.and_then(|text| bare(text).or_else(|| host(text))),
            rport: rport.and_then(|text| Some((u16::try_from(number(text)?.0).ok()?, text))),
        })
    }

    /// All other numerical addresses of the first line and of the headers that name the sender
    /// or the way of an answer.
    pub fn hosts(&self) -> impl Iterator<Item = Host<'a>> {
        const NAMES: [(&[u8], &[u8]); 5] = [
            (b"contact", b"m"),
            (b"from", b"f"),
            (b"to", b"t"),
            (b"route", b""),
            (b"record-route", b""),
        ];
        let to = self.first_line.split(|&byte| byte == b' ').nth(1).and_then(uri_host);
        let to = to.filter(|_| self.start == Start::Request);
        let headers = self.headers;
        let named = NAMES.into_iter().flat_map(move |(name, compact)| {
            self::headers(headers, name, compact).flat_map(Elements)
        });
        to.into_iter().chain(named.filter_map(|element| uri_host(uri(element)?.0)))
    }

    /// A number for the call that the message belongs to (RFC 3261 section 8.1.1.4: Call-ID),
    /// never 0. Two calls rarely have the same.
    pub fn call(&self) -> u32 {
        let id = header(self.headers, b"call-id", b"i").unwrap_or_default();
        // FNV-1a.
        let mix = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
        id.iter().fold(0x811c_9dc5, mix).max(1)
    }

    /// The lifetime that holds for all contacts, seconds.
    pub fn expires(&self) -> Option<u32> {
        header(self.headers, b"expires", b"").and_then(number).map(|(seconds, _)| seconds)
    }

    /// All contacts with a numerical address.
    pub fn contacts(&self) -> impl Iterator<Item = Contact<'a>> {
        headers(self.headers, b"contact", b"m").flat_map(Elements).filter_map(contact)
    }
}

/// The length of the message that begins here (RFC 3261 section 18.3: over a stream
/// Content-Length is mandatory). Line ends between messages keep connections alive (RFC 5626).
pub(super) fn framing(bytes: &[u8]) -> Framing {
    if bytes.starts_with(b"\r\n") {
        return Framing::Filler(2);
    }
    if let Some(end) = bytes.iter().position(|&byte| byte == b'\n')
        && end > 1
        && start(&bytes[..end]).is_none()
    {
        return Framing::Garbage;
    }
    let Some(head) = head_length(bytes) else { return Framing::Unknown };
    match header(&bytes[..head], b"content-length", b"l").and_then(number) {
        Some((length, _)) => Framing::Length(head.saturating_add(length as usize)),
        None => Framing::Garbage,
    }
}

/// Number of bytes in front of the body.
fn head_length(bytes: &[u8]) -> Option<usize> {
    bytes.windows(4).position(|end| end == b"\r\n\r\n").map(|at| at + 4)
}

/// RFC 3261 section 7.1: `SIP/2.0 200 OK`, or `INVITE sip:bob@example.com SIP/2.0` with single
/// blanks.
fn start(line: &[u8]) -> Option<Start> {
    if let Some(status) = line.strip_prefix(VERSION) {
        return number(status).map(|(code, _)| Start::Response(code));
    }
    let mut words = line.trim_ascii_end().split(|&byte| byte == b' ');
    let (method, uri) = (words.next()?, words.next()?);
    let is_token = |byte: &u8| byte.is_ascii_alphanumeric() || b"-.!%*_+`'~".contains(byte);
    let colon = uri.iter().position(|&byte| byte == b':')?;
    let is_request = !method.is_empty()
        && method.iter().all(is_token)
        && uri[..colon].first().is_some_and(u8::is_ascii_alphabetic)
        && uri[..colon].iter().all(is_token)
        && !uri.iter().any(u8::is_ascii_control)
        && words.eq([VERSION]);
    is_request.then_some(Start::Request)
}

fn header<'a>(headers: &'a [u8], name: &'a [u8], compact: &'a [u8]) -> Option<&'a [u8]> {
    self::headers(headers, name, compact).next()
}

/// The values of all headers of a name, or of its compact form. A value may continue in lines
/// that begin with a blank.
fn headers<'a>(
    headers: &'a [u8],
    name: &'a [u8],
    compact: &'a [u8],
) -> impl Iterator<Item = &'a [u8]> {
    let mut lines = Lines::of(headers).folded();
    std::iter::from_fn(move || {
        lines.find_map(|line| {
            let colon = line.iter().position(|&byte| byte == b':')?;
            let said = line[..colon].trim_ascii();
            let is_it = said.eq_ignore_ascii_case(name)
                || (!compact.is_empty() && said.eq_ignore_ascii_case(compact));
            is_it.then(|| line[colon + 1..].trim_ascii())
        })
    })
}

/// The elements of a value that commas separate; commas in quotes and brackets do not count.
struct Elements<'a>(&'a [u8]);

impl<'a> Iterator for Elements<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if self.0.is_empty() {
            return None;
        }
        let (mut quoted, mut bracketed) = (false, false);
        let end = self.0.iter().position(|byte| {
            match byte {
                b'"' => quoted = !quoted,
                b'<' if !quoted => bracketed = true,
                b'>' if !quoted => bracketed = false,
                b',' => return !quoted && !bracketed,
                _ => {}
            }
            false
        });
        let (element, rest) = self.0.split_at(end.unwrap_or(self.0.len()));
        self.0 = rest.get(1..).unwrap_or_default();
        Some(element)
    }
}

/// The last hop of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Via<'a> {
    pub sent_by: Host<'a>,
    pub maddr: Option<Host<'a>>,
    pub received: Option<Host<'a>>,
    /// RFC 3581, if the receiver has filled it in.
    pub rport: Option<(u16, &'a [u8])>,
}

/// The URI of an element, and the text with its parameters (RFC 3261 sections 19.1.1 and
/// 20.10): `name <sip:user@host:port;parameters>;parameters`, or without brackets, where all
/// parameters belong to the header.
fn uri(element: &[u8]) -> Option<(&[u8], &[u8])> {
    let (uri, parameters) = match element.iter().rposition(|&byte| byte == b'<') {
        Some(open) => {
            let close = open + element[open..].iter().position(|&byte| byte == b'>')?;
            (&element[open + 1..close], &element[close + 1..])
        }
        None => (element, element),
    };
    Some((uri.trim_ascii(), parameters))
}

/// The part behind the scheme of a URI, divided at semicolons: the host with its user, and
/// parameters.
fn uri_fields(uri: &[u8]) -> Option<impl Iterator<Item = &[u8]>> {
    let place = ["sip:", "sips:"].iter().find_map(|scheme| {
        let (said, rest) = uri.split_at_checked(scheme.len())?;
        said.eq_ignore_ascii_case(scheme.as_bytes()).then_some(rest)
    })?;
    let end = place.iter().position(|byte| b"?>".contains(byte)).unwrap_or(place.len());
    Some(place[..end].split(|&byte| byte == b';'))
}

fn uri_host(uri: &[u8]) -> Option<Host<'_>> {
    host(&mut uri_fields(uri)?)
}

fn host<'a>(fields: &mut impl Iterator<Item = &'a [u8]>) -> Option<Host<'a>> {
    // A user name may contain semicolons, but no real program writes one in front of an
    // address.
    let host = fields.next()?.rsplit(|&byte| byte == b'@').next()?;
    host_port(host.trim_ascii())
}

fn contact(element: &[u8]) -> Option<Contact<'_>> {
    let (uri, parameters) = uri(element)?;
    let mut fields = uri_fields(uri)?;
    let host = host(&mut fields)?;
    let protocol = match parameter(fields, b"transport") {
        None => None,
        Some(name) if name.eq_ignore_ascii_case(b"udp") => Some(protocol::UDP),
        Some(name) if name.eq_ignore_ascii_case(b"tcp") => Some(protocol::TCP),
        Some(_) => return None,
    };
    let expires = parameter(parameters.split(|&byte| byte == b';').skip(1), b"expires")
        .and_then(number)
        .map(|(seconds, _)| seconds);
    Some(Contact { host, protocol, expires })
}

fn parameter<'a>(mut fields: impl Iterator<Item = &'a [u8]>, name: &[u8]) -> Option<&'a [u8]> {
    fields.find_map(|field| {
        let equals = field.iter().position(|&byte| byte == b'=')?;
        field[..equals]
            .trim_ascii()
            .eq_ignore_ascii_case(name)
            .then(|| field[equals + 1..].trim_ascii())
    })
}

/// `192.0.2.1`, `192.0.2.1:5062`, `[2001:db8::1]:5062`.
fn host_port(bytes: &[u8]) -> Option<Host<'_>> {
    let text = std::str::from_utf8(bytes).ok()?;
    let (host, rest) = match text.strip_prefix('[') {
        Some(inside) => inside.split_once(']')?,
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    let port = match rest.strip_prefix(':') {
        Some(port) => port.trim().parse().ok()?,
        None => DEFAULT_PORT,
    };
    Some(Host { address: host.parse().ok()?, port, text: bytes })
}
