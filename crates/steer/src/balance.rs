//! The balancer: moves buckets to workers that have time for them.
//!
//! After RSS++ (Barbette, Katsikas, Maguire, Kostić, "RSS++: load and state-aware
//! receive side scaling", CoNEXT 2019): the load of a worker over an interval is
//! split over its buckets in proportion to their work; buckets move from the
//! overloaded to the least loaded, few of them, and their state moves along.
//!
//! # The fair level
//!
//! A flow can not be split, so neither can its bucket. A bucket that alone is heavier than the
//! mean is an *elephant*: the best that its worker can do is to carry nothing else. So the fair
//! level leaves elephants and their workers out: it is the mean load of the remaining workers.
//! The *excess* of a worker is the load that it carries above the level, or above its heaviest
//! bucket if that is more. It is the part of its load that could be elsewhere.
//!
//! # Why it does not oscillate
//!
//! * Nothing moves until an excess passes the threshold (2 %); then buckets move
//!   until all are below half of it. So noise around either bound starts nothing.
//! * Each move lowers the load of the pair's more loaded worker for certain. The
//!   largest load never grows and the sum of squares falls, so with steady load
//!   a sequence of plans ends.
//! * A bucket that moved rests for some rounds, so that a load that was measured
//!   during the move is not acted on.

use crate::{BucketId, BucketMove, IndirectionTable, WorkerId, WorkerSet};

mod plan;

pub use plan::{Move, MoveReason, Plan, Spread};

/// The settings of the balancer. Loads are fractions of one worker's time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BalanceSettings {
    /// Load at which a worker is meant to be used; decides [`Plan::wanted_workers`].
    pub target_load: f64,
    /// Excess above which buckets move.
    pub threshold: f64,
    /// Most moves in one round.
    pub max_moves: usize,
    /// Rounds for which a bucket that moved stays where it is.
    pub rest_rounds: u32,
}

impl Default for BalanceSettings {
    fn default() -> Self {
        Self { target_load: 0.75, threshold: 0.02, max_moves: 16, rest_rounds: 2 }
    }
}

/// Measurements over one interval.
#[derive(Clone, Copy, Debug)]
pub struct Sample<'a> {
    /// The owner of each bucket.
    pub table: &'a IndirectionTable,
    /// Work of each bucket, in any unit that is the same for all: packets or, better, cycles. A
    /// missing bucket counts as 0.
    pub bucket_work: &'a [u64],
    /// Fraction of the interval for which each worker was busy, 0 to 1, by worker number. A
    /// missing load, or one that is not a number, counts as 0. The whole load is divided among
    /// the worker's buckets. Buckets do not cause all of it, for example receiving; for that
    /// reason a plan moves too little, and the next one corrects it.
    pub worker_load: &'a [f64],
    /// The workers that may own buckets. Buckets of others are moved away first.
    pub allowed: WorkerSet,
}

/// Plans moves and remembers which buckets rest.
#[derive(Clone, Debug)]
pub struct Balancer {
    settings: BalanceSettings,
    /// Rounds for which each bucket still rests.
    resting: Vec<u32>,
}

impl Balancer {
    /// A balancer for which no bucket rests.
    pub const fn new(settings: BalanceSettings) -> Self {
        Self { settings, resting: Vec::new() }
    }

    /// The moves that the sample calls for. It changes nothing, so it is a dry run until the
    /// caller makes the moves and calls [`Balancer::finish_round`].
    pub fn plan(&self, sample: &Sample<'_>) -> Plan {
        let mut planner = Planner::new(self, sample);
        let before = planner.spread();
        planner.evacuate();
        if planner.spread().excess > self.settings.threshold {
            planner.level_out();
        }
        let total: f64 = planner.workers.iter().map(|worker| worker.load).sum();
        Plan {
            before,
            after: planner.spread(),
            wanted_workers: ((total / self.settings.target_load).ceil() as usize).max(1),
            moves: planner.moves,
        }
    }

    /// Ends a round: the buckets that moved begin to rest, and the others rest one round less.
    pub fn finish_round(&mut self, moves: &[Move]) {
        self.resting.iter_mut().for_each(|rounds| *rounds = rounds.saturating_sub(1));
        for step in moves {
            let index = step.change.bucket.index();
            if index >= self.resting.len() {
                self.resting.resize(index + 1, 0);
            }
            self.resting[index] = self.settings.rest_rounds;
        }
    }

    fn rests(&self, bucket: BucketId) -> bool {
        self.resting.get(bucket.index()).is_some_and(|&rounds| rounds > 0)
    }
}

/// A worker that may own buckets, and its load as planned so far.
struct Worker {
    id: WorkerId,
    load: f64,
}

struct Bucket {
    id: BucketId,
    owner: WorkerId,
    load: f64,
    movable: bool,
}

struct Planner<'a> {
    balancer: &'a Balancer,
    allowed: WorkerSet,
    workers: Vec<Worker>,
    /// Heaviest first.
    buckets: Vec<Bucket>,
    moves: Vec<Move>,
}

impl<'a> Planner<'a> {
    fn new(balancer: &'a Balancer, sample: &Sample<'_>) -> Self {
        let work = |bucket: BucketId| sample.bucket_work.get(bucket.index()).copied().unwrap_or(0);
        let mut work_of = [0.0; crate::MAX_WORKERS];
        for (bucket, owner) in sample.table.iter() {
            work_of[owner.index()] += work(bucket) as f64;
        }
        let busy = |worker: WorkerId| {
            let load = sample.worker_load.get(worker.index()).copied().unwrap_or(0.0);
            if load.is_finite() { load.max(0.0) } else { 0.0 }
        };
        let mut buckets: Vec<Bucket> = sample
            .table
            .iter()
            .map(|(id, owner)| Bucket {
                id,
                owner,
                load: busy(owner) * work(id) as f64 / work_of[owner.index()].max(1.0),
                movable: !balancer.rests(id),
            })
            .collect();
        buckets.sort_by(|a, b| b.load.total_cmp(&a.load).then(a.id.cmp(&b.id)));
        let workers = sample.allowed.iter().map(|id| Worker { id, load: busy(id) }).collect();
        Self { balancer, allowed: sample.allowed, workers, buckets, moves: Vec::new() }
    }

    /// The level to which the workers without elephants can be balanced.
    fn level(&self) -> f64 {
        let mut load: f64 = self.workers.iter().map(|worker| worker.load).sum();
        let mut workers = self.workers.len() as f64;
        for bucket in self.buckets.iter().filter(|bucket| self.allowed.contains(bucket.owner)) {
            if workers <= 1.0 || bucket.load <= load / workers {
                break;
            }
            load -= bucket.load;
            workers -= 1.0;
        }
        if workers > 0.0 { load / workers } else { 0.0 }
    }

    fn heaviest_of(&self, worker: WorkerId) -> Option<&Bucket> {
        self.buckets.iter().find(|bucket| bucket.owner == worker)
    }

    /// Load of a worker that could be elsewhere; 0 if no bucket causes load.
    fn excess(&self, worker: &Worker, level: f64) -> f64 {
        match self.heaviest_of(worker.id) {
            Some(heaviest) if heaviest.load > 0.0 => worker.load - heaviest.load.max(level),
            _ => 0.0,
        }
    }

    fn spread(&self) -> Spread {
        let level = self.level();
        let excess = self.workers.iter().map(|worker| self.excess(worker, level));
        Spread {
            loads: self.workers.iter().map(|worker| (worker.id, worker.load)).collect(),
            level,
            excess: excess.fold(0.0, f64::max),
        }
    }

    fn least_loaded(&self) -> Option<usize> {
        let by_load = |&a: &usize, &b: &usize| {
            self.workers[a].load.total_cmp(&self.workers[b].load).then(a.cmp(&b))
        };
        (0..self.workers.len()).min_by(by_load)
    }

    fn has_moves_left(&self) -> bool {
        self.moves.len() < self.balancer.settings.max_moves
    }

    /// Moves the buckets of workers that may own none, heaviest first, also those that rest.
    fn evacuate(&mut self) {
        for at in 0..self.buckets.len() {
            let Some(to) = self.least_loaded().filter(|_| self.has_moves_left()) else { return };
            if !self.allowed.contains(self.buckets[at].owner) {
                self.apply(at, to, MoveReason::NotAllowed);
            }
        }
    }

    /// Moves buckets from workers with an excess to the least loaded.
    fn level_out(&mut self) {
        while self.has_moves_left() {
            let level = self.level();
            let Some(to) = self.least_loaded() else { return };
            let mut donors: Vec<(usize, f64)> = (0..self.workers.len())
                .map(|at| (at, self.excess(&self.workers[at], level)))
                .filter(|&(at, excess)| at != to && excess > self.balancer.settings.threshold / 2.0)
                .collect();
            donors.sort_by(|a, b| b.1.total_cmp(&a.1));
            let choice = donors.iter().find_map(|&(from, excess)| {
                self.choose(from, to, excess, level).map(|bucket| (bucket, from))
            });
            let Some((bucket, from)) = choice else { return };
            let reason = self.reason(from, level);
            self.apply(bucket, to, reason);
        }
    }

    /// The bucket to move: the heaviest that is at most the donor's excess and at most the load
    /// that the receiver lacks, so that few moves suffice; else the lightest that fits neither
    /// but still relieves the pair.
    fn choose(&self, from: usize, to: usize, excess: f64, level: f64) -> Option<usize> {
        let (donor, receiver) = (&self.workers[from], &self.workers[to]);
        let fits = excess.min(level - receiver.load);
        let relieves = donor.load - receiver.load - self.balancer.settings.threshold / 2.0;
        let mut lightest = None;
        for (at, bucket) in self.buckets.iter().enumerate() {
            if bucket.owner != donor.id || !bucket.movable || bucket.load <= 0.0 {
                continue;
            }
            if bucket.load <= fits {
                return Some(at);
            }
            if bucket.load < relieves && bucket.load > self.balancer.settings.threshold / 2.0 {
                lightest = Some(at);
            }
        }
        lightest
    }

    fn reason(&self, from: usize, level: f64) -> MoveReason {
        let Worker { id, load } = self.workers[from];
        match self.heaviest_of(id) {
            Some(elephant) if elephant.load > level => {
                MoveReason::Elephant { bucket: elephant.id, load: elephant.load }
            }
            _ => MoveReason::Overloaded { load, level },
        }
    }

    fn apply(&mut self, at: usize, to: usize, reason: MoveReason) {
        let bucket = &mut self.buckets[at];
        let change = BucketMove { bucket: bucket.id, from: bucket.owner, to: self.workers[to].id };
        let load = bucket.load;
        (bucket.owner, bucket.movable) = (change.to, false);
        if let Some(from) = self.workers.iter_mut().find(|worker| worker.id == change.from) {
            from.load -= load;
        }
        self.workers[to].load += load;
        self.moves.push(Move { change, load, reason });
    }
}

#[cfg(test)]
#[path = "balance_tests.rs"]
mod tests;
