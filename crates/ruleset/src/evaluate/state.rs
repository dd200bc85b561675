//! The state that changes while packets are judged.
//!
//! | part | division among workers |
//! | --- | --- |
//! | counters | each worker counts; readers add up |
//! | rates | one number for all: packets over the limit read it, packets within it write it |
//! | quotas | one for all, of which each worker takes up to 64 KiB at a time |
//! | sets that rules fill, with the rates and quotas of their elements | one for all, behind locks |
//! | `numgen` | each worker counts, or draws, by itself |

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flow::Timestamp;

use super::generate::Numbers;
use super::limit::{QuotaLease, SharedQuota, SharedRate};
use super::shared_set::{Changed, SharedSet};
use crate::compile::{PackedKey, Program};
use crate::listing::LiveElement;
use crate::model::{CounterId, SetId, Update};

/// The state that all workers share. Clones share it, too.
#[derive(Clone, Debug)]
pub struct SharedState {
    rates: Vec<Arc<SharedRate>>,
    quotas: Vec<Arc<SharedQuota>>,
    /// The sets that rules fill.
    sets: Vec<Arc<SharedSet>>,
    /// The number of states that were made. Each draws other random numbers.
    made: Arc<AtomicU64>,
}

impl SharedState {
    /// The shared state of a ruleset that is loaded `now`.
    pub fn new(program: &Program, now: Timestamp) -> Self {
        let ruleset = program.ruleset();
        let set =
            |id: &SetId| Arc::new(SharedSet::new(&ruleset.sets[id.index()], program.seed, now));
        Self {
            rates: ruleset.limits.iter().map(|it| Arc::new(SharedRate::new(&it.rate))).collect(),
            quotas: ruleset.quotas.iter().map(|it| Arc::new(SharedQuota::new(it))).collect(),
            sets: program.dynamic.iter().map(set).collect(),
            made: Arc::default(),
        }
    }

    /// A state of the same ruleset whose sets hold the same elements now, and share nothing with
    /// these. Rates and quotas begin anew.
    pub fn apart(&self, program: &Program, now: Timestamp) -> Self {
        let new = Self::new(program, now);
        if new.sets.len() != self.sets.len() {
            return new;
        }
        let sets = self.sets.iter().map(|set| Arc::new(set.copied())).collect();
        Self { sets, ..new }
    }

    /// Begins each quota anew, behind the bytes that all workers have used of it.
    pub fn reset_quotas(&self, program: &Program, used: &[u64]) {
        for ((shared, quota), used) in self.quotas.iter().zip(&program.ruleset().quotas).zip(used) {
            shared.reset(quota.bytes, *used);
        }
    }

    /// The elements of the sets that rules fill, in no order.
    pub fn elements(&self, program: &Program, now: Timestamp) -> Vec<LiveElement> {
        let mut all = Vec::new();
        for (id, set) in program.dynamic.iter().zip(&self.sets) {
            let kinds = &program.ruleset().sets[id.index()].key;
            set.list(now, |key, life, _| {
                let mut halves = key.halves();
                let mut part = |words: usize| {
                    let halves = halves.by_ref().take(words);
                    halves.fold(0, |value: u128, half| value << 32 | u128::from(half))
                };
                let key = kinds.iter().map(|kind| part(kind.words())).collect();
                let ends = life.deadline != Timestamp::NEVER;
                let expires = ends.then(|| life.deadline.since(now));
                all.push(LiveElement { set: *id, key, expires });
            });
        }
        all
    }

    /// The number of elements of a set that rules fill; `None` for a set that does not change.
    pub fn element_count(&self, program: &Program, set: SetId, now: Timestamp) -> Option<usize> {
        let at = program.dynamic.iter().position(|dynamic| *dynamic == set)?;
        Some(self.sets[at].len(now))
    }
}

/// Packets and bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counted {
    /// Packets.
    pub packets: u64,
    /// Bytes from the network header on.
    pub bytes: u64,
}

/// One worker's state of a ruleset.
#[derive(Debug)]
pub struct RuleState {
    counters: Vec<Counted>,
    rates: Vec<Arc<SharedRate>>,
    quotas: Vec<QuotaLease>,
    pub(super) sets: Vec<Arc<SharedSet>>,
    pub(super) numbers: Numbers,
    /// Additions that were refused because a set was full.
    refused: u64,
    loaded_at: Timestamp,
}

impl RuleState {
    /// The state of a worker. Counters begin at zero: [`RuleState::counted_before`] gives the
    /// values that they had when the ruleset was printed.
    pub fn new(program: &Program, shared: &SharedState, now: Timestamp) -> Self {
        let stream = shared.made.fetch_add(1, Ordering::Relaxed);
        Self {
            numbers: Numbers::new(program.ruleset().generators.len(), program.seed, stream),
            counters: vec![Counted::default(); program.counters.len()],
            rates: shared.rates.clone(),
            quotas: shared.quotas.iter().cloned().map(QuotaLease::new).collect(),
            sets: shared.sets.clone(),
            refused: 0,
            loaded_at: now,
        }
    }

    /// The value that a counter had when the ruleset was printed.
    pub fn counted_before(program: &Program, counter: CounterId) -> Counted {
        let counter = &program.counters[counter.index()];
        Counted { packets: counter.packets, bytes: counter.bytes }
    }

    /// The packets and bytes that this worker has counted.
    pub fn counted(&self, counter: CounterId) -> Counted {
        self.counters[counter.index()]
    }

    /// All counters of this worker, by [`CounterId::index`]. Counters of elements of sets that do
    /// not change follow those of the ruleset.
    pub fn all_counted(&self) -> &[Counted] {
        &self.counters
    }

    /// Bytes that this worker has used of each quota.
    pub fn quotas_used(&self) -> Vec<u64> {
        self.quotas.iter().map(QuotaLease::used).collect()
    }

    /// Additions that this worker's packets asked for and that were refused because a set was full.
    pub fn refused_elements(&self) -> u64 {
        self.refused
    }

    #[inline]
    pub(super) fn count(&mut self, counter: CounterId, bytes: u64) {
        let counted = &mut self.counters[counter.index()];
        counted.packets += 1;
        counted.bytes += bytes;
    }

    #[inline]
    pub(super) fn within_rate(
        &mut self,
        limit: usize,
        bytes: u64,
        now: Timestamp,
        uses: bool,
    ) -> bool {
        let rate = &self.rates[limit];
        if uses { rate.matches(bytes, now) } else { rate.would_match(bytes, now) }
    }

    #[inline]
    pub(super) fn within_quota(&mut self, quota: usize, bytes: u64, uses: bool) -> bool {
        let quota = &mut self.quotas[quota];
        if uses { quota.matches(bytes) } else { quota.would_match() }
    }

    /// Nanoseconds since loading.
    pub(super) fn age(&self, now: Timestamp) -> u64 {
        now.as_nanos().saturating_sub(self.loaded_at.as_nanos())
    }

    /// Changes a set for a packet; false if the rule ends.
    pub(super) fn update(
        &mut self,
        at: usize,
        update: &Update,
        key: &PackedKey,
        bytes: u64,
        now: Timestamp,
    ) -> bool {
        let changed = self.sets[at].update(update, key, bytes, now);
        self.refused += u64::from(changed == Changed::Full);
        changed == Changed::GoesOn
    }
}
