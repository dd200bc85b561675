//! Announcements that come from another gateway.

use flow::replica::{Origin, Taken};
use flow::{FlowKey, KeyedPacket, Side};

use super::records::Importing;
use super::slab::SECOND;
use super::{Table, records};
use crate::connection::Status;
use crate::expect::{Announcement, AnnouncementRecord, NotTaken};
use crate::helper::Kind;
use crate::{Context, ImportRefusal};

impl Table {
    /// Files what helpers of another gateway have announced. The connection that its
    /// [key](AnnouncementRecord::key) names is in this table, so what depends on that connection
    /// ends with it. Nobody is told of a new expectation, and nothing gives way to it.
    ///
    /// # Errors
    /// [`ImportRefusal`], which is counted; nothing has changed.
    pub fn import_announcement(
        &self,
        record: &AnnouncementRecord,
        origin: Origin,
        importing: Importing<'_>,
        context: &mut Context<'_>,
    ) -> Result<Taken, ImportRefusal> {
        let imported = self.try_import_announcement(record, origin, importing, context);
        context.counters.import_refused += u64::from(imported.is_err());
        imported
    }

    fn try_import_announcement(
        &self,
        record: &AnnouncementRecord,
        origin: Origin,
        importing: Importing<'_>,
        context: &mut Context<'_>,
    ) -> Result<Taken, ImportRefusal> {
        records::check_zones(record.zones(), context)?;
        let interface = importing.number_of(record.interface(), context.settings.faults)?;
        let hash = |key: &FlowKey| (importing.hash)(key);
        let is_there = match &record.0 {
            Announcement::Expectation(it) => {
                let flow = it.master.flow;
                self.helps(&flow, hash(&flow.key), it.master.helper, context)
            }
            Announcement::CallId { master, .. } => {
                let hash = hash(master);
                let sides = [Side::Low, Side::High].into_iter();
                let mut flows = sides.map(|sender| KeyedPacket { key: *master, sender });
                flows.any(|flow| self.helps(&flow, hash, Kind::Pptp, context))
            }
            Announcement::Call { call, .. } => self.has_call(call, hash(call), context),
            Announcement::Media { .. } => true,
        };
        if !is_there {
            return Err(ImportRefusal::Master);
        }
        let (limit, now) = (context.settings.expect_max, context.now);
        let (expectations, mut listener) = context.expecting();
        let taken = expectations.import(record, interface, (limit, origin), now, &mut listener);
        taken.map_err(|why| match why {
            NotTaken::Known => ImportRefusal::Known,
            NotTaken::Clash => ImportRefusal::Clash,
            NotTaken::Full => ImportRefusal::AnnouncementsFull,
        })
    }

    /// Ends what a record of another gateway names. `is_copy`: only if that gateway owns it, as it
    /// has done; otherwise whoever owns it. False if it is not there.
    pub fn end_announcement(
        name: &AnnouncementRecord,
        is_copy: bool,
        context: &mut Context<'_>,
    ) -> bool {
        let now = context.now;
        let (expectations, mut listener) = context.expecting();
        expectations.end_named(name, is_copy, now, &mut listener)
    }

    /// True if the connection that this packet has opened has this helper.
    fn helps(&self, flow: &KeyedPacket, hash: u64, kind: Kind, context: &Context<'_>) -> bool {
        let is_it = |slot: &u32| {
            let entry = &self.slab[*slot];
            !entry.is_over(context.now)
                && entry.head.status.has(Status::HAS_HELPER)
                && self.original(*slot) == *flow
        };
        let slot = self.slot_of_packet(flow, hash).filter(is_it);
        slot.and_then(|slot| self.slab.attached(slot)).is_some_and(|it| it.kind == kind)
    }

    /// True if the connection of an announced call is there.
    fn has_call(&self, call: &FlowKey, hash: u64, context: &Context<'_>) -> bool {
        let is_it = |filed: u32| {
            let entry = &self.slab[filed & !SECOND];
            let head = &entry.head;
            filed & SECOND == 0
                && head.key == *call
                && head.status.has(Status::CALL)
                && !entry.is_over(context.now)
        };
        self.index.find(hash as u32, is_it).is_some()
    }
}

#[cfg(test)]
#[path = "announcement_records_tests.rs"]
mod tests;
