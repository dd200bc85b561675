//! What changes while packets are judged, one for each worker.
//!
//! | what | how it is divided |
//! | --- | --- |
//! | counters | each worker counts; readers add up |
//! | rates | one number for all, read by who is over, written by who passes |
//! | quotas | a pool, of which each worker leases up to 64 KiB |
//! | sets that rules fill | a copy for each worker; changes are told to the others |
//! | rates in elements | each worker allows its share, rounded up to one packet |

use std::sync::Arc;

use flow::{LeasePool, Timestamp};

use super::dynamic::{Added, DynamicSet, ElementUpdate};
use super::limit::{QuotaLease, RateLease, SharedRate};
use crate::compile::{PackedKey, Program};
use crate::elements::Elements;
use crate::model::{CounterId, Set, SetId, Update, UpdateOp};

/// Changes of sets that wait for the other workers at most.
const MAX_UPDATES: usize = 1024;

/// What the states of all workers have in common.
#[derive(Clone, Debug)]
pub struct SharedState {
    rates: Vec<Arc<SharedRate>>,
    quotas: Vec<LeasePool>,
    workers: u64,
}

impl SharedState {
    /// Has each quota begin anew behind what all workers have used of it. They have to
    /// [take note](RuleState::reset_quotas).
    pub fn reset_quotas(&self, program: &Program, used: &[u64]) {
        for ((pool, quota), used) in self.quotas.iter().zip(&program.ruleset().quotas).zip(used) {
            pool.plan_cap(used.saturating_add(quota.bytes));
        }
    }

    /// For so many workers.
    pub fn new(program: &Program, workers: usize) -> Self {
        let workers = workers.max(1) as u64;
        let ruleset = program.ruleset();
        let rate = |limit: &crate::Limit| Arc::new(SharedRate::new(&limit.rate, workers));
        Self {
            rates: ruleset.limits.iter().map(rate).collect(),
            quotas: ruleset.quotas.iter().map(QuotaLease::pool).collect(),
            workers,
        }
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

/// What a worker has of the state of a ruleset.
#[derive(Debug)]
pub struct RuleState {
    counters: Vec<Counted>,
    rates: Vec<RateLease>,
    quotas: Vec<QuotaLease>,
    pub(super) sets: Vec<DynamicSet>,
    updates: Vec<ElementUpdate>,
    /// Changes that there was no place for: the others do not know.
    untold: u64,
    is_alone: bool,
    loaded_at: Timestamp,
}

impl RuleState {
    /// The state of a worker. Counters begin at zero: what they had when the ruleset was
    /// printed is added by [`RuleState::counted_before`].
    pub fn new(program: &Program, shared: &SharedState, now: Timestamp) -> Self {
        let ruleset = program.ruleset();
        let sets = program.dynamic.iter().map(|id| {
            DynamicSet::new(&ruleset.sets[id.index()], program.seed, shared.workers, now)
        });
        let quotas = ruleset.quotas.iter().zip(&shared.quotas);
        let sets: Vec<DynamicSet> = sets.collect();
        let is_alone = shared.workers == 1;
        Self {
            counters: vec![Counted::default(); program.counters.len()],
            rates: shared.rates.iter().cloned().map(RateLease::new).collect(),
            quotas: quotas
                .map(|(quota, pool)| QuotaLease::new(pool, quota, shared.workers))
                .collect(),
            updates: Vec::with_capacity(if is_alone || sets.is_empty() { 0 } else { MAX_UPDATES }),
            sets,
            untold: 0,
            is_alone,
            loaded_at: now,
        }
    }

    /// How many workers there are now: what is divided, and whether others have to be told.
    pub fn set_workers(&mut self, workers: usize) {
        self.set_alone(workers < 2);
        for set in &mut self.sets {
            set.set_workers(workers.max(1) as u64);
        }
    }

    /// Empties the sets that rules fill of what the ruleset was loaded with, for a worker that
    /// is alone.
    pub fn clear_sets(&mut self, program: &Program) {
        let now = self.loaded_at;
        for (set, id) in self.sets.iter_mut().zip(&program.dynamic) {
            let declared = &program.ruleset().sets[id.index()];
            // As large as it may become, in case it was loaded with more.
            let size = declared.size.max(declared.elements.len() as u32);
            let elements = Elements::new(&declared.key, &declared.data);
            let empty = Set { elements, size, ..declared.clone() };
            *set = DynamicSet::new(&empty, program.seed, 1, now);
        }
    }

    /// What a counter had when the ruleset was printed.
    pub fn counted_before(program: &Program, counter: CounterId) -> Counted {
        let counter = &program.counters[counter.index()];
        Counted { packets: counter.packets, bytes: counter.bytes }
    }

    /// What this worker has counted.
    pub fn counted(&self, counter: CounterId) -> Counted {
        self.counters[counter.index()]
    }

    /// All that this worker has counted, by [`CounterId::index`]; those of elements of sets
    /// that do not change are behind the counters of the ruleset.
    pub fn all_counted(&self) -> &[Counted] {
        &self.counters
    }

    /// Bytes of a quota that this worker has used.
    pub fn quota_used(&self, quota: crate::QuotaId) -> u64 {
        self.quotas[quota.index()].used()
    }

    /// Bytes of all quotas that this worker has used.
    pub fn quotas_used(&self) -> Vec<u64> {
        self.quotas.iter().map(QuotaLease::used).collect()
    }

    /// Takes note of quotas that [begin anew](SharedState::reset_quotas).
    pub fn reset_quotas(&mut self) {
        self.quotas.iter_mut().for_each(QuotaLease::reset);
    }

    /// Elements of all sets that rules fill, in the order of these.
    pub fn element_counts(&self, now: Timestamp) -> Vec<usize> {
        self.sets.iter().map(|set| set.len(now)).collect()
    }

    /// Elements of a set that rules fill; `None` for a set that does not change.
    pub fn elements(&self, program: &Program, set: SetId, now: Timestamp) -> Option<usize> {
        let at = program.dynamic.iter().position(|dynamic| *dynamic == set)?;
        Some(self.sets[at].len(now))
    }

    /// Whether there is nobody to be told of changes of sets.
    pub fn set_alone(&mut self, is_alone: bool) {
        self.is_alone = is_alone;
        if !is_alone && !self.sets.is_empty() {
            self.updates.reserve(MAX_UPDATES);
        }
    }

    /// What another worker has to be told to have the sets that this one has, from the
    /// element `from` of all sets on; `None` at the end.
    pub fn tell_elements(
        &self,
        program: &Program,
        from: usize,
        budget: usize,
        now: Timestamp,
        mut tell: impl FnMut(ElementUpdate),
    ) -> Option<usize> {
        let mut first = 0;
        for (id, set) in program.dynamic.iter().zip(&self.sets) {
            let places = set.places();
            let begin = from.max(first) - first;
            let end = (from + budget).saturating_sub(first).min(places);
            for at in begin.min(end)..end {
                if let Some((key, deadline)) = set.element(at, now) {
                    tell(ElementUpdate { set: *id, key, deadline });
                }
            }
            first += places;
        }
        (from + budget < first).then_some(from + budget)
    }

    /// Additions to sets that found no room.
    pub fn refused_elements(&self) -> u64 {
        self.sets.iter().map(|set| set.refused).sum()
    }

    /// Hands over what the other workers have to [be told](RuleState::apply), oldest first.
    pub fn take_updates(&mut self, mut tell: impl FnMut(ElementUpdate)) {
        self.updates.drain(..).for_each(&mut tell);
    }

    /// Changes that were not told because too many waited.
    pub fn untold_updates(&self) -> u64 {
        self.untold
    }

    /// Takes over what another worker has changed.
    pub fn apply(&mut self, program: &Program, update: ElementUpdate, now: Timestamp) {
        let ElementUpdate { set, key, deadline } = update;
        let Some(at) = program.dynamic.iter().position(|dynamic| *dynamic == set) else { return };
        if deadline == Timestamp::ZERO {
            self.sets[at].remove(&key);
        } else if let Added::Known(number) = self.sets[at].add(&key, deadline, now) {
            self.sets[at].refresh(number, deadline, now);
        }
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
        let rate = &mut self.rates[limit];
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
        let set = &mut self.sets[at];
        let told = |deadline| ElementUpdate { set: update.set, key: *key, deadline };
        if update.op == UpdateOp::Delete {
            if set.remove(key) {
                self.tell(told(Timestamp::ZERO));
            }
            return true;
        }
        let timeout = update.timeout.map(|timeout| timeout.as_nanos() as u64).or(set.timeout_nanos);
        let deadline = timeout
            .map_or(Timestamp::NEVER, |nanos| now.after(std::time::Duration::from_nanos(nanos)));
        let (number, changed) = match set.add(key, deadline, now) {
            Added::Full => return false,
            Added::New(number) => (number, true),
            Added::Known(number) if update.op == UpdateOp::Refresh && timeout.is_some() => {
                (number, set.refresh(number, deadline, now))
            }
            Added::Known(number) => (number, false),
        };
        let goes_on = set.count(number, bytes, now);
        if changed {
            self.tell(told(deadline));
        }
        goes_on
    }

    /// Whether the rule would go on; nothing changes.
    pub(super) fn would_update(
        &self,
        at: usize,
        update: &Update,
        key: &PackedKey,
        bytes: u64,
        now: Timestamp,
    ) -> bool {
        let set = &self.sets[at];
        update.op == UpdateOp::Delete || set.would_go_on(set.find(key, now), bytes, now)
    }

    fn tell(&mut self, update: ElementUpdate) {
        if self.is_alone {
            return;
        }
        if self.updates.len() < MAX_UPDATES {
            self.updates.push(update);
        } else {
            self.untold += 1;
        }
    }
}
