//! The changes that a router makes to a packet that it passes on.

use crate::checksum::Change;
use crate::{Dissected, protocol};

/// Offset of the time to live in an IPv4 header; the protocol is behind it.
const IPV4_TTL: usize = 8;
const IPV4_CHECKSUM: usize = 10;
/// Length of an IPv6 header, in bytes.
const IPV6_HEADER: usize = 40;
/// Offset of the hop limit in an IPv6 header.
const IPV6_HOP_LIMIT: usize = 7;

/// The time to live of the IP packet that begins `packet`, 0 if it is cut short.
pub fn hops_left(packet: &[u8]) -> u8 {
    let is_v4 = packet.first().is_some_and(|first| first >> 4 == 4);
    packet.get(if is_v4 { IPV4_TTL } else { IPV6_HOP_LIMIT }).copied().unwrap_or(0)
}

/// Takes one from the time to live of the IP packet that begins `packet` (RFC 1812 section
/// 5.3.1, RFC 8200 section 3). False if nothing would be left: then the packet is unchanged and
/// must not be passed on.
#[must_use]
pub fn take_hop(packet: &mut [u8]) -> bool {
    let is_v4 = packet.first().is_some_and(|first| first >> 4 == 4);
    let at = if is_v4 { IPV4_TTL } else { IPV6_HOP_LIMIT };
    let Some(word) = packet.get_mut(at..at + 2) else { return false };
    let old = [word[0], word[1]];
    if old[0] <= 1 {
        return false;
    }
    word[0] -= 1;
    let change = Change::default().replace(&old, word);
    if is_v4 {
        change.update(packet, IPV4_CHECKSUM);
    }
    true
}

/// Gives back a hop that [`take_hop`] has taken.
pub fn give_hop(packet: &mut [u8]) {
    let is_v4 = packet.first().is_some_and(|first| first >> 4 == 4);
    let at = if is_v4 { IPV4_TTL } else { IPV6_HOP_LIMIT };
    let Some(word) = packet.get_mut(at..at + 2) else { return };
    let old = [word[0], word[1]];
    word[0] = word[0].saturating_add(1);
    let change = Change::default().replace(&old, word);
    if is_v4 {
        change.update(packet, IPV4_CHECKSUM);
    }
}

/// Gives the packet that begins `packet` another identification: an IPv4 packet the lower half of `id`,
/// a fragment of IPv6 the whole. Any other IPv6 packet has none.
pub fn set_identification(packet: &mut [u8], id: u32) {
    const ID: usize = 4;
    if packet.first().is_none_or(|first| first >> 4 != 4) {
        if let Some(field) = fragment_header(packet).and_then(|it| it.get_mut(ID..ID + 4)) {
            field.copy_from_slice(&id.to_be_bytes());
        }
        return;
    }
    let id = (id as u16).to_be_bytes();
    if let Some(field) = packet.get_mut(ID..).and_then(<[u8]>::first_chunk_mut::<2>) {
        let old = std::mem::replace(field, id);
        Change::default().replace(&old, &id).update(packet, IPV4_CHECKSUM);
    }
}

/// The bytes of an IPv6 packet from its fragment header on (RFC 8200 section 4.5).
fn fragment_header(packet: &mut [u8]) -> Option<&mut [u8]> {
    const NEXT: usize = 6;
    let (mut next, mut at) = (*packet.get(NEXT)?, IPV6_HEADER);
    for _ in 0..=Dissected::MAX_EXTENSION_HEADERS {
        match next {
            protocol::FRAGMENT => return packet.get_mut(at..),
            protocol::HOP_BY_HOP | protocol::ROUTING | protocol::DESTINATION_OPTIONS => {
                let [following, length] = *packet.get(at..)?.first_chunk()?;
                (next, at) = (following, at + (usize::from(length) + 1) * 8);
            }
            _ => return None,
        }
    }
    None
}

/// Writes the source and destination station of an Ethernet frame.
pub fn set_stations(frame: &mut [u8], from: [u8; 6], to: [u8; 6]) {
    if let Some(header) = frame.first_chunk_mut::<12>() {
        header[..6].copy_from_slice(&to);
        header[6..].copy_from_slice(&from);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::build::PacketBuilder;

    proptest! {
        #[test]
        fn a_hop_later_the_packet_is_as_if_it_had_been_sent_so(
            v6: bool,
            ttl: u8,
            id: u16,
            class: u8,
            payload in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let frame = |ttl: u8, stations: [[u8; 6]; 2]| {
                let builder = if v6 {
                    PacketBuilder::v6([0x20; 16], [0x21; 16])
                } else {
                    PacketBuilder::v4([192, 0, 2, 1], [198, 51, 100, 2]).id(id.into())
                };
                let builder = builder.traffic_class(class).ttl(ttl).macs(stations[0], stations[1]);
                let mut out = Vec::new();
                builder.udp(7, 9, &payload, &mut out);
                out
            };
            let mut back = frame(ttl, [[2; 6], [4; 6]]);
            if take_hop(&mut back[14..]) {
                give_hop(&mut back[14..]);
            }
            prop_assert_eq!(&back, &frame(ttl, [[2; 6], [4; 6]]));
            let (here, there) = ([[2; 6], [4; 6]], [[6; 6], [8; 6]]);
            let mut passed = frame(ttl, here);
            prop_assert_eq!(take_hop(&mut passed[14..]), ttl > 1);
            set_stations(&mut passed, there[0], there[1]);
            let expected = frame(if ttl > 1 { ttl - 1 } else { ttl }, there);
            prop_assert_eq!(&passed, &expected);
        }
    }

    #[test]
    fn each_fragment_gets_the_identification_and_other_packets_stay() {
        let fragment = |before: &[u8], next: u8, id: u32| {
            let mut packet = vec![0; IPV6_HEADER];
            (packet[0], packet[6]) = (0x60, next);
            packet.extend(before);
            packet.extend([17, 0, 0, 1]);
            packet.extend(id.to_be_bytes());
            packet.extend([7; 8]);
            packet
        };
        let options = [[protocol::ROUTING, 1].as_slice(), &[0; 14], &[44, 0], &[0; 6]].concat();
        for (before, next) in [(&[][..], protocol::FRAGMENT), (&options, protocol::HOP_BY_HOP)] {
            let mut packet = fragment(before, next, 0x0102_0304);
            set_identification(&mut packet, 0xa0b0_c0d0);
            assert_eq!(packet, fragment(before, next, 0xa0b0_c0d0));
            for length in 0..packet.len() {
                set_identification(&mut packet[..length], 1);
            }
        }
        let mut whole = fragment(&[], protocol::UDP, 5);
        set_identification(&mut whole, 1);
        assert_eq!(whole, fragment(&[], protocol::UDP, 5));
    }
}
