use proptest::prelude::*;

use super::*;
use crate::record::Identity;

type State = Option<(Lineage, u32)>;

/// A connection is opened, changed and ended, and the next one with its ports too. The last one
/// goes on.
fn history(incarnations: u64, is_last_open: bool) -> Vec<(Identity, RecordKind)> {
    let states = (1..=incarnations).flat_map(|incarnation| {
        let kinds = [RecordKind::Insert, RecordKind::Change, RecordKind::Change, RecordKind::End];
        let at = move |(version, kind)| (Identity { key: 7, incarnation, version }, kind);
        (0..).zip(kinds).map(at)
    });
    let states: Vec<_> = states.collect();
    let count = states.len() - usize::from(is_last_open);
    states[..count].to_vec()
}

fn apply(
    applied: &mut Applied,
    now: Timestamp,
    state: State,
    given: (Identity, RecordKind),
) -> State {
    let (identity, kind) = given;
    let record = Record { identity, kind, body: &[] };
    match applied.decide(now, state.map(|(lineage, _)| lineage), &record) {
        Verdict::Insert(lineage) => {
            assert!(state.is_none());
            Some((lineage, identity.version))
        }
        Verdict::Replace(lineage) | Verdict::Update(lineage) => {
            assert!(state.is_some());
            Some((lineage, identity.version))
        }
        Verdict::Keep(lineage) => state.map(|(_, body)| (lineage, body)),
        Verdict::End => None,
        Verdict::Ignore => state,
    }
}

proptest! {
    /// Two workers' rings may be read in any order.
    #[test]
    fn records_in_any_order_lead_to_the_same_state(
        incarnations in 1u64..4,
        is_last_open: bool,
        order in prop::collection::vec(any::<u32>(), 16),
        repeated: prop::sample::Index,
    ) {
        let history = history(incarnations, is_last_open);
        let mut shuffled: Vec<_> = order.into_iter().zip(history.clone()).collect();
        shuffled.sort_by_key(|(place, _)| *place);
        let again = shuffled[repeated.index(shuffled.len())];
        shuffled.push(again);
        let mut applied = Applied::default();
        let (mut state, mut highest) = (None, (0, 0));
        for (_, given) in shuffled {
            state = apply(&mut applied, Timestamp::ZERO, state, given);
            if let Some((lineage, version)) = state {
                prop_assert_eq!(lineage.version, version);
                let reached = (lineage.incarnation, lineage.version);
                prop_assert!(reached >= highest, "rolled back from {:?} to {:?}", highest, reached);
                highest = reached;
            }
        }
        let expected = is_last_open.then_some((incarnations, 2));
        prop_assert_eq!(state.map(|(it, _)| (it.incarnation, it.version)), expected);
    }
}

#[test]
fn a_known_stale_update_is_not_applied() {
    // The newer sequence number, 3016315118, came with version 2; 3016208802 with version 1.
    let mut applied = Applied::default();
    let record = |version, kind| (Identity { key: 1, incarnation: 1, version }, kind);
    let state = apply(&mut applied, Timestamp::ZERO, None, record(2, RecordKind::Change));
    let after = apply(&mut applied, Timestamp::ZERO, state, record(1, RecordKind::Change));
    assert_eq!(after, state);
}

#[test]
fn connections_that_a_bulk_does_not_name_are_left_over() {
    let mut applied = Applied::default();
    let record = |key, version| (Identity { key, incarnation: 1, version }, RecordKind::Insert);
    let mut state = [0, 1, 2].map(|key| apply(&mut applied, Timestamp::ZERO, None, record(key, 5)));
    applied.begin_bulk(BulkId(1));
    // One is named as it is, one by a stale record, which says as much.
    state[0] = apply(&mut applied, Timestamp::ZERO, state[0], record(0, 5));
    state[1] = apply(&mut applied, Timestamp::ZERO, state[1], record(1, 4));
    let left = state.map(|it| it.is_some_and(|(it, _)| applied.is_left_over(&it, BulkId(1))));
    assert_eq!(left, [false, false, true]);
}

#[test]
fn connections_that_a_later_bulk_names_are_not_left_over_by_an_earlier_one() {
    for first in [1, u32::MAX] {
        let mut applied = Applied::default();
        let numbers = [first, first.wrapping_add(1), first.wrapping_add(2)].map(BulkId);
        let insert = |key| (Identity { key, incarnation: 1, version: 1 }, RecordKind::Insert);
        let named = numbers.map(|bulk| {
            applied.begin_bulk(bulk);
            apply(&mut applied, Timestamp::ZERO, None, insert(7)).unwrap().0
        });
        // The owner is slow to look for what the second one left over.
        let left = named.map(|lineage| applied.is_left_over(&lineage, numbers[1]));
        assert_eq!(left, [true, false, false]);
        let of_another_session = Lineage { seen: BulkId(0x8000_0000), ..named[0] };
        assert!(applied.is_left_over(&of_another_session, numbers[1]));
    }
}

#[test]
fn ends_are_remembered_for_a_while_and_within_a_bound() {
    let mut applied = Applied::default();
    let end = (Identity { key: 1, incarnation: 1, version: 9 }, RecordKind::End);
    let late = (Identity { key: 1, incarnation: 1, version: 8 }, RecordKind::Change);
    assert_eq!(apply(&mut applied, Timestamp::ZERO, None, end), None);
    assert_eq!(apply(&mut applied, Timestamp::from_secs(1), None, late), None);
    assert!(apply(&mut applied, Timestamp::from_secs(2), None, late).is_some());
    for key in 0..GRAVES_MAX as u64 + 10 {
        let identity = Identity { key, ..end.0 };
        apply(&mut applied, Timestamp::from_secs(3), None, (identity, RecordKind::End));
    }
    assert_eq!(applied.forgotten(), 10);
    assert_eq!((applied.graves.len(), applied.order.len()), (GRAVES_MAX, GRAVES_MAX));
}
