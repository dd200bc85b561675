//! The peer's connections, as copies here.

use std::collections::BTreeMap;
use std::hint::black_box;

use conntrack::{ConnectionRecord, ImportRefusal, decode_flow};
use flow::{HashKey, KeyedPacket};
use sync::{Applied, Batch, BulkId, Faults, Lineage, Mark, NameMap, Record, RecordKind, Verdict};

use crate::control::record::SharedRecord;
use crate::control::worker_handle::Unresponsive;
use crate::path::replication::CopyChange;

use super::ownership::Given;
use super::shared::{SharedCopies, SharedCounters};
use super::{Connections, name_of};

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
    /// News from the peer about connections of this node.
    pub news: u64,
    /// Connections of this node that ended or were given up, because those of the peer prevail.
    pub clashes_lost: u64,
    /// Connections of the peer that were refused, because those of this node prevail.
    pub clashes_won: u64,
    /// Records that can not be read.
    pub malformed: u64,
    /// Connections that were not made, by reason.
    pub refused: BTreeMap<ImportRefusal, u64>,
    /// The same for what workers share.
    pub shared: SharedCounters,
}

/// Records that wait for the end of the connection that they clash with, at most.
const CLASHING_MAX: usize = 1024;

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
    held: NameMap<Copy>,
    changes: Vec<CopyChange>,
    /// Records of connections that clash with others, by name. If a bucket moves between two workers of
    /// the peer, the end of a connection may come behind the start of one that takes its ports.
    clashing: NameMap<CopyChange>,
    /// The last batch whose records are among the changes.
    mark: Option<Mark>,
    counters: CopyCounters,
    /// Records were refused because their zones are not configured here.
    lacks_zones: bool,
    /// Copies of the things that the peer's workers share.
    shared: SharedCopies,
}

impl Copies {
    /// None yet.
    pub fn new(names: HashKey, faults: Faults) -> Self {
        Self {
            names,
            faults,
            applied: Applied::new(faults),
            held: NameMap::default(),
            changes: Vec::new(),
            clashing: NameMap::default(),
            mark: None,
            counters: CopyCounters::default(),
            lacks_zones: false,
            shared: SharedCopies::new(names),
        }
    }

    /// Gives them up, because they are this gateway's own from now on.
    pub fn give_up(&mut self) {
        let (counters, shared) = (self.counters.clone(), self.shared.given_up());
        *self = Self { counters, shared, ..Self::new(self.names, self.faults) };
    }

    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// The number of things that the peer's workers share and that are here.
    pub fn shared(&self) -> usize {
        self.shared.len()
    }

    pub fn counters(&self) -> CopyCounters {
        CopyCounters { shared: self.shared.counters(), ..self.counters.clone() }
    }

    /// True if changes wait that are worth a visit to the workers.
    pub fn has_many(&self) -> bool {
        self.changes.len() >= CHANGES_AT_ONCE || self.shared.waiting_changes() >= CHANGES_AT_ONCE
    }

    /// The peer owns something that was this node's. Its next bulk transfer tells whether it has
    /// it.
    pub fn take_in(&mut self, given: Given) {
        let lineage = Lineage { incarnation: 0, version: 0, seen: BulkId::default() };
        match given {
            Given::Connection(original) => {
                self.held.insert(name_of(self.names, &original), Copy { lineage, original });
            }
            Given::Shared(record) => self.shared.take_in(record, lineage),
        }
    }

    /// True if records were refused, since a bulk transfer began, because their zones are not
    /// configured here.
    pub fn lacks_zones(&self) -> bool {
        self.lacks_zones || self.shared.lacks_zones()
    }

    pub fn begin_bulk(&mut self, bulk: BulkId) {
        self.lacks_zones = false;
        self.shared.begin_bulk();
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
        self.shared.end_bulk(&self.applied, bulk);
    }

    /// Decides about records, in their order. `prevails` is true if a connection of the peer remains
    /// where one of this node clashes with it. Returns how many of them were news of what this node
    /// owns.
    pub fn decide_on_all(&mut self, batch: &Batch, prevails: bool) -> u64 {
        let news_before = self.news();
        // The places of all names come into the cache at the same time, since nothing else is done
        // in between. A standby with a million copies would wait for the memory of each otherwise.
        let records: Vec<_> = batch.records().collect();
        let is_held = |record: &&Record<'_>| self.held.contains_key(&record.identity.key);
        black_box(records.iter().filter(is_held).count());
        for record in &records {
            self.decide_on(batch, record, prevails);
        }
        self.mark = Some(batch.mark());
        self.news() - news_before
    }

    /// News of the peer about what this node owns, so far.
    fn news(&self) -> u64 {
        self.counters.news + self.shared.news()
    }

    /// True for a record of something that the peer's workers share, and not of a connection.
    fn is_shared(&self, record: &Record<'_>) -> bool {
        let name = record.identity.key;
        match record.kind {
            RecordKind::End => self.shared.has(name),
            RecordKind::EndNews => {
                // The bytes of a flow have no kind, and its name is a keyed hash.
                let is_flow = |original| name_of(self.names, &original) == name;
                SharedRecord::is_kind_of(record.body)
                    && !decode_flow(record.body).is_ok_and(is_flow)
            }
            RecordKind::Insert | RecordKind::Change | RecordKind::News => {
                SharedRecord::is_kind_of(record.body)
            }
        }
    }

    fn decide_on(&mut self, batch: &Batch, record: &Record<'_>, prevails: bool) {
        let name = record.identity.key;
        if self.is_shared(record) {
            let applied = &mut self.applied;
            return self.shared.decide_on(applied, batch, record, prevails);
        }
        // It is read first: a record that can not be read changes nothing.
        let state = match record.kind {
            RecordKind::End => None,
            RecordKind::EndNews => {
                return match decode_flow(record.body) {
                    Ok(original) if name_of(self.names, &original) == name => {
                        self.counters.news += 1;
                        self.held.remove(&name);
                        self.changes.push(CopyChange::EndNews(original));
                    }
                    _ => self.counters.malformed += 1,
                };
            }
            RecordKind::Insert | RecordKind::Change | RecordKind::News => {
                match ConnectionRecord::decode(record.body) {
                    Ok(state) if name_of(self.names, &state.original()) == name => Some(state),
                    _ => return self.counters.malformed += 1,
                }
            }
        };
        let state = match (record.kind, state) {
            (RecordKind::News, Some(state)) => {
                // Also if this node believes that the peer owns it: the peer does not.
                self.counters.news += 1;
                self.held.remove(&name);
                return self.changes.push(CopyChange::News(Box::new(state)));
            }
            (_, state) => state,
        };
        let held = self.held.get(&name).copied();
        let lineage = held.map(|it| it.lineage);
        match (self.applied.decide(batch.time(), lineage, record), state, held) {
            (
                Verdict::Insert(lineage) | Verdict::Replace(lineage) | Verdict::Update(lineage),
                Some(state),
                _,
            ) => {
                let original = state.original();
                self.held.insert(name, Copy { lineage, original });
                self.clashing.remove(&name);
                let record = Box::new(state);
                self.changes.push(CopyChange::State { record, prevails });
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
    pub fn apply(&mut self, gateway: &dyn Connections) -> Result<Option<Mark>, Unresponsive> {
        let opened = self.apply_to_connections(gateway)?;
        self.shared.apply(gateway, &opened)?;
        Ok(self.mark.take())
    }

    /// Returns the connections that were made.
    fn apply_to_connections(
        &mut self,
        gateway: &dyn Connections,
    ) -> Result<Vec<KeyedPacket>, Unresponsive> {
        if self.changes.is_empty() {
            return Ok(Vec::new());
        }
        let is_end = |change: &CopyChange| matches!(change, CopyChange::End(_));
        if !self.clashing.is_empty() && self.changes.iter().any(is_end) {
            let Self { clashing, held, changes, .. } = self;
            let again = clashing.drain().filter(|(name, _)| held.contains_key(name));
            changes.extend(again.map(|(_, change)| change));
        }
        let report = gateway.change_copies(std::mem::take(&mut self.changes))?;
        self.counters.made += report.made;
        self.counters.changed += report.changed;
        self.counters.ended += report.ended;
        self.counters.clashes_lost += report.given_up;
        self.counters.clashes_won += report.kept.len() as u64;
        for original in report.kept {
            self.held.remove(&name_of(self.names, &original));
        }
        for (change, refusal) in report.refused {
            *self.counters.refused.entry(refusal).or_default() += 1;
            self.lacks_zones |= refusal == ImportRefusal::Zone;
            let name = name_of(self.names, &change.original());
            if refusal == ImportRefusal::Clash && self.clashing.len() < CLASHING_MAX {
                self.clashing.insert(name, change);
            } else {
                // The next record of it is another try.
                self.held.remove(&name);
            }
        }
        Ok(report.opened)
    }
}
