//! The keys of a set's elements, among which another key finds those that it overlaps with.

use std::collections::{BTreeMap, HashMap};

use super::{Listed, is_single, overlap};
use crate::kind::Interval;

/// Keys with their places in a list of elements. They are apart from each other.
pub(super) struct Keys {
    places: HashMap<Vec<Interval>, usize>,
    /// The last values and places of keys that are one value or range, by their first values.
    ranges: BTreeMap<u128, (u128, usize)>,
    /// Concatenations with a range in them.
    concatenated_ranges: Vec<(Vec<Interval>, usize)>,
}

impl Keys {
    pub fn of(elements: &[Listed]) -> Self {
        let mut keys = Self {
            places: HashMap::with_capacity(elements.len()),
            ranges: BTreeMap::new(),
            concatenated_ranges: Vec::new(),
        };
        for (element, place) in elements.iter().zip(0..) {
            keys.insert(&element.key, place);
        }
        keys
    }

    pub fn insert(&mut self, key: &[Interval], place: usize) {
        self.places.insert(key.to_vec(), place);
        match key {
            [one] => drop(self.ranges.insert(one.low, (one.high, place))),
            key if !is_single(key) => self.concatenated_ranges.push((key.to_vec(), place)),
            _ => {}
        }
    }

    /// The place of this very key.
    pub fn place(&self, key: &[Interval]) -> Option<usize> {
        self.places.get(key).copied()
    }

    /// The place of a key that has a value in common with this one.
    pub fn overlapping(&self, key: &[Interval]) -> Option<usize> {
        if let Some(place) = self.place(key) {
            return Some(place);
        }
        if let [one] = key {
            let (_, (high, place)) = self.ranges.range(..=one.high).next_back()?;
            return (*high >= one.low).then_some(*place);
        }
        let overlaps = |other: &[Interval]| overlap(other, key);
        let range = self.concatenated_ranges.iter().find(|(other, _)| overlaps(other));
        // Single values that differ do not overlap, and there may be many.
        let single = || {
            let mut all = self.places.iter().filter(|_| !is_single(key));
            all.find(|(other, _)| overlaps(other)).map(|(_, place)| *place)
        };
        range.map(|(_, place)| *place).or_else(single)
    }
}
