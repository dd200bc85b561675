//! Changes of connections for a peer, and copies of a peer's connections, over all workers.
//! [`crate::path::replication`] says what a worker does.

use std::sync::mpsc::SyncSender;
use std::time::Duration;

use conntrack::Cursor;
use flow::PortPart;
use steer::{BucketId, WorkerId};

use crate::Gateway;
use crate::control::coordinator::Coordinator;
use crate::control::offers::{LOT, PAUSE, TRIES};
use crate::control::worker_handle::{Unresponsive, WorkerHandle};
use crate::path::change_ring::{ChangeStream, ChangeTap};
use crate::path::replication::{AppliedLot, CopyChange, CopyReport, Passed, ReplicationPiece};
use crate::worker::command::{Command, Question};

/// The part that workers have in replication.
#[derive(Default)]
pub struct ReplicationRole {
    /// The reader of changes.
    pub(super) tap: Option<ChangeTap>,
    /// A bridge forwards nothing.
    stands_by: bool,
    /// The part of all ports that this gateway gives away.
    port_part: PortPart,
    /// The longest time that the first packet of a connection waits for the reader of changes.
    defers: Option<Duration>,
    /// Changes of what all workers share are collected.
    pub(super) follows_shared: bool,
}

impl ReplicationRole {
    /// Tells a new worker.
    pub fn introduce(&self, handle: &mut WorkerHandle) -> Result<(), Unresponsive> {
        handle.tell(Command::StandBy(self.stands_by))?;
        handle.tell(Command::DividePorts(self.port_part))?;
        match self.tap.as_ref().and_then(|tap| tap.connect(&handle.wakeup)) {
            Some(sender) => handle.tell(Command::SendChanges(Some(Box::new(sender)))),
            None => Ok(()),
        }
    }
}

impl Gateway {
    /// Follows the changes of all connections from now on. Only the last reader gets them.
    ///
    /// # Errors
    /// [`Unresponsive`].
    pub fn follow_changes(&self) -> Result<ChangeStream, Unresponsive> {
        let mut coordinator = self.shared.lock();
        let (mut tap, stream) = ChangeTap::new(coordinator.execution.now());
        tap.set_defers(coordinator.replication.defers);
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

    /// Has the first packet of a connection wait until the reader of changes says that the peer has
    /// the connection, or for so long at most; `None`: no packet waits. It holds from the next
    /// [`Gateway::follow_changes`] on.
    pub fn set_defers(&self, limit: Option<Duration>) {
        self.shared.lock().replication.defers = limit;
    }

    /// Sets whether a bridge forwards nothing, because this gateway is on standby.
    ///
    /// # Errors
    /// [`Unresponsive`].
    pub fn set_stands_by(&self, stands_by: bool) -> Result<(), Unresponsive> {
        let mut coordinator = self.shared.lock();
        coordinator.replication.stands_by = stands_by;
        coordinator.tell_all(|| Command::StandBy(stands_by))
    }

    /// Gives only this part of all ports and IPv4 identifications to translated connections from now
    /// on, because another gateway with the same addresses gives the rest.
    ///
    /// # Errors
    /// [`Unresponsive`].
    pub fn divide_ports(&self, part: PortPart) -> Result<(), Unresponsive> {
        let mut coordinator = self.shared.lock();
        coordinator.replication.port_part = part;
        coordinator.tell_all(|| Command::DividePorts(part))
    }

    /// The states of the connections in a piece of a bucket that this node owns, which a peer hears
    /// of now. `None` if there is no such bucket.
    ///
    /// # Errors
    /// [`Unresponsive`].
    pub fn tell_connections(
        &self,
        bucket: BucketId,
        from: Cursor,
    ) -> Result<Option<ReplicationPiece>, Unresponsive> {
        self.ask_bucket(bucket, |reply| Question::TellAll(bucket, from, reply))
    }

    /// This node owns the connections of the peer in a piece of a bucket from now on. `None` if there
    /// is no such bucket.
    ///
    /// # Errors
    /// [`Unresponsive`].
    pub fn adopt_connections(
        &self,
        bucket: BucketId,
        from: Cursor,
    ) -> Result<Option<Passed>, Unresponsive> {
        self.ask_bucket(bucket, |reply| Question::Adopt(bucket, from, reply))
    }

    /// The peer owns the connections of this node in a piece of a bucket from now on. `None` if there
    /// is no such bucket.
    ///
    /// # Errors
    /// [`Unresponsive`].
    pub fn give_connections_away(
        &self,
        bucket: BucketId,
        from: Cursor,
    ) -> Result<Option<Passed>, Unresponsive> {
        self.ask_bucket(bucket, |reply| Question::GiveAway(bucket, from, reply))
    }

    /// Asks the owner of a bucket, also if the bucket is on its way. `None` if there is no such
    /// bucket.
    fn ask_bucket<T>(
        &self,
        bucket: BucketId,
        question: impl Fn(SyncSender<Option<T>>) -> Question,
    ) -> Result<Option<T>, Unresponsive> {
        for _ in 0..TRIES {
            let mut coordinator = self.shared.lock();
            if bucket.index() >= coordinator.config.buckets.get() {
                return Ok(None);
            }
            if let Some(piece) = coordinator.ask_owner(bucket, &question)? {
                return Ok(Some(piece));
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
        let coordinator = self.shared.lock();
        let execution = coordinator.execution.clone();
        let of_bucket =
            |change: CopyChange| (coordinator.bucket_of(&change.original().key), change);
        let mut rest: Vec<_> = changes.into_iter().map(of_bucket).collect();
        drop(coordinator);
        let mut report = CopyReport::default();
        for _ in 0..TRIES {
            rest = self.change_copies_once(rest, &mut report)?;
            if rest.is_empty() {
                return Ok(report);
            }
            execution.pause(PAUSE);
        }
        let owner = rest.first().map(|(bucket, _)| self.shared.lock().table.owner(*bucket));
        Err(Unresponsive(owner.unwrap_or(WorkerId(0))))
    }

    /// Returns the changes that must be offered again, each with the bucket that its connection is in.
    fn change_copies_once(
        &self,
        changes: Vec<(BucketId, CopyChange)>,
        report: &mut CopyReport,
    ) -> Result<Vec<(BucketId, CopyChange)>, Unresponsive> {
        let mut again = Vec::new();
        let mut changes = changes.into_iter();
        loop {
            let some: Vec<_> = changes.by_ref().take(LOT).collect();
            if some.is_empty() {
                return Ok(again);
            }
            // Buckets stay where they are while the lock is held.
            for lot in self.shared.lock().change_lot(some)? {
                report.add(lot.report);
                again.extend(lot.back);
            }
        }
    }
}

impl Coordinator {
    /// Gives changes to the owners of their buckets, all at the same time.
    fn change_lot(
        &mut self,
        mut filed: Vec<(BucketId, CopyChange)>,
    ) -> Result<Vec<AppliedLot>, Unresponsive> {
        if self.config.settings.conntrack.faults.loses_records_of_moved_buckets() {
            let (workers, buckets) = (self.worker_count(), self.config.buckets.get());
            filed.retain(|(bucket, _)| {
                self.table.owner(*bucket).0 as usize == bucket.index() * workers / buckets
            });
        }
        self.offer(filed, Question::Apply)
    }
}
