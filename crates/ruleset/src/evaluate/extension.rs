//! Finds extension headers of IPv6, options of IPv4 and of TCP, and chunks of SCTP, as the kernel
//! finds them.

use std::ops::Range;

use wire::{Family, Transport, protocol};

use super::load::packet;
use super::view::PacketView;

/// The length of an IPv6 header (RFC 8200 section 3).
const IPV6_HEADER: usize = 40;
/// The length of an IPv4 header without options (RFC 791 section 3.1).
const IPV4_HEADER: usize = 20;

/// Where an extension header of this number begins. The outer `None` is for packets of IPv4.
pub(super) fn header(view: &PacketView<'_>, wanted: u8) -> Option<Option<usize>> {
    (view.network.family == Family::V6).then(|| find_header(view, wanted))
}

fn find_header(view: &PacketView<'_>, wanted: u8) -> Option<usize> {
    /// Fields of a fragment header (RFC 8200 section 4.5).
    const FRAGMENT_OFFSET: usize = 2;
    let packet = packet(view);
    let mut at = usize::from(view.network.offset);
    let mut number = *packet.get(at + 6)?;
    at += IPV6_HEADER;
    while number != wanted {
        let next = *packet.get(at)?;
        let units = usize::from(*packet.get(at + 1)?);
        at += match number {
            protocol::HOP_BY_HOP | protocol::ROUTING | protocol::DESTINATION_OPTIONS => {
                8 * (units + 1)
            }
            protocol::FRAGMENT => {
                let offset = packet.get(at + FRAGMENT_OFFSET..)?.first_chunk()?;
                // No header follows in a later fragment.
                if u16::from_be_bytes(*offset) & !7 != 0 {
                    return None;
                }
                8
            }
            // RFC 4302 section 2.2.
            protocol::AH => 4 * (units + 2),
            _ => return None,
        };
        number = next;
    }
    Some(at)
}

/// Where an option of this number begins. The outer `None` is for packets of IPv6.
pub(super) fn option(view: &PacketView<'_>, wanted: u8) -> Option<Option<usize>> {
    (view.network.family == Family::V4).then(|| find_option(view, wanted))
}

fn find_option(view: &PacketView<'_>, wanted: u8) -> Option<usize> {
    const END: u8 = 0;
    const NOTHING: u8 = 1;
    let packet = packet(view);
    let header = usize::from(view.network.offset);
    let end = header + 4 * usize::from(*packet.get(header)? & 15);
    let mut at = header + IPV4_HEADER;
    while at < end {
        at += match *packet.get(at..end)? {
            [END, ..] => return None,
            [NOTHING, ..] => 1,
            [kind, length, ..] if length >= 2 => {
                if kind == wanted {
                    return Some(at);
                }
                usize::from(length)
            }
            _ => return None,
        };
    }
    None
}

/// An option of TCP of this number. Packets of other protocols have none, as in the kernel.
pub(super) fn tcp_option(view: &PacketView<'_>, wanted: u8) -> Option<Range<usize>> {
    let Transport::Tcp(tcp) = view.network.transport else { return None };
    let begin = usize::from(view.network.transport_offset);
    find_tcp_option(packet(view), begin, begin + usize::from(tcp.header_len), wanted)
}

fn find_tcp_option(packet: &[u8], header: usize, end: usize, wanted: u8) -> Option<Range<usize>> {
    const TCP_HEADER: usize = 20;
    const NOTHING: u8 = 1;
    let mut at = header + TCP_HEADER;
    // The kernel reads on behind the end of the list, and not the last byte of the header.
    while at + 1 < end {
        let (kind, length) = (*packet.get(at)?, *packet.get(at + 1)?);
        let length = if kind <= NOTHING || length == 0 { 1 } else { usize::from(length) };
        if kind == wanted {
            return (at + length <= end).then_some(at..at + length);
        }
        at += length;
    }
    None
}

/// The first chunk of SCTP of this number. Packets of other protocols have none, as in the kernel.
pub(super) fn sctp_chunk(view: &PacketView<'_>, wanted: u8) -> Option<Range<usize>> {
    let is_sctp = view.network.protocol == protocol::SCTP
        && view.network.transport != Transport::LaterFragment;
    let begin = usize::from(view.network.transport_offset);
    if is_sctp { find_sctp_chunk(packet(view), begin, wanted) } else { None }
}

fn find_sctp_chunk(packet: &[u8], header: usize, wanted: u8) -> Option<Range<usize>> {
    /// The common header (RFC 9260 section 3.1).
    const SCTP_HEADER: usize = 12;
    let mut at = header + SCTP_HEADER;
    loop {
        let &[kind, _, high, low] = packet.get(at..)?.first_chunk()?;
        let length = usize::from(u16::from_be_bytes([high, low]));
        if length == 0 {
            return None;
        }
        if kind == wanted {
            return Some(at..(at + length).min(packet.len()));
        }
        // A chunk is filled up to words (RFC 9260 section 3.2).
        at += length.next_multiple_of(4);
    }
}

#[cfg(test)]
#[path = "../extension_tests.rs"]
mod tests;
