use proptest::prelude::*;

use super::*;
use crate::{build::PacketBuilder, dissect};

/// RFC 1071 word by word.
fn slow(bytes: &[u8]) -> u16 {
    let mut sum = 0u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[test]
fn sums_the_example_of_rfc_1071() {
    assert_eq!(checksum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), !0xddf2);
}

#[test]
fn updates_the_example_of_rfc_1624() {
    let change = Change::default().replace(&[0x55, 0x55], &[0x32, 0x85]);
    assert_eq!(change.apply(0xdd2f), 0x0000);
}

#[test]
fn udp_may_do_without_a_checksum() {
    for builder in [
        PacketBuilder::v4([192, 0, 2, 1], [192, 0, 2, 2]),
        PacketBuilder::v6([0x20; 16], [0x21; 16]),
    ] {
        let mut frame = Vec::new();
        builder.udp(1, 2, b"abc", &mut frame);
        let network = dissect(&frame).unwrap().network.unwrap();
        assert!(verify_transport(&frame, &network));
        let field = usize::from(network.transport_offset) + 6;
        frame[field..field + 2].fill(0);
        assert!(verify_transport(&frame, &network));
        frame[field] = 1;
        assert!(!verify_transport(&frame, &network));
    }
}

#[test]
fn a_routing_header_with_segments_left_can_not_be_verified() {
    for segments_left in [0, 1] {
        let mut payload = vec![17, 0, 4, segments_left, 0, 0, 0, 0];
        payload.extend([0, 1, 0, 2, 0, 8, 0xba, 0xad]);
        let mut frame = Vec::new();
        PacketBuilder::v6([0x20; 16], [0x21; 16]).raw(43, &payload, &mut frame);
        let network = dissect(&frame).unwrap().network.unwrap();
        assert_eq!(verify_transport(&frame, &network), segments_left == 1);
    }
}

proptest! {
    #[test]
    fn equals_the_plain_sum(bytes in proptest::collection::vec(any::<u8>(), 0..200), saturate: bool) {
        let bytes = if saturate { vec![0xff; bytes.len()] } else { bytes };
        prop_assert_eq!(checksum(&bytes), slow(&bytes));
    }

    #[test]
    fn an_update_equals_a_new_sum(
        mut bytes in proptest::collection::vec(any::<u8>(), 8..64),
        new: [u8; 4],
        at in 0usize..2,
    ) {
        let before = checksum(&bytes);
        let old: [u8; 4] = bytes[at * 2..at * 2 + 4].try_into().unwrap();
        bytes[at * 2..at * 2 + 4].copy_from_slice(&new);
        // 0 and 0xffff are the same number in one's complement; it matters only if all bytes
        // are zero which of the two comes out.
        prop_assume!(bytes.iter().any(|byte| *byte != 0));
        let at_once = Change::default().replace(&old, &new);
        prop_assert_eq!(at_once.apply(before), checksum(&bytes));
        let by_words =
            Change::default().replace(&old[..2], &new[..2]).replace(&old[2..], &new[2..]);
        prop_assert_eq!(by_words.apply(before), checksum(&bytes));
    }

    #[test]
    fn filled_checksums_verify_and_a_flipped_bit_breaks_them(
        protocol in prop_oneof![Just(1u8), Just(6), Just(17), Just(33), Just(58), Just(132), Just(136)],
        v6: bool,
        body in proptest::collection::vec(any::<u8>(), 40..90),
        flip in 0usize..320,
    ) {
        let mut body = body;
        match protocol {
            6 => body[12] = 0x50,
            17 => { let n = body.len() as u16; body[4..6].copy_from_slice(&n.to_be_bytes()) }
            33 => { body[4] = 4; body[5] &= 0xf0 }
            136 => body[4..6].fill(0),
            _ => {}
        }
        let builder = if v6 {
            PacketBuilder::v6([0x20; 16], [0x21; 16])
        } else {
            PacketBuilder::v4([192, 0, 2, 1], [192, 0, 2, 2])
        };
        let mut frame = Vec::new();
        builder.transport(protocol, &body, &mut frame);
        let network = dissect(&frame).unwrap().network.unwrap();
        prop_assert!(verify_transport(&frame, &network));
        let known = protocol != if v6 { 1 } else { 58 };
        // The test does not flip fields that determine the covered range.
        let covering = match protocol { 17 | 33 | 136 => 32..48, _ => 0..0 };
        if known && !covering.contains(&flip) {
            let at = usize::from(network.transport_offset) + flip / 8;
            frame[at] ^= 1 << (flip % 8);
            let is_none = protocol == 17 && !v6 && frame[usize::from(network.transport_offset) + 6..][..2] == [0, 0];
            prop_assert_eq!(verify_transport(&frame, &network), is_none);
        }
    }
}
