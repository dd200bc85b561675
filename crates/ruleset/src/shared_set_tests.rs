use std::collections::HashMap;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::evaluate::dynamic::Joining;
use crate::hook::TableFamily;
use crate::kind::Kind;
use crate::model::Rate;

fn set(size: u32, parts: Vec<Part>) -> Set {
    Set {
        family: TableFamily::Inet,
        table: "t".to_owned(),
        name: None,
        position: None,
        key: vec![Kind::Ipv4],
        data: Data::None,
        dynamic: true,
        timeout: None,
        size,
        parts,
        declares_parts: true,
        elements: crate::elements::Elements::new(&[Kind::Ipv4], &Data::None),
    }
}

fn key(value: u32) -> PackedKey {
    let mut key = PackedKey::EMPTY;
    key.push(value.into(), 1);
    key
}

#[derive(Clone, Debug)]
enum Act {
    Add(u32, u64),
    Refresh(u32, u64),
    Remove(u32),
    Wait(u64),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (0..40_u32, 1..20_u64).prop_map(|(key, time)| Act::Add(key, time)),
        1 => (0..40_u32, 1..20_u64).prop_map(|(key, time)| Act::Refresh(key, time)),
        2 => (0..40_u32).prop_map(Act::Remove),
        1 => (1..10_u64).prop_map(Act::Wait),
    ]
}

fn hashed(set: &SharedSet, value: u32) -> (u64, PackedKey) {
    let key = key(value);
    (set.hash(&key), key)
}

/// A statement that changes a set, with this timeout of its own.
fn statement(op: UpdateOp, timeout: Option<u64>) -> Update {
    let timeout = timeout.map(Duration::from_secs);
    Update { set: crate::SetId(0), op, key: crate::model::Key { loads: Vec::new() }, timeout }
}

/// Changes a set for a packet of no connection.
fn update(
    set: &SharedSet,
    update: &Update,
    key: &PackedKey,
    bytes: u64,
    now: Timestamp,
) -> Changed {
    let mut joined = Vec::new();
    let connection = Joining { details: None, joined: &mut joined };
    set.update(update, key, &mut Meeting { bytes, now, connection })
}

fn has(set: &SharedSet, value: u32, now: Timestamp) -> bool {
    let (hash, key) = hashed(set, value);
    set.read(hash).find(hash, &key, now).is_some()
}

proptest! {
    /// The model is a map of deadlines. It is full once it has `ROOM` keys that were not cleared.
    #[test]
    fn a_set_is_a_map_of_deadlines(acts in prop::collection::vec(act(), 0..200), seed: u64) {
        const ROOM: u32 = 12;
        let set = SharedSet::new(&set(ROOM, Vec::new()), seed, Timestamp::ZERO);
        let mut model: HashMap<u32, Timestamp> = HashMap::new();
        let mut now = Timestamp::from_secs(1);
        for act in acts {
            match act {
                Act::Add(value, time) => {
                    let deadline = now.after(Duration::from_secs(time));
                    let known = model.get(&value).is_some_and(|deadline| *deadline > now);
                    let live = model.values().filter(|deadline| **deadline > now).count();
                    let statement = statement(UpdateOp::Add, Some(time));
                    match update(&set, &statement, &key(value), 0, now) {
                        Changed::GoesOn if known => {}
                        Changed::GoesOn => {
                            prop_assert!(live < ROOM as usize);
                            model.insert(value, deadline);
                        }
                        Changed::Full => prop_assert!(!known && live == ROOM as usize),
                        Changed::Ends => prop_assert!(false, "there is no statement"),
                    }
                }
                Act::Refresh(value, time) => {
                    if has(&set, value, now) {
                        let statement = statement(UpdateOp::Refresh, Some(time));
                        update(&set, &statement, &key(value), 0, now);
                        model.insert(value, now.after(Duration::from_secs(time)));
                    }
                }
                Act::Remove(value) => {
                    update(&set, &statement(UpdateOp::Delete, None), &key(value), 0, now);
                    model.remove(&value);
                }
                Act::Wait(seconds) => now = now.after(Duration::from_secs(seconds)),
            }
            model.retain(|_, deadline| *deadline > now);
            prop_assert_eq!(set.len(now), model.len());
            for value in 0..40 {
                prop_assert_eq!(has(&set, value, now), model.contains_key(&value));
            }
        }
    }
}

/// Many shards hold exactly the declared number of elements, and room comes back.
#[test]
fn a_set_of_many_shards_holds_as_many_elements_as_it_says() {
    const ROOM: u32 = 5000;
    let set = SharedSet::new(&set(ROOM, Vec::new()), 3, Timestamp::ZERO);
    assert_eq!(set.shards.len(), MOST_SHARDS);
    let now = Timestamp::from_secs(1);
    let add = |value: u32, now| {
        update(&set, &statement(UpdateOp::Add, Some(10)), &key(value), 0, now) == Changed::GoesOn
    };
    assert_eq!((0..6000).filter(|value| add(*value, now)).count(), ROOM as usize);
    assert_eq!(set.len(now), ROOM as usize);
    assert!((0..ROOM).all(|value| has(&set, value, now)));
    for value in 0..100 {
        update(&set, &statement(UpdateOp::Delete, None), &key(value), 0, now);
    }
    assert_eq!((6000..7000).filter(|value| add(*value, now)).count(), 100);
    let copy = set.copied();
    let later = now.after(Duration::from_secs(10));
    assert_eq!((8000..20_000).filter(|value| add(*value, later)).count(), ROOM as usize);
    assert_eq!((copy.len(now), set.len(later)), (ROOM as usize, ROOM as usize));
    assert!(has(&copy, 6000, now) && !has(&set, 6000, later));
}

#[test]
fn each_element_has_a_rate_of_its_own() {
    let rate =
        Rate { amount: 2, period: Duration::from_secs(1), burst: 2, in_bytes: false, over: false };
    let set = SharedSet::new(&set(8, vec![Part::Limit(rate)]), 1, Timestamp::ZERO);
    let start = Timestamp::from_secs(1);
    let add = statement(UpdateOp::Add, None);
    for value in [1, 2] {
        let passes = |now| update(&set, &add, &key(value), 100, now) == Changed::GoesOn;
        assert_eq!((0..5).filter(|_| passes(start)).count(), 2);
        assert!(passes(start.after(Duration::from_millis(500))));
    }
}

/// Threads that meet the same elements at once let as much pass as one thread would.
#[test]
fn threads_that_share_a_set_count_exactly() {
    let rate = Rate {
        amount: 1,
        period: Duration::from_secs(3600),
        burst: 50,
        in_bytes: false,
        over: false,
    };
    let set = SharedSet::new(&set(64, vec![Part::Counter, Part::Limit(rate)]), 1, Timestamp::ZERO);
    let (add, now) = (statement(UpdateOp::Add, None), Timestamp::from_secs(1));
    let passed: usize = std::thread::scope(|scope| {
        let meet = || {
            (0..8000)
                .filter(|at| update(&set, &add, &key(at % 80), 1, now) == Changed::GoesOn)
                .count()
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(meet)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(passed, 64 * 50, "64 of 80 keys find room");
    let mut packets = 0;
    set.list(now, |_, _, element| packets += element.counted.unwrap().0);
    assert_eq!(packets, 64 * 400);
}
