//! Changes of connections on their way to a peer, and connections of a peer that become copies here.
//!
//! A worker reads the dirty lists of its tables at the end of each turn and sends the states of the
//! connections through a ring. Another thread encodes and encrypts them. When the ring is full, the
//! connections stay on their lists, so a peer never holds a packet up.

use conntrack::{
    Change, ConnectionId, ConnectionRecord, Context, Cursor, ImportRefusal, Importing, Owner, Table,
};
use flow::{FlowKey, KeyedPacket, PortPart, Timestamp};
use steer::BucketId;

use crate::path::PacketPath;
use crate::path::bucket::Bucket;
use crate::path::change_ring::ChangeSender;
use crate::path::prefetch::Hardware;
use crate::path::records::{RecordImport, importing, interfaces_of};

/// Places of a connection table that one question about all of its connections covers.
const PIECE: u32 = 256;

/// A change of a copy of a peer's connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyChange {
    /// The peer owns it, and it has this state.
    State {
        /// The state.
        record: Box<ConnectionRecord>,
        /// If this node owns such a connection, or one with the same packets, that of the peer
        /// remains.
        prevails: bool,
    },
    /// The peer owned it, and it has ended.
    End(KeyedPacket),
    /// This node owns it, and packets that came to the peer have brought it into this state.
    News(Box<ConnectionRecord>),
    /// This node owns it, and a packet that came to the peer or the peer's operator has ended it.
    EndNews(KeyedPacket),
    /// This node owns it, although it has given it away.
    Keep(KeyedPacket),
}

impl CopyChange {
    /// Key and sender of the packets of the connection's originator.
    pub fn original(&self) -> KeyedPacket {
        match self {
            Self::State { record, .. } | Self::News(record) => record.original(),
            Self::End(original) | Self::EndNews(original) | Self::Keep(original) => *original,
        }
    }

    /// The same change, if it needs no state of the connection.
    pub fn without_record(&self) -> Option<Self> {
        match self {
            Self::State { .. } | Self::News(_) => None,
            Self::End(_) | Self::EndNews(_) | Self::Keep(_) => Some(self.clone()),
        }
    }
}

/// The result of a change.
enum Done {
    Made,
    Changed,
    /// True if there was such a connection.
    Ended(bool),
    /// The connection of this node prevails.
    Kept,
    /// So many connections of this node were given up for it.
    GivenUp(u64),
}

/// The reason why a change was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NotDone {
    Refused(ImportRefusal),
    /// Another try may succeed.
    Later,
}

/// Connections in a piece of a bucket that have another owner now.
#[derive(Debug, Default)]
pub struct Passed {
    /// Key and sender of their originators' packets, if this node owned them.
    pub flows: Vec<KeyedPacket>,
    /// The start of the next piece; `None` if this was the last.
    pub rest: Option<Cursor>,
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
    /// Changes that were not made, with the reasons.
    pub refused: Vec<(CopyChange, ImportRefusal)>,
    /// Connections of the peer that those of this node prevail over.
    pub kept: Vec<KeyedPacket>,
    /// Connections of this node that those of the peer have prevailed over.
    pub given_up: u64,
    /// Key and sender of the originators' packets of the connections that were made.
    pub opened: Vec<KeyedPacket>,
}

impl CopyReport {
    /// Adds the results of other changes.
    pub fn add(&mut self, other: Self) {
        self.made += other.made;
        self.changed += other.changed;
        self.ended += other.ended;
        self.refused.extend(other.refused);
        self.kept.extend(other.kept);
        self.given_up += other.given_up;
        self.opened.extend(other.opened);
    }
}

/// The results for some changes of copies at one worker.
#[derive(Debug, Default)]
pub struct AppliedLot {
    /// The results of those that were made or refused.
    pub report: CopyReport,
    /// Changes that this worker could not make now. They come back, for another try.
    pub back: Vec<(BucketId, CopyChange)>,
}

/// All connections of a piece of a bucket.
#[derive(Debug, Default)]
pub struct ReplicationPiece {
    /// Their states.
    pub changes: Vec<Change>,
    /// The start of the next piece; `None` if this was the last.
    pub rest: Option<Cursor>,
}

impl PacketPath {
    /// Sends changes of connections to this reader from now on, or to none.
    pub(crate) fn set_change_sender(
        &mut self,
        mut sender: Option<Box<ChangeSender>>,
        now: Timestamp,
    ) {
        self.send_all_deferred(now);
        self.deferrals = sender.as_mut().and_then(|sender| sender.take_deferrals());
        let is_exact = sender.as_ref().is_some_and(|sender| sender.is_exact());
        self.tracking.replication_mut().set_exact(is_exact);
        self.change_sender = sender;
        self.begin_replication(now);
    }

    /// Sets whether a bridge forwards nothing.
    pub(crate) fn set_stands_by(&mut self, stands_by: bool) {
        self.forwarder.set_stands_by(stands_by);
    }

    /// Gives only this part of all ports and identifications away from now on.
    pub(crate) fn divide_ports(&mut self, part: PortPart) {
        self.translator.set_part(part);
    }

    /// Begins a turn in which changes are collected, if anybody wants them.
    pub(super) fn begin_replication(&mut self, now: Timestamp) {
        let followed = self.change_sender.as_ref().map(|sender| now.since(sender.since()));
        self.tracking.replication_mut().begin_turn(followed);
    }

    /// Sends what the peer has to hear of. True if there is more, for which the ring has room.
    pub(super) fn send_changes(&mut self, now: Timestamp) -> bool {
        let has_more = self.tell_changes(now);
        self.send_receipt();
        has_more
    }

    /// Sends what is due however little it is. True if nothing is left to be told.
    pub(crate) fn tell_rest(&mut self, now: Timestamp) -> bool {
        self.tracking.replication_mut().hurry();
        self.tell_changes(now);
        !self.tracking.replication().has_tables()
    }

    fn tell_changes(&mut self, now: Timestamp) -> bool {
        if !self.tracking.replication().has_news() {
            return false;
        }
        let Some(sender) = &mut self.change_sender else { return false };
        if sender.is_abandoned() {
            self.set_change_sender(None, now);
            // Packets that have waited for the peer leave at the end of the next turn.
            return true;
        }
        let Self { buckets, tracking, forwarder, counters, .. } = self;
        sender.send_from(|budget, changes| {
            loop {
                let place = tracking.replication_mut().next_table()?;
                // The bucket may have left.
                let Some(bucket) = buckets.get_mut(BucketId(place)) else { continue };
                let interfaces = interfaces_of(forwarder);
                let mut context = tracking.context(now, counters);
                let push = |change| changes.push(change);
                return Some(bucket.connections.take_changes(
                    budget,
                    interfaces,
                    Hardware,
                    &mut context,
                    push,
                ));
            }
        });
        !sender.is_full() && self.tracking.replication().has_news()
    }

    /// The connections of this node in a piece of a bucket, of which a peer hears now; `None` if the bucket is
    /// not here.
    pub(crate) fn tell_all(
        &mut self,
        bucket: BucketId,
        from: Cursor,
        now: Timestamp,
    ) -> Option<ReplicationPiece> {
        let Self { buckets, tracking, forwarder, counters, .. } = self;
        let bucket = buckets.get_mut(bucket)?;
        let interfaces = interfaces_of(forwarder);
        let mut changes = Vec::new();
        let context = tracking.context(now, counters);
        let push = |change| changes.push(change);
        let rest = bucket.connections.tell_all_from(from, PIECE, interfaces, &context, push);
        Some(ReplicationPiece { changes, rest })
    }

    /// Makes changes of a peer's connections here, in their order.
    pub(crate) fn apply(
        &mut self,
        changes: Vec<(BucketId, CopyChange)>,
        now: Timestamp,
    ) -> AppliedLot {
        let hashes = self.prefetch(&changes);
        let mut lot = AppliedLot::default();
        let report = &mut lot.report;
        for ((bucket, change), hash) in changes.into_iter().zip(hashes) {
            // Aliases are told to other workers. Their rings have to have room.
            if self.buckets.get(bucket).is_none() || !self.buckets.have_room_for_news() {
                lot.back.push((bucket, change));
                continue;
            }
            let original = change.original();
            let home = self.home_of(bucket, (&original, hash), now);
            if self.buckets.get(home).is_none() {
                lot.back.push((home, change));
                continue;
            }
            match self.apply_one(home, &change, hash, now) {
                Ok(Done::Made) => {
                    report.made += 1;
                    report.opened.push(original);
                }
                Ok(Done::Changed) => report.changed += 1,
                Ok(Done::Ended(ended)) => report.ended += u64::from(ended),
                Ok(Done::Kept) => report.kept.push(original),
                Ok(Done::GivenUp(count)) => {
                    report.changed += 1;
                    report.given_up += count;
                    report.opened.push(original);
                }
                Err(NotDone::Refused(refusal)) => report.refused.push((change, refusal)),
                Err(NotDone::Later) => {
                    lot.back.push((self.hasher.bucket_of_key(&original.key), change));
                }
            }
            // It may have taken the place of others that have aliases.
            self.remove_aliases();
        }
        lot
    }

    /// Asks for the memory of all connections before the first is needed, as for a batch of packets.
    /// Returns the hashes of their keys.
    fn prefetch(&self, changes: &[(BucketId, CopyChange)]) -> Vec<u64> {
        let hash = |(_, change): &(_, CopyChange)| self.hasher.table_hash(&change.original().key);
        let hashes: Vec<u64> = changes.iter().map(hash).collect();
        let found = || {
            let found = changes.iter().zip(&hashes);
            found.filter_map(|((id, _), hash)| Some((&self.buckets.get(*id)?.connections, *hash)))
        };
        found().for_each(|(connections, hash)| connections.prefetch_index(hash, Hardware));
        for (connections, hash) in found() {
            let _ = connections.prefetch_entry(hash, Hardware);
        }
        hashes
    }

    fn apply_one(
        &mut self,
        id: BucketId,
        change: &CopyChange,
        hash: u64,
        now: Timestamp,
    ) -> Result<Done, NotDone> {
        let original = change.original();
        let Self { buckets, tracking, counters, .. } = self;
        let Some(Bucket { connections, .. }) = buckets.get_mut(id) else {
            return Err(NotDone::Later);
        };
        let mut context = tracking.context(now, counters);
        match change {
            CopyChange::End(_) => {
                Ok(Done::Ended(connections.end_copy(&original, hash, &mut context)))
            }
            CopyChange::EndNews(_) => {
                Ok(Done::Ended(connections.end_original(&original, hash, &mut context)))
            }
            CopyChange::Keep(_) => {
                connections.own_original(&original, hash, &mut context);
                Ok(Done::Changed)
            }
            CopyChange::State { record, prevails: false }
                if connections.owner_of(&record.original(), hash) == Some(Owner::This) =>
            {
                connections.repeat_to_peer(&original, hash, &mut context);
                Ok(Done::Kept)
            }
            CopyChange::State { record, prevails } => {
                self.set_copy(id, record, hash, *prevails, now)
            }
            CopyChange::News(record) => self.take_news(id, record, hash, now),
        }
    }

    /// Gives the peer's connection this state, or makes it.
    fn set_copy(
        &mut self,
        id: BucketId,
        record: &ConnectionRecord,
        hash: u64,
        prevails: bool,
        now: Timestamp,
    ) -> Result<Done, NotDone> {
        let original = record.original();
        let (is_amended, mut given_up) =
            self.with_importing(id, record, now, |connections, importing, context| {
                let owner = connections.owner_of(&original, hash);
                let is_amended = connections.amend_copy(record, importing, context).is_ok();
                // It may have other replies now, because it was translated anew.
                if !is_amended && !connections.end_copy(&original, hash, context) {
                    connections.end_original(&original, hash, context);
                }
                (is_amended, u64::from(owner == Some(Owner::This)))
            })?;
        if is_amended {
            return Ok(if given_up == 0 { Done::Changed } else { Done::GivenUp(given_up) });
        }
        let mut made = self.import_copy(id, record, now);
        if made == Err(NotDone::Refused(ImportRefusal::Clash)) {
            let ended =
                self.with_importing(id, record, now, |connections, importing, context| {
                    if !prevails {
                        connections.tell_clashing(record, importing, context);
                        return 0;
                    }
                    connections.end_clashing(record, importing, context)
                })?;
            given_up += ended;
            self.remove_aliases();
            if ended > 0 {
                made = self.import_copy(id, record, now);
            }
        }
        let made = made?;
        self.with_importing(id, record, now, |connections, _, context| {
            connections.set_copy(made, context);
        })?;
        Ok(if given_up == 0 { Done::Made } else { Done::GivenUp(given_up) })
    }

    /// Makes a connection where its packets are steered to. At a bucket to which an alias has led, it
    /// clashes with the connection of the alias, or the alias led nowhere.
    fn import_copy(
        &mut self,
        id: BucketId,
        record: &ConnectionRecord,
        now: Timestamp,
    ) -> Result<ConnectionId, NotDone> {
        let original = record.original();
        let steered = self.hasher.bucket_of_key(&original.key);
        if steered != id {
            let hash = self.hasher.table_hash(&original.key);
            if self.buckets.get(id).is_some_and(|it| it.connections.has(&original, hash, now)) {
                return Err(NotDone::Refused(ImportRefusal::Clash));
            }
            self.remove_alias(id, (original, hash), steered);
            return Err(NotDone::Later);
        }
        let epoch = self.epoch_of(record);
        match self.import_one(id, record, (epoch, false), now) {
            RecordImport::Made(made) => Ok(made),
            RecordImport::Refused(refusal) => Err(NotDone::Refused(refusal)),
            RecordImport::Later => Err(NotDone::Later),
        }
    }

    /// Takes what the peer has seen of a connection that this node owns. If it is not here, this
    /// node owns it from now on.
    fn take_news(
        &mut self,
        id: BucketId,
        record: &ConnectionRecord,
        hash: u64,
        now: Timestamp,
    ) -> Result<Done, NotDone> {
        let original = record.original();
        let known = self.with_importing(id, record, now, |connections, importing, context| {
            let owner = connections.owner_of(&original, hash)?;
            let amended = connections.amend(record, importing, context).map(|found| {
                if owner == Owner::Peer {
                    connections.set_own(found, context);
                }
            });
            if amended.is_err() {
                connections.repeat_to_peer(&original, hash, context);
            }
            Some(amended)
        })?;
        if let Some(amended) = known {
            return amended.map(|()| Done::Changed).map_err(NotDone::Refused);
        }
        let made = self.import_copy(id, record, now)?;
        self.with_importing(id, record, now, |connections, _, context| {
            connections.set_own(made, context);
        })?;
        Ok(Done::Made)
    }

    fn epoch_of(&self, record: &ConnectionRecord) -> u16 {
        self.tracking.zones().map_epoch(record.zones().named())
    }

    /// Runs `act` with the table of a bucket; the error says that the bucket is not here.
    fn with_importing<T>(
        &mut self,
        id: BucketId,
        record: &ConnectionRecord,
        now: Timestamp,
        act: impl FnOnce(&mut Table, Importing<'_>, &mut Context<'_>) -> T,
    ) -> Result<T, NotDone> {
        let epoch = self.epoch_of(record);
        let Self { buckets, hasher, tracking, forwarder, counters, .. } = self;
        let Some(Bucket { connections, .. }) = buckets.get_mut(id) else {
            return Err(NotDone::Later);
        };
        let hash = |key: &FlowKey| hasher.table_hash(key);
        let importing = importing(&hash, forwarder, epoch, false);
        let mut context = tracking.context_of(Some(record.zones().named()), now, counters);
        Ok(act(connections, importing, &mut context))
    }

    /// This node owns the peer's connections in a piece of a bucket from now on. Returns the start of
    /// the next piece; `None` if the bucket is not here.
    pub(crate) fn adopt(
        &mut self,
        bucket: BucketId,
        from: Cursor,
        now: Timestamp,
    ) -> Option<Passed> {
        let rest = self.with_table(bucket, now, |connections, context| {
            connections.adopt_from(from, PIECE, context)
        })?;
        Some(Passed { flows: Vec::new(), rest })
    }

    /// The peer owns the connections of this node in a piece of a bucket from now on; `None` if the
    /// bucket is not here.
    pub(crate) fn give_away(
        &mut self,
        bucket: BucketId,
        from: Cursor,
        now: Timestamp,
    ) -> Option<Passed> {
        let mut flows = Vec::new();
        let rest = self.with_table(bucket, now, |connections, context| {
            connections.give_away_from(from, PIECE, context, |flow| flows.push(flow))
        })?;
        Some(Passed { flows, rest })
    }

    /// Runs `act` with the table of a bucket; `None` if the bucket is not here.
    fn with_table<T>(
        &mut self,
        bucket: BucketId,
        now: Timestamp,
        act: impl FnOnce(&mut Table, &mut Context<'_>) -> T,
    ) -> Option<T> {
        let Self { buckets, tracking, counters, .. } = self;
        let bucket = buckets.get_mut(bucket)?;
        Some(act(&mut bucket.connections, &mut tracking.context(now, counters)))
    }
}
