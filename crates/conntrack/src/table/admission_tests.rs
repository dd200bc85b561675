//! Zones, sources and the reserve, each by itself and while tables move.

use crate::Verdict;
use crate::capacity::Shortage;
use flow::{Class, FlowKey, Zone};
use proptest::prelude::*;
use wire::{Family, Network};

use super::Entry;
use crate::syn_proxy::Screening;
use crate::testing::{Lab, SECRET, tcp, udp};
use crate::{Checksum, LimitPools, Reserve, Settings, Tracked, TrackedPacket};

fn limits_of(max: u64, reserve: Reserve, zones: &[(u16, u64)]) -> LimitPools {
    let settings = Settings { max_entries: max, ..Settings::default() };
    let mut pools = LimitPools::new(&settings, &reserve);
    let zones: Vec<_> = zones.iter().map(|&(id, limit)| (Zone(id), Some(limit))).collect();
    pools.set_zones(&zones).unwrap();
    pools
}

fn lab(pools: &LimitPools) -> Lab {
    let mut lab = Lab::new();
    lab.limits = pools.limits(SECRET);
    lab
}

fn track(lab: &mut Lab, zone: u16, network: &Network) -> Tracked {
    let keyed = FlowKey::of_packet(network, Zone(zone)).unwrap();
    let hash = keyed.key.hash(SECRET);
    let (checksum, frame) = (Checksum::Trust, &[][..]);
    let packet = TrackedPacket {
        network,
        frame,
        keyed: &keyed,
        hash,
        guess: crate::Guess::NONE,
        checksum,
        segments: 1,
        may_open: true,
        screening: Screening::Off,
        map_epoch: 0,
        zones: None,
    };
    lab.run(|table, context| table.track_and_accept(&packet, context))
}

/// A query of a client and its answer.
fn query(client: u8, port: u16) -> Network {
    udp(Family::V4, (client, port), (200, 53))
}

fn answer(client: u8, port: u16) -> Network {
    udp(Family::V4, (200, 53), (client, port))
}

/// Opens a connection that is assured.
fn settle(lab: &mut Lab, zone: u16, client: u8, port: u16) {
    for _ in 0..2 {
        track(lab, zone, &query(client, port));
        track(lab, zone, &answer(client, port));
        lab.wait(std::time::Duration::from_secs(3));
    }
    assert!(lab.listed().iter().all(|connection| connection.assured || !connection.seen_reply));
}

#[test]
fn a_zone_at_its_limit_gives_way_to_itself_alone() {
    let mut lab = lab(&limits_of(100, Reserve::default(), &[(7, 3), (9, 3)]));
    for port in 0..3 {
        settle(&mut lab, 7, 1, port);
        track(&mut lab, 9, &query(1, port));
        track(&mut lab, 0, &query(1, port));
    }
    let refused = track(&mut lab, 7, &query(2, 1));
    assert_eq!(refused.verdict, Verdict::NoRoom(Shortage::Zone(Zone(7))));
    assert_eq!((lab.table.len(), lab.counters.early_drop), (9, 0));
    assert_eq!(track(&mut lab, 9, &query(2, 1)).verdict, Verdict::Accept);
    assert_eq!((lab.table.len(), lab.counters.early_drop), (9, 1));
    let of_zone = |lab: &Lab, zone| lab.listed().iter().filter(|c| c.zone == zone).count();
    assert_eq!((of_zone(&lab, 7), of_zone(&lab, 9), of_zone(&lab, 0)), (3, 3, 3));
    let class = track(&mut lab, 7, &query(1, 0)).class;
    assert_eq!(class, Class::Established, "the same addresses are three connections");
    assert_eq!(track(&mut lab, 0, &query(1, 0)).class, Class::New);
}

#[test]
fn the_reserve_is_for_its_sources_when_nothing_gives_way() {
    let operator = Reserve { sources: vec!["192.0.2.9/32".parse().unwrap()], connections: 2 };
    let pools = limits_of(5, operator, &[]);
    let mut lab = lab(&pools);
    for port in 0..3 {
        settle(&mut lab, 0, 1, port);
    }
    let full = Verdict::NoRoom(Shortage::Table);
    assert_eq!(track(&mut lab, 0, &query(1, 77)).verdict, full, "two of five are reserved");
    settle(&mut lab, 0, 9, 1);
    assert_eq!(track(&mut lab, 0, &query(9, 2)).verdict, Verdict::Accept);
    assert_eq!(track(&mut lab, 0, &query(1, 77)).verdict, full, "the reserve gives way to none");
    assert_eq!(track(&mut lab, 0, &query(9, 3)).verdict, Verdict::Accept, "but to its own");
    assert_eq!((lab.table.len(), lab.counters.early_drop), (5, 1));
    settle(&mut lab, 0, 9, 3);
    assert_eq!(track(&mut lab, 0, &query(9, 4)).verdict, full);
    lab.wait(std::time::Duration::from_secs(1000));
    while lab.run(|table, context| table.expire(100, context)) > 0 {}
    assert_eq!(lab.limits.used(), 0);
    assert_eq!(track(&mut lab, 0, &query(9, 4)).verdict, Verdict::Accept);
    assert_eq!(lab.table.occupancy.held().reserve, 0, "the reserve is the last resort");
}

#[test]
fn half_open_connections_of_a_source_are_limited_until_they_are_answered() {
    const SYN: u8 = 2;
    const SYN_ACK: u8 = 0x12;
    const ACK: u8 = 0x10;
    let mut lab = Lab::new();
    lab.settings.half_open_per_source = 4;
    let there = |port, flags| tcp(Family::V4, (1, port), (2, 80), flags, (0, 0));
    let back = |port, flags| tcp(Family::V4, (2, 80), (1, port), flags, (0, 1));
    let refused = Verdict::NoRoom(Shortage::Source);
    for port in 0..3 {
        assert_eq!(lab.track(&there(port, SYN)).verdict, Verdict::Accept);
    }
    lab.track(&udp(Family::V4, (1, 5), (2, 53)));
    assert_eq!(lab.track(&there(9, SYN)).verdict, refused);
    lab.track(&back(0, SYN_ACK));
    assert_eq!(lab.track(&there(9, SYN)).verdict, refused, "its handshake is not complete");
    let other = tcp(Family::V4, (3, 9), (2, 80), SYN, (0, 0));
    assert_eq!(lab.track(&other).verdict, Verdict::Accept, "another source");
    lab.track(&tcp(Family::V4, (1, 0), (2, 80), ACK, (1, 1)));
    assert_eq!(lab.track(&there(9, SYN)).verdict, Verdict::Accept);
    assert_eq!(lab.track(&there(10, SYN)).verdict, refused);
    lab.track(&udp(Family::V4, (2, 53), (1, 5)));
    assert_eq!(lab.track(&there(10, SYN)).verdict, Verdict::Accept);
    assert_eq!(lab.limits.sources.total(), 5);
    lab.wait(std::time::Duration::from_secs(1000));
    while lab.run(|table, context| table.expire(100, context)) > 0 {}
    assert_eq!(lab.limits.sources.total(), 0);
}

#[test]
fn a_network_of_ipv6_is_one_source_and_workers_share_its_limit() {
    let mut lab = Lab::new();
    lab.settings.half_open_per_source = 10;
    lab.limits.sources.set_workers(4);
    let admitted = (0..20).filter(|&host| {
        lab.track(&udp(Family::V6, (host, 1), (200, 53))).verdict == Verdict::Accept
    });
    assert_eq!(admitted.count(), 3, "a quarter of ten, rounded up");
}

#[test]
fn more_sources_than_there_is_room_for_are_let_through() {
    let mut lab = Lab::new();
    lab.settings.half_open_per_source = 1;
    lab.settings.events = false;
    for number in 0..2 * crate::Sources::MOST as u32 {
        let mut packet = query(1, 1);
        packet.source[12..].copy_from_slice(&number.to_be_bytes());
        assert_eq!(lab.track(&packet).verdict, Verdict::Accept);
    }
    assert!(lab.limits.sources.total() <= crate::Sources::MOST as u64);
    assert!(lab.limits.sources.total() > crate::Sources::MOST as u64 * 9 / 10);
    lab.wait(std::time::Duration::from_secs(100));
    while lab.run(|table, context| table.expire(1000, context)) > 0 {}
    assert_eq!((lab.limits.sources.total(), lab.limits.used()), (0, 0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]
    /// Two workers with limits of the same pools, and a table that moves between them.
    #[test]
    fn the_books_balance_wherever_the_table_is(
        packets in prop::collection::vec((0u16..3, 1u8..6, 0u16..6, any::<bool>(), any::<bool>()), 1..200),
    ) {
        let reserve = Reserve { sources: vec!["192.0.2.1".parse().unwrap()], connections: 3 };
        let pools = limits_of(12, reserve, &[(1, 4), (2, 6)]);
        let mut lab = lab(&pools);
        lab.settings.half_open_per_source = 4;
        let mut other = pools.limits(SECRET);
        for (zone, client, port, back, moves) in packets {
            let packet = if back { answer(client, port) } else { query(client, port) };
            track(&mut lab, zone, &packet);
            lab.wait(std::time::Duration::from_millis(700));
            if moves {
                lab.run(|table, context| table.count_out(context.limits));
                prop_assert_eq!((lab.limits.used(), lab.limits.sources.total()), (0, 0));
                std::mem::swap(&mut lab.limits, &mut other);
                lab.run(|table, context| table.count_in(context.limits, 77));
            }
            let held = lab.table.occupancy.held().clone();
            prop_assert_eq!(held.table + held.reserve, lab.table.len() as u64);
            prop_assert_eq!(lab.limits.used(), lab.table.len() as u64);
            let half_open = lab.table.counted_by_source().len() as u64;
            prop_assert_eq!(lab.limits.sources.total(), half_open);
            prop_assert_eq!(lab.table.occupancy.counted_by_source() as u64, half_open);
            for shortage in lab.limits.shortages() {
                let victim = lab.table.occupancy.victim(shortage, &lab.limits);
                prop_assert_eq!(lab.limits.table_with_candidate(shortage, 5).is_some(), victim.is_some());
                prop_assert_eq!(other.table_with_candidate(shortage, 5), None);
            }
            prop_assert!(held.table <= 9 && held.reserve <= 3, "{:?}", held);
            prop_assert!(held.zones.iter().zip([4, 6]).all(|(held, limit)| *held <= limit));
        }
        lab.wait(std::time::Duration::from_secs(1000));
        while lab.run(|table, context| table.expire(100, context)) > 0 {}
        prop_assert_eq!((lab.limits.used(), lab.limits.sources.total()), (0, 0));
    }

    /// Zones become known, and their limits change, while a table moves between two workers.
    #[test]
    fn zones_are_counted_whatever_their_limits_are_and_were(
        steps in prop::collection::vec(
            (0u16..4, 1u8..6, 0u16..6, any::<bool>(), any::<bool>(), 0u64..8),
            1..200,
        ),
    ) {
        let mut pools = limits_of(100, Reserve::default(), &[]);
        let mut lab = lab(&pools);
        let mut other = pools.limits(SECRET);
        let mut limits: Vec<(Zone, Option<u64>)> = Vec::new();
        for (zone, client, port, back, moves, limit) in steps {
            let known = limits.iter().position(|&(other, _)| other == Zone(zone));
            if limit > 5 && zone > 0 {
                // 6 stands for no limit, 7 for a small one.
                let limit = (limit == 7).then_some(3);
                match known {
                    Some(at) => limits[at].1 = limit,
                    None => limits.push((Zone(zone), limit)),
                }
                pools.set_zones(&limits).unwrap();
                for limits in [&mut lab.limits, &mut other] {
                    limits.learn(&pools);
                    limits.share(2);
                }
                pools.repay();
            } else if known.is_none() && zone > 0 {
                continue;
            }
            let count = |lab: &Lab| {
                let slab = &lab.table.slab;
                let live = (0..slab.slots()).filter_map(|slot| slab.live(slot));
                live.filter(|entry| entry.head.key.zone.0 == zone).count() as u64
            };
            let before = count(&lab);
            let packet = if back { answer(client, port) } else { query(client, port) };
            track(&mut lab, zone, &packet);
            lab.wait(std::time::Duration::from_millis(700));
            if moves {
                lab.run(|table, context| table.count_out(context.limits));
                prop_assert!(lab.limits.zones().all(|(_, connections)| connections == 0));
                std::mem::swap(&mut lab.limits, &mut other);
                lab.run(|table, context| table.count_in(context.limits, 77));
            }
            if let Some((zone, connections)) = lab.limits.zones().find(|(z, _)| z.0 == zone) {
                prop_assert_eq!(connections, count(&lab), "zone {}", zone.0);
                let limit = limits.iter().find(|(other, _)| *other == zone).unwrap().1;
                prop_assert!(limit.is_none_or(|limit| connections <= limit.max(before)));
            }
        }
        lab.wait(std::time::Duration::from_secs(1000));
        while lab.run(|table, context| table.expire(100, context)) > 0 {}
        prop_assert!(lab.limits.zones().all(|(_, connections)| connections == 0));
    }

    /// Handshakes in any order, at two workers by turns.
    #[test]
    fn half_open_connections_are_counted_by_zone(
        segments in prop::collection::vec((0u16..3, 0u16..6, 0usize..5, any::<bool>()), 1..200),
    ) {
        let pools = limits_of(1000, Reserve::default(), &[]);
        let mut lab = lab(&pools);
        let mut other = pools.limits(SECRET);
        for (zone, port, kind, moves) in segments {
            let (there, back) = (((1, port), (2, 80)), ((2, 80), (1, port)));
            let (way, flags, numbers) = [
                (there, 2, (0, 0)),
                (back, 0x12, (0, 1)),
                (there, 0x10, (1, 1)),
                (there, 0x14, (1, 1)),
                (back, 0x14, (0, 1)),
            ][kind];
            track(&mut lab, zone, &tcp(Family::V4, way.0, way.1, flags, numbers));
            lab.wait(std::time::Duration::from_secs(5));
            lab.run(|table, context| table.expire(100, context));
            if moves {
                lab.table.count_out(&mut lab.limits);
                std::mem::swap(&mut lab.limits, &mut other);
                lab.table.count_in(&mut lab.limits, 0);
            }
            // Expired connections that still hold memory are included.
            let slab = &lab.table.slab;
            let held: Vec<_> = (0..slab.slots()).filter_map(|slot| slab.live(slot)).collect();
            let open = |state: &Entry| matches!(state.body.state.name(), Some("SYN_SENT" | "SYN_RECV" | "SYN_SENT2"));
            for zone in 0..3 {
                let half_open = held.iter().filter(|e| e.head.key.zone.0 == zone && open(e));
                prop_assert_eq!(lab.limits.half_open.get(Zone(zone)), half_open.count() as u64);
                prop_assert_eq!(other.half_open.get(Zone(zone)), 0);
            }
        }
    }
}
