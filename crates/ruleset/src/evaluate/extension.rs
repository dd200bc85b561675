//! Finds extension headers of IPv6 and options of IPv4, as the kernel finds them.

use wire::{Family, protocol};

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

#[cfg(test)]
#[path = "../extension_tests.rs"]
mod tests;
