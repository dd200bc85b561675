//! Workers and sets of them.

/// How many workers there can be: as many as a [`WorkerSet`] has bits.
pub const MAX_WORKERS: usize = 64;

/// Number of a worker, below [`MAX_WORKERS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct WorkerId(pub u16);

impl WorkerId {
    /// The number as an index into per-worker arrays.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl std::fmt::Display for WorkerId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "worker {}", self.0)
    }
}

/// A set of workers, in the order of their numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct WorkerSet(u64);

impl WorkerSet {
    /// No worker.
    pub const EMPTY: Self = Self(0);

    /// Workers 0 to `count - 1`; all [`MAX_WORKERS`] when `count` is larger.
    pub const fn first(count: usize) -> Self {
        if count >= MAX_WORKERS { Self(u64::MAX) } else { Self((1 << count) - 1) }
    }

    /// The set with `worker` in it. A number beyond [`MAX_WORKERS`] is left out.
    #[must_use]
    pub const fn with(self, worker: WorkerId) -> Self {
        Self(self.0 | bit(worker))
    }

    /// The set without `worker`.
    #[must_use]
    pub const fn without(self, worker: WorkerId) -> Self {
        Self(self.0 & !bit(worker))
    }

    /// The workers that are in both sets.
    #[must_use]
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// The workers that are here and not in `other`.
    #[must_use]
    pub const fn difference(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// True when `worker` is in the set.
    pub const fn contains(self, worker: WorkerId) -> bool {
        self.0 & bit(worker) != 0
    }

    /// How many workers are in the set.
    pub const fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// True when there are none.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The workers, smallest number first.
    pub fn iter(self) -> impl Iterator<Item = WorkerId> {
        (0..MAX_WORKERS as u16).map(WorkerId).filter(move |&worker| self.contains(worker))
    }
}

const fn bit(worker: WorkerId) -> u64 {
    if worker.index() < MAX_WORKERS { 1 << worker.0 } else { 0 }
}

impl FromIterator<WorkerId> for WorkerSet {
    fn from_iter<I: IntoIterator<Item = WorkerId>>(workers: I) -> Self {
        workers.into_iter().fold(Self::EMPTY, Self::with)
    }
}

impl std::fmt::Debug for WorkerSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.iter().map(|worker| worker.0)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_holds_what_was_put_in() {
        let set = WorkerSet::first(3).without(WorkerId(1)).with(WorkerId(63));
        assert_eq!(set.iter().map(|worker| worker.0).collect::<Vec<_>>(), [0, 2, 63]);
        assert_eq!(set.len(), 3);
        assert_eq!(WorkerSet::first(64).len(), 64);
        assert_eq!(set.with(WorkerId(64)), set, "a number beyond the limit is left out");
        assert!(!set.contains(WorkerId(64)));
        assert_eq!(set.iter().collect::<WorkerSet>(), set);
    }
}
