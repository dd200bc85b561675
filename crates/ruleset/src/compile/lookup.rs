//! Search structures for sets and maps.

use super::table::{Ranges, Table};
use crate::elements::Element;
use crate::kind::{Interval, Kind};
use crate::limits::MAX_TUPLES;
use crate::model::{Part, Set};

/// Words of the longest key, 64 bits each.
pub(crate) const KEY_WORDS: usize = 8;

/// A key as words of 64 bits, which hold the 32-bit words of its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PackedKey {
    pub words: [u64; KEY_WORDS],
    /// Words of 32 bits in use.
    pub halves: usize,
}

impl PackedKey {
    pub const EMPTY: Self = Self { words: [0; KEY_WORDS], halves: 0 };

    /// Adds a value that takes this many `words` of 32 bits.
    #[inline]
    pub fn push(&mut self, value: u128, words: usize) {
        for word in (0..words).rev() {
            let half = (value >> (32 * word)) as u32;
            let shift = if self.halves.is_multiple_of(2) { 32 } else { 0 };
            if let Some(place) = self.words.get_mut(self.halves / 2) {
                *place |= u64::from(half) << shift;
            }
            self.halves += 1;
        }
    }

    /// Its words of 32 bits, in the order in which they were added.
    pub fn halves(&self) -> impl Iterator<Item = u32> + '_ {
        self.words.iter().flat_map(|word| [(word >> 32) as u32, *word as u32])
    }

    #[inline]
    pub fn slice(&self) -> &[u64] {
        &self.words[..self.halves.div_ceil(2).min(KEY_WORDS)]
    }
}

/// A set.
#[derive(Clone, Debug)]
pub(crate) struct Lookup {
    pub shape: Shape,
    /// Words of 32 bits of each part of the key.
    pub words: Vec<u8>,
    /// Nanoseconds after loading at which each element ends; empty if no element ends.
    pub expires: Vec<u64>,
    /// The counter of the first element; the others follow. `None` if the elements do not count.
    pub counters: Option<u32>,
    /// The element of the keys that the others do not hold. The search does not find it.
    pub catch_all: Option<u32>,
}

/// The search structure of a set.
#[derive(Clone, Debug)]
pub(crate) enum Shape {
    /// Single values.
    Exact(Table),
    /// Ranges of values of up to 64 bits.
    Narrow(Ranges<u64>),
    /// Ranges of longer values.
    Wide(Ranges<u128>),
    /// Concatenations with ranges: one table for each combination of prefix lengths, with the mask
    /// of the bits that count (tuple space search: Srinivasan, Suri and Varghese, "Packet
    /// classification using tuple space search", SIGCOMM 1999).
    Tuples(Vec<(PackedKey, Table)>),
    /// A set that packets change: its number in the rule state.
    Dynamic(u32),
}

/// The ranges of a set of concatenations make more prefixes than the limit.
pub(crate) struct TooManyTuples;

/// True for a set that the rule state holds because packets change it or its elements.
pub(crate) fn is_dynamic(set: &Set) -> bool {
    set.dynamic || set.parts.iter().any(|part| !matches!(part, Part::Counter))
}

impl Lookup {
    pub fn new(set: &Set, seed: u64) -> Result<Self, TooManyTuples> {
        let words = set.key.iter().map(|kind| kind.words() as u8).collect();
        let expires = if set.elements.any_expires() {
            let nanos = |element: Element<'_>| {
                let after = element.expires().map(|after| u64::try_from(after.as_nanos()));
                after.map_or(u64::MAX, |nanos| nanos.unwrap_or(u64::MAX))
            };
            set.elements.iter().map(nanos).collect()
        } else {
            Vec::new()
        };
        let catch_all = set.elements.catch_all();
        Ok(Self { shape: shape(set, seed)?, words, expires, counters: None, catch_all })
    }

    /// The element that holds a key of one value.
    #[inline]
    pub fn find_one(&self, value: u128) -> Option<u32> {
        match &self.shape {
            Shape::Exact(table) if self.words[0] <= 2 => table.get(&[value as u64]),
            Shape::Exact(table) => table.get(&[(value >> 64) as u64, value as u64]),
            Shape::Narrow(ranges) => ranges.get(value as u64),
            Shape::Wide(ranges) => ranges.get(value),
            Shape::Tuples(_) | Shape::Dynamic(_) => None,
        }
    }

    /// The element that holds a concatenation.
    #[inline]
    pub fn find(&self, key: &PackedKey) -> Option<u32> {
        match &self.shape {
            Shape::Exact(table) => table.get(key.slice()),
            Shape::Tuples(tuples) => tuples.iter().find_map(|(mask, table)| {
                let mut masked = *key;
                for (word, mask) in masked.words.iter_mut().zip(&mask.words) {
                    *word &= mask;
                }
                table.get(masked.slice())
            }),
            Shape::Narrow(_) | Shape::Wide(_) | Shape::Dynamic(_) => None,
        }
    }
}

fn shape(set: &Set, seed: u64) -> Result<Shape, TooManyTuples> {
    let elements = set.elements.plain();
    let is_exact = set.elements.is_exact();
    if let [kind] = set.key[..] {
        if is_exact {
            let stride = if kind.words() <= 2 { 1 } else { 2 };
            let mut table = Table::new(stride, set.elements.len(), seed);
            for (number, element) in elements {
                let Some(Interval { low: value, .. }) = element.part(0) else { continue };
                let words = [(value >> 64) as u64, value as u64];
                table.insert(&words[2 - stride..], number);
            }
            return Ok(Shape::Exact(table));
        }
        return Ok(ranges(set, kind));
    }
    if is_exact {
        let words = set.key.iter().map(|kind| kind.words()).sum::<usize>();
        let mut table = Table::new(words.div_ceil(2), set.elements.len(), seed);
        for (number, element) in elements {
            let mut key = PackedKey::EMPTY;
            for (part, kind) in element.key().zip(&set.key) {
                key.push(part.low, kind.words());
            }
            table.insert(key.slice(), number);
        }
        return Ok(Shape::Exact(table));
    }
    tuples(set, seed).map(Shape::Tuples)
}

/// Cuts overlapping ranges. Sets may have such; import refuses them in maps.
fn ranges(set: &Set, kind: Kind) -> Shape {
    let mut sorted: Vec<(Interval, u32)> =
        set.elements.plain().filter_map(|(at, element)| Some((element.part(0)?, at))).collect();
    sorted.sort_by_key(|(interval, _)| (interval.low, std::cmp::Reverse(interval.high)));
    let mut free_from = Some(0);
    let disjoint: Vec<(Interval, u32)> = sorted
        .into_iter()
        .filter_map(|(interval, number)| {
            let low = interval.low.max(free_from?);
            let cut = Interval { low, high: interval.high };
            (low <= interval.high).then(|| {
                free_from = interval.high.checked_add(1);
                (cut, number)
            })
        })
        .collect();
    let bits = u32::from(kind.bits());
    if bits <= 64 {
        let narrow =
            disjoint.iter().map(|(cut, number)| (cut.low as u64, cut.high as u64, *number));
        Shape::Narrow(Ranges::new(narrow, bits))
    } else {
        Shape::Wide(Ranges::new(disjoint.iter().map(|(cut, at)| (cut.low, cut.high, *at)), bits))
    }
}

/// Cuts a range into prefixes: each value with the number of low bits that do not count.
fn prefixes(interval: Interval, bits: u32) -> Vec<(u128, u32)> {
    let mut cut = Vec::new();
    let mut low = interval.low;
    loop {
        let aligned = low.trailing_zeros().min(bits);
        let fits = |free: u32| {
            let below = u128::MAX.checked_shr(128 - free).unwrap_or(0);
            low | below <= interval.high
        };
        let free = (0..=aligned).rev().find(|free| fits(*free)).unwrap_or(0);
        cut.push((low, free));
        let below = u128::MAX.checked_shr(128 - free).unwrap_or(0);
        match (low | below).checked_add(1) {
            Some(next) if next <= interval.high => low = next,
            _ => return cut,
        }
    }
}

fn tuples(set: &Set, seed: u64) -> Result<Vec<(PackedKey, Table)>, TooManyTuples> {
    /// Keys of one combination of lengths, with their elements.
    type Space = (PackedKey, Vec<(PackedKey, u32)>);
    let mut spaces: Vec<Space> = Vec::new();
    let mut by_lengths = std::collections::HashMap::new();
    let mut total = 0;
    for (number, element) in set.elements.plain() {
        let parts: Vec<Vec<(u128, u32)>> = (element.key().zip(&set.key))
            .map(|(part, kind)| prefixes(part, u32::from(kind.bits())))
            .collect();
        total += parts.iter().fold(1_usize, |count, part| count.saturating_mul(part.len()));
        if total > MAX_TUPLES {
            return Err(TooManyTuples);
        }
        // All combinations of a prefix of each part, counted like the digits of a number.
        let mut digits = vec![0; parts.len()];
        'combinations: loop {
            let (mut key, mut mask) = (PackedKey::EMPTY, PackedKey::EMPTY);
            let mut lengths = Vec::with_capacity(parts.len());
            for ((part, digit), kind) in parts.iter().zip(&digits).zip(&set.key) {
                let (value, free): (u128, u32) = part[*digit];
                key.push(value, kind.words());
                let below = u128::MAX.checked_shr(128 - free).unwrap_or(0);
                mask.push(!below, kind.words());
                lengths.push(free);
            }
            let space = *by_lengths.entry(lengths).or_insert_with(|| {
                spaces.push((mask, Vec::new()));
                spaces.len() - 1
            });
            spaces[space].1.push((key, number));
            for (digit, part) in digits.iter_mut().zip(&parts) {
                *digit += 1;
                if *digit < part.len() {
                    continue 'combinations;
                }
                *digit = 0;
            }
            break;
        }
    }
    // The table with the most elements is searched first.
    spaces.sort_by_key(|(_, keys)| std::cmp::Reverse(keys.len()));
    let words = set.key.iter().map(|kind| kind.words()).sum::<usize>();
    let table = |(mask, keys): Space| {
        let mut table = Table::new(words.div_ceil(2), keys.len(), seed);
        for (key, number) in keys {
            table.insert(key.slice(), number);
        }
        (mask, table)
    };
    Ok(spaces.into_iter().map(table).collect())
}

#[cfg(test)]
#[path = "../lookup_tests.rs"]
mod tests;
