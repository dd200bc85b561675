use proptest::prelude::*;

use super::*;
use crate::helper::Kind;
use crate::testing::conversation::{CLIENT, SERVER, Talk};

const THERE: Direction = Direction::Original;
const BACK: Direction = Direction::Reply;
const INIT: &[u8] = &[0, 0, 0, 0, 1, 0, 0, 3, 0, 0, 0, 1, 0];
const READY: &[u8] = &[0, 0, 0, 0, 1, 0, 0, 3];
/// `SANE_NET_START` of the handle 5, and its reply with the port 40001.
const STARTS: &[u8] = &[0, 0, 0, 7, 0, 0, 0, 5];
const STARTED: &[u8] = &[0, 0, 0, 0, 0, 0, 0x9c, 0x41, 0, 0, 0x12, 0x34, 0, 0, 0, 0];

/// A conversation that has begun with SANE's first request.
fn begun() -> Talk {
    let mut talk = Talk::new(Kind::Sane, protocol::TCP);
    for (direction, bytes) in [(THERE, INIT), (BACK, READY)] {
        assert!(talk.say(direction, bytes).is_empty());
    }
    talk
}

/// The ports that these turns announce, each turn sent in pieces.
fn announced(turns: &[(Direction, &[u8])], piece: usize) -> Vec<u16> {
    let mut talk = begun();
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
fn a_repeated_request_does_not_count_twice() {
    let mut talk = begun();
    let numbers = talk.numbers;
    assert!(talk.announced(THERE, [&STARTS[..4]]).is_empty());
    talk.numbers = numbers;
    assert!(talk.announced(THERE, [STARTS]).is_empty());
    assert_eq!(talk.announced(BACK, [STARTED]).len(), 1);
    let after = talk.numbers;
    talk.numbers = numbers;
    assert!(talk.announced(THERE, [STARTS]).is_empty(), "no turn of its own");
    talk.numbers = after;
    assert!(talk.announced(BACK, [STARTED]).is_empty());
}

#[test]
fn a_turn_of_which_a_part_is_missing_says_nothing() {
    for turns in
        [[(THERE, 0, STARTS), (BACK, 1, STARTED)], [(THERE, 1, STARTS), (BACK, 0, STARTED)]]
    {
        let mut talk = begun();
        for (direction, missing, bytes) in turns {
            for number in talk.numbers.iter_mut().flatten() {
                *number = number.wrapping_add(missing);
            }
            assert!(talk.announced(direction, [bytes]).is_empty());
        }
    }
}

#[test]
fn a_connection_whose_client_begins_otherwise_is_left() {
    let old: &[u8] = &[0, 0, 0, 0, 0, 0, 0, 9, 0];
    for (direction, first) in [
        (THERE, &b"POST / HTTP/1.1\r\n"[..]),
        (THERE, STARTS),
        (THERE, old),
        (BACK, READY),
        (BACK, INIT),
    ] {
        for piece in [1, 100] {
            let mut talk = Talk::new(Kind::Sane, protocol::TCP);
            first.chunks(piece).for_each(|bytes| drop(talk.say(direction, bytes)));
            assert!(talk.left);
        }
    }
    for trusts in [false, true] {
        let mut talk = Talk::new(Kind::Sane, protocol::TCP).picked_up();
        talk.settings.expect_picked_up = trusts;
        let announced = [(THERE, STARTS), (BACK, STARTED)];
        let announced = announced.map(|(direction, it)| talk.announced(direction, [it]).len());
        assert_eq!((announced, talk.left), ([0, trusts.into()], !trusts));
    }
}

#[test]
fn the_whole_matrix() {
    let said = |direction, bytes| {
        let mut turn = Turn::new(direction);
        turn.hear(bytes);
        turn
    };
    let turns = [
        ("start", said(THERE, STARTS)),
        ("another request", said(THERE, INIT)),
        ("reply", said(BACK, STARTED)),
    ];
    let mut matrix = String::new();
    for session in [Session::Opening, Session::Open, Session::Asked] {
        for (name, turn) in &turns {
            matrix += &format!("{session:?}, {name}: {:?}\n", session.after(turn));
        }
    }
    insta::assert_snapshot!(matrix);
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
