use proptest::prelude::*;

use super::*;
use crate::build::PacketBuilder;
use crate::dissect;

const OWN: [u8; 4] = [198, 51, 100, 254];
const WAYPOINT: Waypoint = Waypoint { out: OWN, came_in: [192, 0, 2, 254], time_ms: 0x0102_0304 };

/// An IPv4 packet with these options, padded with the end of the list.
fn packet(options: &[u8]) -> Vec<u8> {
    let mut padded = options.to_vec();
    padded.resize(options.len().next_multiple_of(4), END);
    let mut frame = Vec::new();
    PacketBuilder::v4([192, 0, 2, 1], [198, 51, 100, 2])
        .options(&padded)
        .udp(7, 9, b"payload", &mut frame);
    frame.split_off(14)
}

/// The byte that is wrong, counted from the start of the options.
fn wrong_byte(options: &[u8]) -> Option<u8> {
    match check_options(&packet(options)) {
        Err(RefusedOption::Malformed { pointer }) => Some(pointer - 20),
        Err(other) => panic!("{options:?}: {other:?}"),
        Ok(()) => None,
    }
}

#[test]
fn each_fault_of_an_option_is_pointed_at() {
    for (options, wrong) in [
        (&[][..], None),
        (&[1, 1, 1, 0], None),
        // An unknown option.
        (&[25, 3, 9], None),
        (&[1, 25, 1], Some(1)),
        (&[25, 0], Some(0)),
        (&[25, 5], Some(0)),
        (&[7, 2], Some(1)),
        (&[7, 3, 3], Some(2)),
        (&[7, 3, 4], None),
        (&[7, 7, 4, 0, 0, 0, 0], None),
        (&[7, 7, 5, 0, 0, 0, 0], Some(2)),
        (&[7, 7, 8, 0, 0, 0, 0], None),
        (&[7, 3, 4, 7, 3, 4], Some(3)),
        (&[131, 2, 1, 1], Some(1)),
        (&[137, 3, 3, 1], Some(2)),
        (&[68, 3, 5], Some(1)),
        (&[68, 4, 4, 0], Some(2)),
        (&[68, 8, 5, 0, 0, 0, 0, 0], None),
        (&[68, 8, 6, 0, 0, 0, 0, 0], Some(2)),
        (&[68, 8, 5, 1, 0, 0, 0, 0], Some(2)),
        (&[68, 8, 5, 3, 0, 0, 0, 0], Some(2)),
        (&[68, 4, 5, 0xe0], None),
        (&[68, 4, 5, 0xf0], Some(3)),
        (&[68, 4, 5, 0xf3], None),
        (&[68, 4, 5, 0, 68, 4, 5, 0], Some(4)),
        (&[148, 3, 0], Some(1)),
        (&[148, 4, 0, 0], None),
        (&[134, 6, 0, 0, 0, 1], Some(1)),
        (&[134, 8, 0, 0, 0, 0, 1, 2], Some(2)),
        (&[134, 8, 0, 0, 0, 1, 1, 2], None),
        (&[134, 8, 0, 0, 0, 1, 1, 3], Some(7)),
        (&[134, 8, 0, 0, 0, 1, 1, 0], Some(7)),
        (&[134, 9, 0, 0, 0, 1, 1, 2, 5], Some(8)),
    ] {
        assert_eq!(wrong_byte(options), wrong, "{options:?}");
    }
    assert_eq!(wrong_byte(&[1, 1, 1, 25]), Some(3), "there is no length");
}

/// An answer would have to go back the same way, so there is none, whatever follows the option.
#[test]
fn a_source_route_is_refused_without_a_word() {
    for kind in [LOOSE_ROUTE, STRICT_ROUTE] {
        for options in [
            &[kind, 7, 4, 203, 0, 113, 1][..],
            &[7, 3, 4, kind, 7, 4, 203, 0, 113, 1],
            // The same at the end of the route.
            &[kind, 3, 4],
            &[kind, 3, 4, 25, 1],
        ] {
            assert_eq!(check_options(&packet(options)), Err(RefusedOption::SourceRoute));
        }
        assert_eq!(wrong_byte(&[25, 1, kind, 3, 4]), Some(0));
        assert_eq!(check_options(&packet(&[0, kind, 3, 4])), Ok(()), "nobody reads on");
    }
}

fn hop_by_hop(options: &[u8]) -> Vec<u8> {
    let mut header = vec![17, 0];
    header.extend(options);
    header.resize(header.len().next_multiple_of(8), 0);
    header[1] = (header.len() / 8 - 1) as u8;
    let mut frame = Vec::new();
    PacketBuilder::v6([0x20; 16], [0x21; 16]).udp(7, 9, b"payload", &mut frame);
    let mut packet = frame.split_off(14);
    packet[6] = 0;
    let length = u16::from_be_bytes([packet[4], packet[5]]) + header.len() as u16;
    packet[4..6].copy_from_slice(&length.to_be_bytes());
    packet.splice(40..40, header);
    packet
}

#[test]
fn hop_by_hop_options_that_must_be_known_are_refused() {
    for (options, passes) in [
        (&[][..], true),
        (&[1, 4, 0, 0, 0, 0], true),
        (&[1, 4, 0, 0, 1, 0], false),
        (&[1, 5, 0, 0, 0, 0, 0, 5, 2, 0, 0, 0, 0, 0], true),
        (&[1, 6, 0, 0, 0, 0, 0, 0, 5, 2, 0, 0, 0, 0], false),
        (&[1, 2, 0, 0, 1, 2, 0, 0, 5, 2, 0, 0, 0, 0], false),
        (&[5, 2, 0, 0, 1, 0], true),
        (&[5, 1, 0, 0, 0, 0], false),
        // Unknown options: one that may pass, and three kinds that are refused.
        (&[0x1e, 4, 1, 2, 3, 4], true),
        (&[0x5e, 4, 1, 2, 3, 4], false),
        (&[0x9e, 4, 1, 2, 3, 4], false),
        (&[0xde, 4, 1, 2, 3, 4], false),
        (&[0x1e, 5, 1, 2, 3, 4], false),
        (&[0, 0, 0, 0, 0, 0x1e], false),
        // No jumbogram.
        (&[0xc2, 4, 0, 1, 0, 0], false),
        (&[0x1e, 0, 0x1e, 0, 0x1e, 0, 0x1e, 0, 0x1e, 0, 0x1e, 0, 0x1e, 0], true),
        (&[0x1e, 0].repeat(8), true),
        (&[0x1e, 0].repeat(9), false),
    ] {
        let packet = hop_by_hop(options);
        let expected = if passes { Ok(()) } else { Err(RefusedOption::HopByHop) };
        assert_eq!(check_options(&packet), expected, "{options:?}");
    }
    let mut jumbo = hop_by_hop(&[0xc2, 4, 0, 1, 0, 0]);
    jumbo[4..6].fill(0);
    assert_eq!(check_options(&jumbo), Ok(()));
}

#[test]
fn a_router_enters_itself_where_it_is_asked_to() {
    let named = [68, 12, 5, 3, 198, 51, 100, 254, 0, 0, 0, 0];
    let other = [68, 12, 5, 3, 203, 0, 113, 1, 0, 0, 0, 0];
    for (before, after) in [
        (&[7, 7, 4, 0, 0, 0, 0][..], &[7, 7, 8, 198, 51, 100, 254][..]),
        (&[7, 3, 4], &[7, 3, 4]),
        (&[7, 7, 8, 1, 2, 3, 4], &[7, 7, 8, 1, 2, 3, 4]),
        (&[1, 7, 11, 8, 1, 2, 3, 4, 0, 0, 0, 0], &[1, 7, 11, 12, 1, 2, 3, 4, 198, 51, 100, 254]),
        (&[68, 8, 5, 0, 0, 0, 0, 0], &[68, 8, 9, 0, 1, 2, 3, 4]),
        (&[68, 8, 9, 0x20, 5, 6, 7, 8], &[68, 8, 9, 0x30, 5, 6, 7, 8]),
        (&[68, 12, 5, 1, 0, 0, 0, 0, 0, 0, 0, 0], &[68, 12, 13, 1, 192, 0, 2, 254, 1, 2, 3, 4]),
        (&named, &[68, 12, 13, 3, 198, 51, 100, 254, 1, 2, 3, 4]),
        (&other, &other),
        (&[68, 4, 5, 0xf3], &[68, 4, 5, 0xf3]),
        (&[68, 8, 5, 7, 0, 0, 0, 0], &[68, 8, 5, 7, 0, 0, 0, 0]),
        (&[148, 4, 0, 0], &[148, 4, 0, 0]),
        (&[0, 1, 2, 3], &[0, 0, 0, 0]),
    ] {
        let mut recorded = packet(before);
        record_waypoint(&mut recorded, &WAYPOINT, |address| address == OWN);
        assert_eq!(recorded, packet(after), "{before:?}");
    }
}

proptest! {
    /// For any options, only the options change, and the packet stays valid.
    #[test]
    fn any_options_are_read_and_written(
        options in prop::collection::vec(prop_oneof![
            any::<u8>(),
            prop::sample::select(vec![0u8, 1, 3, 4, 5, 7, 8, 11, 68, 131, 134, 137, 148]),
        ], 0..=40),
        own: bool,
    ) {
        let before = packet(&options);
        let checked = check_options(&before);
        if let Err(RefusedOption::Malformed { pointer }) = checked {
            prop_assert!((20..20 + options.len().next_multiple_of(4)).contains(&usize::from(pointer)));
        }
        let mut after = before.clone();
        record_waypoint(&mut after, &WAYPOINT, |_| own);
        let body = 20 + options.len().next_multiple_of(4);
        prop_assert_eq!((&after[..10], &after[12..20]), (&before[..10], &before[12..20]));
        prop_assert_eq!(&after[body..], &before[body..]);
        let frame = [&[2; 12][..], &[8, 0], &after].concat();
        prop_assert!(dissect(&frame).is_ok());
        if checked.is_ok() {
            prop_assert!(check_options(&after).is_ok());
        }
    }

    #[test]
    fn any_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..120), v6: bool) {
        let mut bytes = bytes;
        if let Some(first) = bytes.first_mut() {
            *first = if v6 { 0x60 } else { *first & 0x0f | 0x40 };
        }
        let _ = check_options(&bytes);
        record_waypoint(&mut bytes, &WAYPOINT, |_| true);
    }
}
