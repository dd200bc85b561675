//! Changes of connections for a peer, and copies of a peer's connections, over all workers.
//! [`crate::path::replication`] says what a worker does.

use std::collections::BTreeMap;
use std::time::Duration;

use conntrack::{Cursor, ImportRefusal};
use flow::KeyedPacket;
use steer::{BucketId, WorkerId};

use crate::Gateway;
use crate::control::coordinator::Coordinator;
use crate::control::worker_handle::{Unresponsive, WorkerHandle};
use crate::path::replication::{AppliedLot, ChangeStream, ChangeTap, CopyChange, ToldPiece};
use crate::worker::command::{Command, Question};

/// Most changes that one question brings to a worker: packets wait no longer than for two batches.
const LOT: usize = 128;
/// How often changes are offered again to workers that have no room in their rings.
const TRIES: usize = 1000;
/// The time between two tries.
const PAUSE: Duration = Duration::from_millis(1);

/// The part that workers have in replication.
#[derive(Default)]
pub struct ReplicationRole {
    /// The reader of changes.
    tap: Option<ChangeTap>,
    /// Copies of a peer's connections stay when their time is over.
    stands_by: bool,
}

impl ReplicationRole {
    /// Tells a new worker.
    pub fn introduce(&self, handle: &mut WorkerHandle) -> Result<(), Unresponsive> {
        handle.tell(Command::StandBy(self.stands_by))?;
        match self.tap.as_ref().and_then(|tap| tap.connect(&handle.wakeup)) {
            Some(sender) => handle.tell(Command::SendChanges(Some(Box::new(sender)))),
            None => Ok(()),
        }
    }
}

/// The results of changes of copies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CopyReport {
    /// Connections that were made.
    pub made: u64,
    /// Connections that got another state.
    pub changed: u64,
    /// Connections that were ended.
    pub ended: u64,
    /// Connections that were not made, with the reasons.
    pub refused: Vec<(KeyedPacket, ImportRefusal)>,
}

impl Gateway {
    /// Follows the changes of all connections from now on. Only the last reader gets them.
    ///
    /// # Errors
    /// [`Unresponsive`].
    pub fn follow_changes(&self) -> Result<ChangeStream, Unresponsive> {
        let mut coordinator = self.shared.lock();
        let (tap, stream) = ChangeTap::new(coordinator.execution.now());
        coordinator.replication.tap = Some(tap.clone());
        coordinator.for_each_worker(|handle| match tap.connect(&handle.wakeup) {
            Some(sender) => handle.tell(Command::SendChanges(Some(Box::new(sender)))),
            None => Ok(()),
        })?;
        Ok(stream)
    }

    /// No longer follows changes, so that they cost nothing.
    ///
    /// # Errors
    /// [`Unresponsive`].
    pub fn unfollow_changes(&self) -> Result<(), Unresponsive> {
        let mut coordinator = self.shared.lock();
        coordinator.replication.tap = None;
        coordinator.tell_all(|| Command::SendChanges(None))
    }

    /// Whether copies of a peer's connections stay when their time is over, until the peer ends
    /// them.
    ///
    /// # Errors
    /// [`Unresponsive`].
    pub fn set_stands_by(&self, stands_by: bool) -> Result<(), Unresponsive> {
        let mut coordinator = self.shared.lock();
        coordinator.replication.stands_by = stands_by;
        coordinator.tell_all(|| Command::StandBy(stands_by))
    }

    /// The states of all connections in a piece of a bucket, which a peer hears of now. `None` if
    /// there is no such bucket.
    ///
    /// # Errors
    /// [`Unresponsive`].
    pub fn tell_connections(
        &self,
        bucket: BucketId,
        from: Cursor,
    ) -> Result<Option<ToldPiece>, Unresponsive> {
        for _ in 0..TRIES {
            let mut coordinator = self.shared.lock();
            if bucket.index() >= coordinator.config.buckets.get() {
                return Ok(None);
            }
            let question = |reply| Question::TellAll(bucket, from, reply);
            if let Some(told) = coordinator.ask_owner(bucket, question)? {
                return Ok(Some(told));
            }
            // The bucket is on its way, because a worker hung when it was to move.
            let execution = coordinator.execution.clone();
            drop(coordinator);
            execution.pause(PAUSE);
        }
        Err(Unresponsive(self.shared.lock().table.owner(bucket)))
    }

    /// Makes changes of copies of a peer's connections. Changes of one connection are made in their
    /// order. A change that is refused changes nothing.
    ///
    /// # Errors
    /// [`Unresponsive`]; changes that were made before stay.
    pub fn change_copies(&self, changes: Vec<CopyChange>) -> Result<CopyReport, Unresponsive> {
        let execution = self.shared.lock().execution.clone();
        let mut report = CopyReport::default();
        let mut rest = changes;
        for _ in 0..TRIES {
            rest = self.change_copies_once(rest, &mut report)?;
            if rest.is_empty() {
                return Ok(report);
            }
            execution.pause(PAUSE);
        }
        let coordinator = self.shared.lock();
        let owner = rest.first().map(|change| coordinator.bucket_of(&change.original().key));
        Err(Unresponsive(owner.map_or(WorkerId(0), |bucket| coordinator.table.owner(bucket))))
    }

    /// Returns the changes that must be offered again.
    fn change_copies_once(
        &self,
        changes: Vec<CopyChange>,
        report: &mut CopyReport,
    ) -> Result<Vec<CopyChange>, Unresponsive> {
        let mut again = Vec::new();
        let mut changes = changes.into_iter();
        loop {
            let some: Vec<_> = changes.by_ref().take(LOT).collect();
            if some.is_empty() {
                return Ok(again);
            }
            // Buckets stay where they are while the lock is held.
            for lot in self.shared.lock().change_lot(some)? {
                report.made += lot.made;
                report.changed += lot.changed;
                report.ended += lot.ended;
                report.refused.extend(lot.refused);
                again.extend(lot.back.into_iter().map(|(_, change)| change));
            }
        }
    }
}

impl Coordinator {
    /// Gives changes to the owners of their buckets, all at the same time.
    fn change_lot(&mut self, changes: Vec<CopyChange>) -> Result<Vec<AppliedLot>, Unresponsive> {
        let mut by_owner: BTreeMap<WorkerId, Vec<(BucketId, CopyChange)>> = BTreeMap::new();
        for change in changes {
            let bucket = self.bucket_of(&change.original().key);
            let owner = match self.config.settings.conntrack.faults.loses_records_of_moved_buckets()
            {
                true => WorkerId(bucket.0 % self.worker_count() as u16),
                false => self.table.owner(bucket),
            };
            by_owner.entry(owner).or_default().push((bucket, change));
        }
        let mut pending = Vec::new();
        for (owner, changes) in by_owner {
            pending.push((owner, self.ask_later(owner, |reply| Question::Apply(changes, reply))?));
        }
        let answers = pending.into_iter();
        answers
            .map(|(owner, answer)| self.execution.receive(&answer).ok_or(Unresponsive(owner)))
            .collect()
    }
}
