//! The indirection table: the owner of each bucket.

use crate::{BucketCount, BucketId, WorkerId, WorkerSet};

/// The owner of every bucket. Each worker steers by its own copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndirectionTable {
    owners: Box<[WorkerId]>,
}

/// A change of owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketMove {
    /// The bucket.
    pub bucket: BucketId,
    /// Its owner.
    pub from: WorkerId,
    /// Its next owner.
    pub to: WorkerId,
}

/// There is no worker to own the buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no worker may own the buckets; at least one is needed")]
pub struct NoWorkers;

impl IndirectionTable {
    /// Spreads the buckets over `workers`: bucket b of n goes to worker
    /// number `b * len / n` of the set. That is the choice of receive packet
    /// steering, `(hash * len) >> 32`, for the smallest hash of the bucket, and
    /// no worker gets two buckets more than another.
    ///
    /// # Errors
    /// [`NoWorkers`] when the set is empty.
    pub fn spread(buckets: BucketCount, workers: WorkerSet) -> Result<Self, NoWorkers> {
        let workers: Vec<WorkerId> = workers.iter().collect();
        if workers.is_empty() {
            return Err(NoWorkers);
        }
        let count = buckets.get();
        Ok(Self {
            owners: (0..count).map(|bucket| workers[bucket * workers.len() / count]).collect(),
        })
    }

    /// The owner of a bucket. A number beyond the count is taken modulo the
    /// count, so that there is no bound to check on the packet path.
    #[inline]
    pub fn owner(&self, bucket: BucketId) -> WorkerId {
        self.owners[bucket.index() & (self.owners.len() - 1)]
    }

    /// Gives a bucket to another worker.
    pub fn set_owner(&mut self, bucket: BucketId, worker: WorkerId) {
        let mask = self.owners.len() - 1;
        self.owners[bucket.index() & mask] = worker;
    }

    /// How many buckets there are.
    pub fn len(&self) -> usize {
        self.owners.len()
    }

    /// False: there is at least one bucket.
    pub fn is_empty(&self) -> bool {
        self.owners.is_empty()
    }

    /// All buckets with their owners.
    pub fn iter(&self) -> impl Iterator<Item = (BucketId, WorkerId)> {
        self.owners.iter().enumerate().map(|(index, &owner)| (BucketId(index as u16), owner))
    }

    /// The buckets of one worker.
    pub fn buckets_of(&self, worker: WorkerId) -> impl Iterator<Item = BucketId> {
        self.iter().filter(move |&(_, owner)| owner == worker).map(|(bucket, _)| bucket)
    }

    /// The workers that own at least one bucket.
    pub fn owners(&self) -> WorkerSet {
        self.owners.iter().copied().collect()
    }

    /// The fewest moves after which only `workers` own buckets and no worker has two more than
    /// another. They are used when a worker comes or goes. They ignore the load; that is the
    /// task of [`crate::Balancer`].
    ///
    /// # Errors
    /// [`NoWorkers`] when the set is empty.
    pub fn moves_to(&self, workers: WorkerSet) -> Result<Vec<BucketMove>, NoWorkers> {
        let mut ranked: Vec<(WorkerId, usize)> =
            workers.iter().map(|worker| (worker, self.buckets_of(worker).count())).collect();
        if ranked.is_empty() {
            return Err(NoWorkers);
        }
        // The workers that hold most get the larger quota, which makes the fewest moves.
        ranked.sort_by_key(|&(worker, held)| (std::cmp::Reverse(held), worker));
        let (quota, larger) = (self.len() / ranked.len(), self.len() % ranked.len());
        let mut surplus: Vec<(BucketId, WorkerId)> =
            self.iter().filter(|&(_, owner)| !workers.contains(owner)).collect();
        let mut wanting = Vec::new();
        for (rank, &(worker, held)) in ranked.iter().enumerate() {
            let quota = quota + usize::from(rank < larger);
            surplus.extend(self.buckets_of(worker).skip(quota).map(|bucket| (bucket, worker)));
            wanting.extend(std::iter::repeat_n(worker, quota.saturating_sub(held)));
        }
        let moves = surplus.into_iter().zip(wanting);
        Ok(moves.map(|((bucket, from), to)| BucketMove { bucket, from, to }).collect())
    }
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
