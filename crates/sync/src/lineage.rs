//! The rule by which a receiver applies records: the end of an old connection never hits a new one
//! with the same key, and no record rolls a connection back.

use std::collections::VecDeque;
use std::time::Duration;

use flow::Timestamp;

use crate::fault::Faults;
use crate::message::BulkId;
use crate::names::NameMap;
use crate::record::{Record, RecordKind};

/// How long the end of a connection is remembered, by the sender's clock. Two workers' records of one
/// connection may be offered out of order while its bucket moves, at most some turns apart. They may
/// arrive any time apart, if the link is cut between them.
const GRAVE_KEPT: Duration = Duration::from_secs(2);
/// Most ends that are remembered. The oldest is forgotten first, and counted.
pub const GRAVES_MAX: usize = 1 << 17;

/// A receiver keeps this of a connection besides its state: 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lineage {
    /// As in [`Identity`](crate::Identity).
    pub incarnation: u64,
    /// As in [`Identity`](crate::Identity).
    pub version: u32,
    /// The last bulk transfer in which, or after whose beginning, the sender named it.
    pub seen: BulkId,
}

/// The thing to do with a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Make the connection.
    Insert(Lineage),
    /// Make it in the place of an older one with the same key, which has ended.
    Replace(Lineage),
    /// Give the connection this state.
    Update(Lineage),
    /// End the connection.
    End,
    /// Keep the state and this lineage: the record is not newer.
    Keep(Lineage),
    /// Nothing: the record is about a connection that has ended.
    Ignore,
}

/// Decides on the records of one peer.
#[derive(Debug, Default)]
pub struct Applied {
    bulk: BulkId,
    /// The highest incarnation of each key that has ended.
    graves: NameMap<u64>,
    /// The same, with the time until which it is remembered, the oldest first.
    order: VecDeque<(Timestamp, u64, u64)>,
    forgotten: u64,
    faults: Faults,
}

impl Applied {
    /// With a planted fault.
    pub fn new(faults: Faults) -> Self {
        Self { faults, ..Self::default() }
    }

    /// A bulk transfer begins. Connections that it does not name are left over at its end. The sender
    /// has dropped all records from before, so ends need not be remembered any more.
    pub fn begin_bulk(&mut self, bulk: BulkId) {
        self.bulk = bulk;
        self.graves.clear();
        self.order.clear();
    }

    /// True for a connection that the sender no longer had at the end of a bulk transfer: neither
    /// this nor a later one has named it.
    pub fn is_left_over(&self, lineage: &Lineage, bulk: BulkId) -> bool {
        // Numbers rise by one. A mark of an earlier session is hardly ever among the last few.
        let since = |BulkId(number): BulkId| number.wrapping_sub(bulk.0);
        since(lineage.seen) > since(self.bulk)
    }

    /// Ends that had to be forgotten because there were too many of them.
    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// Decides on a record of a batch of this [`time`](crate::Batch::time). `held` is the lineage of the
    /// connection with its key, if there is one.
    pub fn decide(
        &mut self,
        now: Timestamp,
        held: Option<Lineage>,
        record: &Record<'_>,
    ) -> Verdict {
        self.forget(now);
        match record.kind {
            RecordKind::End => self.decide_on_end(now, held, record),
            RecordKind::Insert | RecordKind::Change => self.decide_on_state(held, record),
            // They are about connections of this node.
            RecordKind::News | RecordKind::EndNews => Verdict::Ignore,
        }
    }

    fn decide_on_state(&self, held: Option<Lineage>, record: &Record<'_>) -> Verdict {
        let identity = record.identity;
        let (incarnation, version) = (identity.incarnation, identity.version);
        let new = Lineage { incarnation, version, seen: self.bulk };
        let has_ended = || self.graves.get(&identity.key).is_some_and(|it| *it >= incarnation);
        match held {
            None if has_ended() => Verdict::Ignore,
            None => Verdict::Insert(new),
            Some(held) if incarnation < held.incarnation && !self.faults.takes_stale_updates() => {
                Verdict::Ignore
            }
            Some(held) if incarnation > held.incarnation => Verdict::Replace(new),
            Some(held) if version <= held.version && !self.faults.takes_stale_updates() => {
                Verdict::Keep(Lineage { seen: self.bulk, ..held })
            }
            Some(_) => Verdict::Update(new),
        }
    }

    fn decide_on_end(
        &mut self,
        now: Timestamp,
        held: Option<Lineage>,
        record: &Record<'_>,
    ) -> Verdict {
        let incarnation = record.identity.incarnation;
        let is_newer = held.is_some_and(|held| held.incarnation > incarnation);
        if is_newer && !self.faults.takes_old_ends() {
            return Verdict::Ignore;
        }
        self.bury(now, record.identity.key, incarnation);
        if held.is_some() { Verdict::End } else { Verdict::Ignore }
    }

    fn bury(&mut self, now: Timestamp, key: u64, incarnation: u64) {
        let grave = self.graves.entry(key).or_default();
        *grave = incarnation.max(*grave);
        self.order.push_back((now.after(GRAVE_KEPT), key, *grave));
        if self.order.len() > GRAVES_MAX {
            self.forgotten += 1;
            self.forget_oldest();
        }
    }

    fn forget(&mut self, now: Timestamp) {
        while self.order.front().is_some_and(|(until, ..)| *until <= now) {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        let Some((_, key, incarnation)) = self.order.pop_front() else { return };
        if self.graves.get(&key) == Some(&incarnation) {
            self.graves.remove(&key);
        }
    }
}

#[cfg(test)]
#[path = "lineage_tests.rs"]
mod tests;
