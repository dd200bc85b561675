//! Copies of the things that the peer's workers share: announcements of connections, and elements of
//! sets.

use std::collections::{BTreeMap, BTreeSet};

use conntrack::ImportRefusal;
use flow::replica::{Origin, Taken};
use flow::{FlowKey, HashKey, KeyedPacket};
use sync::{Applied, Batch, BulkId, Lineage, NameMap, Record, RecordKind, Verdict};

use crate::control::record::{RecordRefusal, SharedRecord};
use crate::control::shared_copies::SharedChange;
use crate::control::worker_handle::Unresponsive;
use crate::path::announcement_copies::Outcome;

use super::{Connections, name_of_shared};

/// Announcements that wait for their connections, at most.
const WAITING_MAX: usize = 1024;

/// Counts of what was done with a peer's records of what its workers share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharedCounters {
    /// Things that were made.
    pub made: u64,
    /// Things that got another state.
    pub changed: u64,
    /// Things that were ended.
    pub ended: u64,
    /// Records that were older than the copy.
    pub stale: u64,
    /// News from the peer about things of this node.
    pub news: u64,
    /// Records that can not be read.
    pub malformed: u64,
    /// Things of this node that those of the peer have prevailed over.
    pub clashes_lost: u64,
    /// Things of the peer that those of this node have prevailed over.
    pub clashes_won: u64,
    /// Things that were not made, by reason.
    pub refused: BTreeMap<RecordRefusal, u64>,
}

/// A thing of the peer.
#[derive(Clone, Debug)]
struct Copy {
    lineage: Lineage,
    thing: Thing,
}

#[derive(Clone, Debug)]
enum Thing {
    /// The state of an announcement. It may have to be filed again with its connection.
    Announcement(Box<SharedRecord>),
    /// The bytes of the name of an element: there may be a million.
    Element(Box<[u8]>),
}

impl Thing {
    fn of(record: SharedRecord, name: &[u8]) -> Self {
        match record {
            SharedRecord::Announcement(_) => Self::Announcement(Box::new(record)),
            SharedRecord::Element(_) => Self::Element(name.into()),
        }
    }

    /// The key of the connection that has to be there before.
    fn master(&self) -> Option<FlowKey> {
        match self {
            Self::Announcement(record) => match &**record {
                SharedRecord::Announcement(record) => record.key().copied(),
                SharedRecord::Element(_) => None,
            },
            Self::Element(_) => None,
        }
    }

    /// The change that ends it.
    fn end(&self) -> Option<SharedChange> {
        let name = match self {
            Self::Announcement(record) => record.name(),
            // These are the bytes of a record that was read.
            Self::Element(name) => SharedRecord::decode(name).ok()?,
        };
        Some(SharedChange::End(name, true))
    }
}

/// The peer's things by name.
pub(super) struct SharedCopies {
    names: HashKey,
    held: NameMap<Copy>,
    /// The names of announcements, by the key of their connection.
    by_master: BTreeMap<FlowKey, BTreeSet<u64>>,
    /// Announcements whose connection was not here.
    waiting: BTreeSet<u64>,
    /// The last change of each name.
    changes: BTreeMap<u64, SharedChange>,
    counters: SharedCounters,
    lacks_zones: bool,
}

impl SharedCopies {
    /// None yet.
    pub fn new(names: HashKey) -> Self {
        Self {
            names,
            held: NameMap::default(),
            by_master: BTreeMap::new(),
            waiting: BTreeSet::new(),
            changes: BTreeMap::new(),
            counters: SharedCounters::default(),
            lacks_zones: false,
        }
    }

    /// None any more, with the same counts.
    pub fn given_up(&mut self) -> Self {
        Self { counters: std::mem::take(&mut self.counters), ..Self::new(self.names) }
    }

    pub fn len(&self) -> usize {
        self.held.len() - self.waiting.len()
    }

    /// News of the peer about what this node owns, so far.
    pub fn news(&self) -> u64 {
        self.counters.news
    }

    pub fn counters(&self) -> SharedCounters {
        self.counters.clone()
    }

    pub fn waiting_changes(&self) -> usize {
        self.changes.len()
    }

    /// True for the name of a thing of the peer.
    pub fn has(&self, name: u64) -> bool {
        self.held.contains_key(&name)
    }

    /// True if records were refused, since a bulk transfer began, because their zones are not
    /// configured here.
    pub fn lacks_zones(&self) -> bool {
        self.lacks_zones
    }

    pub fn begin_bulk(&mut self) {
        self.lacks_zones = false;
    }

    /// Things that the peer no longer has end.
    pub fn end_bulk(&mut self, applied: &Applied, bulk: BulkId) {
        let is_left = |copy: &Copy| applied.is_left_over(&copy.lineage, bulk);
        let left = self.held.iter().filter(|(_, copy)| is_left(copy));
        let left: Vec<u64> = left.map(|(name, _)| *name).collect();
        left.into_iter().for_each(|name| self.end(name));
    }

    /// The peer owns a thing that was this node's.
    pub fn take_in(&mut self, record: SharedRecord, lineage: Lineage) {
        let mut bytes = Vec::new();
        record.name().encode(&mut bytes);
        let name = name_of_shared(self.names, &bytes);
        self.hold(name, Copy { lineage, thing: Thing::of(record, &bytes) });
    }

    fn hold(&mut self, name: u64, copy: Copy) {
        if let Some(master) = copy.thing.master() {
            self.by_master.entry(master).or_default().insert(name);
        }
        self.held.insert(name, copy);
    }

    fn forget(&mut self, name: u64) -> Option<Copy> {
        self.waiting.remove(&name);
        let copy = self.held.remove(&name)?;
        if let Some(master) = copy.thing.master()
            && let Some(names) = self.by_master.get_mut(&master)
        {
            names.remove(&name);
            if names.is_empty() {
                self.by_master.remove(&master);
            }
        }
        Some(copy)
    }

    /// The peer has ended a thing.
    fn end(&mut self, name: u64) {
        if let Some(end) = self.forget(name).and_then(|copy| copy.thing.end()) {
            self.changes.insert(name, end);
        }
    }

    /// Decides about a record.
    pub fn decide_on(
        &mut self,
        applied: &mut Applied,
        batch: &Batch,
        record: &Record<'_>,
        prevails: bool,
    ) {
        let name = record.identity.key;
        // It is read first: a record that can not be read changes nothing.
        let state = match record.kind {
            RecordKind::End => None,
            _ => match self.read(name, record.body) {
                Some(state) => Some(state),
                None => return self.counters.malformed += 1,
            },
        };
        if let RecordKind::News | RecordKind::EndNews = record.kind
            && let Some((state, _)) = state
        {
            // Also if this node believes that the peer owns it: the peer does not.
            self.counters.news += 1;
            self.forget(name);
            let change = match record.kind {
                RecordKind::News => SharedChange::State(state, Origin::News),
                _ => SharedChange::End(state, false),
            };
            self.changes.insert(name, change);
            return;
        }
        let held = self.held.get(&name).map(|copy| copy.lineage);
        match (applied.decide(batch.time(), held, record), state) {
            (
                Verdict::Insert(lineage) | Verdict::Replace(lineage) | Verdict::Update(lineage),
                Some((state, bytes)),
            ) => {
                let origin = Origin::Owner { prevails };
                self.changes.insert(name, SharedChange::State(state.clone(), origin));
                self.hold(name, Copy { lineage, thing: Thing::of(state, &bytes) });
            }
            (Verdict::End, _) => self.end(name),
            (Verdict::Keep(lineage), _) => {
                if let Some(copy) = self.held.get_mut(&name) {
                    copy.lineage = lineage;
                }
                self.counters.stale += 1;
            }
            _ => self.counters.stale += 1,
        }
    }

    /// The thing in a record, with the bytes of its name. `None` if that is not its name.
    fn read(&self, name: u64, body: &[u8]) -> Option<(SharedRecord, Vec<u8>)> {
        let state = SharedRecord::decode(body).ok()?;
        let mut bytes = Vec::new();
        state.name().encode(&mut bytes);
        (name_of_shared(self.names, &bytes) == name).then_some((state, bytes))
    }

    /// Gives the changes to those who have the things. `opened` are connections that were made just
    /// now: what they have announced is filed, also if it has been here with an earlier connection of
    /// the same key.
    pub fn apply(
        &mut self,
        gateway: &dyn Connections,
        opened: &[KeyedPacket],
    ) -> Result<(), Unresponsive> {
        if !self.by_master.is_empty() {
            opened.iter().for_each(|original| self.offer_again(&original.key));
        }
        let Some(things) = gateway.shared_things().filter(|_| !self.changes.is_empty()) else {
            self.changes.clear();
            return Ok(());
        };
        let changes = std::mem::take(&mut self.changes).into_values();
        // Ends make room.
        let is_end = |change: &SharedChange| matches!(change, SharedChange::End(..));
        let (mut ordered, states): (Vec<_>, Vec<_>) = changes.partition(is_end);
        ordered.extend(states);
        for (record, outcome) in things.change_shared(ordered)? {
            self.note(&record, outcome);
        }
        Ok(())
    }

    fn offer_again(&mut self, master: &FlowKey) {
        for name in self.by_master.get(master).into_iter().flatten() {
            if let Some(Thing::Announcement(record)) = self.held.get(name).map(|it| &it.thing) {
                // The peer owns it, and this node does not, unless packets have announced the same
                // here: that is decided when it comes next.
                let origin = Origin::Owner { prevails: false };
                let change = SharedChange::State((**record).clone(), origin);
                self.changes.entry(*name).or_insert(change);
            }
        }
    }

    /// Notes the result of a change.
    fn note(&mut self, record: &SharedRecord, outcome: Outcome<RecordRefusal>) {
        let mut bytes = Vec::new();
        record.name().encode(&mut bytes);
        let name = name_of_shared(self.names, &bytes);
        let counters = &mut self.counters;
        match outcome {
            Outcome::Taken(taken) => {
                self.waiting.remove(&name);
                match taken {
                    Taken::Made => counters.made += 1,
                    Taken::Changed => counters.changed += 1,
                    Taken::GivenUp => counters.clashes_lost += 1,
                    Taken::Kept => {
                        counters.clashes_won += 1;
                        self.forget(name);
                    }
                }
            }
            Outcome::Ended(has_ended) => counters.ended += u64::from(has_ended),
            // Its connection may be on its way.
            Outcome::Refused(RecordRefusal::Tracking(ImportRefusal::Master))
                if self.held.contains_key(&name)
                    && (self.waiting.len() < WAITING_MAX || self.waiting.contains(&name)) =>
            {
                self.waiting.insert(name);
            }
            Outcome::Refused(refusal) => {
                *counters.refused.entry(refusal).or_default() += 1;
                self.lacks_zones |= refusal == RecordRefusal::Tracking(ImportRefusal::Zone);
                // The next record of it is another try.
                self.forget(name);
            }
        }
    }
}
