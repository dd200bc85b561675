//! Export and import of connections over all workers. [`crate::path::records`] says what a worker
//! does.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use conntrack::{AnnouncementCursor, AnnouncementRecord, ConnectionRecord, Cursor, ImportRefusal};
use flow::replica::Origin;
use flow::{FlowKey, Timestamp};
use ruleset::{ElementCursor, ElementRecord, ElementRefusal};
use steer::{BucketId, WorkerId};

use crate::Gateway;
use crate::control::coordinator::Coordinator;
use crate::control::offers::{LOT, PAUSE, TRIES};
use crate::control::record::{Record, RecordRefusal};
use crate::control::worker_handle::Unresponsive;
use crate::path::records::{Exported, Filed, ImportedLot};
use crate::path::rules::ruleset::Rules;
use crate::worker::command::Question;

/// How often records are offered again in whose place packets open connections.
const UNSETTLED_TRIES: usize = 100;

/// The results of an import.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImportReport {
    /// Number of records that are connections now.
    pub imported: u64,
    /// Number of records of what connections have announced that were taken over.
    pub announced: u64,
    /// Number of records that are elements of sets now.
    pub elements: u64,
    /// Number of records that were not taken over, by reason.
    pub refused: BTreeMap<RecordRefusal, u64>,
}

impl ImportReport {
    fn refuse(&mut self, refusal: RecordRefusal) {
        *self.refused.entry(refusal).or_default() += 1;
    }
}

/// The reason of records in whose place packets have opened connections all the time.
const OPENING: RecordRefusal = RecordRefusal::Tracking(ImportRefusal::Opening);

/// A record that a worker imports.
trait OfWorker: Sized {
    /// The key by which its bucket is chosen; `None` if any worker can import it.
    fn bucket_key(&self) -> Option<&FlowKey>;

    /// The question that brings records to a worker.
    fn question(records: Filed<Self>, reply: SyncSender<ImportedLot<Self>>) -> Question;
}

impl OfWorker for ConnectionRecord {
    fn bucket_key(&self) -> Option<&FlowKey> {
        Some(self.key())
    }

    fn question(records: Filed<Self>, reply: SyncSender<ImportedLot<Self>>) -> Question {
        Question::Import(records, true, reply)
    }
}

impl OfWorker for AnnouncementRecord {
    fn bucket_key(&self) -> Option<&FlowKey> {
        self.key()
    }

    fn question(records: Filed<Self>, reply: SyncSender<ImportedLot<Self>>) -> Question {
        Question::ImportAnnouncements(records, reply)
    }
}

impl Gateway {
    /// Calls `each` with all that another gateway can take over, until it breaks off: connections,
    /// then what they have announced, then elements of sets that packets change.
    ///
    /// # Errors
    /// [`Unresponsive`].
    pub fn export_records(
        &self,
        each: &mut dyn FnMut(Record) -> ControlFlow<()>,
    ) -> Result<(), Unresponsive> {
        // They are read first: an expectation that is fulfilled meanwhile is there twice, and not
        // missing.
        let announcements = self.export_announcements()?;
        let mut broken = ControlFlow::Continue(());
        self.export_connections(&mut |record| {
            broken = each(Record::Connection(Box::new(record)));
            broken
        })?;
        let mut announced = announcements.into_iter().map(Record::Announcement);
        if broken.is_continue() && announced.try_for_each(&mut *each).is_continue() {
            self.export_elements(&mut |record| each(Record::Element(record)));
        }
        Ok(())
    }

    /// The records of all that connections have announced.
    ///
    /// # Errors
    /// [`Unresponsive`].
    pub fn export_announcements(&self) -> Result<Vec<AnnouncementRecord>, Unresponsive> {
        let mut records = Vec::new();
        let mut next = Some(AnnouncementCursor::default());
        while let Some(from) = next {
            let question = |reply| Question::ExportAnnouncements(from, reply);
            // All workers share one table of them.
            let Some(answer) = self.shared.lock().ask_worker(WorkerId(0), question) else { break };
            let (piece, rest) = answer?;
            records.extend(piece);
            next = rest;
        }
        Ok(records)
    }

    /// Calls `each` with a record of every element of the sets that packets change, until it breaks
    /// off. Elements that count connections have none: they end with the last of these.
    pub fn export_elements(&self, each: &mut dyn FnMut(ElementRecord) -> ControlFlow<()>) {
        let (rules, now) = self.rules_now();
        let Some(rules) = rules else { return };
        let mut next = Some(ElementCursor::default());
        while let Some(from) = next {
            let mut piece = Vec::new();
            let keep = &mut |record| piece.push(record);
            next = rules.shared().element_records(&rules.program, from, now, keep);
            if piece.into_iter().try_for_each(&mut *each).is_break() {
                return;
            }
        }
    }

    /// Calls `each` with a record of every connection, until it breaks off. It reads a piece of one
    /// bucket at a time, so each record is of the moment in which its piece was read. A tunnel has
    /// one record, the last ones, whose counts are those of its parts in all buckets. Connections
    /// inside tunnels, and flows that rules have left to the host, have no records.
    ///
    /// # Errors
    /// [`Unresponsive`].
    pub fn export_connections(
        &self,
        each: &mut dyn FnMut(ConnectionRecord) -> ControlFlow<()>,
    ) -> Result<(), Unresponsive> {
        let buckets: Vec<BucketId> = self.shared.lock().config.buckets.iter().collect();
        let mut tunnels: BTreeMap<FlowKey, ConnectionRecord> = BTreeMap::new();
        let mut keep = |record: ConnectionRecord| {
            if !record.key().is_tunnel() {
                return each(record);
            }
            match tunnels.entry(*record.key()) {
                Entry::Occupied(mut whole) => whole.get_mut().join(&record),
                Entry::Vacant(place) => {
                    place.insert(record);
                }
            }
            ControlFlow::Continue(())
        };
        for bucket in buckets {
            let mut next = Some(Cursor::default());
            while let Some(from) = next {
                let exported = self.export_piece(bucket, from)?;
                if exported.records.into_iter().try_for_each(&mut keep).is_break() {
                    return Ok(());
                }
                next = exported.rest;
            }
        }
        let _ = tunnels.into_values().try_for_each(each);
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

    /// Takes over records, first the connections. A record that is refused changes nothing.
    ///
    /// # Errors
    /// [`Unresponsive`]; records that were imported before stay.
    pub fn import_records(&self, records: Vec<Record>) -> Result<ImportReport, Unresponsive> {
        let (mut connections, mut announcements, mut elements) = (vec![], vec![], vec![]);
        for record in records {
            match record {
                Record::Connection(record) => connections.push(*record),
                Record::Announcement(record) => announcements.push(record),
                Record::Element(record) => elements.push(record),
            }
        }
        let mut report = self.import_connections(connections)?;
        report.announced = self.import_by_workers(announcements, &mut report)?;
        self.import_elements(&elements, &mut report);
        Ok(report)
    }

    /// Imports records as connections. A record that is refused changes nothing.
    ///
    /// # Errors
    /// [`Unresponsive`]; records that were imported before stay.
    pub fn import_connections(
        &self,
        records: Vec<ConnectionRecord>,
    ) -> Result<ImportReport, Unresponsive> {
        let mut report = ImportReport::default();
        report.imported = self.import_by_workers(records, &mut report)?;
        self.settle_imports(&mut report)?;
        Ok(report)
    }

    /// Waits until all workers know whether replies find the imported connections, and takes those
    /// that have ended again off the report.
    fn settle_imports(&self, report: &mut ImportReport) -> Result<(), Unresponsive> {
        let execution = self.shared.lock().execution.clone();
        let mut slow = WorkerId(0);
        for _ in 0..TRIES {
            let mut waiting = 0;
            let mut coordinator = self.shared.lock();
            for id in (0..coordinator.worker_count() as u16).map(WorkerId) {
                let Some(answer) = coordinator.ask_worker(id, Question::SettledImports) else {
                    break;
                };
                let settled = answer?;
                report.imported = report.imported.saturating_sub(settled.refused.len() as u64);
                for refusal in settled.refused {
                    report.refuse(RecordRefusal::Tracking(refusal));
                }
                if settled.waiting > 0 {
                    (waiting, slow) = (waiting + settled.waiting, id);
                }
            }
            drop(coordinator);
            if waiting == 0 {
                return Ok(());
            }
            execution.pause(PAUSE);
        }
        Err(Unresponsive(slow))
    }

    /// The rules that are in force, and the time.
    pub(in crate::control) fn rules_now(&self) -> (Option<Arc<Rules>>, Timestamp) {
        let coordinator = self.shared.lock();
        (coordinator.rules.clone(), coordinator.execution.now())
    }

    fn import_elements(&self, records: &[ElementRecord], report: &mut ImportReport) {
        let (rules, now) = self.rules_now();
        for record in records {
            let imported = match &rules {
                Some(rules) => {
                    rules.shared().import_element(&rules.program, record, Origin::File, now)
                }
                None => Err(ElementRefusal::NoSet),
            };
            match imported {
                Ok(_) => report.elements += 1,
                Err(refusal) => report.refuse(RecordRefusal::Element(refusal)),
            }
        }
    }

    /// Offers records to the workers until each is taken or refused. Returns how many were taken.
    fn import_by_workers<R: OfWorker>(
        &self,
        records: Vec<R>,
        report: &mut ImportReport,
    ) -> Result<u64, Unresponsive> {
        let execution = self.shared.lock().execution.clone();
        let (mut imported, mut rest) = (0, records);
        for number in 0..TRIES {
            let mut unsettled = Vec::new();
            rest = self.import_once(rest, &mut imported, &mut unsettled, report)?;
            if number < UNSETTLED_TRIES {
                rest.extend(unsettled);
            } else {
                unsettled.iter().for_each(|_| report.refuse(OPENING));
            }
            if rest.is_empty() {
                return Ok(imported);
            }
            execution.pause(PAUSE);
        }
        // The owner of their bucket has not got it, or does not empty its rings.
        let coordinator = self.shared.lock();
        let bucket = rest.first().map(|record| coordinator.bucket_for(record));
        Err(Unresponsive(bucket.map_or(WorkerId(0), |bucket| coordinator.table.owner(bucket))))
    }

    /// Offers records to the owners of their buckets. Returns those that must be offered again.
    fn import_once<R: OfWorker>(
        &self,
        records: Vec<R>,
        imported: &mut u64,
        unsettled: &mut Vec<R>,
        report: &mut ImportReport,
    ) -> Result<Vec<R>, Unresponsive> {
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
                *imported += lot.imported;
                unsettled.extend(lot.unsettled);
                lot.refused.iter().for_each(|it| report.refuse(RecordRefusal::Tracking(*it)));
                again.extend(lot.back.into_iter().map(|(_, record)| record));
            }
        }
    }
}

impl Coordinator {
    /// The bucket to whose owner a record goes.
    fn bucket_for(&self, record: &impl OfWorker) -> BucketId {
        record.bucket_key().map_or(BucketId(0), |key| self.bucket_of(key))
    }

    /// Gives records to the owners of their buckets, all at the same time.
    fn import_lot<R: OfWorker>(
        &mut self,
        records: Vec<R>,
    ) -> Result<Vec<ImportedLot<R>>, Unresponsive> {
        let filed: Filed<R> =
            records.into_iter().map(|record| (self.bucket_for(&record), record)).collect();
        self.offer(filed, R::question)
    }
}
