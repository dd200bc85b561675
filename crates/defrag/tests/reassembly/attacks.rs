//! Floods of fragments, and the honest datagrams that get through beside them.
//!
//! A million packets a second, of which 90 or 99 in a hundred are the attacker's,
//! and 64 MB of memory. Honest senders send each datagram at line rate, so a few
//! packets of the flood come between two of its fragments.

use defrag::Settings;
use wire::Family;

use crate::fixture::{Cut, Random, Worker, cuts, fragment, key};

/// Most packets of the flood between two fragments of an honest datagram: the
/// flood's share of 10 Gbit/s and more.
const INTERLEAVED: u64 = 8;
const CAP: u64 = 64 << 20;
/// Twice as many frames of 2 KiB as fit the memory.
const FLOOD: u64 = 2 * CAP / 2048;

/// The next packet of the flood; `number` counts them.
type Attack = fn(Family, &mut Random, u64) -> Cut;

/// A fragment without content from a forged source.
fn forged(family: Family, source: u64, id: u64, (offset, length): (u64, u64), more: bool) -> Cut {
    let mut cut = fragment(key(family, 0, id as u32), offset as u16, &[], more);
    cut.piece.key.source[12..].copy_from_slice(&(0x0a00_0000 | source as u32).to_be_bytes());
    if family == Family::V4 {
        cut.piece.key = cut.piece.key.with_id(cut.piece.key.id() & 0xffff);
    }
    cut.piece.length = length as u16;
    cut
}

const ATTACKS: [(&str, Attack); 11] = [
    ("random ids, first pieces", |family, random, _| {
        forged(family, random.below(1 << 24), random.next(), (0, 1480), true)
    }),
    ("random ids, last pieces", |family, random, _| {
        forged(family, random.below(1 << 24), random.next(), (1480, 1000), false)
    }),
    ("random ids, pieces from the middle", |family, random, _| {
        let offset = (random.below(7000) + 1) * 8;
        forged(family, random.below(1 << 24), random.next(), (offset, 8), true)
    }),
    ("storm of 8-byte pieces", |family, random, number| {
        let offset = random.below(8189) * 8;
        forged(family, number / 8189, 1, (offset, 8), true)
    }),
    ("overlaps", |family, _, number| forged(family, number / 2, 1, (number % 2 * 8, 16), true)),
    ("duplicates", |family, _, number| forged(family, number / 100, 1, (0, 1480), true)),
    ("all pieces but one", |family, _, number| {
        // The last but one of ten fragments never comes.
        let (datagram, place) = (number / 9, number % 9);
        let place = if place == 8 { 9 } else { place };
        forged(family, datagram, 1, (place * 1480, 1480), place != 9)
    }),
    ("two pieces each", |family, _, number| {
        forged(family, number / 2, 1, (number % 2 * 2960, 1480), true)
    }),
    ("two pieces each, the second one late", |family, _, number| {
        let (round, place) = (number / 10_000, number % 10_000);
        let datagram = round / 2 * 10_000 + place;
        forged(family, datagram, 1, (round % 2 * 2960, 1480), true)
    }),
    ("spray of ids between the honest ends", |family, random, _| {
        let mut cut = forged(family, 0, random.next(), (0, 1480), true);
        cut.piece.key = key(family, 1, cut.piece.key.id());
        cut
    }),
    ("slow drip", |family, _, number| {
        // Each datagram grows by 8 bytes every 20 ms.
        forged(family, number % 20_000, 1, (number / 20_000 * 16, 8), true)
    }),
];

struct Honest {
    sent: u64,
    delivered: u64,
}

fn goodput(family: Family, attack: Attack, flood_percent: u64) -> Honest {
    let mut settings = Settings::default();
    for family in [&mut settings.v4, &mut settings.v6] {
        (family.high_thresh, family.low_thresh) = (CAP, CAP / 4 * 3);
    }
    let mut worker = Worker::new(&settings);
    let mut random = Random(flood_percent + 1);
    let mut flooded = 0;
    let mut flood = |worker: &mut Worker, random: &mut Random| {
        worker.send(&attack(family, random, flooded));
        worker.pass(0.000_001);
        flooded += 1;
        if flooded.is_multiple_of(1000) {
            worker.expire(100);
            worker.discarded.clear();
            assert!(worker.memory.used(family) <= CAP);
        }
        flooded
    };
    while flood(&mut worker, &mut random) < FLOOD {}
    let mut honest = Honest { sent: 0, delivered: 0 };
    for number in 0.. {
        let key = key(family, 1 + (number % 8) as u8, number);
        let length = if number % 16 == 0 { 65_000 } else { 4416 };
        let bytes: Vec<u8> = (0..length).map(|at: u32| (at / 8 + number) as u8).collect();
        let mut pieces = cuts(key, &bytes, 1480);
        if number % 2 == 0 {
            random.shuffle(&mut pieces);
        }
        let mut due = pieces.len() as u64 * flood_percent / (100 - flood_percent);
        for cut in &pieces {
            if let Some(datagram) = worker.send(cut).datagram {
                assert_eq!(datagram, bytes);
                honest.delivered += 1;
            }
            for _ in 0..random.below(INTERLEAVED + 1).min(due) {
                flood(&mut worker, &mut random);
                due -= 1;
            }
        }
        honest.sent += 1;
        let total = (0..due).map(|_| flood(&mut worker, &mut random)).last();
        if total.is_some_and(|total| total >= 2 * FLOOD) {
            break;
        }
    }
    worker.check_books();
    worker.drain();
    honest
}

#[test]
fn honest_datagrams_get_through_every_flood() {
    for (name, attack) in ATTACKS {
        for (family, flood_percent) in [(Family::V4, 90), (Family::V4, 99), (Family::V6, 99)] {
            let Honest { sent, delivered } = goodput(family, attack, flood_percent);
            assert!(sent >= 50);
            assert!(
                delivered * 100 >= sent * 99,
                "{name}, {family:?}, {flood_percent} %: {delivered} of {sent}"
            );
        }
    }
}
