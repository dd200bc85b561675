//! One hop further: what a router changes of a packet that it passes on.

use crate::{Family, Network, checksum::Change};

/// Where the time to live is in an IPv4 header; the protocol is behind it.
const IPV4_TTL: usize = 8;
const IPV4_CHECKSUM: usize = 10;
/// Where the hop limit is in an IPv6 header.
const IPV6_HOP_LIMIT: usize = 7;

/// Takes one from the time to live of the packet that `network` describes (RFC 1812
/// section 5.3.1, RFC 8200 section 3), and keeps the description up to date. False if there
/// is nothing left to take, or nothing would be left after it: then the packet is unchanged,
/// and must not be passed on.
#[must_use]
pub fn take_hop(frame: &mut [u8], network: &mut Network) -> bool {
    let Some(header) = frame.get_mut(usize::from(network.offset)..) else { return false };
    let left = network.ttl.saturating_sub(1);
    if left == 0 {
        return false;
    }
    match network.family {
        Family::V4 => {
            let Some(word) = header.get_mut(IPV4_TTL..IPV4_TTL + 2) else { return false };
            let old = [word[0], word[1]];
            word[0] = left;
            let change = Change::default().replace(&old, word);
            change.update(header, IPV4_CHECKSUM);
        }
        Family::V6 => {
            let Some(limit) = header.get_mut(IPV6_HOP_LIMIT) else { return false };
            *limit = left;
        }
    }
    network.ttl = left;
    true
}

/// Writes from whom and to whom an Ethernet frame goes on its next link.
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
    use crate::{Tunnels, build::PacketBuilder, dissect};

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
            let (here, there) = ([[2; 6], [4; 6]], [[6; 6], [8; 6]]);
            let mut passed = frame(ttl, here);
            let mut network = dissect(&passed, Tunnels::Outer).unwrap().network.unwrap();
            prop_assert_eq!(take_hop(&mut passed, &mut network), ttl > 1);
            set_stations(&mut passed, there[0], there[1]);
            let expected = frame(if ttl > 1 { ttl - 1 } else { ttl }, there);
            prop_assert_eq!(&passed, &expected);
            let described = dissect(&passed, Tunnels::Outer).unwrap().network.unwrap();
            prop_assert_eq!(network, described);
        }
    }
}
