//! The free granules of all regions.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The smallest block, in bytes.
pub const GRANULE: usize = 1024;
/// Bytes of a region: a huge page of x86-64, and of arm64 with pages of 4 KiB.
pub const REGION: usize = 2 << 20;
/// Granules of a word, and the most in one block.
pub const WORD: usize = u64::BITS as usize;
/// Words of a region.
const WORDS: usize = REGION / GRANULE / WORD;

/// Granules of one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    pub region: usize,
    /// From the start of the region, in granules.
    pub first: usize,
    /// At least 1 and at most [`WORD`], all of one word.
    pub len: usize,
}

impl Run {
    fn word(self) -> usize {
        self.first / WORD
    }

    fn mask(self) -> u64 {
        ones(self.len) << (self.first % WORD)
    }
}

/// All possible regions. Any thread may take and give back granules at any time, without waiting.
#[derive(Debug)]
pub struct Regions<const N: usize> {
    /// One bit for each free granule. Granules of regions that do not exist yet are not free.
    free: [[AtomicU64; WORDS]; N],
    /// Regions that were begun.
    begun: AtomicUsize,
}

impl<const N: usize> Regions<N> {
    /// No region exists.
    pub const fn new() -> Self {
        Self {
            free: [const { [const { AtomicU64::new(0) }; WORDS] }; N],
            begun: AtomicUsize::new(0),
        }
    }

    /// The number of regions that exist, or are being begun.
    pub fn begun(&self) -> usize {
        self.begun.load(Ordering::Relaxed).min(N)
    }

    /// Takes `len` granules in the first region from `from` on that has them, or else in an earlier
    /// one. `None` if no region has them, so that the caller has to begin another.
    pub fn take(&self, len: usize, from: usize) -> Option<Run> {
        let begun = self.begun();
        let from = from.min(begun);
        (from..begun).chain(0..from).find_map(|region| self.take_in(region, len))
    }

    fn take_in(&self, region: usize, len: usize) -> Option<Run> {
        self.free[region].iter().enumerate().find_map(|(at, word)| {
            let mut free = word.load(Ordering::Relaxed);
            loop {
                let first = first_of(free, len)?;
                let left = free & !(ones(len) << first);
                // Acquire: the writes of the last user come before those of the next.
                let taken =
                    word.compare_exchange_weak(free, left, Ordering::Acquire, Ordering::Relaxed);
                match taken {
                    Ok(_) => return Some(Run { region, first: at * WORD + first, len }),
                    Err(now) => free = now,
                }
            }
        })
    }

    /// Begins another region. Nothing of it is free before it is [opened](Self::open). `None` if
    /// all regions exist.
    pub fn begin(&self) -> Option<usize> {
        let begun = self.begun.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |begun| {
            (begun < N).then_some(begun + 1)
        });
        begun.ok()
    }

    /// Opens a region that the caller has begun. Takes its first `len` granules, and lets other
    /// threads take the rest.
    pub fn open(&self, region: usize, len: usize) -> Run {
        let run = Run { region, first: 0, len };
        for (at, word) in self.free[region].iter().enumerate() {
            let free = if at == run.word() { !run.mask() } else { u64::MAX };
            // Release: the memory is accessible before another thread takes some of it.
            word.store(free, Ordering::Release);
        }
        run
    }

    /// Gives back the granules of a block.
    pub fn give(&self, run: Run) {
        // Release: the writes of this user come before those of the next.
        self.free[run.region][run.word()].fetch_or(run.mask(), Ordering::Release);
    }

    /// Takes all free granules of a region.
    pub fn take_all(&self, region: usize) -> Taken<'_> {
        let words = &self.free[region];
        Taken { words, bits: std::array::from_fn(|at| words[at].swap(0, Ordering::Acquire)) }
    }
}

/// The free granules of a region. They are given back when this value is dropped.
#[derive(Debug)]
pub struct Taken<'a> {
    words: &'a [AtomicU64; WORDS],
    bits: [u64; WORDS],
}

impl Taken<'_> {
    /// The number of granules.
    pub fn len(&self) -> usize {
        self.bits.iter().map(|bits| bits.count_ones() as usize).sum()
    }

    /// The longest stretches of free blocks of `of` granules, each aligned to `of`, as ranges of
    /// granules.
    pub fn stretches(&self, of: usize) -> impl Iterator<Item = Range<usize>> {
        let is_free = move |block: usize| {
            let mut granules = block * of..(block + 1) * of;
            granules.all(|at| self.bits[at / WORD] >> (at % WORD) & 1 == 1)
        };
        let blocks = REGION / GRANULE / of;
        let mut at = 0;
        std::iter::from_fn(move || {
            let start = (at..blocks).find(|&block| is_free(block))?;
            at = (start..blocks).find(|&block| !is_free(block)).unwrap_or(blocks);
            Some(start * of..at * of)
        })
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        for (word, bits) in self.words.iter().zip(self.bits) {
            word.fetch_or(bits, Ordering::Release);
        }
    }
}

/// A word whose lowest `len` bits are set.
const fn ones(len: usize) -> u64 {
    u64::MAX >> (WORD - len)
}

/// The place of the first `len` ones in a row.
const fn first_of(bits: u64, len: usize) -> Option<usize> {
    // After each step, a bit is set where twice as many ones follow. The last step takes the rest.
    let mut rows = bits;
    let mut have = 1;
    while have < len {
        let step = if 2 * have <= len { have } else { len - have };
        rows &= rows >> step;
        have += step;
    }
    if rows == 0 { None } else { Some(rows.trailing_zeros() as usize) }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::thread;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_first_row_is_found(bits: u64, more: u64, len in 1..=WORD) {
            // This makes long rows likely as well.
            let bits = bits | more;
            let expected = (0..=WORD - len).find(|at| bits >> at & ones(len) == ones(len));
            prop_assert_eq!(first_of(bits, len), expected);
        }

        #[test]
        fn nothing_is_taken_twice_and_all_comes_back(
            orders in prop::collection::vec((1..=WORD, any::<prop::sample::Index>(), any::<bool>()), 1..300),
        ) {
            let regions = Box::new(Regions::<2>::new());
            let mut taken: Vec<Run> = Vec::new();
            let mut granules = HashSet::new();
            for (len, which, gives) in orders {
                if gives && !taken.is_empty() {
                    let run = taken.swap_remove(which.index(taken.len()));
                    (run.first..run.first + run.len).for_each(|at| assert!(granules.remove(&(run.region, at))));
                    regions.give(run);
                    continue;
                }
                let run = regions.take(len, which.index(3)).or_else(|| Some(regions.open(regions.begin()?, len)));
                let Some(run) = run else { continue };
                prop_assert_eq!((run.len, run.first / WORD), (len, (run.first + len - 1) / WORD));
                prop_assert!((run.first..run.first + len).all(|at| granules.insert((run.region, at))));
                taken.push(run);
            }
            let free = |region| regions.take_all(region).len();
            let all = REGION / GRANULE * regions.begun();
            prop_assert_eq!((0..regions.begun()).map(free).sum::<usize>(), all - granules.len());
        }
    }

    #[test]
    fn stretches_are_whole_and_as_long_as_they_are() {
        let regions = Box::new(Regions::<1>::new());
        let run = regions.open(regions.begin().unwrap(), 1);
        let second = regions.take(6, 0).unwrap();
        let third = regions.take(1, 0).unwrap();
        assert_eq!((second.first, third.first), (1, 7));
        regions.give(second);
        let only = || {
            let taken = regions.take_all(0);
            let mut stretches = taken.stretches(4);
            (stretches.next(), stretches.next())
        };
        assert_eq!(only(), (Some(8..2048), None));
        regions.give(third);
        assert_eq!(only(), (Some(4..2048), None));
        regions.give(run);
        assert_eq!(only(), (Some(0..2048), None));
    }

    #[test]
    fn threads_take_and_give_at_once() {
        let regions = Box::new(Regions::<4>::new());
        let owners: Vec<AtomicU64> = (0..4 * REGION / GRANULE).map(|_| AtomicU64::new(0)).collect();
        thread::scope(|scope| {
            for thread in 1..=4u64 {
                let (regions, owners) = (&regions, &owners);
                scope.spawn(move || {
                    let set = |run: Run, from, to| {
                        let at = run.region * REGION / GRANULE + run.first;
                        for owner in &owners[at..at + run.len] {
                            assert_eq!(owner.swap(to, Ordering::Relaxed), from);
                        }
                    };
                    let mut taken = Vec::new();
                    for round in 0..20_000usize {
                        let len = 1 + round * 7 % 23;
                        let run = regions
                            .take(len, round % 5)
                            .or_else(|| Some(regions.open(regions.begin()?, len)));
                        if let Some(run) = run {
                            set(run, 0, thread);
                            taken.push(run);
                        }
                        if taken.len() > 60 || run.is_none() && !taken.is_empty() {
                            let run = taken.swap_remove(round % taken.len());
                            set(run, thread, 0);
                            regions.give(run);
                        }
                        if round % 100 == 0 {
                            drop(regions.take_all(round / 100 % regions.begun().max(1)));
                        }
                    }
                    for run in taken {
                        set(run, thread, 0);
                        regions.give(run);
                    }
                });
            }
        });
        let free: usize = (0..regions.begun()).map(|region| regions.take_all(region).len()).sum();
        assert_eq!(free, regions.begun() * REGION / GRANULE);
    }
}
