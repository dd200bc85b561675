//! Connections that go to another gateway or come from one.
//!
//! A record says nothing about buckets, because another gateway may have another secret, another
//! number of buckets and other addresses inside. So a record becomes a connection in the bucket to
//! which this gateway steers the packets of its originator. If it steers the replies to another one,
//! they get an [alias](crate::path::alias_table) there, as those of a connection that a packet opens.

use conntrack::{
    ConnectionId, ConnectionRecord, Cursor, ImportRefusal, Imported, Importing, InterfaceName,
    Interfaces, NoInterfaces,
};
use fib::LinkId;
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

/// The results for some records.
#[derive(Debug, Default)]
pub struct ImportedLot {
    /// Number of records that are connections now.
    pub imported: u64,
    /// The reasons why others are not.
    pub refused: Vec<ImportRefusal>,
    /// Records that this worker could not take now. They come back, for another try.
    pub back: Vec<(BucketId, ConnectionRecord)>,
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

    /// Makes connections of records, each in its bucket.
    pub(crate) fn import(
        &mut self,
        records: Vec<(BucketId, ConnectionRecord)>,
        now: Timestamp,
    ) -> ImportedLot {
        let mut lot = ImportedLot::default();
        let mut epoch = (Zone::default(), self.tracking.zones().map_epoch(Zone::default()));
        for (bucket, record) in records {
            // Aliases are told to other workers. Their rings have to have room.
            if self.buckets.get(bucket).is_none() || !self.buckets.take_news() {
                lot.back.push((bucket, record));
                continue;
            }
            let zone = record.zones().named();
            if zone != epoch.0 {
                epoch = (zone, self.tracking.zones().map_epoch(zone));
            }
            match self.import_one(bucket, &record, epoch.1, now) {
                Ok(_) => lot.imported += 1,
                Err(Some(refusal)) => lot.refused.push(refusal),
                Err(None) => lot.back.push((bucket, record)),
            }
            // It may have taken the place of others that have aliases.
            self.remove_aliases();
        }
        lot
    }

    /// The error is the reason of a refusal; `None` if another try may succeed.
    pub(super) fn import_one(
        &mut self,
        id: BucketId,
        record: &ConnectionRecord,
        epoch: u16,
        now: Timestamp,
    ) -> Result<ConnectionId, Option<ImportRefusal>> {
        let original = record.original();
        let hash = self.hasher.table_hash(&original.key);
        let Self { buckets, hasher, tracking, forwarder, counters, .. } = self;
        let Some(Bucket { connections, aliases, .. }) = buckets.get_mut(id) else {
            return Err(None);
        };
        if aliases.owner(&original, hash).is_some() {
            counters.conntrack.import_refused += 1;
            return Err(Some(ImportRefusal::Clash));
        }
        let hash_of = |key: &FlowKey| hasher.table_hash(key);
        let importing = importing(&hash_of, forwarder, epoch);
        let zone = Some(record.zones().named());
        let mut context = tracking.context_of(zone, now, counters);
        let imported = connections.import(record, importing, &mut context).map_err(Some)?;
        if matches!(imported, Imported::Joined(_)) || record.needs_no_alias() {
            return Ok(imported.id());
        }
        let filing = self.direct(id, (original, hash), record.reply(), None, now);
        let refusal = match filing {
            None | Some(Filing::Filed) => None,
            Some(Filing::Taken) => Some(Some(ImportRefusal::Clash)),
            Some(Filing::Full) => Some(Some(ImportRefusal::Index)),
            // So many packets wait for aliases now that this one can not be asked for.
            Some(Filing::Crowded) => Some(None),
        };
        if let Some(refusal) = refusal {
            self.take_back_import(id, (original, hash), now);
            self.counters.conntrack.import_refused += u64::from(refusal.is_some());
            return Err(refusal);
        }
        self.resteer_imported(id, (original, hash), now);
        Ok(imported.id())
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
        counters.conntrack.imported -= 1;
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
) -> Importing<'a> {
    Importing {
        hash,
        interfaces: interfaces_of(forwarder),
        // The record is older than the last packets. So the tracker may start over if the next
        // packet does not fit, as for a connection that comes from another zone.
        map_epoch: epoch.wrapping_sub(1),
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
}

#[cfg(test)]
#[path = "records_tests.rs"]
mod tests;
