use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

fn spread_if_needed(coverage: &mut Coverage, range: Run) {
    if coverage.would_overflow(range) {
        assert!(coverage.spread(Map::boxed()).is_some());
    }
}

proptest! {
    /// A set of unit numbers is the model.
    #[test]
    fn agrees_with_a_set_of_units(
        ranges in prop::collection::vec((0u16..300, 1u16..40), 1..60),
        mapped in any::<bool>(),
    ) {
        let mut coverage = Coverage::EMPTY;
        if mapped {
            coverage.spread(Map::boxed());
        }
        let mut model = BTreeSet::new();
        for (start, length) in ranges {
            let range = Run { start, end: start + length };
            let units: BTreeSet<u16> = (range.start..range.end).collect();
            let known = units.intersection(&model).count();
            let expected = match known {
                0 => Fit::New,
                _ if known == units.len() => Fit::Duplicate,
                _ => Fit::Overlap,
            };
            prop_assert_eq!(coverage.look(range), expected);
            if expected == Fit::New {
                spread_if_needed(&mut coverage, range);
                coverage.fill(range);
                model.extend(units);
            }
        }
    }
}

#[test]
fn the_longest_datagram_fits_the_map() {
    let range = Run::of_bytes(65_528, 7);
    assert_eq!(range, Run { start: 8191, end: 8192 });
    let mut map = Map::boxed();
    map.fill(Run::of_bytes(0, 65_535));
    assert!(map.words.iter().all(|word| *word == u64::MAX));
    assert_eq!(map.look(range), Fit::Duplicate);
}
