//! The media of a session description (SDP, RFC 8866).

use std::net::IpAddr;
use std::ops::Range;

use crate::helper::text::{Lines, number, place};

/// Most `m=` lines that are read.
const MOST_MEDIA: usize = 16;

/// The address at which an end wants to receive a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Media {
    /// First word of the `m=` line.
    pub kind: MediaKind,
    pub address: IpAddr,
    pub port: u16,
    /// The place of the port in the text.
    pub place: Range<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MediaKind {
    Audio,
    Video,
    /// `m=image`: T.38, which is the only use.
    Fax,
}

/// The streams of the description that a body contains, alone or as a part of several. Streams
/// on hold (port 0, or the unspecified address, RFC 3264 section 8.4), without an address, or
/// of another kind are left out.
pub(super) fn media(body: &[u8]) -> impl Iterator<Item = Media> {
    let mut lines = numbered(body).skip_while(|(_, line)| !line.starts_with(b"v=")).peekable();
    let mut of_session = None;
    while let Some((_, line)) = lines.next_if(|(_, line)| !line.starts_with(b"m=")) {
        of_session = of_session.or_else(|| Some(connection(line)?.0));
    }
    let each = std::iter::from_fn(move || {
        let (at, line) = lines.next()?;
        let mut of_media = None;
        while let Some((_, line)) = lines.next_if(|(_, line)| !line.starts_with(b"m=")) {
            of_media = of_media.or_else(|| Some(connection(line)?.0));
        }
        Some(one(at, line, of_media.or(of_session)))
    });
    each.take(MOST_MEDIA).flatten()
}

/// All addresses of a description: that of its author, and those of its streams.
pub(super) fn addresses(body: &[u8]) -> impl Iterator<Item = (IpAddr, Range<usize>)> {
    let lines = numbered(body).skip_while(|(_, line)| !line.starts_with(b"v="));
    lines.filter_map(|(at, line)| {
        let text = match line.strip_prefix(b"o=") {
            // RFC 8866 section 5.2: name, two numbers, net type, address type, address.
            Some(origin) => {
                let text = origin.trim_ascii().split(|&byte| byte == b' ').nth(5)?;
                // Some programs write IPv6 as in a URI.
                let inside = text.strip_prefix(b"[").and_then(|text| text.strip_suffix(b"]"));
                inside.unwrap_or(text)
            }
            None => connection(line)?.1,
        };
        let inside = place(line, text);
        Some((address(text)?, at + inside.start..at + inside.end))
    })
}

fn numbered(body: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let mut at = 0;
    Lines::of(body).map(move |line| {
        at += line.len();
        (at - line.len(), line)
    })
}

/// Reads `m=audio 49170 RTP/AVP 0`.
fn one(at: usize, line: &[u8], address: Option<IpAddr>) -> Option<Media> {
    let text = line.strip_prefix(b"m=")?;
    let blank = text.iter().position(|&byte| byte == b' ')?;
    let kind = match &text[..blank] {
        b"audio" => MediaKind::Audio,
        b"video" => MediaKind::Video,
        b"image" => MediaKind::Fax,
        _ => return None,
    };
    let digits = text[blank..].trim_ascii_start();
    let (port, rest) = number(digits)?;
    let port = u16::try_from(port).ok().filter(|&port| port != 0)?;
    let end = at + line.len();
    let place = end - digits.len()..end - rest.len();
    let address = address.filter(|address| !address.is_unspecified())?;
    Some(Media { kind, address, port, place })
}

/// Reads `c=IN IP4 192.0.2.1`, which has `/ttl` behind it for a group. The address, and its
/// text.
fn connection(line: &[u8]) -> Option<(IpAddr, &[u8])> {
    let text = line.strip_prefix(b"c=IN IP4 ").or_else(|| line.strip_prefix(b"c=IN IP6 "))?;
    let text = text.trim_ascii().split(|&byte| byte == b'/').next()?;
    Some((address(text)?, text))
}

fn address(text: &[u8]) -> Option<IpAddr> {
    std::str::from_utf8(text).ok()?.parse().ok()
}
