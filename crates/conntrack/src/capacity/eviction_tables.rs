//! The tables of a worker that have a candidate for eviction.

/// Bits of a word.
const WORD: u16 = 64;

/// The tables with candidates, for each limit. A table reports its first candidate and the loss
/// of its last, so a search need not visit the tables.
#[derive(Debug, Default)]
pub(crate) struct EvictionTables(Vec<TableSet>);

/// A set of numbers below 4096.
#[derive(Clone, Debug, Default)]
struct TableSet {
    /// One bit for each word that is not 0.
    summary: u64,
    words: Vec<u64>,
}

impl EvictionTables {
    /// Records whether the table at `place` has candidates in a group.
    pub fn set(&mut self, group: usize, place: u16, has: bool) {
        if self.0.len() <= group {
            if !has {
                return;
            }
            self.0.resize_with(group + 1, TableSet::default);
        }
        self.0[group].set(place, has);
    }

    /// Removes the table at `place`.
    pub fn forget(&mut self, place: u16) {
        for tables in &mut self.0 {
            tables.set(place, false);
        }
    }

    /// The next table with candidates in a group, from the one behind `after` on, round to
    /// `after`. Takes constant time.
    pub fn next(&self, group: usize, after: u16) -> Option<u16> {
        let tables = self.0.get(group)?;
        tables.first_from(after.wrapping_add(1)).or_else(|| tables.first_from(0))
    }
}

impl TableSet {
    #[inline]
    fn set(&mut self, place: u16, has: bool) {
        let word = usize::from(place / WORD);
        debug_assert!(word < WORD.into(), "{place} has no bit in the summary");
        if self.words.len() <= word {
            if !has {
                return;
            }
            self.words.resize(word + 1, 0);
        }
        let bit = 1 << (place % WORD);
        let bits = &mut self.words[word];
        *bits = if has { *bits | bit } else { *bits & !bit };
        let any = u64::from(*bits != 0) << word;
        self.summary = self.summary & !(1 << word) | any;
    }

    fn first_from(&self, place: u16) -> Option<u16> {
        let word = usize::from(place / WORD);
        let here = self.words.get(word)? & (u64::MAX << (place % WORD));
        if here != 0 {
            return Some(word as u16 * WORD + here.trailing_zeros() as u16);
        }
        let later = self.summary.checked_shr(word as u32 + 1).unwrap_or(0);
        if later == 0 {
            return None;
        }
        let word = word + 1 + later.trailing_zeros() as usize;
        Some(word as u16 * WORD + self.words[word].trailing_zeros() as u16)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_next_is_that_of_a_sorted_set(
            steps in prop::collection::vec((0u16..4096, any::<bool>(), 0u16..4096), 1..200),
        ) {
            let (mut tables, mut model) = (EvictionTables::default(), BTreeSet::new());
            for (place, has, after) in steps {
                tables.set(3, place, has);
                if has { model.insert(place) } else { model.remove(&place) };
                let next = model.range(after + 1..).next().or(model.first());
                prop_assert_eq!(tables.next(3, after), next.copied());
                prop_assert_eq!(tables.next(2, after), None);
            }
            for place in model.clone() {
                tables.forget(place);
                model.remove(&place);
                prop_assert_eq!(tables.next(3, 4095), model.first().copied());
            }
        }
    }
}
