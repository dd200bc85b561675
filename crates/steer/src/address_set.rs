//! A set of addresses that every packet is compared with.

use std::ops::RangeInclusive;
use std::sync::Arc;

use wire::Family;

/// Ranges of addresses of both families. It is cheap to clone, and an empty one costs a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressSet {
    /// As numbers, sorted and not adjacent; IPv4 in the mapped form.
    ranges: Arc<[(u128, u128)]>,
    /// For each value of the first byte of an IPv4 address, and then of an IPv6 address, how much
    /// of the addresses with that byte is inside. So most addresses need no search.
    by_first_byte: Arc<[Part; 512]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    None,
    Some,
    All,
}

impl AddressSet {
    /// Takes ranges of addresses (IPv4 in the mapped form) in any order; they may overlap.
    pub fn new(ranges: impl IntoIterator<Item = RangeInclusive<[u8; 16]>>) -> Self {
        let as_numbers = |range: RangeInclusive<[u8; 16]>| {
            (u128::from_be_bytes(*range.start()), u128::from_be_bytes(*range.end()))
        };
        let mut ranges: Vec<_> =
            ranges.into_iter().map(as_numbers).filter(|(first, last)| first <= last).collect();
        ranges.sort_unstable();
        let mut apart: Vec<(u128, u128)> = Vec::with_capacity(ranges.len());
        for (first, last) in ranges {
            match apart.last_mut() {
                Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
                _ => apart.push((first, last)),
            }
        }
        let by_first_byte = Arc::new(std::array::from_fn(|at| part(&apart, at)));
        Self { ranges: apart.into(), by_first_byte }
    }

    /// The addresses, as ranges that neither overlap nor touch, in order.
    pub fn ranges(&self) -> impl Iterator<Item = RangeInclusive<[u8; 16]>> {
        self.ranges.iter().map(|(first, last)| first.to_be_bytes()..=last.to_be_bytes())
    }

    /// The addresses of this set and of some ranges.
    #[must_use]
    pub fn with(&self, more: impl IntoIterator<Item = RangeInclusive<[u8; 16]>>) -> Self {
        Self::new(self.ranges().chain(more))
    }

    /// The addresses of this set that are not in another.
    #[must_use]
    pub fn without(&self, others: &Self) -> Self {
        let mut left = Vec::new();
        for &(mut first, last) in &*self.ranges {
            let mut is_over = false;
            let gaps = others.ranges.iter().filter(|(low, high)| *high >= first && *low <= last);
            for &(low, high) in gaps.collect::<Vec<_>>() {
                if first < low {
                    left.push((first, low - 1));
                }
                is_over = high >= last;
                first = first.max(high.saturating_add(1));
            }
            if !is_over {
                left.push((first, last));
            }
        }
        Self::new(left.into_iter().map(|(first, last)| first.to_be_bytes()..=last.to_be_bytes()))
    }

    /// True if there are no addresses.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// True for an address of the set. IPv4 addresses are in the mapped form.
    #[inline]
    pub fn contains(&self, address: &[u8; 16], family: Family) -> bool {
        let at = match family {
            Family::V4 => usize::from(address[12]),
            Family::V6 => 256 + usize::from(address[0]),
        };
        match self.by_first_byte[at] {
            Part::None => false,
            Part::All => true,
            Part::Some => is_within(&self.ranges, u128::from_be_bytes(*address)),
        }
    }
}

impl Default for AddressSet {
    fn default() -> Self {
        Self::new([])
    }
}

fn is_within(ranges: &[(u128, u128)], address: u128) -> bool {
    let behind = ranges.partition_point(|(first, _)| *first <= address);
    behind > 0 && address <= ranges[behind - 1].1
}

/// How much of the addresses of a family with a first byte is inside of ranges.
fn part(ranges: &[(u128, u128)], at: usize) -> Part {
    let (first, last) = match at.checked_sub(256) {
        None => {
            let first = 0xffff_0000_0000 | (at as u128) << 24;
            (first, first | 0xff_ffff)
        }
        Some(byte) => ((byte as u128) << 120, (byte as u128) << 120 | u128::MAX >> 8),
    };
    let overlap = ranges.iter().find(|(low, high)| *low <= last && first <= *high);
    match overlap {
        None => Part::None,
        Some((low, high)) if *low <= first && last <= *high => Part::All,
        Some(_) => Part::Some,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn address(family: Family, number: u32) -> [u8; 16] {
        match family {
            Family::V4 => (0xffff_0000_0000 | u128::from(number)).to_be_bytes(),
            Family::V6 => (u128::from(number) << 96).to_be_bytes(),
        }
    }

    proptest! {
        #[test]
        fn an_address_is_found_in_any_ranges(
            ranges in prop::collection::vec((any::<bool>(), any::<u32>(), 0..1_u32 << 27), 0..6),
            asked: u32, near in any::<prop::sample::Index>(), is_v6: bool, step in 0..3_u32,
        ) {
            let family = |is_v6| if is_v6 { Family::V6 } else { Family::V4 };
            let ends = |(is_v6, first, len): (bool, u32, u32)| {
                (address(family(is_v6), first), address(family(is_v6), first.saturating_add(len)))
            };
            let set = AddressSet::new(ranges.iter().map(|&it| ends(it).0..=ends(it).1));
            // Most addresses are far from all ends, so ask for some that are near.
            let near = (!ranges.is_empty()).then(|| near.get(&ranges));
            let near = near.map(|&(_, first, len)| {
                [first, first.saturating_add(len)].map(|end| end.wrapping_add(step).wrapping_sub(1))
            });
            for asked in near.into_iter().flatten().chain([asked]) {
                let asked = address(family(is_v6), asked);
                let expected = ranges.iter().any(|&it| (ends(it).0..=ends(it).1).contains(&asked));
                prop_assert_eq!(set.contains(&asked, family(is_v6)), expected);
            }
            prop_assert_eq!(set.is_empty(), ranges.is_empty());
            prop_assert_eq!(AddressSet::new(set.ranges()), set);
        }

        #[test]
        fn sets_are_added_and_subtracted(
            one in prop::collection::vec((0..200_u32, 0..30_u32), 0..6),
            other in prop::collection::vec((0..200_u32, 0..30_u32), 0..6),
        ) {
            let number = |number| address(Family::V4, number);
            let ranges = |all: &[(u32, u32)]| -> Vec<_> {
                all.iter().map(|&(first, len)| number(first)..=number(first + len)).collect()
            };
            let (first, second) =
                (AddressSet::new(ranges(&one)), AddressSet::new(ranges(&other)));
            let (both, left) = (first.with(second.ranges()), first.without(&second));
            for asked in (0..240).map(number) {
                let [a, b] = [&first, &second].map(|set| set.contains(&asked, Family::V4));
                prop_assert_eq!(both.contains(&asked, Family::V4), a || b);
                prop_assert_eq!(left.contains(&asked, Family::V4), a && !b);
            }
        }
    }
}
