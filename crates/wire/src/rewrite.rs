//! Rewriting both ends of a usual TCP segment or UDP datagram at once.

use crate::checksum::Change;
use crate::{ChecksumCovers, Family, Network, TransportAddress, protocol};

/// Offset of the checksum in an IPv4 header.
const IPV4_CHECKSUM: usize = 10;
/// Offset of the checksum in a TCP header.
const TCP_CHECKSUM: usize = 16;
/// Offset of the checksum in a UDP header.
const UDP_CHECKSUM: usize = 6;

/// Gives a TCP segment or UDP datagram a new source and destination. The bytes become those that
/// [`Readdress::apply`](crate::Readdress::apply) writes for both ends, but `network` is not
/// brought up to date. Returns false, and changes nothing, if the packet is a fragment, has IP
/// options or extension headers, is cut short, or has another protocol.
#[inline]
#[must_use]
pub fn rewrite_ends(
    frame: &mut [u8],
    network: &Network,
    source: &TransportAddress,
    destination: &TransportAddress,
    covers: ChecksumCovers,
) -> bool {
    let (start, end) = (usize::from(network.offset), usize::from(network.transport_offset));
    let checksum = match network.protocol {
        protocol::TCP => TCP_CHECKSUM,
        protocol::UDP => UDP_CHECKSUM,
        _ => return false,
    };
    let Some((before, transport)) = frame.split_at_mut_checked(end) else { return false };
    let Some(header) = before.get_mut(start..) else { return false };
    if network.fragment.is_some() || transport.len() < checksum + 2 {
        return false;
    }
    let ends = [&source.address, &destination.address];
    let addresses = match (network.family, header.len()) {
        (Family::V4, 20) => {
            let change = write_addresses::<1>(&mut header[12..], ends);
            change.update(header, IPV4_CHECKSUM);
            change
        }
        (Family::V6, 40) => write_addresses::<4>(&mut header[8..], ends),
        _ => return false,
    };
    let Some(ports) = transport.first_chunk_mut::<4>() else { return false };
    let new = u32::from(source.port) << 16 | u32::from(destination.port);
    let all = addresses.replace_word(u32::from_be_bytes(*ports), new);
    *ports = new.to_be_bytes();
    write_checksum(&mut transport[checksum..], addresses, all, network.protocol, covers);
    true
}

/// Writes two addresses of `N` words each, one behind the other. An address is the last `N`
/// words of its mapped form in `ends`.
#[inline(always)]
fn write_addresses<const N: usize>(place: &mut [u8], ends: [&[u8; 16]; 2]) -> Change {
    let mut change = Change::default();
    let (places, _) = place.as_chunks_mut::<4>();
    let new = ends.iter().flat_map(|address| address.as_chunks::<4>().0[4 - N..].iter());
    for (old, new) in places.iter_mut().zip(new) {
        change = change.replace_word(u32::from_be_bytes(*old), u32::from_be_bytes(*new));
        *old = *new;
    }
    change
}

#[inline(always)]
fn write_checksum(
    place: &mut [u8],
    addresses: Change,
    all: Change,
    protocol: u8,
    covers: ChecksumCovers,
) {
    let Some(field) = place.first_chunk_mut::<2>() else { return };
    let old = u16::from_be_bytes(*field);
    let is_udp = protocol == protocol::UDP;
    let new = match covers {
        // Zero means that the datagram has no checksum (RFC 768).
        ChecksumCovers::All if is_udp && old == 0 => 0,
        ChecksumCovers::All => match all.apply(old) {
            0 if is_udp => 0xffff,
            new => new,
        },
        // The field holds the sum itself, not its complement.
        ChecksumCovers::PseudoHeader => !addresses.apply(!old),
    };
    *field = new.to_be_bytes();
}

#[cfg(test)]
#[path = "rewrite_tests.rs"]
mod tests;
