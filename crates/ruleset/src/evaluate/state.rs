//! The state that changes while packets are judged; each worker has its own.
//!
//! | part | division among workers |
//! | --- | --- |
//! | counters | each worker counts; readers add up |
//! | rates | one number for all: packets over the limit read it, packets within it write it |
//! | quotas | a pool, of which each worker leases up to 64 KiB |
//! | sets that rules fill | a copy for each worker, which tells the others its changes |
//! | rates in elements | each worker allows its share, rounded up to one packet |
//! | `numgen` | each worker counts, or draws, by itself |

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flow::{LeasePool, Timestamp};

use super::dynamic::{Added, DynamicSet, ElementUpdate};
use super::generate::Numbers;
use super::limit::{QuotaLease, RateLease, SharedRate};
use super::rewriting::Rewriting;
use super::wall::WallClock;
use crate::compile::{PackedKey, Program};
use crate::elements::Elements;
use crate::model::{CounterId, Set, SetId, Update, UpdateOp};

/// The largest number of changes of sets that wait for the other workers.
const MAX_UPDATES: usize = 1024;

/// The state that all workers share.
#[derive(Clone, Debug)]
pub struct SharedState {
    rates: Vec<Arc<SharedRate>>,
    quotas: Vec<LeasePool>,
    workers: u64,
    /// The number of states that were made. Each draws other random numbers.
    made: Arc<AtomicU64>,
    wall: Arc<WallClock>,
}

impl SharedState {
    /// Begins each quota anew, behind the bytes that all workers have used of it. Each worker has
    /// to [take note](RuleState::reset_quotas).
    pub fn reset_quotas(&self, program: &Program, used: &[u64]) {
        for ((pool, quota), used) in self.quotas.iter().zip(&program.ruleset().quotas).zip(used) {
            pool.plan_cap(used.saturating_add(quota.bytes));
        }
    }

    /// Sets the clock on the wall, for all workers: the nanoseconds from the time of packets to the
    /// time since 1970-01-01 00:00:00 UTC, and the seconds by which the local time is ahead of UTC.
    /// Without it, rules that ask for the time do not match.
    pub fn set_wall_clock(&self, ahead_ns: i64, zone_s: i32) {
        self.wall.set(ahead_ns, zone_s);
    }

    /// The shared state of `workers` workers.
    pub fn new(program: &Program, workers: usize) -> Self {
        let workers = workers.max(1) as u64;
        let ruleset = program.ruleset();
        let rate = |limit: &crate::Limit| Arc::new(SharedRate::new(&limit.rate, workers));
        Self {
            rates: ruleset.limits.iter().map(rate).collect(),
            quotas: ruleset.quotas.iter().map(QuotaLease::pool).collect(),
            workers,
            made: Arc::default(),
            wall: Arc::default(),
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

/// One worker's state of a ruleset.
#[derive(Debug)]
pub struct RuleState {
    counters: Vec<Counted>,
    rates: Vec<RateLease>,
    quotas: Vec<QuotaLease>,
    pub(super) sets: Vec<DynamicSet>,
    pub(super) numbers: Numbers,
    pub(super) rewriting: Rewriting,
    pub(super) wall: Arc<WallClock>,
    updates: Vec<ElementUpdate>,
    /// Changes that were lost for the other workers because too many waited.
    untold: u64,
    is_alone: bool,
    loaded_at: Timestamp,
}

impl RuleState {
    /// The state of a worker. Counters begin at zero: [`RuleState::counted_before`] gives the
    /// values that they had when the ruleset was printed.
    pub fn new(program: &Program, shared: &SharedState, now: Timestamp) -> Self {
        let ruleset = program.ruleset();
        let sets = program.dynamic.iter().map(|id| {
            DynamicSet::new(&ruleset.sets[id.index()], program.seed, shared.workers, now)
        });
        let quotas = ruleset.quotas.iter().zip(&shared.quotas);
        let sets: Vec<DynamicSet> = sets.collect();
        let is_alone = shared.workers == 1;
        let stream = shared.made.fetch_add(1, Ordering::Relaxed);
        Self {
            rewriting: Rewriting::default(),
            wall: shared.wall.clone(),
            numbers: Numbers::new(ruleset.generators.len(), program.seed, stream),
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

    /// Sets the number of workers. It divides the rates of elements, and decides whether this
    /// worker tells its changes of sets.
    pub fn set_workers(&mut self, workers: usize) {
        self.set_alone(workers < 2);
        for set in &mut self.sets {
            set.set_workers(workers.max(1) as u64);
        }
    }

    /// Removes the elements that the ruleset was loaded with from the sets that rules fill. For a
    /// worker that is alone.
    pub fn clear_sets(&mut self, program: &Program) {
        let now = self.loaded_at;
        for (set, id) in self.sets.iter_mut().zip(&program.dynamic) {
            let declared = &program.ruleset().sets[id.index()];
            // The new set keeps the room of the old one, which may have been loaded with more than
            // its size.
            let size = declared.size.max(declared.elements.len() as u32);
            let elements = Elements::new(&declared.key, &declared.data);
            let empty = Set { elements, size, ..declared.clone() };
            *set = DynamicSet::new(&empty, program.seed, 1, now);
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

    /// Takes note of quotas that [begin anew](SharedState::reset_quotas).
    pub fn reset_quotas(&mut self) {
        self.quotas.iter_mut().for_each(QuotaLease::reset);
    }

    /// The number of elements of each set that rules fill, in the order of these sets.
    pub fn element_counts(&self, now: Timestamp) -> Vec<usize> {
        self.sets.iter().map(|set| set.len(now)).collect()
    }

    /// The number of elements of a set that rules fill; `None` for a set that does not change.
    pub fn elements(&self, program: &Program, set: SetId, now: Timestamp) -> Option<usize> {
        let at = program.dynamic.iter().position(|dynamic| *dynamic == set)?;
        Some(self.sets[at].len(now))
    }

    /// Sets whether this worker is the only one, which tells nobody its changes of sets.
    pub fn set_alone(&mut self, is_alone: bool) {
        self.is_alone = is_alone;
        if !is_alone && !self.sets.is_empty() {
            self.updates.reserve(MAX_UPDATES);
        }
    }

    /// Tells another worker the elements of all sets, `budget` places from place `from` on. Returns
    /// the place to go on at; `None` at the end.
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

    /// Additions that were refused because a set was full.
    pub fn refused_elements(&self) -> u64 {
        self.sets.iter().map(|set| set.refused).sum()
    }

    /// The fields of headers that the rules have set in the last hook, each once. They are those of
    /// a packet only if its outcome [says so](crate::Outcome::is_rewritten).
    pub fn writes(&self) -> &[wire::FieldWrite] {
        self.rewriting.writes()
    }

    /// Hands over the changes for the other workers to [apply](RuleState::apply), oldest first.
    pub fn take_updates(&mut self, mut tell: impl FnMut(ElementUpdate)) {
        self.updates.drain(..).for_each(&mut tell);
    }

    /// Changes that the other workers never got because too many waited.
    pub fn untold_updates(&self) -> u64 {
        self.untold
    }

    /// Applies a change of another worker.
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

    /// True if the rule would go on; changes nothing.
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
