//! Buckets that change their worker.

use defrag::{Phase, Pools, Settings};
use flow::DropReason;
use wire::Family;

use crate::fixture::{Worker, content, cuts, fragment, key};

fn pair(settings: &Settings) -> (Pools, Worker, Worker) {
    let pools = Pools::new(settings);
    let workers = [(); 2].map(|()| Worker::of(&pools, settings, 2));
    let [from, mut to] = workers;
    to.serial = 1 << 32;
    (pools, from, to)
}

/// Moves a bucket.
pub fn travel(from: &mut Worker, to: &mut Worker, bucket: u16) {
    let parcel = from.extract(bucket);
    from.move_frames(&parcel, to);
    to.adopt(parcel);
    from.check_books();
    to.check_books();
}

#[test]
fn a_datagram_is_completed_by_the_next_owner() {
    let settings = Settings::default();
    let (pools, mut from, mut to) = pair(&settings);
    let bytes = content(1, 1000);
    for family in [Family::V4, Family::V6] {
        // With gaps, so that it has a bitmap, and without.
        for step in [1, 2] {
            let pieces = cuts(key(family, 1, step as u32), &bytes, 16);
            let (now, later): (Vec<_>, Vec<_>) =
                pieces.into_iter().enumerate().partition(|(at, _)| at % (step + 1) == 0);
            now.iter().for_each(|(_, cut)| drop(from.send_to(cut, 5)));
            travel(&mut from, &mut to, 4);
            assert!(!from.reassembler.is_empty(), "another bucket");
            travel(&mut from, &mut to, 5);
            assert!(from.reassembler.is_empty());
            let done = later.iter().filter_map(|(_, cut)| to.send_to(cut, 5).datagram).next();
            assert_eq!(done.as_ref(), Some(&bytes));
        }
        assert_eq!(to.memory.used(family), 0);
    }
    drop((from, to));
    assert_eq!((pools.leased(Family::V4), pools.leased(Family::V6)), (0, 0));
}

#[test]
fn age_and_distance_and_death_travel_along() {
    let settings = Settings::default();
    let (_, mut from, mut to) = pair(&settings);
    let first = |id| fragment(key(Family::V4, 1, id), 0, &[0; 16], true);
    // One of each worker every second.
    for second in 0..4 {
        from.send_to(&first(second * 2), 1);
        to.send_to(&first(second * 2 + 1), 2);
        from.pass(1.0);
        to.pass(1.0);
    }
    from.send_to(&fragment(key(Family::V4, 1, 2), 8, &[1; 16], true), 1);
    travel(&mut from, &mut to, 1);
    assert_eq!(to.stage_of(&key(Family::V4, 1, 2)), Some(Phase::Dead(DropReason::FragOverlap)));
    to.pass(28.5);
    to.expire(100);
    let mut ids: Vec<u32> = to.views().iter().map(|view| view.key.id()).collect();
    ids.sort_unstable();
    assert_eq!(ids, [6, 7], "those that came in the last two seconds");
    // Five fragments of the source at the old worker and 60 here are too many.
    let (_, mut from, mut to) = pair(&settings);
    from.send_to(&first(1), 1);
    (10..15).for_each(|id| drop(from.send_to(&first(id), 3)));
    travel(&mut from, &mut to, 1);
    (20..80).for_each(|id| drop(to.send_to(&first(id), 2)));
    to.send_to(&fragment(key(Family::V4, 1, 1), 16, &[1; 16], true), 1);
    assert_eq!(to.reasons(), [DropReason::FragWrap]);
}

#[test]
fn a_worker_that_is_flooded_does_not_starve_the_other() {
    let settings = Settings::default();
    let (pools, mut greedy, mut modest) = pair(&settings);
    for id in 0..4000 {
        greedy.send(&fragment(key(Family::V4, (id % 200) as u8, id), 0, &[0; 8], true));
    }
    let floor = settings.v4.high_thresh / 8;
    for id in 0..4000 {
        modest.send(&fragment(key(Family::V4, (id % 200) as u8, id), 0, &[0; 8], true));
    }
    assert!(modest.memory.used(Family::V4) > floor * 9 / 10);
    assert!(pools.leased(Family::V4) <= settings.v4.high_thresh);
}

#[test]
fn a_new_worker_gets_its_floor_from_the_others() {
    let settings = Settings::default();
    let pools = Pools::new(&settings);
    let mut old = Worker::of(&pools, &settings, 1);
    let flood = |worker: &mut Worker, ids: std::ops::Range<u32>| {
        for id in ids {
            worker.send(&fragment(key(Family::V4, (id % 200) as u8, id), 0, &[0; 8], true));
            assert!(pools.leased(Family::V4) <= settings.v4.high_thresh);
        }
    };
    flood(&mut old, 0..4000);
    old.memory.set_workers(2);
    let mut new = Worker::of(&pools, &settings, 2);
    flood(&mut new, 0..10);
    assert_eq!(new.reassembler.len(), 0, "everything is taken");
    old.expire(1000);
    flood(&mut old, 4000..8000);
    flood(&mut new, 0..4000);
    assert!(new.memory.used(Family::V4) > settings.v4.high_thresh / 8 * 9 / 10);
}

#[test]
fn a_lower_limit_is_reached_within_a_few_turns() {
    let mut settings = Settings::default();
    let pools = Pools::new(&settings);
    let mut worker = Worker::of(&pools, &settings, 1);
    for id in 0..4000 {
        worker.send(&fragment(key(Family::V4, (id % 200) as u8, id), 0, &[0; 8], true));
    }
    settings.set("ipfrag_high_thresh", 1 << 20).unwrap();
    worker.settings = settings.clone();
    pools.apply(&settings);
    pools.repay();
    worker.memory.set_workers(1);
    while worker.expire(16) > 0 {}
    assert!(pools.leased(Family::V4) <= 1 << 20);
    assert!(worker.memory.used(Family::V4) > 900 << 10, "and no more is given up than needed");
    worker.check_books();
}
