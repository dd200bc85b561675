//! Export and import of connections over all workers. [`crate::path::records`] says what a worker
//! does.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::Duration;

use conntrack::{ConnectionRecord, Cursor, ImportRefusal};
use steer::{BucketId, WorkerId};

use crate::Gateway;
use crate::control::coordinator::Coordinator;
use crate::control::worker_handle::Unresponsive;
use crate::path::records::{Exported, ImportedLot};
use crate::worker::command::Question;

/// Most records that one question brings to a worker: packets wait no longer than for two batches.
const LOT: usize = 128;
/// How often records are offered again to workers that have no room in their rings.
const TRIES: usize = 1000;
/// The time between two tries.
const PAUSE: Duration = Duration::from_millis(1);

/// The results of an import.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImportReport {
    /// Number of records that are connections now.
    pub imported: u64,
    /// Number of records that are not, by reason.
    pub refused: BTreeMap<ImportRefusal, u64>,
}

impl ImportReport {
    fn add(&mut self, ImportedLot { imported, refused, .. }: &ImportedLot) {
        self.imported += imported;
        for refusal in refused {
            *self.refused.entry(*refusal).or_default() += 1;
        }
    }
}

impl Gateway {
    /// Calls `each` with a record of every connection, until it breaks off. It reads a piece of one
    /// bucket at a time, so each record is of the moment in which its piece was read. Connections
    /// inside tunnels, and flows that rules have left to the host, have no records.
    ///
    /// # Errors
    /// [`Unresponsive`].
    pub fn export_connections(
        &self,
        each: &mut dyn FnMut(ConnectionRecord) -> ControlFlow<()>,
    ) -> Result<(), Unresponsive> {
        let buckets: Vec<BucketId> = self.shared.lock().config.buckets.iter().collect();
        for bucket in buckets {
            let mut next = Some(Cursor::default());
            while let Some(from) = next {
                let exported = self.export_piece(bucket, from)?;
                if exported.records.into_iter().try_for_each(&mut *each).is_break() {
                    return Ok(());
                }
                next = exported.rest;
            }
        }
        Ok(())
    }

    /// A piece of a bucket, which may be on its way if a worker hung when it was to move.
    fn export_piece(&self, bucket: BucketId, from: Cursor) -> Result<Exported, Unresponsive> {
        for _ in 0..TRIES {
            let mut coordinator = self.shared.lock();
            let question = |reply| Question::Export(bucket, from, reply);
            if let Some(exported) = coordinator.ask_owner(bucket, question)? {
                return Ok(exported);
            }
            let execution = coordinator.execution.clone();
            drop(coordinator);
            execution.pause(PAUSE);
        }
        Err(Unresponsive(self.shared.lock().table.owner(bucket)))
    }

    /// Makes connections of records. A record that does not become one changes nothing.
    ///
    /// # Errors
    /// [`Unresponsive`]; records that were imported before stay.
    pub fn import_connections(
        &self,
        records: Vec<ConnectionRecord>,
    ) -> Result<ImportReport, Unresponsive> {
        let execution = self.shared.lock().execution.clone();
        let mut report = ImportReport::default();
        let mut rest = records;
        for _ in 0..TRIES {
            rest = self.import_once(rest, &mut report)?;
            if rest.is_empty() {
                return Ok(report);
            }
            execution.pause(PAUSE);
        }
        // The owner of their bucket has not got it, or does not empty its rings.
        let coordinator = self.shared.lock();
        let owner = rest.first().map(|record| coordinator.bucket_of(record.key()));
        Err(Unresponsive(owner.map_or(WorkerId(0), |bucket| coordinator.table.owner(bucket))))
    }

    /// Offers records to the owners of their buckets. Returns those that must be offered again.
    fn import_once(
        &self,
        records: Vec<ConnectionRecord>,
        report: &mut ImportReport,
    ) -> Result<Vec<ConnectionRecord>, Unresponsive> {
        let mut again = Vec::new();
        let mut records = records.into_iter();
        loop {
            let some: Vec<_> = records.by_ref().take(LOT).collect();
            if some.is_empty() {
                return Ok(again);
            }
            // Buckets stay where they are while the lock is held.
            let mut coordinator = self.shared.lock();
            for lot in coordinator.import_lot(some)? {
                report.add(&lot);
                again.extend(lot.back.into_iter().map(|(_, record)| record));
            }
        }
    }
}

impl Coordinator {
    /// Gives records to the owners of their buckets, all at the same time.
    fn import_lot(
        &mut self,
        records: Vec<ConnectionRecord>,
    ) -> Result<Vec<ImportedLot>, Unresponsive> {
        let mut by_owner: BTreeMap<WorkerId, Vec<(BucketId, ConnectionRecord)>> = BTreeMap::new();
        for record in records {
            let bucket = self.bucket_of(record.key());
            by_owner.entry(self.table.owner(bucket)).or_default().push((bucket, record));
        }
        let mut pending = Vec::new();
        for (owner, records) in by_owner {
            pending.push((owner, self.ask_later(owner, |reply| Question::Import(records, reply))?));
        }
        let answers = pending.into_iter();
        answers
            .map(|(owner, answer)| self.execution.receive(&answer).ok_or(Unresponsive(owner)))
            .collect()
    }
}
