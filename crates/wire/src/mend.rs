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
    let (mut next, mut mended) = (outermost(frame), false);
    for _ in 0..=Dissected::MAX_TUNNELS {
        let Some(place) = next else { break };
        if let Some(unfinished) = Unfinished::at(frame, &place) {
            unfinished.finish(&mut frame[usize::from(place.offset)..place.end]);
            mended = true;
        }
        next = within(frame, &place);
    }
    mended
}

/// True if [`mend_headers`] would change the frame.
pub fn needs_mending(frame: &[u8]) -> bool {
    let mut next = outermost(frame);
    for _ in 0..=Dissected::MAX_TUNNELS {
        let Some(place) = next else { break };
        if Unfinished::at(frame, &place).is_some() {
            return true;
        }
        next = within(frame, &place);
    }
    false
}

/// The outermost packet of IP.
#[inline(always)]
fn outermost(frame: &[u8]) -> Option<IpPlace> {
    link::read(frame, 0).ok()?.ip.filter(|place| !place.guessed)
}

/// The packet of IP that another one carries.
#[inline(always)]
fn within(frame: &[u8], place: &IpPlace) -> Option<IpPlace> {
    if may_carry(frame, place) { dissect::place_within(frame, place) } else { None }
}

/// False for most packets: those that carry no other packet of IP.
fn may_carry(frame: &[u8], place: &IpPlace) -> bool {
    let next_header = match place.family {
        Family::V4 => tail(frame, place.offset).get(9),
        Family::V6 => tail(frame, place.offset).get(6),
    };
    !matches!(next_header, None | Some(&(protocol::TCP | protocol::UDP | protocol::ICMPV6)))
}

/// A header of IP that is not finished.
enum Unfinished {
    /// IPv4: the bytes of the header, and the length if that is missing. The checksum may be.
    V4(usize, Option<u16>),
    /// IPv6: the length, which is missing.
    V6(u16),
}

impl Unfinished {
    /// The header at a place; `None` if it is finished, or is none.
    #[inline(always)]
    fn at(frame: &[u8], place: &IpPlace) -> Option<Self> {
        let packet = frame.get(usize::from(place.offset)..place.end)?;
        match place.family {
            Family::V4 => Self::v4(packet),
            Family::V6 => Self::v6(packet),
        }
    }

    #[inline(always)]
    fn v4(packet: &[u8]) -> Option<Self> {
        let &[version_ihl, _, l0, l1, .., protocol] = packet.first_chunk::<10>()?;
        let (header_len, length) = (usize::from(version_ihl & 0x0f) * 4, packet.len());
        if version_ihl >> 4 != 4 || header_len < 20 || header_len > length {
            return None;
        }
        let lacks_length =
            [l0, l1] == [0, 0] && protocol == protocol::TCP && length > LEAST_PAYLOAD;
        let total = u16::try_from(length).ok().filter(|_| lacks_length);
        let is_finished = total.is_none() && checksum::is_intact(&packet[..header_len]);
        (!is_finished).then_some(Self::V4(header_len, total))
    }

    fn v6(packet: &[u8]) -> Option<Self> {
        let (&[first, _, _, _, l0, l1, next, _], rest) = packet.split_first_chunk::<8>()?;
        // The two addresses are no payload.
        let length = u16::try_from(rest.len().checked_sub(32)?).ok()?;
        let lacks_length =
            first >> 4 == 6 && [l0, l1] == [0, 0] && next == protocol::TCP && length > 0;
        lacks_length.then_some(Self::V6(length))
    }

    /// Writes into the packet of this header what is missing.
    fn finish(self, packet: &mut [u8]) {
        match self {
            Self::V4(header_len, total) => {
                if let Some(total) = total {
                    packet[2..4].copy_from_slice(&total.to_be_bytes());
                }
                let header = &mut packet[..header_len];
                if !checksum::is_intact(header) {
                    checksum::fill_ipv4_header(header);
                }
            }
            Self::V6(length) => packet[4..6].copy_from_slice(&length.to_be_bytes()),
        }
    }
}

#[cfg(test)]
#[path = "mend_tests.rs"]
mod tests;
