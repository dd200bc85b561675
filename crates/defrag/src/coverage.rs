//! The parts of a datagram that have arrived.
//!
//! Fragments end on 8-byte units (the last one of a datagram is rounded up), so a range of
//! units is exact. As long as the units form a few runs, the runs lie inside the queue; that is
//! so for all datagrams that arrive in order and for most others. Only a datagram with more
//! gaps gets a bitmap. The cost does not grow with the number of fragments held: a look-up
//! visits at most four runs, or the words of the bitmap that the new fragment itself covers.

use std::ops::Range;

use crate::steps::step;

/// Bytes of a unit (RFC 791 section 3.1, RFC 8200 section 4.5).
pub(crate) const UNIT: u16 = 8;
/// Runs that fit inside the queue.
pub(crate) const RUNS: usize = 4;
/// Units of the longest datagram.
const UNITS: usize = 8192;
/// Size of the blocks for which beginning fragments are counted, bytes.
const BLOCK: usize = 4096;
const BLOCKS: usize = 65_536 / BLOCK;

/// A range of units.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Run {
    pub start: u16,
    pub end: u16,
}

impl Run {
    /// The units that a range of bytes touches.
    #[inline]
    pub fn of_bytes(offset: u16, length: u16) -> Self {
        let start = offset / UNIT;
        Self { start, end: start + length.div_ceil(UNIT) }
    }
}

/// The relation of a range to the units that are covered already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    /// Nothing of it is covered.
    New,
    /// All of it is covered.
    Duplicate,
    /// Some of it is covered.
    Overlap,
}

/// The units that have arrived.
#[derive(Debug)]
pub(crate) enum Coverage {
    /// The first `len` of `runs`, in order, with a gap between any two.
    Runs {
        len: u8,
        runs: [Run; RUNS],
    },
    Map(Box<Map>),
}

/// One bit for each unit, and the number of fragments that begin in each block.
#[derive(Clone, Debug)]
pub(crate) struct Map {
    words: [u64; UNITS / 64],
    begun: [u16; BLOCKS],
}

impl Coverage {
    pub const EMPTY: Self = Self::Runs { len: 0, runs: [Run { start: 0, end: 0 }; RUNS] };

    #[inline]
    pub fn look(&self, range: Run) -> Fit {
        match self {
            Self::Runs { len, runs } => look_at_runs(&runs[..usize::from(*len)], range),
            Self::Map(map) => map.look(range),
        }
    }

    /// The span of covered units in a range, from the first to one behind the last; empty if
    /// none is covered.
    #[cold]
    pub fn held_of(&self, range: Run) -> Run {
        let is_held = |unit: &u16| match self {
            Self::Runs { len, runs } => {
                runs[..usize::from(*len)].iter().any(|run| (run.start..run.end).contains(unit))
            }
            Self::Map(map) => map.words[usize::from(unit / 64)] & 1 << (unit % 64) != 0,
        };
        let start = (range.start..range.end).find(is_held).unwrap_or(range.end);
        let end = (start..range.end).rev().find(is_held).map_or(start, |last| last + 1);
        Run { start, end }
    }

    /// True if a new range would make more runs than fit.
    #[inline]
    pub fn would_overflow(&self, range: Run) -> bool {
        match self {
            Self::Runs { len, runs } => {
                usize::from(*len) == RUNS
                    && !runs.iter().any(|run| run.end == range.start || run.start == range.end)
            }
            Self::Map(_) => false,
        }
    }

    /// Covers a new range that does not overflow.
    #[inline]
    pub fn fill(&mut self, range: Run) {
        match self {
            Self::Runs { len, runs } => fill_runs(len, runs, range),
            Self::Map(map) => map.fill(range),
        }
    }

    /// Changes to a map; `map` may hold anything. The caller has to count the fragments that
    /// are held already with [`Map::begin`].
    pub fn spread(&mut self, mut map: Box<Map>) -> Option<&mut Map> {
        if let Self::Runs { len, runs } = self {
            map.words.fill(0);
            map.begun.fill(0);
            for run in &runs[..usize::from(*len)] {
                map.fill(*run);
            }
            *self = Self::Map(map);
        }
        self.map_mut()
    }

    pub fn map(&self) -> Option<&Map> {
        match self {
            Self::Runs { .. } => None,
            Self::Map(map) => Some(map),
        }
    }

    pub fn map_mut(&mut self) -> Option<&mut Map> {
        match self {
            Self::Runs { .. } => None,
            Self::Map(map) => Some(map),
        }
    }
}

#[inline]
fn look_at_runs(runs: &[Run], range: Run) -> Fit {
    // Nearly all fragments come in order.
    if runs.last().is_none_or(|last| last.end <= range.start) {
        return Fit::New;
    }
    for run in runs {
        step();
        if run.start < range.end && range.start < run.end {
            let inside = run.start <= range.start && range.end <= run.end;
            return if inside { Fit::Duplicate } else { Fit::Overlap };
        }
    }
    Fit::New
}

#[inline]
fn fill_runs(len: &mut u8, runs: &mut [Run; RUNS], range: Run) {
    let count = usize::from(*len);
    if let Some(last) = runs[..count].last_mut()
        && last.end == range.start
    {
        last.end = range.end;
        return;
    }
    // The first run behind the range.
    let at = runs[..count].iter().position(|run| range.end <= run.start).unwrap_or(count);
    let before = at > 0 && runs[at - 1].end == range.start;
    let behind = at < count && runs[at].start == range.end;
    match (before, behind) {
        (true, true) => {
            runs[at - 1].end = runs[at].end;
            runs.copy_within(at + 1..count, at);
            *len -= 1;
        }
        (true, false) => runs[at - 1].end = range.end,
        (false, true) => runs[at].start = range.start,
        (false, false) => {
            debug_assert!(count < RUNS, "one run too many");
            runs.copy_within(at..count, at + 1);
            runs[at] = range;
            *len += 1;
        }
    }
}

impl Map {
    pub fn boxed() -> Box<Self> {
        Box::new(Self { words: [0; UNITS / 64], begun: [0; BLOCKS] })
    }

    /// Counts a fragment that begins at `offset`.
    pub fn begin(&mut self, offset: u16) {
        self.begun[usize::from(offset) / BLOCK] += 1;
    }

    /// Number of fragments that begin in the block of `offset`.
    pub fn begun(&self, offset: u16) -> u16 {
        self.begun[usize::from(offset) / BLOCK]
    }

    fn look(&self, range: Run) -> Fit {
        let (mut any, mut all) = (false, true);
        for (word, mask) in masks(range) {
            any |= self.words[word] & mask != 0;
            all &= self.words[word] & mask == mask;
        }
        match (any, all) {
            (false, _) => Fit::New,
            (true, true) => Fit::Duplicate,
            (true, false) => Fit::Overlap,
        }
    }

    fn fill(&mut self, range: Run) {
        for (word, mask) in masks(range) {
            self.words[word] |= mask;
        }
    }
}

/// The words of the bitmap that a range touches, each with the bits of the range in it.
fn masks(range: Run) -> impl Iterator<Item = (usize, u64)> {
    let Range { start, end } = usize::from(range.start)..usize::from(range.end);
    (start / 64..end.div_ceil(64)).map(move |word| {
        step();
        let low = start.saturating_sub(word * 64);
        let high = (end - word * 64).min(64);
        (word, (u64::MAX << low) & (u64::MAX >> (64 - high)))
    })
}

#[cfg(test)]
#[path = "coverage_tests.rs"]
mod tests;
