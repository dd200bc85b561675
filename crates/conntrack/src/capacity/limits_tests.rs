use super::*;

const SECRET: HashKey = HashKey(1, 2);

fn settings(max_entries: u64) -> Settings {
    Settings { max_entries, ..Settings::default() }
}

/// Two workers, and the pools that they share.
fn pair(max_entries: u64, reserve: &Reserve) -> (LimitPools, [Limits; 2]) {
    let pools = LimitPools::new(&settings(max_entries), reserve);
    let mut pair = [pools.limits(SECRET), pools.limits(SECRET)];
    pair.iter_mut().for_each(|limits| limits.share(2));
    (pools, pair)
}

/// Adopts a changed limit.
fn change(pools: &LimitPools, pair: &mut [Limits; 2], max_entries: u64) {
    pools.apply(&settings(max_entries));
    pools.repay();
    pair.iter_mut().for_each(|limits| limits.share(2));
}

fn spend(limits: &mut Limits, times: usize) -> usize {
    (0..times).filter(|_| limits.spend()).count()
}

#[test]
fn a_limit_that_is_lowered_holds_at_once() {
    let (pools, mut pair) = pair(1 << 20, &Reserve::default());
    pair.iter_mut().for_each(|limits| assert_eq!(spend(limits, 5), 5));
    change(&pools, &mut pair, 100);
    let [first, second] = &mut pair;
    let opened = 10 + spend(first, 4000) + spend(second, 4000);
    assert_eq!(opened, 100, "what lies in pockets counts");
    assert_eq!(first.used() + second.used(), 100);
    change(&pools, &mut pair, 50);
    let [first, second] = &mut pair;
    assert_eq!(spend(first, 10) + spend(second, 10), 0);
    first.table.release(first.table.used());
    second.table.release(second.table.used());
    assert_eq!(spend(first, 100) + spend(second, 100), 50);
}

#[test]
fn each_worker_has_a_part_that_no_other_takes() {
    let (pools, mut pair) = pair(100, &Reserve::default());
    let [first, second] = &mut pair;
    assert_eq!(spend(first, 300), 88, "an eighth is the other's");
    assert_eq!(spend(second, 300), 12);
    // The same after the other had taken everything.
    first.table.release(88);
    second.table.release(12);
    let mut alone = pools.limits(SECRET);
    drop(std::mem::replace(second, pools.limits(SECRET)));
    assert_eq!(spend(&mut alone, 300), 88);
    second.share(2);
    assert!(!second.spend() && alone.is_overdrawn());
    for _ in 0..12 {
        alone.table.release(1);
        alone.repay();
    }
    assert!(!alone.is_overdrawn());
    assert_eq!(spend(second, 300), 12);
}

#[test]
fn a_higher_limit_is_taken_in_larger_parts() {
    let (pools, mut pair) = pair(1000, &Reserve::default());
    change(&pools, &mut pair, 1 << 20);
    let [first, _] = &mut pair;
    assert!(first.spend());
    assert!(first.table.spare() > 1000, "{}", first.table.spare());
}

#[test]
fn the_reserve_leaves_half_to_the_others() {
    let reserve = Reserve { sources: Vec::new(), connections: 80 };
    let (pools, mut pair) = pair(1000, &reserve);
    assert_eq!((pools.reserve.cap(), pools.table.cap()), (80, 920));
    change(&pools, &mut pair, 100);
    assert_eq!((pools.reserve.cap(), pools.table.cap()), (50, 50));
    change(&pools, &mut pair, 1000);
    assert_eq!((pools.reserve.cap(), pools.table.cap()), (80, 920));
}

/// The number of connections that the workers can open in a zone, in turn.
fn spend_zone(limits: &mut Limits, zone: Zone, times: usize) -> usize {
    let number = limits.counted_zone(zone).unwrap();
    (0..times).filter(|_| limits.spend_zone(number)).count()
}

#[test]
fn each_worker_has_a_part_of_a_zone_that_no_other_takes() {
    let (mut pools, mut workers) = pair(1 << 20, &Reserve::default());
    pools.set_zones(&[(Zone(9), Some(100)), (Zone(4), None), (Zone(7), Some(3))]).unwrap();
    for limits in &mut workers {
        limits.learn(&pools);
        limits.share(2);
    }
    let [first, second] = &mut workers;
    assert_eq!(spend_zone(first, Zone(9), 300), 88, "an eighth is the other's");
    assert_eq!(spend_zone(second, Zone(9), 300), 12);
    assert_eq!(spend_zone(first, Zone(4), 3000), 3000, "it has no limit");
    assert_eq!(spend_zone(second, Zone(7), 9), 3, "too few to divide");
    assert_eq!(spend_zone(first, Zone(7), 9), 0);
    assert_eq!((first.counted_zone(Zone(0)), first.counted_zone(Zone(5))), (None, None));
    assert_eq!(first.zones().collect::<Vec<_>>(), [(Zone(9), 88), (Zone(4), 3000), (Zone(7), 0)]);
}

#[test]
fn limits_of_zones_change_while_connections_live() {
    let (mut pools, mut workers) = pair(1 << 20, &Reserve::default());
    let mut change = |workers: &mut [Limits; 2], zones: &[(Zone, Option<u64>)]| {
        pools.set_zones(zones).unwrap();
        for limits in workers.iter_mut() {
            limits.learn(&pools);
            limits.share(2);
        }
        pools.repay();
        workers.iter_mut().for_each(|limits| limits.share(2));
        pools.zones().collect::<Vec<_>>()
    };
    change(&mut workers, &[(Zone(5), None)]);
    assert!(workers.iter_mut().all(|limits| spend_zone(limits, Zone(5), 50) == 50));
    let known = change(&mut workers, &[(Zone(2), Some(7)), (Zone(5), Some(80))]);
    assert_eq!(known, [(Zone(5), Some(80)), (Zone(2), Some(7))], "numbers stay");
    let [first, second] = &mut workers;
    assert_eq!((spend_zone(first, Zone(5), 9), spend_zone(second, Zone(5), 9)), (0, 0));
    // Both end connections until the remaining ones fit.
    let number = first.counted_zone(Zone(5)).unwrap();
    for _ in 0..100 {
        for limits in [&mut *first, &mut *second] {
            if let Some(zone) = limits.overdrawn_zone() {
                assert_eq!(zone, Zone(5));
                limits.release_zone(number);
            }
        }
    }
    let used = |limits: &Limits| limits.zones().next().unwrap().1;
    assert_eq!(used(first) + used(second), 80);
    let known = change(&mut workers, &[(Zone(2), Some(9))]);
    assert_eq!(known, [(Zone(5), None), (Zone(2), Some(9))], "no limit without a zone");
    assert_eq!(spend_zone(&mut workers[0], Zone(5), 500), 500);
}

#[test]
fn zones_beyond_the_most_are_refused_and_nothing_has_changed() {
    let (mut pools, _) = pair(100, &Reserve::default());
    let zones = |numbers: std::ops::RangeInclusive<u16>| {
        numbers.map(|number| (Zone(number), Some(1))).collect::<Vec<_>>()
    };
    pools.set_zones(&zones(1..=4096)).unwrap();
    assert_eq!(pools.set_zones(&zones(2..=4097)), Err(TooManyZones));
    assert!(pools.zones().all(|(_, limit)| limit == Some(1)));
    pools.set_zones(&zones(7..=7)).unwrap();
    assert_eq!(pools.zones().filter(|(_, limit)| limit.is_some()).count(), 1);
}

#[test]
fn a_lower_limit_costs_nobody_what_fits_it() {
    let (pools, mut pair) = pair(100_000, &Reserve::default());
    assert_eq!(spend(&mut pair[0], 20_000), 20_000);
    pools.apply(&settings(30_000));
    for limits in &mut pair {
        // The result is the same whichever worker shares first.
        limits.share(2);
        assert!(!limits.is_overdrawn());
        assert!(limits.spend());
    }
    pools.repay();
    assert!(!pair.iter().any(Limits::is_overdrawn));
    let more = spend(&mut pair[0], 30_000) + spend(&mut pair[1], 30_000);
    assert_eq!(more, 30_000 - 20_002);
}

#[test]
fn zones_are_asked_only_after_something_has_come_to_be_lacking() {
    const ZONES: u16 = 100;
    let (mut pools, mut workers) = pair(1 << 20, &Reserve::default());
    let zones: Vec<_> = (1..=ZONES).map(|zone| (Zone(zone), Some(100))).collect();
    pools.set_zones(&zones).unwrap();
    for limits in &mut workers {
        limits.learn(&pools);
        limits.share(2);
    }
    let round = usize::from(ZONES).div_ceil(ZONES_AT_ONCE);
    let [first, second] = &mut workers;
    for _ in 0..round {
        assert_eq!(first.overdrawn_zone(), None);
    }
    assert_eq!(first.to_ask, 0);
    assert_eq!(spend_zone(first, Zone(50), 300), 88);
    let at = first.asked_zone;
    for _ in 0..1000 {
        assert_eq!((first.overdrawn_zone(), first.asked_zone), (None, at));
    }
    // A new worker joins when nothing is left of one zone.
    drop(std::mem::replace(second, pools.limits(SECRET)));
    assert_eq!(spend_zone(first, Zone(50), 300), 12);
    second.share(2);
    let found: Vec<_> = (0..=round).filter_map(|_| first.overdrawn_zone()).collect();
    assert!(!found.is_empty() && found.iter().all(|zone| *zone == Zone(50)));
    let number = first.counted_zone(Zone(50)).unwrap();
    for _ in 0..12 {
        first.release_zone(number);
    }
    let calls = (0..).take_while(|_| first.overdrawn_zone().is_some() || first.to_ask > 0);
    assert!(calls.count() <= 2 * round, "it ends");
    assert_eq!(spend_zone(second, Zone(50), 300), 12);

    // A bucket comes from a worker that had to give up units.
    let [first, second] = &mut workers;
    let held = Held { zones: vec![0; 49].into_iter().chain([40]).collect(), ..Held::default() };
    first.surrender(&held);
    second.adopt(&held);
    assert_eq!(second.to_ask, usize::from(ZONES));
}
