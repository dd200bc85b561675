use flow::{DefragCounters, DropReason, HashKey, Timestamp, Zone};
use wire::Family;

use crate::*;

const SECRET: HashKey = HashKey(1, 2);

struct Frame(Vec<u8>);

impl Buffer for Frame {
    fn footprint(&self) -> usize {
        2048
    }
}

fn piece(id: u32, offset: u16, length: u16, more: bool) -> Piece {
    let address = |last| [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, last];
    let key = DatagramKey {
        source: address(1),
        destination: address(2),
        id,
        zone: Zone(0),
        protocol: 17,
        family: Family::V4,
    };
    Piece {
        key,
        offset,
        length,
        more,
        ecn: Ecn::NotEct,
        frame_size: length + 20,
        header: 20,
        dont_fragment: false,
    }
}

#[test]
fn three_pieces_in_any_order_are_handed_out_in_order() {
    let settings = Settings::default();
    let pools = Pools::new(&settings);
    let mut memory = pools.memory(1);
    let mut counters = DefragCounters::default();
    let mut reassembler = Reassembler::new(SECRET);
    let pieces = [piece(7, 0, 1472, true), piece(7, 1472, 1472, true), piece(7, 2944, 1472, false)];
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let mut complete = Vec::new();
        let mut discard = |_: Frame, reason: DropReason| panic!("{reason}");
        for (place, at) in order.into_iter().enumerate() {
            let mut context = Context {
                now: Timestamp::ZERO,
                settings: &settings,
                memory: &mut memory,
                counters: &mut counters,
                discard: &mut discard,
            };
            let piece = &pieces[at];
            let frame = Frame(vec![at as u8]);
            let hash = piece.key.hash(SECRET);
            let outcome = reassembler.insert(piece, hash, 0, frame, &mut complete, &mut context);
            match place {
                2 => assert!(matches!(outcome, Outcome::Complete(Summary { payload: 4416, .. }))),
                _ => assert_eq!(outcome, Outcome::Held),
            }
        }
        let order: Vec<u8> = complete.iter().map(|frame| frame.0[0]).collect();
        assert_eq!(order, [0, 1, 2]);
    }
    assert_eq!((reassembler.len(), memory.used(Family::V4)), (0, 0));
}
