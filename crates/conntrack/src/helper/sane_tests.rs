use proptest::prelude::*;

use super::*;
use crate::helper::Kind;
use crate::helper::talk::{CLIENT, SERVER, Talk};

const THERE: Direction = Direction::Original;
const BACK: Direction = Direction::Reply;
const INIT: &[u8] = &[0, 0, 0, 0, 1, 0, 0, 3, 0, 0, 0, 1, 0];
const READY: &[u8] = &[0, 0, 0, 0, 1, 0, 0, 3];
/// `SANE_NET_START` of the handle 5, and its reply with the port 40001.
const STARTS: &[u8] = &[0, 0, 0, 7, 0, 0, 0, 5];
const STARTED: &[u8] = &[0, 0, 0, 0, 0, 0, 0x9c, 0x41, 0, 0, 0x12, 0x34, 0, 0, 0, 0];

/// The ports that are announced by turns, each in pieces.
fn announced(turns: &[(Direction, &[u8])], piece: usize) -> Vec<u16> {
    let mut talk = Talk::new(Kind::Sane, protocol::TCP);
    let mut ports = Vec::new();
    for &(direction, bytes) in turns {
        for it in talk.announced(direction, bytes.chunks(piece)) {
            assert_eq!((it.protocol, it.permanent), (protocol::TCP, false));
            assert_eq!(it.source.unwrap().to_string(), CLIENT);
            assert_eq!(it.destination.to_string(), SERVER);
            ports.push(it.destination_port);
        }
    }
    ports
}

#[test]
fn the_reply_to_start_names_the_port_wherever_segments_end() {
    let scan = [(THERE, STARTS), (BACK, STARTED)];
    let turns = [(THERE, INIT), (BACK, READY), scan[0], scan[1], scan[0], scan[1]];
    for piece in 1..20 {
        assert_eq!(announced(&scan, piece), [40001], "pieces of {piece}");
        assert_eq!(announced(&turns, piece), [40001, 40001], "pieces of {piece}");
    }
}

#[test]
fn other_replies_announce_nothing() {
    let failed: &[u8] = &[0, 0, 0, 7, 0, 0, 0x9c, 0x41, 0, 0, 0x12, 0x34, 0, 0, 0, 0];
    let no_port: &[u8] = &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x12, 0x34, 0, 0, 0, 0];
    let high_port: &[u8] = &[0, 0, 0, 0, 0, 1, 0x9c, 0x41, 0, 0, 0x12, 0x34, 0, 0, 0, 0];
    let long_start: &[u8] = &[0, 0, 0, 7, 0, 0, 0, 5, 0];
    let close: &[u8] = &[0, 0, 0, 3, 0, 0, 0, 5];
    for turns in [
        [(THERE, STARTS), (BACK, failed)],
        [(THERE, STARTS), (BACK, no_port)],
        [(THERE, STARTS), (BACK, high_port)],
        [(THERE, STARTS), (BACK, &STARTED[..7])],
        [(THERE, long_start), (BACK, STARTED)],
        [(THERE, &STARTS[..7]), (BACK, STARTED)],
        [(THERE, close), (BACK, STARTED)],
        [(THERE, INIT), (BACK, STARTED)],
        [(BACK, STARTS), (THERE, STARTED)],
        [(BACK, STARTED), (BACK, STARTED)],
    ] {
        assert!(announced(&turns, 100).is_empty(), "{turns:?}");
    }
}

#[test]
fn what_is_sent_again_does_not_count_twice() {
    let mut talk = Talk::new(Kind::Sane, protocol::TCP);
    let numbers = talk.numbers;
    assert!(talk.announced(THERE, [&STARTS[..4]]).is_empty());
    talk.numbers = numbers;
    assert!(talk.announced(THERE, [STARTS]).is_empty());
    assert_eq!(talk.announced(BACK, [STARTED]).len(), 1);
}

proptest! {
    #[test]
    fn no_bytes_are_too_strange(
        turns in prop::collection::vec(
            (any::<bool>(), any::<u8>(), prop::collection::vec(0_u8..8, 1..20)), 1..20),
    ) {
        let mut talk = Talk::new(Kind::Sane, protocol::TCP);
        for (there, jump, bytes) in turns {
            if let Some(numbers) = &mut talk.numbers {
                numbers[0] = numbers[0].wrapping_add(u32::from(jump)).wrapping_sub(100);
            }
            talk.say(if there { THERE } else { BACK }, &bytes);
        }
    }
}
