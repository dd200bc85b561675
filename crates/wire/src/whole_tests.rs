use proptest::prelude::*;

use super::*;
use crate::build::PacketBuilder;
use crate::{dissect, protocol};

/// A protocol for experiments (RFC 3692): the dissector knows no format of its payload.
const EXPERIMENT: u8 = 253;

/// Puts the fragments of a datagram together, by their offsets.
fn together(fragments: &[Vec<u8>], ecn: u8) -> Vec<u8> {
    let networks: Vec<_> = fragments.iter().map(|f| dissect(f).unwrap().network.unwrap()).collect();
    let payload = |(frame, network): (&Vec<u8>, &Network)| {
        frame[network.fragment.unwrap().payload_offset.into()..network.end as usize].to_vec()
    };
    let payload: Vec<u8> = fragments.iter().zip(&networks).flat_map(payload).collect();
    let mut whole = vec![0; 128 + payload.len()];
    let header = whole_header(&fragments[0], &networks[0], payload.len(), ecn, &mut whole).unwrap();
    assert_eq!(whole_header_len(&networks[0]), Some(header));
    whole.truncate(header);
    whole.extend(payload);
    whole
}

proptest! {
    #[test]
    fn cutting_up_and_putting_together_is_nothing(
        is_v6 in any::<bool>(),
        payload in proptest::collection::vec(any::<u8>(), 30..4000),
        piece in 1..200_usize,
        options in proptest::collection::vec(Just(1_u8), 0..=40),
        dont_fragment in any::<bool>(),
    ) {
        let mut builder = if is_v6 {
            PacketBuilder::v6([0x20; 16], [0x21; 16])
        } else {
            PacketBuilder::v4([192, 0, 2, 1], [198, 51, 100, 2]).options(&options)
        };
        if dont_fragment {
            builder = builder.dont_fragment();
        }
        let mut datagram = Vec::new();
        builder.clone().id(7).traffic_class(0xb8).udp(1, 2, &payload, &mut datagram);
        let network = dissect(&datagram).unwrap().network.unwrap();
        let transport = &datagram[network.transport_offset.into()..];

        let tagged = builder.vlan(9).id(7).traffic_class(0xb9);
        let fragments = tagged.fragments(protocol::UDP, transport, piece * 8);
        prop_assume!(fragments.len() > 1);
        // Apart from the two ECN bits the headers are those of the first fragment.
        prop_assert_eq!(together(&fragments, 0), datagram);
        let marked = together(&fragments, 3);
        let network = dissect(&marked).unwrap().network.unwrap();
        prop_assert_eq!(network.traffic_class, 0xbb);
        prop_assert!(checksum::verify_transport(&marked, &network));
    }

    #[test]
    fn no_input_panics(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        payload in 0..70_000_usize,
        room in 0..100_usize,
    ) {
        let fragment = PacketBuilder::v6([1; 16], [2; 16]).fragments(EXPERIMENT, &[0; 64], 32);
        let mut network = dissect(&fragment[0]).unwrap().network.unwrap();
        let _ = whole_header(&bytes, &network, payload, 0, &mut vec![0; room]);
        network.offset = room as u16;
        let _ = whole_header_len(&network);
        network.family = Family::V4;
        let _ = whole_header(&bytes, &network, payload, 0, &mut vec![0; room]);
    }
}

#[test]
fn extension_headers_before_the_fragment_header_stay() {
    // Hop-by-hop options (padding), then the fragment header.
    let datagram = PacketBuilder::v6([1; 16], [2; 16]);
    let mut first = Vec::new();
    let mut body = vec![44, 0, 1, 4, 0, 0, 0, 0, protocol::UDP, 0, 0, 1, 0, 0, 0, 7];
    body.extend([0, 1, 0, 2, 0, 24, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
    datagram.raw(0, &body, &mut first);
    let network = dissect(&first).unwrap().network.unwrap();
    assert_eq!(network.fragment.unwrap().payload_offset, 14 + 40 + 16);
    let mut whole = [0; 128];
    let header = whole_header(&first, &network, 24, 0, &mut whole).unwrap();
    assert_eq!((header, whole_header_len(&network)), (14 + 40 + 8, Some(header)));
    assert_eq!(whole[14 + 4..14 + 7], [0, 32, 0], "payload length, and hop-by-hop is first");
    assert_eq!(whole[14 + 40], protocol::UDP, "and UDP follows it");
}

#[test]
fn a_datagram_that_no_length_field_can_tell_is_refused() {
    let fragments =
        PacketBuilder::v4([192, 0, 2, 1], [192, 0, 2, 2]).fragments(EXPERIMENT, &[0; 64], 32);
    let network = dissect(&fragments[0]).unwrap().network.unwrap();
    let mut whole = [0; 64];
    assert_eq!(whole_header(&fragments[0], &network, 65_515, 0, &mut whole), Some(34));
    assert_eq!(whole_header(&fragments[0], &network, 65_516, 0, &mut whole), None);
    let later = dissect(&fragments[1]).unwrap().network.unwrap();
    assert_eq!(whole_header(&fragments[1], &later, 64, 0, &mut whole), None);
}
