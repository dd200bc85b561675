//! Values that the coordinator offers to the owners of their buckets, some at a time, until each of
//! them is taken.

use std::collections::BTreeMap;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use steer::{BucketId, WorkerId};

use crate::control::coordinator::Coordinator;
use crate::control::worker_handle::Unresponsive;
use crate::worker::command::Question;

/// Most values that one question brings to a worker: packets wait no longer than for two batches.
pub const LOT: usize = 128;
/// How often values are offered again to workers that have no room in their rings.
pub const TRIES: usize = 1000;
/// The time between two tries.
pub const PAUSE: Duration = Duration::from_millis(1);

impl Coordinator {
    /// Offers values to the owners of their buckets, all at the same time.
    pub fn offer<T, A>(
        &mut self,
        values: impl IntoIterator<Item = (BucketId, T)>,
        question: impl Fn(Vec<(BucketId, T)>, SyncSender<A>) -> Question,
    ) -> Result<Vec<A>, Unresponsive> {
        let mut by_owner: BTreeMap<WorkerId, Vec<(BucketId, T)>> = BTreeMap::new();
        for (bucket, value) in values {
            by_owner.entry(self.table.owner(bucket)).or_default().push((bucket, value));
        }
        let mut pending = Vec::new();
        for (owner, values) in by_owner {
            pending.push((owner, self.ask_later(owner, |reply| question(values, reply))?));
        }
        let answers = pending.into_iter();
        answers
            .map(|(owner, answer)| self.execution.receive(&answer).ok_or(Unresponsive(owner)))
            .collect()
    }
}
