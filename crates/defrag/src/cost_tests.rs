//! The cost of a fragment does not depend on the number of fragments of its datagram.

use std::time::Duration;

use flow::{DefragCounters, HashKey, Timestamp};

use crate::steps::steps_of;
use crate::*;

const SECRET: HashKey = HashKey(1, 2);

struct Frame;

impl Buffer for Frame {
    fn footprint(&self) -> usize {
        64
    }
}

/// A fragment of 8 bytes of a datagram whose last one has the number `last`.
fn piece(id: u32, number: u16, last: u16) -> Piece {
    let key = DatagramKey::v4(Realm::default(), [1; 16], [2; 16], 17, id);
    let (ecn, header) = (Ecn::NotEct, 20);
    Piece { key, offset: number * 8, length: 8, more: number < last, ecn, header }
}

/// A fragment that ends a datagram with the fragment of this number.
fn overlap(id: u32, number: u16) -> Piece {
    Piece { length: 16, ..piece(id, number, 9) }
}

fn pieces(count: u16) -> Vec<Piece> {
    (0..count).map(|number| piece(1, number, count - 1)).collect()
}

/// Steps for each fragment in turn, and the number of fragments handed out. Each fragment comes
/// `every_ns` nanoseconds after the one before.
fn costs(pieces: &[Piece], every_ns: u64) -> (Vec<u64>, usize) {
    let settings = Settings { pieces_per_4k: 512, max_dist: 0, ..Settings::default() };
    let mut memory = Pools::new(&settings).memory(1);
    let mut counters = DefragCounters::default();
    let mut reassembler = Reassembler::new(SECRET);
    let mut complete = Vec::new();
    let mut discard = |_: Frame, _: DiscardCause| {};
    let mut context = Context {
        now: Timestamp::from_secs(1),
        settings: &settings,
        memory: &mut memory,
        counters: &mut counters,
        discard: &mut discard,
    };
    let insert = |piece: &Piece| {
        context.now = context.now.after(Duration::from_nanos(every_ns));
        steps_of(|| reassembler.insert(piece, 0, Frame, &mut complete, &mut context)).1
    };
    (pieces.iter().map(insert).collect(), complete.len())
}

fn average(costs: &[u64]) -> u64 {
    costs.iter().sum::<u64>() / costs.len() as u64
}

#[test]
fn a_piece_costs_the_same_however_many_there_are() {
    for count in [10, 100, 1000, 8189u16] {
        let ordered = pieces(count);
        let reversed: Vec<Piece> = ordered.iter().rev().copied().collect();
        // A fixed order without any system: multiples of a number that has no common divisor
        // with the count.
        let scattered: Vec<Piece> = (0..u32::from(count))
            .map(|at| ordered[(at * 3001 % u32::from(count)) as usize])
            .collect();
        // The first half leaves no gap; each of the others leaves one at first.
        let (half, rest) = ordered.split_at(usize::from(count / 2));
        let behind = rest.iter().skip(1).step_by(2).chain(rest.iter().step_by(2));
        let gaps_at_last: Vec<Piece> = half.iter().chain(behind).copied().collect();
        for order in [ordered, reversed, scattered, gaps_at_last] {
            let (costs, complete) = costs(&order, 0);
            assert_eq!(complete, costs.len());
            let (last, others) = costs.split_last().unwrap();
            let mut others = others.to_vec();
            others.sort_unstable();
            // One of them settles the datagram, and one counts the held fragments, up to as
            // many as may begin in a block: these pay for the earlier ones.
            let [.., most, counts] = others[..] else { panic!("{count} pieces are too few") };
            assert!(most <= 40, "{most} steps for one of {count} pieces");
            assert!(counts <= 540, "{counts} steps for one of {count} pieces");
            assert!(*last <= 24 + 4 * u64::from(count), "{last} steps to hand out {count} pieces");
        }
    }
}

/// The longest way to the table is that of a datagram which others have overtaken. Here these
/// are `others` datagrams that an overlap sent there at once, within the time that a datagram
/// may stay in the nursery.
#[test]
fn a_datagram_that_settles_late_does_not_search_all_younger_ones_for_its_place() {
    // Steps. The index takes up to 512 of them to split one of its segments.
    const MOST: u64 = 700;
    for others in [10, 100, 1000, 4000] {
        let killed = (2..2 + others).flat_map(|id| [piece(id, 0, 9), overlap(id, 0)]);
        let order: Vec<Piece> =
            [piece(1, 2, 9)].into_iter().chain(killed).chain([overlap(1, 2)]).collect();
        let (costs, _) = costs(&order, 100);
        let most = *costs.iter().max().unwrap();
        println!("{others:5} younger: {most} steps at most, {} on average", average(&costs));
        assert!(most <= MOST, "{most} steps for one of {others} datagrams");
    }
}

/// All seats are taken, and any of those in them settles at any time.
#[test]
fn settling_costs_the_same_in_any_order() {
    let mut state = 1u64;
    let mut random = move |below: u32| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        ((state >> 33) as u32) % below
    };
    let mut order = Vec::new();
    for id in 0..20_000 {
        order.push(piece(id, 0, 9));
        let other = id.saturating_sub(random(100));
        if random(3) > 0 {
            order.push(overlap(other, 0));
        }
    }
    let (costs, _) = costs(&order, 100);
    let (most, average) = (*costs.iter().max().unwrap(), average(&costs));
    println!("{most} steps at most, {average} on average");
    assert!(most <= 3000 && average <= 25, "{most} steps at most, {average} on average");
}
