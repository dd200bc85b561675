//! Admission of new connections: each takes the units that it needs from every limit, and others
//! are evicted where units are lacking.

use flow::KeyedPacket;

use super::Table;
use super::entry::Entry;
use crate::capacity::{Limits, Shortage, discount};
use crate::connection::Status;
use crate::syn_proxy::Screening;
use crate::{Context, TrackedPacket};

impl Table {
    /// Evicts the first candidate; false if there is none. Takes constant time.
    pub fn evict(&mut self, shortage: Shortage, context: &mut Context<'_>) -> bool {
        let Some(victim) = self.occupancy.victim(shortage, context.limits) else { return false };
        self.close(victim, context);
        context.counters.early_drop += 1;
        true
    }

    /// Takes the units that a new connection needs from every limit, all or none. A packet that
    /// the SYN proxy answers needs none. The returned flags tell which units the connection has
    /// to return.
    pub(super) fn admit(
        &mut self,
        packet: &TrackedPacket<'_>,
        context: &mut Context<'_>,
    ) -> Result<Status, Shortage> {
        if packet.screening == Screening::Answer {
            return Ok(Status::NONE);
        }
        let packet = packet.keyed;
        let key = &packet.key;
        let limit = context.settings.half_open_per_source;
        if limit == 0 {
            return self.pay(packet, true, context);
        }
        let source = key.endpoint(packet.sender);
        let counted = context.limits.sources.count(source, key.family, key.zone, limit);
        let counted = counted.ok_or(Shortage::Source)?;
        match self.pay(packet, true, context) {
            Ok(status) => Ok(status.with(Status::when(counted, Status::COUNTED))),
            Err(shortage) => {
                if counted {
                    context.limits.sources.discount(source, key.family, key.zone);
                }
                Err(shortage)
            }
        }
    }

    /// The same without the limit of half-open connections of a source. Others are evicted only if
    /// the connection `may_evict` them.
    pub(super) fn pay(
        &mut self,
        packet: &KeyedPacket,
        may_evict: bool,
        context: &mut Context<'_>,
    ) -> Result<Status, Shortage> {
        let KeyedPacket { key, sender } = packet;
        let zone = context.limits.counted_zone(key.zone);
        if let Some(zone) = zone
            && !context.limits.spend_zone(zone)
            && !(may_evict
                && self.evict(Shortage::Zone(key.zone), context)
                && context.limits.spend_zone(zone))
        {
            return Err(Shortage::Zone(key.zone));
        }
        let is_full = !context.limits.spend();
        self.occupancy.note_full(is_full);
        if !is_full || may_evict && self.evict(Shortage::Table, context) && context.limits.spend() {
            return Ok(Status::default());
        }
        if context.limits.is_reserved_for(key.endpoint(*sender), key.family)
            && (context.limits.spend_reserve()
                || may_evict
                    && self.evict(Shortage::Reserve, context)
                    && context.limits.spend_reserve())
        {
            return Ok(Status::RESERVED);
        }
        if let Some(zone) = zone {
            context.limits.release_zone(zone);
        }
        Err(Shortage::Table)
    }

    /// Counts an admitted connection, unless it takes no room.
    pub(super) fn enter(&mut self, slot: u32, screening: Screening, context: &mut Context<'_>) {
        if screening == Screening::Answer {
            return self.occupancy.add_uncounted(slot);
        }
        let Entry { head, body } = &mut self.slab[slot];
        self.occupancy.enter(slot, head, &body.state, context.limits);
    }

    /// Counts a connection anew after a change of its state or status.
    pub(super) fn rank(&mut self, slot: u32, context: &mut Context<'_>) {
        let Entry { head, body } = &mut self.slab[slot];
        let is_copy = body.note.is_copy();
        self.occupancy.update(slot, head, (&body.state, is_copy), context.limits);
    }

    /// Takes the units of the connections out of the limits of a worker, because the table
    /// leaves it for a worker with limits from the same pools.
    pub fn count_out(&self, limits: &mut Limits) {
        self.occupancy.surrender(limits);
        for slot in self.counted_by_source() {
            discount(&self.slab[slot].head, limits);
        }
        limits.port_usage.remove_table();
        for (slot, pool) in self.slab.pools() {
            limits.port_usage.leave(&self.port_share(slot, pool));
        }
    }

    /// The other half of [`Table::count_out`]. The table becomes number `place` of the worker,
    /// which [`Limits::table_with_candidate`] returns; below 4096.
    pub fn count_in(&mut self, limits: &mut Limits, place: u16) {
        self.occupancy.adopt(limits, place);
        limits.port_usage.add_table();
        for (slot, pool) in self.slab.pools() {
            limits.port_usage.enter(&self.port_share(slot, pool));
        }
        for slot in self.counted_by_source() {
            self.occupancy.adopt_source(&mut self.slab[slot].head, limits);
        }
    }

    /// The connections that are counted by source.
    fn counted_by_source(&self) -> Vec<u32> {
        let candidates = self.occupancy.maybe_counted_by_source();
        candidates.filter(|&slot| self.slab[slot].head.status.has(Status::COUNTED)).collect()
    }
}

#[cfg(test)]
#[path = "admission_tests.rs"]
mod tests;
