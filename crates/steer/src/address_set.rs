//! A set of addresses that every packet is compared with.

use std::ops::RangeInclusive;
use std::sync::Arc;

use wire::Family;

/// Ranges of addresses of both families. It is cheap to clone, and an empty one costs a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressSet {
    /// All addresses; IPv4 in the mapped form.
    all: Ranges<u128>,
    /// The IPv4 addresses among them once more. Numbers of 32 bits compare much faster.
    v4: Ranges<u32>,
}

/// Ranges by the first byte of an address, so that most addresses meet one range or none.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Ranges<N> {
    /// Sorted and not adjacent.
    ranges: Arc<[(N, N)]>,
    /// For each value of the first byte, the ranges that hold addresses with it.
    by_first_byte: Arc<[(u32, u32); 256]>,
}

impl<N: Copy + Ord> Ranges<N> {
    /// `block` is the first and the last address with a first byte.
    fn new(ranges: impl Iterator<Item = (N, N)>, block: impl Fn(u8) -> (N, N)) -> Self {
        let ranges: Arc<[(N, N)]> = ranges.collect();
        let holding = |byte: usize| {
            let (first, last) = block(byte as u8);
            let from = ranges.partition_point(|(_, end)| *end < first);
            let behind = ranges.partition_point(|(start, _)| *start <= last);
            (from as u32, behind as u32)
        };
        Self { by_first_byte: Arc::new(std::array::from_fn(holding)), ranges }
    }

    #[inline(always)]
    fn contain(&self, first_byte: u8, address: N) -> bool {
        let (from, behind) = self.by_first_byte[usize::from(first_byte)];
        let holding = &self.ranges[from as usize..behind as usize];
        let not_above = holding.partition_point(|(start, _)| *start <= address);
        not_above > 0 && address <= holding[not_above - 1].1
    }
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
        let (mapped, last) = (MAPPED, MAPPED | u128::from(u32::MAX));
        let v4 = apart.iter().filter(|(low, high)| *low <= last && mapped <= *high);
        let v4 = v4.map(|(low, high)| (mapped.max(*low) as u32, last.min(*high) as u32));
        Self {
            v4: Ranges::new(v4, |byte| {
                let first = u32::from(byte) << 24;
                (first, first | u32::MAX >> 8)
            }),
            all: Ranges::new(apart.iter().copied(), |byte| {
                let first = u128::from(byte) << 120;
                (first, first | u128::MAX >> 8)
            }),
        }
    }

    /// The addresses, as ranges that neither overlap nor touch, in order.
    pub fn ranges(&self) -> impl Iterator<Item = RangeInclusive<[u8; 16]>> {
        self.all.ranges.iter().map(|(first, last)| first.to_be_bytes()..=last.to_be_bytes())
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
        for &(mut first, last) in &*self.all.ranges {
            let mut is_over = false;
            let gaps =
                others.all.ranges.iter().filter(|(low, high)| *high >= first && *low <= last);
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
        self.all.ranges.is_empty()
    }

    /// True for an address of the set. IPv4 addresses are in the mapped form.
    #[inline(always)]
    pub fn contains(&self, address: &[u8; 16], family: Family) -> bool {
        let number = u128::from_be_bytes(*address);
        match family {
            Family::V4 => self.v4.contain(address[12], number as u32),
            Family::V6 => self.all.contain(address[0], number),
        }
    }
}

impl Default for AddressSet {
    fn default() -> Self {
        Self::new([])
    }
}

/// The first IPv4 address in the IPv4-mapped form (RFC 4291 section 2.5.5.2).
const MAPPED: u128 = 0xffff_0000_0000;

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
