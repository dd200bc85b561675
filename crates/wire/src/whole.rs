//! The headers of a datagram that is put together from fragments.

use crate::extension::{self, FRAGMENT};
use crate::link::{ETHERNET_LEN, ethertype};
use crate::{Family, Network, checksum};

const IPV6_HEADER: usize = 40;
const FRAGMENT_HEADER: usize = 8;

/// Number of bytes that [`whole_header`] writes for the datagram whose first fragment has these
/// headers; `None` if the packet is no fragment.
pub fn whole_header_len(network: &Network) -> Option<usize> {
    let fragment_header = match network.family {
        Family::V4 => 0,
        Family::V6 => FRAGMENT_HEADER,
    };
    let headers = network.fragment?.payload_offset.checked_sub(network.offset)?;
    usize::from(ETHERNET_LEN + headers).checked_sub(fragment_header)
}

/// Writes to `whole` the headers of the datagram whose first fragment is given: an Ethernet
/// header with the addresses of the frame and the IP header up to the fragmentable part (RFC
/// 791 section 3.2; RFC 8200 section 4.5, which takes the fragment header out). Returns their
/// length; the `payload` bytes of all fragments belong behind them, in order.
///
/// `network` is that of the first fragment; `ecn` holds the two ECN bits that the fragments
/// give together. It leaves out VLAN tags, and tunnels around the datagram.
///
/// `None` if `network` is no first fragment of `first`, if the datagram is longer than its
/// length field allows, or if `whole` has no room for the headers.
pub fn whole_header(
    first: &[u8],
    network: &Network,
    payload: usize,
    ecn: u8,
    whole: &mut [u8],
) -> Option<usize> {
    let fragment = network.fragment.filter(|fragment| fragment.offset == 0)?;
    let header = first.get(network.offset.into()..fragment.payload_offset.into())?;
    let (link, ip) = whole.split_at_mut_checked(ETHERNET_LEN.into())?;
    link[..12].copy_from_slice(first.get(..12)?);
    let (ethertype, length) = match network.family {
        Family::V4 => (ethertype::IPV4, ipv4(header, payload, ecn, ip)?),
        Family::V6 => (ethertype::IPV6, ipv6(header, payload, ecn, ip)?),
    };
    link[12..].copy_from_slice(&ethertype.to_be_bytes());
    Some(usize::from(ETHERNET_LEN) + length)
}

fn ipv4(header: &[u8], payload: usize, ecn: u8, whole: &mut [u8]) -> Option<usize> {
    let total = u16::try_from(header.len() + payload).ok()?;
    let whole = whole.get_mut(..header.len())?;
    whole.copy_from_slice(header);
    let fixed: &mut [u8; 20] = whole.first_chunk_mut()?;
    fixed[1] = fixed[1] & !3 | ecn & 3;
    fixed[2..4].copy_from_slice(&total.to_be_bytes());
    // In a whole datagram "don't fragment" is the only fragment field with a meaning.
    [fixed[6], fixed[7]] = [fixed[6] & 0x40, 0];
    checksum::fill_ipv4_header(whole);
    Some(header.len())
}

fn ipv6(header: &[u8], payload: usize, ecn: u8, whole: &mut [u8]) -> Option<usize> {
    let (kept, fragment_header) =
        header.split_at_checked(header.len().checked_sub(FRAGMENT_HEADER)?)?;
    let length = u16::try_from(kept.len().checked_sub(IPV6_HEADER)? + payload).ok()?;
    let whole = whole.get_mut(..kept.len())?;
    whole.copy_from_slice(kept);
    whole[1] = whole[1] & !0x30 | (ecn & 3) << 4;
    whole[4..6].copy_from_slice(&length.to_be_bytes());
    *next_header_of_last(whole)? = fragment_header[0];
    Some(kept.len())
}

/// The field that names the header behind the extension headers of `header`, which is an IPv6
/// header that ends with its extension headers.
fn next_header_of_last(header: &mut [u8]) -> Option<&mut u8> {
    let (mut field, mut at) = (6, IPV6_HEADER);
    while at < header.len() {
        let number = *header.get(field)?;
        // Any other header would be the transport.
        if number == FRAGMENT || !extension::is_extension(number) {
            return None;
        }
        field = at;
        at += usize::from(extension::length(number, *header.get(at + 1)?));
    }
    header.get_mut(field)
}

#[cfg(test)]
#[path = "whole_tests.rs"]
mod tests;
