//! The media of a session description (SDP, RFC 8866).

use std::net::IpAddr;
use std::ops::Range;

use crate::helper::text::{Lines, number};

/// The most `m=` lines that are looked at.
const MOST_MEDIA: usize = 16;

/// Where somebody wants to receive a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Media {
    /// First word of the `m=` line.
    pub kind: MediaKind,
    pub address: IpAddr,
    pub port: u16,
    /// Where the port stands in the text.
    pub place: Range<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MediaKind {
    Audio,
    Video,
    /// `m=image`: T.38, which is the only use.
    Fax,
}

/// The streams of the description that a body contains, alone or as a part of several. What
/// is on hold (port 0, or the unspecified address, RFC 3264 section 8.4), without an address,
/// and of another kind is left out.
pub(super) fn media(body: &[u8]) -> impl Iterator<Item = Media> {
    let mut lines = numbered(body).skip_while(|(_, line)| !line.starts_with(b"v=")).peekable();
    let mut of_session = None;
    while let Some((_, line)) = lines.next_if(|(_, line)| !line.starts_with(b"m=")) {
        of_session = of_session.or_else(|| connection(line));
    }
    let each = std::iter::from_fn(move || {
        let (at, line) = lines.next()?;
        let mut of_media = None;
        while let Some((_, line)) = lines.next_if(|(_, line)| !line.starts_with(b"m=")) {
            of_media = of_media.or_else(|| connection(line));
        }
        Some(one(at, line, of_media.or(of_session)))
    });
    each.take(MOST_MEDIA).flatten()
}

fn numbered(body: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let mut at = 0;
    Lines::of(body).map(move |line| {
        at += line.len();
        (at - line.len(), line)
    })
}

/// `m=audio 49170 RTP/AVP 0`
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

/// `c=IN IP4 192.0.2.1`, for a group with `/ttl` behind.
fn connection(line: &[u8]) -> Option<IpAddr> {
    let text = line.strip_prefix(b"c=IN IP4 ").or_else(|| line.strip_prefix(b"c=IN IP6 "))?;
    let address = text.trim_ascii().split(|&byte| byte == b'/').next()?;
    std::str::from_utf8(address).ok()?.parse().ok()
}
