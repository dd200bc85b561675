use proptest::prelude::*;
use std::collections::BTreeMap;

use super::*;

/// Spreads small numbers over 32 bits, one to one.
fn hash_of(slot: u32) -> u32 {
    slot.wrapping_mul(0x9e37_79b1)
}

#[test]
fn growing_and_shrinking_keep_every_pair() {
    let mut index = SlotIndex::new();
    let empty = index.memory_bytes();
    for slot in 0..100_000 {
        index.insert(hash_of(slot), slot, hash_of).unwrap();
    }
    for slot in 0..100_000 {
        assert_eq!(index.find(hash_of(slot), |other| other == slot), Some(slot));
    }
    let full = index.memory_bytes();
    assert!(full / 100_000 <= 17, "{full} bytes");
    for slot in 1..100_000 {
        assert!(index.remove(hash_of(slot), slot));
        index.shrink(hash_of);
        assert_eq!(index.find(hash_of(slot), |other| other == slot), None);
        if slot % 1000 == 0 {
            assert_eq!(index.find(hash_of(99_999), |other| other == 99_999), Some(99_999));
        }
    }
    assert_eq!(index.find(hash_of(0), |_| true), Some(0));
    while index.segments.len() > 1 {
        index.shrink(hash_of);
    }
    assert!(index.memory_bytes() < empty + 4096, "only the list of segments keeps its capacity");
    assert!(index.segments.iter().flat_map(|s| s.iter()).all(|line| line.overflow == 0));
}

#[test]
fn equal_hashes_are_refused_when_their_segment_is_full() {
    let mut index = SlotIndex::new();
    let results: Vec<_> = (0..1000).map(|slot| index.insert(7, slot, |_| 7)).collect();
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), LINES * WAYS);
    assert!((0..640).all(|slot| index.find(7, |other| other == slot) == Some(slot)));
    assert!((0..640).all(|slot| index.remove(7, slot)));
    assert!(!index.remove(7, 0));
    assert_eq!(index.len, 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Few different homes, so that lines overflow into one another.
    #[test]
    fn behaves_like_a_map(
        steps in proptest::collection::vec((0u32..600, any::<bool>()), 1..1500),
    ) {
        let mut index = SlotIndex::new();
        let mut model = BTreeMap::new();
        let hash_of = |slot: u32| ((slot % 12) << 28) | ((slot % 12) / 4);
        for (slot, put) in steps {
            if put && !model.contains_key(&slot) {
                prop_assert!(index.insert(hash_of(slot), slot, hash_of).is_ok());
                model.insert(slot, ());
            } else if !put {
                prop_assert_eq!(index.remove(hash_of(slot), slot), model.remove(&slot).is_some());
            }
            let found = index.find(hash_of(slot), |other| other == slot);
            prop_assert_eq!(found, model.get(&slot).map(|()| slot));
        }
        prop_assert_eq!(index.len, model.len());
        let filed: usize = index.segments.iter().map(|segment| slots_of(segment).count()).sum();
        prop_assert_eq!(filed, model.len());
    }
}
