//! The claims of a fragment, also of one that is refused for them.

use std::fmt;
use std::net::IpAddr;

use crate::dissected::Family;
use crate::extension::{self, FRAGMENT};
use crate::{Dissected, link, tail};

/// The fields in the headers of a fragment, whether or not they are valid. They only explain to
/// people why a fragment was refused: fragments are accepted by [`crate::dissect`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClaimedFragment {
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// Protocol, or the next header of the IPv6 fragment header.
    pub protocol: u8,
    /// Identification.
    pub id: u32,
    /// Place of its payload in the datagram, bytes.
    pub offset: u16,
    /// Length of its payload, bytes.
    pub length: u32,
    /// More fragments follow.
    pub more: bool,
    /// Bytes that count against the longest datagram beside the payload: the IPv4 header, or
    /// the IPv6 headers between the fixed one and the fragment header.
    pub header: u16,
}

impl ClaimedFragment {
    /// The claims of the outermost IP packet of a frame; `None` if that is no fragment. The
    /// frame may be cut off behind its headers.
    pub fn of(frame: &[u8]) -> Option<Self> {
        let place = link::read(frame, 0).ok()?.ip?;
        let packet = tail(frame, place.offset);
        match place.family {
            Family::V4 => v4(packet),
            Family::V6 => v6(packet),
        }
    }
}

fn v4(packet: &[u8]) -> Option<ClaimedFragment> {
    let &[v, _, l0, l1, i0, i1, f0, f1, _, protocol, ..] = packet.first_chunk::<20>()?;
    let field = u16::from_be_bytes([f0, f1]);
    let header = u16::from(v & 0x0f) * 4;
    let length = u16::from_be_bytes([l0, l1]).checked_sub(header)?;
    let address = |at: usize| packet.get(at..)?.first_chunk::<4>().copied().map(IpAddr::from);
    (field & 0x3fff != 0).then_some(ClaimedFragment {
        source: address(12)?,
        destination: address(16)?,
        protocol,
        id: u16::from_be_bytes([i0, i1]).into(),
        offset: (field & 0x1fff) * 8,
        length: length.into(),
        more: field & 0x2000 != 0,
        header,
    })
}

fn v6(packet: &[u8]) -> Option<ClaimedFragment> {
    const FIXED: u32 = 40;
    let fixed = packet.first_chunk::<40>()?;
    let end = FIXED + u32::from(u16::from_be_bytes([fixed[4], fixed[5]]));
    let (mut number, mut at) = (fixed[6], FIXED as u16);
    for _ in 0..Dissected::MAX_EXTENSION_HEADERS {
        let header: &[u8; 8] = tail(packet, at).first_chunk()?;
        let behind = at.checked_add(extension::length(number, header[1]))?;
        if number == FRAGMENT {
            let found = extension::read_fragment(header, behind);
            let address = |at: usize| packet.get(at..)?.first_chunk::<16>().copied();
            return (!found.is_atomic()).then_some(ClaimedFragment {
                source: IpAddr::from(address(8)?),
                destination: IpAddr::from(address(24)?),
                protocol: header[0],
                id: found.id,
                offset: found.offset,
                length: end.checked_sub(behind.into())?,
                more: found.more,
                header: at - FIXED as u16,
            });
        }
        if !extension::is_extension(number) {
            return None;
        }
        (number, at) = (header[0], behind);
    }
    None
}

impl fmt::Display for ClaimedFragment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { source, destination, protocol, id, offset, length, more, .. } = self;
        write!(f, "{source} > {destination} ")?;
        crate::summary::name(*protocol, f)?;
        let more = if *more { "+" } else { "" };
        write!(f, " fragment {id:#x} at {offset}{more} length {length}")
    }
}

#[cfg(test)]
#[path = "claimed_tests.rs"]
mod tests;
