//! Connections that go to another gateway or come from one.
//!
//! A record says nothing about buckets, because another gateway may have another secret, another
//! number of buckets and other addresses inside. So a record becomes a connection in the bucket to
//! which this gateway steers the packets of its originator. If it steers the replies to another one,
//! they get an [alias](crate::path::alias_table) there, as those of a connection that a packet opens.

use std::collections::BTreeSet;
use std::net::IpAddr;

use conntrack::{
    AnnouncementCursor, AnnouncementRecord, ConnectionId, ConnectionRecord, Cursor, ImportRefusal,
    Imported, Importing, InterfaceName, Interfaces, NoInterfaces,
};
use fib::LinkId;
use flow::replica::Origin;
use flow::{FlowKey, KeyedPacket, Timestamp, Zone};
use steer::BucketId;

use crate::egress::forwarder::Forwarder;
use crate::egress::routing::Routing;
use crate::path::PacketPath;
use crate::path::alias_table::Filing;
use crate::path::bucket::Bucket;

/// Places of a connection table that one question covers: making a record takes about as long as
/// tracking a packet.
const PIECE: u32 = 256;

/// Records of a piece of a bucket.
#[derive(Debug, Default)]
pub struct Exported {
    /// The records.
    pub records: Vec<ConnectionRecord>,
    /// The start of the next piece; `None` if this was the last.
    pub rest: Option<Cursor>,
}

/// Imported connections whose replies come to a bucket of another worker, until that has filed their
/// aliases.
#[derive(Debug, Default)]
pub struct LateImports {
    waiting: BTreeSet<FlowKey>,
    /// The reasons why some have ended again since somebody asked last.
    refused: Vec<ImportRefusal>,
}

/// The imported connections of a worker that have found out whether their replies find them.
#[derive(Debug)]
pub struct SettledImports {
    /// Number of those that have not.
    pub waiting: usize,
    /// The reasons why others have ended again since the last question.
    pub refused: Vec<ImportRefusal>,
}

/// Most announcements that one question covers: workers that look for one wait meanwhile.
const ANNOUNCEMENTS: usize = 64;

/// A piece of the announcements of the gateway, and the start of the next one.
pub type ExportedAnnouncements = (Vec<AnnouncementRecord>, Option<AnnouncementCursor>);

/// Records, each with the bucket in which it belongs.
pub type Filed<R> = Vec<(BucketId, R)>;

/// The results for some records.
#[derive(Debug)]
pub struct ImportedLot<R> {
    /// Number of records that were taken over.
    pub imported: u64,
    /// The reasons why others were not.
    pub refused: Vec<ImportRefusal>,
    /// Records in whose place a packet opens a connection now. If that is refused, they may be
    /// imported.
    pub unsettled: Vec<R>,
    /// Records that this worker could not take now. They come back, for another try.
    pub back: Filed<R>,
}

impl<R> Default for ImportedLot<R> {
    fn default() -> Self {
        Self { imported: 0, refused: Vec::new(), unsettled: Vec::new(), back: Vec::new() }
    }
}

/// The result of making a connection of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordImport {
    /// This is the connection. Its replies may still have to find out whether they find it.
    Made(ConnectionId),
    /// The record was refused.
    Refused(ImportRefusal),
    /// The worker can not make it now. Another try may succeed.
    Later,
}

impl PacketPath {
    /// The records of a piece of a bucket; `None` if the bucket is not here.
    pub(crate) fn export(
        &self,
        bucket: BucketId,
        from: Cursor,
        now: Timestamp,
    ) -> Option<Exported> {
        let bucket = self.buckets.get(bucket)?;
        let mut records = Vec::new();
        let interfaces = interfaces_of(&self.forwarder);
        let rest = bucket.connections.records_from(from, PIECE, interfaces, now, |record| {
            records.push(record);
        });
        Some(Exported { records, rest })
    }

    /// The records of a piece of what connections of the gateway have announced.
    pub(crate) fn export_announcements(
        &self,
        from: AnnouncementCursor,
        now: Timestamp,
    ) -> ExportedAnnouncements {
        let (mut records, interfaces) = (Vec::new(), interfaces_of(&self.forwarder));
        let expectations = self.tracking.expectations();
        let each = |record| records.push(record);
        let rest = expectations.records_from(from, ANNOUNCEMENTS, interfaces, now, each);
        (records, rest)
    }

    /// Files announcements, each for a connection of its bucket. The bucket of one that needs no
    /// connection does not matter.
    pub(crate) fn import_announcements(
        &mut self,
        records: Filed<AnnouncementRecord>,
        now: Timestamp,
    ) -> ImportedLot<AnnouncementRecord> {
        let mut lot = ImportedLot::default();
        let Self { buckets, hasher, tracking, forwarder, counters, .. } = self;
        // No announcement asks for the epoch of a zone.
        let hash_of = |key: &FlowKey| hasher.table_hash(key);
        let importing = importing(&hash_of, forwarder, 0, false);
        for (id, record) in records {
            let Some(bucket) = buckets.get(id) else {
                lot.back.push((id, record));
                continue;
            };
            let mut context = tracking.context(now, counters);
            let origin = Origin::File;
            match bucket.connections.import_announcement(&record, origin, importing, &mut context) {
                Ok(_) => lot.imported += 1,
                Err(refusal) => lot.refused.push(refusal),
            }
        }
        lot
    }

    /// Makes connections of records, each in its bucket.
    pub(crate) fn import(
        &mut self,
        records: Filed<ConnectionRecord>,
        needs_addresses: bool,
        now: Timestamp,
    ) -> ImportedLot<ConnectionRecord> {
        let mut lot = ImportedLot::default();
        let mut epoch = (Zone::default(), self.tracking.zones().map_epoch(Zone::default()));
        for (bucket, record) in records {
            // Aliases are told to other workers. Their rings have to have room.
            if self.buckets.get(bucket).is_none() || !self.buckets.have_room_for_news() {
                lot.back.push((bucket, record));
                continue;
            }
            let zone = record.zones().named();
            if zone != epoch.0 {
                epoch = (zone, self.tracking.zones().map_epoch(zone));
            }
            match self.import_one(bucket, &record, (epoch.1, needs_addresses), now) {
                RecordImport::Made(_) => lot.imported += 1,
                RecordImport::Refused(ImportRefusal::Opening) => lot.unsettled.push(record),
                RecordImport::Refused(refusal) => lot.refused.push(refusal),
                RecordImport::Later => lot.back.push((bucket, record)),
            }
            // It may have taken the place of others that have aliases.
            self.remove_aliases();
        }
        lot
    }

    /// Makes a connection of a record.
    pub(super) fn import_one(
        &mut self,
        id: BucketId,
        record: &ConnectionRecord,
        (epoch, needs_addresses): (u16, bool),
        now: Timestamp,
    ) -> RecordImport {
        let original = record.original();
        let hash = self.hasher.table_hash(&original.key);
        if !record.needs_no_alias() && self.has_other(id, &record.reply(), now) {
            self.counters.conntrack.import_refused += 1;
            return RecordImport::Refused(ImportRefusal::Clash);
        }
        let Self { buckets, hasher, tracking, forwarder, counters, .. } = self;
        let Some(Bucket { connections, aliases, .. }) = buckets.get_mut(id) else {
            return RecordImport::Later;
        };
        if aliases.owner(&original, hash).is_some() {
            counters.conntrack.import_refused += 1;
            return RecordImport::Refused(ImportRefusal::Clash);
        }
        let hash_of = |key: &FlowKey| hasher.table_hash(key);
        let importing = importing(&hash_of, forwarder, epoch, needs_addresses);
        let zone = Some(record.zones().named());
        let mut context = tracking.context_of(zone, now, counters);
        let imported = match connections.import(record, importing, &mut context) {
            Ok(imported) => imported,
            Err(refusal) => return RecordImport::Refused(refusal),
        };
        let made = RecordImport::Made(imported.id());
        let needs_no_alias = matches!(imported, Imported::Joined(_)) || record.needs_no_alias();
        if needs_no_alias || self.tracking.settings().conntrack.faults.imports_no_aliases() {
            return made;
        }
        let filing = self.direct(id, (original, hash), record.reply(), None, now);
        let result = match filing {
            Some(Filing::Filed) => made,
            None => {
                self.late_imports.waiting.insert(original.key);
                made
            }
            Some(Filing::Taken) => RecordImport::Refused(ImportRefusal::Clash),
            Some(Filing::Full) => RecordImport::Refused(ImportRefusal::Index),
            // So many packets wait for aliases now that this one can not be asked for.
            Some(Filing::Crowded) => RecordImport::Later,
        };
        match result {
            RecordImport::Made(_) => self.resteer_imported(id, (original, hash), now),
            RecordImport::Refused(_) => {
                self.take_back_import(id, (original, hash), now);
                self.counters.conntrack.import_refused += 1;
            }
            RecordImport::Later => self.take_back_import(id, (original, hash), now),
        }
        result
    }

    /// True if packets like `reply` belong to another connection than one in the bucket `owner`, as
    /// far as this worker knows. It is asked before others give way to a record.
    fn has_other(&self, owner: BucketId, reply: &KeyedPacket, now: Timestamp) -> bool {
        let home = self.hasher.bucket_of_key(&reply.key);
        let hash = self.hasher.table_hash(&reply.key);
        self.buckets.get(home).is_some_and(|bucket| {
            bucket.aliases.owner(reply, hash).is_some_and(|other| other != owner || home == owner)
                || home != owner && bucket.connections.has(reply, hash, now)
        })
    }

    /// Takes the answer about the alias of a connection that was imported; false if it was not. If
    /// the key belongs to another connection, this one ends, and nobody is told of it.
    pub(super) fn settle_import(
        &mut self,
        bucket: BucketId,
        connection: (KeyedPacket, u64),
        filing: Filing,
        now: Timestamp,
    ) -> bool {
        let late = &mut self.late_imports;
        if late.waiting.is_empty() || !late.waiting.remove(&connection.0.key) {
            return false;
        }
        let refusal = match filing {
            Filing::Filed => return true,
            Filing::Taken => ImportRefusal::Clash,
            Filing::Full | Filing::Crowded => ImportRefusal::Index,
        };
        late.refused.push(refusal);
        self.take_back_import(bucket, connection, now);
        self.counters.conntrack.import_refused += 1;
        true
    }

    /// The imported connections that have waited for an answer, since the last question.
    pub(crate) fn settled_imports(&mut self) -> SettledImports {
        let LateImports { waiting, refused } = &mut self.late_imports;
        SettledImports { waiting: waiting.len(), refused: std::mem::take(refused) }
    }

    /// Ends a connection whose replies belong to another one.
    fn take_back_import(
        &mut self,
        bucket: BucketId,
        (original, hash): (KeyedPacket, u64),
        now: Timestamp,
    ) {
        let Self { buckets, tracking, counters, .. } = self;
        if let Some(bucket) = buckets.get_mut(bucket) {
            let mut context = tracking.context(now, counters);
            (context.events, context.ended) = (None, None);
            bucket.connections.end(&original, hash, &mut context);
        }
        counters.conntrack.imported = counters.conntrack.imported.saturating_sub(1);
    }
}

/// The interfaces of the host, which only a router knows.
pub(super) fn interfaces_of(forwarder: &Forwarder) -> &dyn Interfaces {
    match forwarder.router() {
        Some(router) => router.routing(),
        None => &NoInterfaces,
    }
}

/// The facts that an import needs. `epoch` is that of the zone of the connection.
pub(super) fn importing<'a>(
    hash: &'a dyn Fn(&FlowKey) -> u64,
    forwarder: &'a Forwarder,
    epoch: u16,
    needs_addresses: bool,
) -> Importing<'a> {
    Importing {
        hash,
        interfaces: interfaces_of(forwarder),
        // The record is older than the last packets. So the tracker may start over if the next
        // packet does not fit, as for a connection that comes from another zone.
        map_epoch: epoch.wrapping_sub(1),
        needs_addresses,
    }
}

impl Interfaces for Routing {
    fn name_of(&self, number: u32) -> Option<InterfaceName> {
        let bytes = self.name(LinkId(number)).to_be_bytes();
        let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
        InterfaceName::new(std::str::from_utf8(&bytes[..end]).ok()?)
    }

    fn number_of(&self, name: &InterfaceName) -> Option<u32> {
        let bits = ruleset::name_bits(name.as_str())?;
        self.link_named(bits).map(|LinkId(number)| number)
    }

    fn has_address(&self, number: u32, address: IpAddr) -> bool {
        self.is_address_on(LinkId(number), address)
    }
}

#[cfg(test)]
#[path = "records_tests.rs"]
mod tests;
