//! The peer's connections, as copies here.

use std::collections::BTreeMap;

use conntrack::{ConnectionRecord, ImportRefusal};
use flow::{HashKey, KeyedPacket};
use sync::{Applied, Batch, BulkId, Faults, Lineage, Mark, Record, RecordKind, Verdict};

use crate::Gateway;
use crate::control::worker_handle::Unresponsive;
use crate::path::replication::CopyChange;

use super::name_of;

/// Changes that are given to the workers in one go, so that datagrams are acknowledged meanwhile.
const CHANGES_AT_ONCE: usize = 1024;

/// Counts of what was done with a peer's records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CopyCounters {
    /// Connections that were made.
    pub made: u64,
    /// Connections that got another state.
    pub changed: u64,
    /// Connections that were ended.
    pub ended: u64,
    /// Records that were older than the copy.
    pub stale: u64,
    /// Records that can not be read.
    pub malformed: u64,
    /// Connections that were not made, by reason.
    pub refused: BTreeMap<ImportRefusal, u64>,
}

#[derive(Clone, Copy, Debug)]
struct Copy {
    lineage: Lineage,
    original: KeyedPacket,
}

/// The peer's connections by name.
pub(super) struct Copies {
    names: HashKey,
    /// The fault that a test has planted.
    faults: Faults,
    applied: Applied,
    /// In the order of their names, so that what is done is the same in each run.
    held: BTreeMap<u64, Copy>,
    changes: Vec<CopyChange>,
    /// The last batch whose records are among the changes.
    mark: Option<Mark>,
    counters: CopyCounters,
    /// Records were refused because their zones are not configured here.
    lacks_zones: bool,
}

impl Copies {
    /// None yet.
    pub fn new(names: HashKey, faults: Faults) -> Self {
        Self {
            names,
            faults,
            applied: Applied::new(faults),
            held: BTreeMap::new(),
            changes: Vec::new(),
            mark: None,
            counters: CopyCounters::default(),
            lacks_zones: false,
        }
    }

    /// Gives them up, because they are this gateway's own connections from now on.
    pub fn give_up(&mut self) {
        *self = Self { counters: self.counters.clone(), ..Self::new(self.names, self.faults) };
    }

    pub fn len(&self) -> usize {
        self.held.len()
    }

    pub fn counters(&self) -> CopyCounters {
        self.counters.clone()
    }

    /// True if changes wait that are worth a visit to the workers.
    pub fn has_many(&self) -> bool {
        self.changes.len() >= CHANGES_AT_ONCE
    }

    /// Another process is the peer now, whose stamps may be lower than those of the one before. Its
    /// bulk transfer tells which of the connections it has.
    pub fn forget_stamps(&mut self) {
        self.applied = Applied::new(self.faults);
        for Copy { lineage, .. } in self.held.values_mut() {
            (lineage.incarnation, lineage.version) = (0, 0);
        }
    }

    /// True if records were refused, since a bulk transfer began, because their zones are not
    /// configured here.
    pub fn lacks_zones(&self) -> bool {
        self.lacks_zones
    }

    pub fn begin_bulk(&mut self, bulk: BulkId) {
        self.lacks_zones = false;
        self.applied.begin_bulk(bulk);
    }

    /// Connections that the peer no longer has end.
    pub fn end_bulk(&mut self, bulk: BulkId) {
        let Self { held, changes, applied, .. } = self;
        held.retain(|_, Copy { lineage, original }| {
            let is_left = applied.is_left_over(lineage, bulk);
            if is_left {
                changes.push(CopyChange::End(*original));
            }
            !is_left
        });
    }

    /// Decides about records, in their order.
    pub fn judge(&mut self, batch: &Batch) {
        for record in batch.records() {
            self.judge_one(batch, &record);
        }
        self.mark = Some(batch.mark());
    }

    fn judge_one(&mut self, batch: &Batch, record: &Record<'_>) {
        let name = record.identity.key;
        // It is read first: a record that can not be read changes nothing.
        let state = match record.kind {
            RecordKind::End => None,
            RecordKind::Insert | RecordKind::Change => {
                match ConnectionRecord::decode(record.body) {
                    Ok(state) if name_of(self.names, &state.original()) == name => Some(state),
                    _ => return self.counters.malformed += 1,
                }
            }
        };
        let held = self.held.get(&name).copied();
        let lineage = held.map(|it| it.lineage);
        match (self.applied.judge(batch.time(), lineage, record), state, held) {
            (
                Verdict::Insert(lineage) | Verdict::Replace(lineage) | Verdict::Update(lineage),
                Some(state),
                _,
            ) => {
                let original = state.original();
                self.held.insert(name, Copy { lineage, original });
                self.changes.push(CopyChange::State(Box::new(state)));
            }
            (Verdict::End, _, Some(Copy { original, .. })) => {
                self.held.remove(&name);
                self.changes.push(CopyChange::End(original));
            }
            (Verdict::Keep(lineage), _, Some(copy)) => {
                self.held.insert(name, Copy { lineage, ..copy });
                self.counters.stale += 1;
            }
            _ => self.counters.stale += 1,
        }
    }

    /// Gives the changes to the workers. Returns the last batch that is applied now.
    pub fn apply(&mut self, gateway: &Gateway) -> Result<Option<Mark>, Unresponsive> {
        if self.changes.is_empty() {
            return Ok(self.mark.take());
        }
        let report = gateway.change_copies(std::mem::take(&mut self.changes))?;
        self.counters.made += report.made;
        self.counters.changed += report.changed;
        self.counters.ended += report.ended;
        for (original, refusal) in report.refused {
            *self.counters.refused.entry(refusal).or_default() += 1;
            self.lacks_zones |= refusal == ImportRefusal::Zone;
            // The next record of it is another try.
            self.held.remove(&name_of(self.names, &original));
        }
        Ok(self.mark.take())
    }
}
