//! Announcements on their way to a peer, and those of a peer that become copies here.
//!
//! All workers share them, so any worker can read them. A worker is asked because it knows the names
//! of interfaces. A copy is filed by the worker that has the announcing connection, because only that
//! one knows whether the connection is there.

use conntrack::{AnnouncementCursor, AnnouncementRecord, ImportRefusal, Table};
use flow::replica::{Origin, Taken, Told};
use flow::{FlowKey, Timestamp};
use steer::BucketId;

use crate::path::PacketPath;
use crate::path::records::{ExportedAnnouncements, importing, interfaces_of};

/// Most announcements that one question covers: workers that look for one wait meanwhile.
const PIECE: usize = 64;

/// A change of an announcement that comes from a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnnouncementChange {
    /// It has this state.
    State(AnnouncementRecord, Origin),
    /// The thing that the record names has ended. If it is true, only a copy ends.
    End(AnnouncementRecord, bool),
}

impl AnnouncementChange {
    /// Its record.
    pub fn record(&self) -> &AnnouncementRecord {
        let (Self::State(record, _) | Self::End(record, _)) = self;
        record
    }
}

/// The result of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome<R> {
    /// It has the state.
    Taken(Taken),
    /// It has ended; false: it was not there.
    Ended(bool),
    /// Nothing has changed.
    Refused(R),
}

/// The results of changes at one worker, in their order, and those that it could not make now.
#[derive(Debug, Default)]
pub struct AppliedAnnouncements {
    /// Each with its record.
    pub outcomes: Vec<(AnnouncementRecord, Outcome<ImportRefusal>)>,
    /// They come back, for another try.
    pub back: Vec<(BucketId, AnnouncementChange)>,
}

/// Changes of announcements.
#[derive(Debug, Default)]
pub struct TakenAnnouncements {
    /// In the order of their stamps.
    pub changes: Vec<Told<AnnouncementRecord>>,
    /// Ends were lost, so the peer needs all of them once more.
    pub has_lost: bool,
}

/// A piece of all announcements, and the start of the next one.
pub type ToldAnnouncements = (Vec<Told<AnnouncementRecord>>, Option<AnnouncementCursor>);

impl PacketPath {
    /// Some changes that a peer has to hear of.
    pub(crate) fn take_announcements(&self, now: Timestamp) -> TakenAnnouncements {
        let mut changes = Vec::new();
        let interfaces = interfaces_of(&self.forwarder);
        let push = |change| changes.push(change);
        let has_lost = self.tracking.expectations().take_changes(PIECE, interfaces, now, push);
        TakenAnnouncements { changes, has_lost }
    }

    /// A piece of the announcements that this node owns.
    pub(crate) fn tell_announcements(
        &self,
        from: AnnouncementCursor,
        now: Timestamp,
    ) -> ToldAnnouncements {
        let mut changes = Vec::new();
        let interfaces = interfaces_of(&self.forwarder);
        let push = |change| changes.push(change);
        let rest = self.tracking.expectations().tell_all_from(from, PIECE, interfaces, now, push);
        (changes, rest)
    }

    /// Gives a piece of the announcements that this node owns away.
    pub(crate) fn give_announcements_away(
        &self,
        from: AnnouncementCursor,
        now: Timestamp,
    ) -> ExportedAnnouncements {
        let mut given = Vec::new();
        let interfaces = interfaces_of(&self.forwarder);
        let push = |record| given.push(record);
        let rest = self.tracking.expectations().give_away_from(from, PIECE, interfaces, now, push);
        (given, rest)
    }

    /// Makes changes of a peer's announcements here, in their order.
    pub(crate) fn apply_announcements(
        &mut self,
        changes: Vec<(BucketId, AnnouncementChange)>,
        now: Timestamp,
    ) -> AppliedAnnouncements {
        let mut applied = AppliedAnnouncements::default();
        let Self { buckets, hasher, tracking, forwarder, counters, .. } = self;
        let hash_of = |key: &FlowKey| hasher.table_hash(key);
        // No announcement asks for the epoch of a zone.
        let importing = importing(&hash_of, forwarder, 0, false);
        for (id, change) in changes {
            let Some(bucket) = buckets.get(id) else {
                applied.back.push((id, change));
                continue;
            };
            let mut context = tracking.context(now, counters);
            let (record, outcome) = match change {
                AnnouncementChange::State(record, origin) => {
                    let connections = &bucket.connections;
                    let taken =
                        connections.import_announcement(&record, origin, importing, &mut context);
                    (record, taken.map_or_else(Outcome::Refused, Outcome::Taken))
                }
                AnnouncementChange::End(name, is_copy) => {
                    let has_ended = Table::end_announcement(&name, is_copy, &mut context);
                    (name, Outcome::Ended(has_ended))
                }
            };
            applied.outcomes.push((record, outcome));
        }
        applied
    }
}
