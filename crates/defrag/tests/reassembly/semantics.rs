//! Rules one by one.

use defrag::{DatagramKey, Ecn, Outcome, Phase, Piece, Realm, Settings};
use flow::{DropReason, Zone};
use wire::{Family, FragmentInfo, Network, Transport};

use crate::fixture::{Cut, Random, Worker, content, cuts, fragment, key, summary_of};

const BOTH: [Family; 2] = [Family::V4, Family::V6];

#[test]
fn the_largest_datagram_arrives_in_every_order() {
    let bytes = content(1, 65_515);
    for family in BOTH {
        for size in [8, 24, 1480, 65_512] {
            let mut settings = Settings { pieces_per_4k: 512, ..Settings::default() };
            settings.v4.high_thresh = 64 << 20;
            settings.v6.high_thresh = 64 << 20;
            let mut worker = Worker::new(&settings);
            let forward = cuts(key(family, 1, 1), &bytes, size);
            let reverse: Vec<Cut> = forward.iter().rev().cloned().collect();
            let mut shuffled = forward.clone();
            Random(5).shuffle(&mut shuffled);
            for order in [forward, reverse, shuffled] {
                let (last, others) = order.split_last().unwrap();
                others.iter().for_each(|cut| assert_eq!(worker.send(cut).outcome, Outcome::Held));
                assert_eq!(worker.send(last).datagram.as_ref(), Some(&bytes));
                worker.check_books();
            }
            worker.drain();
        }
    }
}

#[test]
fn a_contradictory_fragment_decides_the_reason_that_later_ones_share() {
    let id = |family| key(family, 1, 1);
    let with_ecn = |mut cut: Cut, ecn| {
        cut.piece.ecn = ecn;
        cut
    };
    for family in BOTH {
        let first = fragment(id(family), 0, &[1; 16], true);
        let end = fragment(id(family), 64, &[2; 9], false);
        let large = fragment(id(family), 65_512, &[3; 23], false);
        let cases = [
            (fragment(id(family), 8, &[1; 16], true), DropReason::FragOverlap),
            (fragment(id(family), 72, &[1; 8], true), DropReason::FragEnd),
            (fragment(id(family), 64, &[1; 8], false), DropReason::FragEnd),
            (fragment(id(family), 8, &[1; 8], false), DropReason::FragEnd),
            (fragment(id(family), 32, &[], true), DropReason::FragEmpty),
            (with_ecn(fragment(id(family), 32, &[1; 8], true), Ecn::Ce), DropReason::FragEcn),
        ];
        for (bad, reason) in cases {
            let mut worker = Worker::new(&Settings::default());
            worker.send(&first);
            worker.send(&end);
            assert_eq!(worker.send(&bad).outcome, Outcome::Refused);
            assert_eq!(worker.reasons(), [reason; 3]);
            assert_eq!(worker.counters.reasm_fails, 1);
            worker.send(&fragment(id(family), 16, &[4; 48], true));
            assert_eq!(worker.reasons(), [reason], "it is remembered");
            worker.check_books();
            worker.pass(61.0);
            assert_eq!(worker.send(&first).outcome, Outcome::Held, "its time is over");
            assert_eq!(worker.counters.reasm_timeout, 0, "it had been given up before");
        }
        // The first piece's header counts.
        let mut worker = Worker::new(&Settings::default());
        worker.send(&large);
        let mut first = first;
        first.piece.header = 24;
        assert_eq!(worker.send(&first).outcome, Outcome::Refused);
        assert_eq!(worker.reasons(), [DropReason::FragOversize; 2]);
    }
}

#[test]
fn impossible_pieces_are_refused_alone() {
    let id = key(Family::V4, 1, 1);
    let cases = [
        (fragment(id, 4, &[0; 8], true), DropReason::FragLength),
        (fragment(id, 0, &[0; 7], true), DropReason::FragLength),
        (fragment(id, 8, &[], true), DropReason::FragEmpty),
        (fragment(id, 65_528, &[0; 8], false), DropReason::FragOversize),
    ];
    let mut worker = Worker::new(&Settings::default());
    for (cut, reason) in cases {
        assert_eq!(worker.send(&cut).outcome, Outcome::Refused);
        assert_eq!(worker.reasons(), [reason]);
        assert!(worker.reassembler.is_empty());
    }
}

#[test]
fn ecn_is_merged_as_rfc_3168_says() {
    use Ecn::{Ce, Ect0, Ect1, NotEct};
    let merged = |first: Ecn, second: Ecn| {
        let mut worker = Worker::new(&Settings::default());
        let bytes = content(1, 20);
        let mut pieces = cuts(key(Family::V4, 1, 1), &bytes, 16);
        (pieces[0].piece.ecn, pieces[1].piece.ecn) = (first, second);
        worker.send(&pieces[1]);
        let result = worker.send(&pieces[0]);
        result.datagram.as_ref().map(|_| summary_of(&result).ecn)
    };
    let all = [NotEct, Ect1, Ect0, Ce];
    let table = all.map(|first| all.map(|second| merged(first, second)));
    let expected = [
        [Some(NotEct), None, None, None],
        [None, Some(Ect1), Some(Ect1), Some(Ce)],
        [None, Some(Ect0), Some(Ect0), Some(Ce)],
        [None, Some(Ce), Some(Ce), Some(Ce)],
    ];
    assert_eq!(table, expected);
}

#[test]
fn too_many_pieces_in_a_block_condemn_the_datagram() {
    let bytes = content(1, 20_000);
    for (size, limit, passes) in
        [(48, 128, true), (32, 128, true), (24, 128, false), (8, 512, true)]
    {
        let mut settings = Settings::default();
        settings.set("ipfrag_pieces_per_4k", limit).unwrap();
        settings.v4.high_thresh = 64 << 20;
        let mut worker = Worker::new(&settings);
        let mut pieces = cuts(key(Family::V4, 1, 1), &bytes, size);
        for shuffled in [false, true] {
            if shuffled {
                Random(3).shuffle(&mut pieces);
            }
            let delivered = pieces.iter().filter(|cut| worker.send(cut).datagram.is_some()).count();
            assert_eq!(delivered == 1, passes, "pieces of {size} with a limit of {limit}");
            let refused = worker.reasons();
            assert_eq!(refused.len(), if passes { 0 } else { pieces.len() });
            assert!(refused.iter().all(|&reason| reason == DropReason::FragTooManyPieces));
            worker.pass(31.0);
        }
    }
}

#[test]
fn time_counts_from_the_first_piece_and_is_never_extended() {
    for (family, seconds) in [(Family::V4, 30.0), (Family::V6, 60.0)] {
        let mut worker = Worker::new(&Settings::default());
        let pieces = cuts(key(family, 1, 1), &content(1, 64), 8);
        worker.send(&pieces[0]);
        worker.pass(seconds - 1.0);
        worker.send(&pieces[1]);
        assert_eq!(worker.expire(10), 0);
        worker.pass(1.0);
        assert_eq!(worker.expire(10), 1);
        assert_eq!(worker.reasons(), [DropReason::FragTimeout; 2]);
        assert_eq!((worker.counters.reasm_timeout, worker.counters.reasm_fails), (1, 1));
    }
}

#[test]
fn expiry_keeps_to_its_budget_and_to_the_order_of_age() {
    let mut worker = Worker::new(&Settings::default());
    for id in 0..10 {
        worker.send(&fragment(key(Family::V4, 1, id), 0, &[0; 8], true));
        worker.pass(1.0);
    }
    worker.pass(24.5);
    assert_eq!(worker.expire(3), 3);
    let mut ids: Vec<u32> = worker.views().iter().map(|view| view.key.id()).collect();
    ids.sort_unstable();
    assert_eq!(ids, [3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(worker.expire(100), 2, "those of 30 seconds and more");
}

#[test]
fn shortage_takes_the_dead_first_and_then_by_class() {
    let mut settings = Settings::default();
    // Room for ten pieces or so; three quarters of it for progress.
    settings.v4.high_thresh = 24_000;
    settings.v4.low_thresh = 18_000;
    let mut worker = Worker::new(&settings);
    let first = |id| fragment(key(Family::V4, id as u8, id), 0, &[0; 8], true);
    let second = |id| fragment(key(Family::V4, id as u8, id), 16, &[0; 8], true);
    // More datagrams than may be remembered when memory is short.
    for id in 30..38 {
        worker.send(&first(id));
        worker.send(&fragment(key(Family::V4, id as u8, id), 0, &[0; 16], true));
    }
    for id in 2..4 {
        worker.send(&first(id));
        worker.send(&second(id));
    }
    worker.reasons();
    for id in 10..14 {
        worker.send(&first(id));
    }
    assert!(worker.reasons().is_empty());
    assert_eq!(worker.counters.evicted_dead, 0);
    worker.send(&first(14));
    worker.send(&first(15));
    worker.send(&first(16));
    let evicted = worker.counters.evicted_dead;
    assert!((1..8).contains(&evicted), "of what is only remembered, all but a part goes first");
    worker.send(&first(17));
    let reasons = worker.reasons();
    assert!(!reasons.is_empty() && reasons.iter().all(|&r| r == DropReason::FragEvicted));
    assert_eq!(worker.counters.evicted_progress, 0, "newcomers push out newcomers");
    for id in 20..26 {
        worker.send(&first(id));
        worker.send(&second(id));
    }
    assert!(worker.counters.evicted_progress > 0, "progress pushes out progress");
    assert!(worker.views().iter().any(|view| view.pieces == 1), "newcomers keep their share");
    worker.check_books();
}

#[test]
fn a_piece_that_can_never_fit_condemns_its_datagram() {
    let mut settings = Settings::default();
    settings.v6.high_thresh = 4096;
    let mut worker = Worker::new(&settings);
    let pieces = cuts(key(Family::V6, 1, 1), &content(1, 64), 8);
    worker.send(&pieces[0]);
    assert_eq!(worker.send(&pieces[1]).outcome, Outcome::Refused);
    assert_eq!(worker.reasons(), [DropReason::FragNoMemory; 2]);
    worker.check_books();
    settings.v6.high_thresh = 0;
    let mut worker = Worker::new(&settings);
    assert_eq!(worker.send(&pieces[0]).outcome, Outcome::Refused);
    assert_eq!(worker.reasons(), [DropReason::FragNoMemory]);
    assert!(worker.reassembler.is_empty());
}

#[test]
fn zones_families_and_protocols_keep_datagrams_apart() {
    let mut worker = Worker::new(&Settings::default());
    let plain = key(Family::V4, 1, 1);
    let (source, destination) = (plain.source, plain.destination);
    let other = |zone, vlan, protocol| {
        DatagramKey::v4(Realm::new(Zone(zone), vlan), source, destination, protocol, 1)
    };
    let keys = [
        plain,
        other(1, 0, 17),
        other(u16::MAX, 0, 17),
        other(1, 4095, 17),
        other(0, 1, 17),
        other(0, 0, 6),
        plain.with_id(2),
        key(Family::V6, 1, 1),
        DatagramKey::v6(Realm::default(), source, destination, 1 | 17 << 24),
    ];
    for (at, &key) in keys.iter().enumerate() {
        assert_eq!(worker.send(&fragment(key, 0, &[at as u8; 8], true)).outcome, Outcome::Held);
    }
    for (at, &key) in keys.iter().enumerate() {
        let expected = [vec![at as u8; 8], vec![9]].concat();
        assert_eq!(worker.send(&fragment(key, 8, &[9], false)).datagram, Some(expected));
    }
}

#[test]
fn a_packet_is_a_piece_only_if_there_are_others() {
    let mut network = Network {
        family: Family::V6,
        source: [1; 16],
        destination: [2; 16],
        offset: 14,
        transport_offset: 14 + 40 + 8 + 8,
        end: 14 + 40 + 8 + 8 + 100,
        protocol: 17,
        ttl: 64,
        traffic_class: 0x2e,
        dont_fragment: false,
        fragment: None,
        transport: Transport::Other,
    };
    let realm = Realm::new(Zone(3), 4094);
    assert_eq!(Piece::of(&network, realm), None);
    let payload_offset = network.transport_offset;
    let info = FragmentInfo { id: 9, offset: 0, more: false, payload_offset };
    network.fragment = Some(info);
    assert_eq!(Piece::of(&network, realm), None, "an atomic fragment");
    network.fragment = Some(FragmentInfo { offset: 8, ..info });
    let piece = Piece::of(&network, realm).unwrap();
    assert_eq!((piece.key.protocol(), piece.key.id(), piece.key.realm()), (0, 9, realm));
    assert_eq!((piece.offset, piece.length, piece.more), (8, 100, false));
    // 8 bytes of extension headers lie before the fragment header.
    assert_eq!((piece.header, piece.ecn), (8, Ecn::Ect0));
}

/// Honest senders, all at the same pace; memory holds a third of their datagrams.
#[test]
fn when_honest_datagrams_exceed_memory_the_oldest_become_complete() {
    const SENDERS: u32 = 60;
    const PIECES: u16 = 45;
    let mut settings = Settings::default();
    settings.v4.high_thresh = u64::from(SENDERS) * u64::from(PIECES) * 2048 / 3;
    settings.v4.low_thresh = settings.v4.high_thresh / 4 * 3;
    let mut worker = Worker::new(&settings);
    let mut sent = 0;
    for round in 0..10 * u32::from(PIECES) {
        for sender in 0..SENDERS {
            // Each is at another place in its datagram.
            let turn = round + sender * 7;
            let (id, piece) = (turn / u32::from(PIECES), (turn % u32::from(PIECES)) as u16);
            worker.pass(1e-6);
            let key = key(Family::V4, sender as u8, id);
            worker.send(&fragment(key, piece * 8, &[0; 8], piece + 1 < PIECES));
            sent += u64::from(piece + 1 == PIECES);
        }
    }
    let complete = worker.counters.reasm_oks;
    assert!(complete * 4 > sent, "only {complete} of {sent} datagrams became complete");
    worker.check_books();
}

/// A flood of datagrams of 44 pieces that lack the last does not stop a slow sender
/// whose datagrams take a tenth of the time in which the flood fills the memory.
#[test]
fn a_slow_sender_gets_through_a_flood_of_large_datagrams_that_never_end() {
    const FLOOD_PER_SECOND: u64 = 100_000;
    const TOGETHER: u64 = 8;
    for together in [1, TOGETHER] {
        let mut settings = Settings::default();
        settings.v4.high_thresh = 4 << 20;
        settings.v4.low_thresh = 3 << 20;
        let mut worker = Worker::new(&settings);
        let (mut sent, mut honest) = (0, 0_u32);
        // Three pieces, 1.2 ms apart as on a link of 10 Mbit/s.
        for flood in 0..FLOOD_PER_SECOND {
            worker.pass(1.0 / FLOOD_PER_SECOND as f64);
            // This many datagrams at a time take turns.
            let (round, turn) = (flood / together, flood % together);
            let id = (round / 43 * together + turn) as u32;
            let piece = (round % 43) as u16;
            worker.send(&fragment(key(Family::V4, 200, id), piece * 8, &[0; 8], true));
            if flood % 120 == 0 {
                let piece = (honest % 3) as u16;
                worker.send(&fragment(
                    key(Family::V4, 1, honest / 3),
                    piece * 8,
                    &[0; 8],
                    piece < 2,
                ));
                sent += u32::from(piece == 2);
                honest += 1;
            }
        }
        let complete = worker.counters.reasm_oks;
        assert!(
            complete * 100 >= u64::from(sent) * 95,
            "{complete} of {sent}, {together} at a time"
        );
        worker.check_books();
    }
}

/// The clock of idle datagrams does not begin anew after 2^32 microseconds, which are 71.6 minutes.
#[test]
fn a_datagram_that_was_idle_for_72_minutes_has_come_to_a_halt() {
    let mut settings = Settings::default();
    settings.v4.time = 3 * 3600;
    // Room for four fragments. Any datagram in progress makes room for a newcomer.
    settings.v4.high_thresh = 10_000;
    settings.v4.low_thresh = 0;
    let mut worker = Worker::new(&settings);
    let [old, young, newcomer] = [1, 2, 3].map(|id| key(Family::V4, id as u8, id));
    for key in [old, young] {
        worker.send(&fragment(key, 0, &[0; 8], true));
        worker.pass(1.0);
        worker.send(&fragment(key, 16, &[0; 8], true));
        worker.pass(30.0 * 60.0);
    }
    // The second datagram has been idle for 42 minutes now.
    worker.pass(12.0 * 60.0);
    worker.send(&fragment(newcomer, 0, &[0; 8], true));
    assert_eq!(worker.stage_of(&old), Some(Phase::Dead(DropReason::FragEvictedProgress)));
    assert_eq!(worker.stage_of(&young), Some(Phase::Progress));
    worker.check_books();
}
