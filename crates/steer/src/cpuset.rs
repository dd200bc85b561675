//! Sets of CPUs, as the setting `rps_cpus` writes them.
//!
//! # How a text is read
//!
//! | text | read as | example |
//! | --- | --- | --- |
//! | empty | no CPU | |
//! | begins with `cpus:` or `list:` | list | `cpus:3` is CPU 3 |
//! | begins with `0x` or `mask:` | mask | `0x3` is CPUs 0 and 1 |
//! | contains `-` or `:` | list | `0-3,8`, `0-6:2` |
//! | commas, and every group but the first has 8 digits | mask | `1,00000000` is CPU 32 |
//! | other commas | list | `0,2` is CPUs 0 and 2 |
//! | anything else | mask | `3` is CPUs 0 and 1; `10` is CPU 4; `0b` is CPUs 0, 1 and 3 |
//!
//! A bare number is a hexadecimal mask, because the kernel's file of this name takes one. The
//! kernel writes mask words of 8 digits, so a text copied from there is always read as it was
//! meant; a comma between shorter groups was written by a person who lists CPUs. One mistake
//! remains: a decimal count or CPU number in the place of a mask. It is refused when the mask
//! names a CPU that does not exist; the error shows how the text was understood and what to
//! write instead.
//!
//! In a list, `a-b:n` takes every n-th CPU of a range (as taskset does) and
//! `a-b:m/n` the first m of each n (as the kernel does).

use std::fmt;

mod parse;

pub use parse::{CpuSetError, CpuSetForm};

/// CPUs that a set can hold: numbers 0 to 1023.
pub const MAX_CPUS: usize = 1024;
const WORDS: usize = MAX_CPUS / 64;

/// A set of CPUs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct CpuSet {
    words: [u64; WORDS],
}

impl CpuSet {
    /// No CPU.
    pub const EMPTY: Self = Self { words: [0; WORDS] };

    /// CPUs 0 to `count - 1`; all [`MAX_CPUS`] when `count` is larger.
    pub fn first(count: usize) -> Self {
        (0..count.min(MAX_CPUS)).collect()
    }

    /// Adds a CPU. A number beyond [`MAX_CPUS`] is left out.
    pub fn insert(&mut self, cpu: usize) {
        if let Some(word) = self.words.get_mut(cpu / 64) {
            *word |= 1 << (cpu % 64);
        }
    }

    /// True when the CPU is in the set.
    pub fn contains(&self, cpu: usize) -> bool {
        self.words.get(cpu / 64).is_some_and(|word| word >> (cpu % 64) & 1 == 1)
    }

    /// How many CPUs are in the set.
    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.words == [0; WORDS]
    }

    /// The CPUs, smallest number first.
    pub fn iter(&self) -> impl Iterator<Item = usize> {
        (0..MAX_CPUS).filter(|&cpu| self.contains(cpu))
    }

    /// As a hexadecimal mask in the form of sysfs, for example `3` or `1,00000000`.
    pub fn mask(&self) -> impl fmt::Display {
        let set = *self;
        fmt::from_fn(move |f| {
            let group = |at: usize| (set.words[at / 2] >> (at % 2 * 32)) as u32;
            let first = (0..2 * WORDS).rev().find(|&at| group(at) != 0).unwrap_or(0);
            write!(f, "{:x}", group(first))?;
            (0..first).rev().try_for_each(|at| write!(f, ",{:08x}", group(at)))
        })
    }

    /// As a list, for example `0-3,8`; empty for the empty set.
    pub fn list(&self) -> impl fmt::Display {
        let set = *self;
        fmt::from_fn(move |f| {
            let mut separator = "";
            let mut cpu = 0;
            while let Some(first) = (cpu..MAX_CPUS).find(|&cpu| set.contains(cpu)) {
                let end = (first..MAX_CPUS).find(|&cpu| !set.contains(cpu)).unwrap_or(MAX_CPUS);
                write!(f, "{separator}{first}")?;
                if end - first > 1 {
                    write!(f, "-{}", end - 1)?;
                }
                (separator, cpu) = (",", end);
            }
            Ok(())
        })
    }
}

impl fmt::Debug for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CpuSet({})", self.list())
    }
}

impl FromIterator<usize> for CpuSet {
    fn from_iter<I: IntoIterator<Item = usize>>(cpus: I) -> Self {
        let mut set = Self::EMPTY;
        cpus.into_iter().for_each(|cpu| set.insert(cpu));
        set
    }
}

#[cfg(test)]
#[path = "cpuset_tests.rs"]
mod tests;
