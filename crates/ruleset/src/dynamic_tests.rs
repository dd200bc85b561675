use std::collections::HashMap;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
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

proptest! {
    /// The model is a map of deadlines. It is full once it has `ROOM` keys that were not cleared.
    #[test]
    fn a_set_is_a_map_of_deadlines(acts in prop::collection::vec(act(), 0..200), seed: u64) {
        const ROOM: u32 = 12;
        let mut set = DynamicSet::new(&set(ROOM, vec![Part::Counter]), seed, 1, Timestamp::ZERO);
        let mut model: HashMap<u32, Timestamp> = HashMap::new();
        let mut now = Timestamp::from_secs(1);
        for act in acts {
            match act {
                Act::Add(value, time) => {
                    let deadline = now.after(Duration::from_secs(time));
                    let known = model.get(&value).is_some_and(|deadline| *deadline > now);
                    let live = model.values().filter(|deadline| **deadline > now).count();
                    match set.add(&key(value), deadline, now) {
                        Added::Known(_) => prop_assert!(known),
                        Added::New(_) => {
                            prop_assert!(!known && live < ROOM as usize);
                            model.insert(value, deadline);
                        }
                        Added::Full => prop_assert!(!known && live == ROOM as usize),
                    }
                }
                Act::Refresh(value, time) => {
                    let deadline = now.after(Duration::from_secs(time));
                    if let Some(number) = set.find(&key(value), now) {
                        set.refresh(number, deadline, now);
                        model.insert(value, deadline);
                    }
                }
                Act::Remove(value) => {
                    set.remove(&key(value));
                    model.remove(&value);
                }
                Act::Wait(seconds) => now = now.after(Duration::from_secs(seconds)),
            }
            model.retain(|_, deadline| *deadline > now);
            prop_assert_eq!(set.len(now), model.len());
            for value in 0..40 {
                prop_assert_eq!(set.find(&key(value), now).is_some(), model.contains_key(&value));
            }
        }
    }
}

#[test]
fn each_element_has_a_rate_of_its_own() {
    let rate =
        Rate { amount: 2, period: Duration::from_secs(1), burst: 2, in_bytes: false, over: false };
    let mut set = DynamicSet::new(&set(8, vec![Part::Limit(rate)]), 1, 1, Timestamp::ZERO);
    let start = Timestamp::from_secs(1);
    for value in [1, 2] {
        let Added::New(number) = set.add(&key(value), Timestamp::NEVER, start) else { panic!() };
        let passed = (0..5).filter(|_| set.count(number, 100, start)).count();
        assert_eq!(passed, 2);
        assert!(set.count(number, 100, start.after(Duration::from_millis(500))));
    }
}
