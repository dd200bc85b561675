use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::elements::{Elements, NewElement};
use crate::hook::TableFamily;
use crate::model::Data;

fn element(key: Vec<Interval>, expires: Option<Duration>) -> NewElement {
    NewElement {
        key,
        datum: None,
        expires,
        counted: (0, 0),
        has_parts: false,
        comment: None,
        catch_all: false,
    }
}

fn set(key: Vec<Kind>, elements: Vec<Vec<Interval>>) -> Set {
    let mut held = Elements::new(&key, &Data::None);
    elements.into_iter().for_each(|key| held.push(&element(key, None)));
    Set {
        family: TableFamily::Inet,
        table: "t".to_owned(),
        name: None,
        position: None,
        key,
        data: Data::None,
        dynamic: false,
        timeout: None,
        size: 1,
        parts: Vec::new(),
        declares_parts: false,
        elements: held,
    }
}

fn kind() -> impl Strategy<Value = Kind> {
    prop::sample::select(&[Kind::Ipv4, Kind::Ipv6, Kind::Port, Kind::Protocol, Kind::Ether][..])
}

/// Values near each other and near the ends, so that they meet.
fn value(kind: Kind) -> impl Strategy<Value = u128> {
    let greatest = kind.greatest();
    prop_oneof![
        4 => 0..64_u128,
        1 => (0..8_u128).prop_map(move |below| greatest - below),
        1 => any::<u128>().prop_map(move |any| any & greatest),
    ]
}

fn interval(kind: Kind) -> impl Strategy<Value = Interval> {
    prop_oneof![
        2 => value(kind).prop_map(Interval::one),
        1 => (value(kind), value(kind)).prop_map(|(a, b)| Interval { low: a.min(b), high: a.max(b) }),
        1 => (value(kind), 0..=u32::from(kind.bits())).prop_map(|(value, free)| {
            let below = u128::MAX.checked_shr(128 - free).unwrap_or(0);
            Interval { low: value & !below, high: value | below }
        }),
    ]
}

/// A set of concatenations of one to three values, and keys to look up.
fn case() -> impl Strategy<Value = (Set, Vec<Vec<u128>>)> {
    prop::collection::vec(kind(), 1..4).prop_flat_map(|kinds| {
        let element = kinds.iter().map(|kind| interval(*kind)).collect::<Vec<_>>();
        let key = kinds.iter().map(|kind| value(*kind)).collect::<Vec<_>>();
        let elements = prop::collection::vec(element, 0..24);
        let keys = prop::collection::vec(key, 1..32);
        (elements, keys).prop_map(move |(elements, keys)| (set(kinds.clone(), elements), keys))
    })
}

fn found(lookup: &Lookup, set: &Set, key: &[u128]) -> Option<u32> {
    if let [value] = key {
        return lookup.find_one(*value);
    }
    let mut packed = PackedKey::EMPTY;
    for (value, kind) in key.iter().zip(&set.key) {
        packed.push(*value, kind.words());
    }
    lookup.find(&packed)
}

proptest! {
    /// An element that was found holds the key. If none was found, no element holds it.
    #[test]
    fn sets_hold_what_their_elements_hold((set, mut keys) in case(), seed: u64) {
        let lookup = match Lookup::new(&set, seed) {
            Ok(lookup) => lookup,
            Err(TooManyTuples) => return Ok(()),
        };
        // The ends of every element, and the values beside them.
        for element in set.elements.iter() {
            keys.push(element.key().map(|part| part.low).collect());
            keys.push(element.key().map(|part| part.high).collect());
        }
        for key in &keys {
            let holds = |element: Element<'_>| element.key().zip(key).all(|(part, value)| part.holds(*value));
            let expected = set.elements.iter().any(holds);
            let found = found(&lookup, &set, key);
            prop_assert_eq!(found.is_some(), expected, "{:?} in {:?}", key, set.elements);
            if let Some(number) = found {
                prop_assert!(set.elements.get(number as usize).is_some_and(holds));
            }
        }
    }

    #[test]
    fn prefixes_are_the_range(interval in interval(Kind::Port), value in value(Kind::Port)) {
        let cut = prefixes(interval, 16);
        let holds = cut.iter().filter(|(low, free)| *low <= value && value < low + (1 << free)).count();
        prop_assert_eq!(holds, usize::from(interval.holds(value)));
        prop_assert!(cut.len() <= 30);
    }
}

#[test]
fn many_ranges_are_searched_through_their_directory() {
    let elements =
        (0..4000_u128).map(|at| vec![Interval { low: at << 18, high: (at << 18) + (1 << 17) }]);
    let set = set(vec![Kind::Ipv4], elements.collect());
    let lookup = Lookup::new(&set, 1).unwrap_or_else(|_| panic!("it has no tuples"));
    for at in 0..4000_u128 {
        for (offset, holds) in [(0, true), (1 << 16, true), (1 << 17, true), ((1 << 17) + 1, false)]
        {
            let value = (at << 18) + offset;
            assert_eq!(lookup.find_one(value), holds.then_some(at as u32), "{value:#x}");
        }
    }
}

#[test]
fn too_many_prefixes_are_refused() {
    let all_but_ends = Interval { low: 1, high: Kind::Ipv6.greatest() - 1 };
    let worst = vec![vec![all_but_ends; 4]];
    assert!(Lookup::new(&set(vec![Kind::Ipv6; 4], worst), 1).is_err());
}

#[test]
fn deadlines_are_after_loading() {
    let mut set = set(vec![Kind::Port], vec![vec![Interval::one(1)], vec![Interval::one(2)]]);
    let mut elements = Elements::new(&set.key, &Data::None);
    for (port, expires) in [(1, None), (2, Some(Duration::from_secs(3)))] {
        let key = vec![Interval::one(port)];
        elements.push(&element(key, expires));
    }
    set.elements = elements;
    let lookup = Lookup::new(&set, 1).unwrap_or_else(|_| panic!("it has no tuples"));
    assert_eq!(lookup.expires, [u64::MAX, 3_000_000_000]);
}
