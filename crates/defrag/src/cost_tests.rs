//! What a fragment costs does not depend on how many pieces its datagram has.

use flow::{DefragCounters, DropReason, HashKey, Timestamp, Zone};
use wire::Family;

use crate::steps::steps_of;
use crate::*;

const SECRET: HashKey = HashKey(1, 2);

struct Frame;

impl Buffer for Frame {
    fn footprint(&self) -> usize {
        64
    }
}

fn pieces(count: u16) -> Vec<Piece> {
    let key = DatagramKey {
        source: [1; 16],
        destination: [2; 16],
        id: 1,
        zone: Zone(0),
        protocol: 17,
        family: Family::V4,
    };
    let at = |number: u16| Piece {
        key,
        offset: number * 8,
        length: 8,
        more: number + 1 < count,
        ecn: Ecn::NotEct,
        header: 20,
    };
    (0..count).map(at).collect()
}

/// Steps of each piece in turn, the last of which completes the datagram.
fn costs(pieces: &[Piece]) -> Vec<u64> {
    let settings = Settings { pieces_per_4k: 512, ..Settings::default() };
    let mut memory = Pools::new(&settings).memory(1);
    let mut counters = DefragCounters::default();
    let mut reassembler = Reassembler::new(SECRET);
    let mut complete = Vec::new();
    let mut discard = |_: Frame, reason: DropReason| panic!("{reason}");
    let mut context = Context {
        now: Timestamp::ZERO,
        settings: &settings,
        memory: &mut memory,
        counters: &mut counters,
        discard: &mut discard,
    };
    let insert = |piece: &Piece| {
        steps_of(|| reassembler.insert(piece, 0, Frame, &mut complete, &mut context)).1
    };
    let costs = pieces.iter().map(insert).collect();
    assert_eq!(complete.len(), pieces.len());
    costs
}

#[test]
fn a_piece_costs_the_same_however_many_there_are() {
    for count in [10, 100, 1000, 8189u16] {
        let ordered = pieces(count);
        let reversed: Vec<Piece> = ordered.iter().rev().copied().collect();
        // A fixed order without any system: multiples of a number without a common
        // divisor with the count.
        let scattered: Vec<Piece> = (0..u32::from(count))
            .map(|at| ordered[(at * 3001 % u32::from(count)) as usize])
            .collect();
        for order in [ordered, reversed, scattered] {
            let costs = costs(&order);
            let (last, others) = costs.split_last().unwrap();
            let most = others.iter().max().unwrap();
            // One of them settles the datagram: it pays for those that came before.
            assert!(*most <= 40, "{most} steps for one of {count} pieces");
            assert!(*last <= 24 + 4 * u64::from(count), "{last} steps to hand out {count} pieces");
        }
    }
}
