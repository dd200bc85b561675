//! Connections that come from another gateway or go there, without a packet.

use std::time::Duration;

use flow::codec::Millis;
use flow::{FlowKey, KeyedPacket, Timestamp, Zone, ZonePair};

use super::entry::Entry;
use super::planted::time_left;
use super::slab::{SECOND, SideFacts};
use super::{Cursor, Table};
use crate::capacity::Shortage;
use crate::connection::Status;
use crate::fault::Faults;
use crate::helper::{Holder, RecordedHelper};
use crate::nat::{BucketPorts, Request, Supply, TranslatedEnd};
use crate::proto::{RecordedState, State};
use crate::record::{Facts, RecordedTranslation};
use crate::syn_proxy::Screening;
use crate::{
    ConnectionId, ConnectionRecord, Context, Counts, ImportRefusal, InterfaceName, Interfaces,
    Settings,
};

/// Most time that a record may leave a connection with a helper, seconds. Helpers keep connections
/// for longer than the protocol does, such as an endpoint that is registered with its gatekeeper.
const LONGEST_KEPT_S: u32 = 86_400;

/// The facts about the gateway that an import needs.
#[derive(Clone, Copy)]
pub struct Importing<'a> {
    /// The hash of a flow key, as the table needs it.
    pub hash: &'a dyn Fn(&FlowKey) -> u64,
    /// The interfaces.
    pub interfaces: &'a dyn Interfaces,
    /// The [epoch](crate::TrackedPacket::map_epoch) of the last packet of the connection. If it
    /// is before that of its zone, the connection may have continued at another gateway, so its
    /// tracker catches up with the next packets.
    pub map_epoch: u16,
    /// True if a masqueraded connection is refused when the interface does not have its address. A
    /// gateway that gets the address only when another one fails takes it over all the same.
    pub needs_addresses: bool,
}

impl Importing<'_> {
    /// The number of the interface that a record names.
    pub(super) fn number_of(
        &self,
        name: Option<&InterfaceName>,
        faults: Faults,
    ) -> Result<Option<u32>, ImportRefusal> {
        let number = |name: &InterfaceName| match faults.records_interface_numbers() {
            true => name.as_str().parse().map_err(|_| ImportRefusal::Interface),
            false => self.interfaces.number_of(name).ok_or(ImportRefusal::Interface),
        };
        name.map(number).transpose()
    }
}

/// Refuses zones that are not configured: their connections would not be counted.
pub(super) fn check_zones(zones: ZonePair, context: &Context<'_>) -> Result<(), ImportRefusal> {
    let is_known = |zone| zone == Zone::default() || context.limits.counted_zone(zone).is_some();
    let are_known = is_known(zones.original) && is_known(zones.reply);
    if are_known || context.settings.faults.imports_unknown_zones() {
        Ok(())
    } else {
        Err(ImportRefusal::Zone)
    }
}

/// The result of an import.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Imported {
    /// It is a connection now.
    New(ConnectionId),
    /// It was a tunnel of which the table had a part, and that part stands for it now. The larger
    /// counts are the ones that stay, so nothing is counted twice.
    Joined(ConnectionId),
}

impl Imported {
    /// The connection.
    pub const fn id(self) -> ConnectionId {
        match self {
            Self::New(id) | Self::Joined(id) => id,
        }
    }
}

impl Table {
    /// The record of the connection to which such packets belong; `None` if there is none, or if
    /// its first packet is still being judged.
    pub fn record_of(
        &self,
        packet: &KeyedPacket,
        hash: u64,
        interfaces: &dyn Interfaces,
        now: Timestamp,
    ) -> Option<ConnectionRecord> {
        self.recorded(self.slot_of_packet(packet, hash)?, interfaces, now)
    }

    /// Shows the records of live connections to `each`; looks at most at `budget` slots. Returns
    /// the position to continue from, `None` at the end.
    pub fn records_from(
        &self,
        from: Cursor,
        budget: u32,
        interfaces: &dyn Interfaces,
        now: Timestamp,
        each: impl FnMut(ConnectionRecord),
    ) -> Option<Cursor> {
        let end = from.0.saturating_add(budget).min(self.slab.slots());
        (from.0..end).filter_map(|slot| self.recorded(slot, interfaces, now)).for_each(each);
        (end < self.slab.slots()).then_some(Cursor(end))
    }

    pub(super) fn recorded(
        &self,
        slot: u32,
        interfaces: &dyn Interfaces,
        now: Timestamp,
    ) -> Option<ConnectionRecord> {
        let slab = &self.slab;
        let entry = slab.live(slot)?;
        let Entry { head, body } = entry;
        let part = slab.part(slot);
        let (status, mark) = part.map_or((head.status, head.mark), |part| part.facts(head));
        if entry.is_over(now) || status.has(Status::FRESH) {
            return None;
        }
        let translation = slab.translation(slot).map(|it| RecordedTranslation {
            leaves_as: it.leaves_as,
            interface: it.interface.and_then(|number| interfaces.name_of(number)),
            is_counted: it.pool.is_some(),
        });
        let side = slab.side(slot);
        let helper = status.has(Status::HAS_HELPER).then(|| slab.attached(slot)).flatten();
        let proxied = status.has(Status::PROXIED).then(|| slab.proxied(slot)).flatten();
        Some(ConnectionRecord {
            original: self.original(slot),
            translation,
            state: RecordedState::of(&body.state, now),
            facts: Facts {
                seen_reply: status.has(Status::SEEN_REPLY),
                assured: status.has(Status::ASSURED),
                expected: status.has(Status::EXPECTED),
                call: status.has(Status::CALL),
            },
            left: Millis::until(head.deadline, now),
            mark,
            labels: slab.labels(slot),
            policy: slab.policy(slot).copied(),
            helper: helper.map(RecordedHelper::of),
            shifts: slab.shifts(slot).copied(),
            proxied: proxied.map(|proxied| Box::new(*proxied)),
            counts: side.filter(|_| status.has(Status::ACCOUNTED)).map(|side| side.counts),
            age: side.filter(|_| status.has(Status::STAMPED)).map(|side| Millis::of(side.age(now))),
            is_outline: false,
        })
    }

    /// Makes a connection of a record. It takes units of all limits as any other, but only an
    /// assured one evicts others. Nobody is told of it as a new connection, and it is counted as
    /// imported. The caller files an alias for its replies if they come to another bucket.
    ///
    /// # Errors
    /// [`ImportRefusal`], which is counted; nothing has changed.
    pub fn import(
        &mut self,
        record: &ConnectionRecord,
        importing: Importing<'_>,
        context: &mut Context<'_>,
    ) -> Result<Imported, ImportRefusal> {
        let imported = self.try_import(record, importing, context);
        let counters = &mut context.counters;
        match imported {
            Ok(_) => counters.imported += 1,
            // The caller tries again.
            Err(ImportRefusal::Opening) => {}
            Err(_) => counters.import_refused += 1,
        }
        imported
    }

    fn try_import(
        &mut self,
        record: &ConnectionRecord,
        importing: Importing<'_>,
        context: &mut Context<'_>,
    ) -> Result<Imported, ImportRefusal> {
        let hash = |packet: &KeyedPacket| (importing.hash)(&packet.key);
        let original = record.original;
        check_zones(record.zones(), context)?;
        let interface = importing.number_of(record.interface(), context.settings.faults)?;
        let has_address = |number| importing.interfaces.has_address(number, record.leaves_from());
        if importing.needs_addresses && interface.is_some_and(|it| !has_address(it)) {
            return Err(ImportRefusal::Address);
        }
        let original_hash = hash(&original);
        if let Some(slot) = self.live_owner(&original, original_hash, record, context) {
            if self.slab[slot].head.status.has(Status::FRESH) {
                return Err(ImportRefusal::Opening);
            }
            if self.original(slot) != original || self.reply(ConnectionId(slot)) != record.reply() {
                return Err(ImportRefusal::Clash);
            }
            return match record.state {
                RecordedState::Tunnel => self.join_record(slot, record, context),
                _ => Err(ImportRefusal::Known),
            };
        }
        let reply = record.reply();
        if let Some(slot) = self.live_owner(&reply, hash(&reply), record, context) {
            let is_fresh = self.slab[slot].head.status.has(Status::FRESH);
            return Err(if is_fresh { ImportRefusal::Opening } else { ImportRefusal::Clash });
        }
        let is_anothers = |it| context.tunnels.have_anothers(it, &original, context.now);
        if is_anothers(&original) || is_anothers(&reply) {
            return Err(ImportRefusal::Clash);
        }
        // All that can be wrong is looked for before others give way.
        let has_room = |packet| self.index.has_room_for_two(hash(packet) as u32);
        if !has_room(&original) || !has_room(&reply) {
            return Err(ImportRefusal::Index);
        }
        if original.key.is_call() && self.has_most_calls(&original, original_hash) {
            return Err(ImportRefusal::CallsFull);
        }
        let state = record.state.restore(&original.key, context.now);
        let paid = self.pay_for(record, &state, context)?;
        let slot = self.place(record, original_hash as u32, (state, paid), context)?;
        self.set_behind(slot, importing.map_epoch, context.settings.faults);
        self.dress(slot, record, context);
        if self.file_record(slot, record, interface, importing, context).is_err() {
            self.close(slot, context);
            return Err(ImportRefusal::Index);
        }
        if self.make_known(slot, context).is_err() {
            self.close(slot, context);
            return Err(ImportRefusal::Clash);
        }
        let head = &mut self.slab[slot].head;
        head.status.clear(Status::FRESH);
        if let State::Tunnel(part) = &self.slab[slot].body.state {
            part.tell(&self.slab[slot].head);
        }
        Ok(Imported::New(ConnectionId(slot)))
    }

    /// Takes the units for a connection.
    fn pay_for(
        &mut self,
        record: &ConnectionRecord,
        state: &State,
        context: &mut Context<'_>,
    ) -> Result<Status, ImportRefusal> {
        let KeyedPacket { key, sender } = &record.original;
        let source = key.endpoint(*sender);
        let Facts { seen_reply, assured, .. } = record.facts;
        let limit = context.settings.half_open_per_source;
        let is_half_open = !assured && (!seen_reply || state.is_opening());
        let mut counted = false;
        if limit != 0 && is_half_open {
            let admitted = context.limits.sources.count(source, key.family, key.zone, limit);
            counted = admitted.ok_or(ImportRefusal::SourceFull)?;
        }
        let mut paid = self.pay(&record.original, assured, context);
        if paid.is_err() && self.evicts_for_import(context) {
            paid = self.pay(&record.original, assured, context);
        }
        match paid {
            Ok(status) => Ok(status.with(Status::when(counted, Status::COUNTED))),
            Err(shortage) => {
                if counted {
                    context.limits.sources.discount(source, key.family, key.zone);
                }
                Err(match shortage {
                    Shortage::Table | Shortage::Reserve => ImportRefusal::TableFull,
                    Shortage::Zone(_) => ImportRefusal::ZoneFull,
                    Shortage::Source => ImportRefusal::SourceFull,
                })
            }
        }
    }

    /// Adds an entry that has paid. It is not yet confirmed, so that nobody hears of it.
    fn place(
        &mut self,
        record: &ConnectionRecord,
        hash: u32,
        (state, paid): (State, Status),
        context: &mut Context<'_>,
    ) -> Result<u32, ImportRefusal> {
        let KeyedPacket { key, sender } = record.original;
        let mut entry = Entry::open(key, hash, sender, state);
        let Facts { seen_reply, assured, expected, call } = record.facts;
        let facts = [
            (seen_reply, Status::SEEN_REPLY),
            (assured, Status::ASSURED),
            (expected, Status::EXPECTED),
            (call, Status::CALL),
            (record.counts.is_some(), Status::ACCOUNTED),
            (record.age.is_some(), Status::STAMPED),
        ];
        for (is_so, bit) in facts {
            entry.head.status.set(Status::when(is_so, bit));
        }
        entry.head.status.set(paid.with(Status::FRESH));
        entry.head.mark = record.mark;
        entry.head.deadline = Self::deadline_of(record, &entry.body.state, context);
        entry.head.note_filed(entry.head.deadline);
        self.put(entry, Screening::Off, context).ok_or(ImportRefusal::Index)
    }

    /// Gives an entry what lies beside it.
    pub(super) fn dress(&mut self, slot: u32, record: &ConnectionRecord, context: &Context<'_>) {
        let slab = &mut self.slab;
        if record.counts.is_some() || record.age.is_some() {
            let counts = record.counts.unwrap_or_default();
            let age = record.age.unwrap_or_default().duration();
            slab.set_side(slot, SideFacts::with_age(counts, age, context.now));
        }
        if !record.labels.is_empty() {
            slab.set_labels(slot, record.labels);
        }
        if let Some(policy) = record.policy {
            slab.set_policy(slot, policy);
        }
        if let Some(helper) = &record.helper {
            let opener = Holder::of(record.original);
            let memory = context.expectations.memory();
            slab.attach_helper(slot, helper.restore(memory, opener));
        }
        if let Some(shifts) = record.shifts
            && !context.settings.faults.imports_no_shifts()
        {
            slab.shift(slot, |it| *it = shifts);
        }
        if let Some(proxied) = &record.proxied {
            slab.set_proxied(slot, **proxied);
        }
    }

    /// Files the key of the replies.
    fn file_record(
        &mut self,
        slot: u32,
        record: &ConnectionRecord,
        interface: Option<u32>,
        importing: Importing<'_>,
        context: &mut Context<'_>,
    ) -> Result<(), flow::DropReason> {
        let Some(RecordedTranslation { leaves_as, is_counted, .. }) = &record.translation else {
            return Ok(());
        };
        // The rule that chose the port is not known, so the port counts as one that no rule
        // names.
        let supply = Supply { own: BucketPorts::NONE, seed: 0, hash: importing.hash };
        let request = Request::of(TranslatedEnd::Source);
        let pool = is_counted.then(|| self.pool(slot, &request, leaves_as, supply, context));
        let hash = (importing.hash)(&leaves_as.key) as u32;
        self.file(slot, (*leaves_as, hash), (interface, pool.flatten()), context)
    }

    /// The time at which a connection ends: no later than if a packet came now.
    pub(super) fn deadline_of(
        record: &ConnectionRecord,
        state: &State,
        context: &Context<'_>,
    ) -> Timestamp {
        let settings = context.settings;
        let Settings { timeouts, tcp, .. } = settings;
        let family = record.original.key.family;
        let longest = state.longest(timeouts, tcp, record.policy.as_ref(), family);
        let kept = if record.helper.is_some() { LONGEST_KEPT_S } else { 0 };
        let most = Duration::from_secs(longest.max(kept).into());
        context.now.after(time_left(record, context).min(most))
    }

    /// Adds a record to a part of the same tunnel.
    ///
    /// # Errors
    /// [`ImportRefusal::Known`] if it says nothing new.
    pub(super) fn join_record(
        &mut self,
        slot: u32,
        record: &ConnectionRecord,
        context: &mut Context<'_>,
    ) -> Result<Imported, ImportRefusal> {
        let left = Self::deadline_of(record, &self.slab[slot].body.state, context);
        let mut is_news = self.raise_counts(slot, record);
        let head = &mut self.slab[slot].head;
        let facts = [
            (record.facts.seen_reply, Status::SEEN_REPLY),
            (record.facts.assured, Status::ASSURED),
        ];
        is_news |=
            left > head.deadline || facts.iter().any(|(is, bit)| *is && !head.status.has(*bit));
        if !is_news {
            return Err(ImportRefusal::Known);
        }
        head.deadline = head.deadline.max(left);
        head.status.set(Status::when(record.facts.seen_reply, Status::SEEN_REPLY));
        head.status.set(Status::when(record.facts.assured, Status::ASSURED));
        if let Some(part) = self.slab.part(slot) {
            part.tell(&self.slab[slot].head);
        }
        self.rank(slot, context);
        Ok(Imported::Joined(ConnectionId(slot)))
    }

    /// Counts no less than a record does. True if that is more than before.
    pub(super) fn raise_counts(&mut self, slot: u32, record: &ConnectionRecord) -> bool {
        let mut is_more = false;
        if let (Some(side), Some(counts)) = (self.slab.side_mut(slot), record.counts) {
            for (own, Counts { packets, bytes }) in side.counts.iter_mut().zip(counts) {
                is_more |= packets > own.packets || bytes > own.bytes;
                own.packets = own.packets.max(packets);
                own.bytes = own.bytes.max(bytes);
            }
        }
        is_more
    }

    /// Ends the connections that have the packets of a record, in either direction, and that are not
    /// the connection of the record. Returns how many there were.
    pub fn end_clashing(
        &mut self,
        record: &ConnectionRecord,
        importing: Importing<'_>,
        context: &mut Context<'_>,
    ) -> u64 {
        let mut ended = 0;
        for packet in [record.original, record.reply()] {
            let hash = (importing.hash)(&packet.key);
            let Some(slot) = self.live_owner(&packet, hash, record, context) else { continue };
            if !self.slab[slot].head.status.has(Status::FRESH) {
                self.end_whole(slot, context);
                ended += 1;
            }
        }
        ended
    }

    /// Tells the peer once more of the connections that have the packets of a record, in either
    /// direction.
    pub fn tell_clashing(
        &mut self,
        record: &ConnectionRecord,
        importing: Importing<'_>,
        context: &mut Context<'_>,
    ) {
        for packet in [record.original, record.reply()] {
            let hash = (importing.hash)(&packet.key);
            if let Some(slot) = self.live_owner(&packet, hash, record, context) {
                self.note_change(slot, context);
            }
        }
    }

    /// The live connection that such packets belong to. An expired one ends here.
    pub(super) fn live_owner(
        &mut self,
        packet: &KeyedPacket,
        hash: u64,
        record: &ConnectionRecord,
        context: &mut Context<'_>,
    ) -> Option<u32> {
        loop {
            let slab = &self.slab;
            let is_it = |filed: u32| {
                let head = &slab[filed & !SECOND].head;
                // Calls that nobody has announced are known by one end alone.
                slab.names(filed, packet)
                    && (!packet.key.is_call() || head.status.has(Status::CALL) == record.facts.call)
            };
            let slot = self.index.find(hash as u32, is_it)? & !SECOND;
            if !self.slab[slot].is_over(context.now) {
                return Some(slot);
            }
            self.close(slot, context);
        }
    }
}

#[cfg(test)]
#[path = "records_tests.rs"]
mod tests;
