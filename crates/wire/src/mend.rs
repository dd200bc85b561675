//! Headers of IP that a sender leaves unfinished for its interface, in captures on its host.

use crate::{
    Dissected, Family, checksum, dissect,
    link::{self, IpPlace},
    protocol, tail,
};

/// The least payload of an Ethernet frame, bytes: a shorter one has padding behind it.
const LEAST_PAYLOAD: usize = 46;

/// Writes what the interface of a sender would have written into the headers of IP of an Ethernet
/// frame, those inside tunnels included: IPv4 header checksums, and the length of a TCP packet
/// that is still to be cut into segments, which is 0 until then. True if anything was missing.
///
/// This trusts the frame. It is for captures of the sending host, never for frames that arrive.
pub fn mend_headers(frame: &mut [u8]) -> bool {
    let Ok(link) = link::read(frame, 0) else { return false };
    let mut next = link.ip.filter(|place| !place.guessed);
    let mut mended = false;
    for _ in 0..=Dissected::MAX_TUNNELS {
        let Some(place) = next else { break };
        mended |= match place.family {
            Family::V4 => mend_v4(frame, &place),
            Family::V6 => mend_v6(frame, &place),
        };
        next = if may_carry(frame, &place) { dissect::place_within(frame, &place) } else { None };
    }
    mended
}

/// False for most packets: those that carry no other packet of IP.
fn may_carry(frame: &[u8], place: &IpPlace) -> bool {
    let next_header = match place.family {
        Family::V4 => tail(frame, place.offset).get(9),
        Family::V6 => tail(frame, place.offset).get(6),
    };
    !matches!(next_header, None | Some(&(protocol::TCP | protocol::UDP | protocol::ICMPV6)))
}

fn mend_v4(frame: &mut [u8], place: &IpPlace) -> bool {
    let Some(packet) = frame.get_mut(usize::from(place.offset)..place.end) else { return false };
    let Some(&[version_ihl, _, l0, l1, .., protocol]) = packet.first_chunk::<10>() else {
        return false;
    };
    let (header_len, length) = (usize::from(version_ihl & 0x0f) * 4, packet.len());
    if version_ihl >> 4 != 4 || header_len < 20 || header_len > length {
        return false;
    }
    if [l0, l1] == [0, 0]
        && protocol == protocol::TCP
        && length > LEAST_PAYLOAD
        && let Ok(total) = u16::try_from(length)
    {
        packet[2..4].copy_from_slice(&total.to_be_bytes());
    }
    let header = &mut packet[..header_len];
    let is_intact = checksum::is_intact(header);
    if !is_intact {
        checksum::fill_ipv4_header(header);
    }
    !is_intact || packet[2..4] != [l0, l1]
}

fn mend_v6(frame: &mut [u8], place: &IpPlace) -> bool {
    let Some(packet) = frame.get_mut(usize::from(place.offset)..place.end) else { return false };
    let Some((&mut [first, _, _, _, ref mut l0, ref mut l1, next, _], rest)) =
        packet.split_first_chunk_mut::<8>()
    else {
        return false;
    };
    // The two addresses are no payload.
    let Some(length) = rest.len().checked_sub(32).and_then(|length| u16::try_from(length).ok())
    else {
        return false;
    };
    if first >> 4 != 6 || [*l0, *l1] != [0, 0] || next != protocol::TCP || length == 0 {
        return false;
    }
    [*l0, *l1] = length.to_be_bytes();
    true
}

#[cfg(test)]
#[path = "mend_tests.rs"]
mod tests;
