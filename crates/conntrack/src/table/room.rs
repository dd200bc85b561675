//! Room for new connections: the units of the limits that a table holds, and eviction.

use flow::{DropReason, KeyedPacket, Prefetch, Zone};

use super::Table;
use super::candidates::{Candidates, Rank};
use crate::entry::{Entry, Head, Status};
use crate::limits::{Held, Limits};
use crate::proto::State;
use crate::slab::Slab;
use crate::syn_proxy::Screening;
use crate::{Context, TrackedPacket};

/// The limit that leaves no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shortage {
    /// The limit of the gateway, for connections that may not use the reserve.
    Table,
    /// The reserve.
    Reserve,
    /// The limit of a zone.
    Zone(Zone),
}

/// The accounts of a table.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// Three lists by rank for the connections under the gateway's limit, then three for the
    /// reserve.
    payers: Candidates,
    /// Three lists for each zone, by the zone's number.
    zones: Candidates,
    held: Held,
    /// Number of connections that are counted by source.
    counted: usize,
    /// True if the last new connection found no free room, so that it needed an eviction. The
    /// next one will probably find none either.
    is_full: bool,
    /// The table's number at the worker.
    place: u16,
    /// The connection that is being judged for the SYN proxy and takes no room.
    guest: Option<u32>,
}

const RANKS: u16 = Rank::ALL.len() as u16;

impl Room {
    pub fn memory_bytes(&self) -> usize {
        self.payers.memory_bytes()
            + self.zones.memory_bytes()
            + self.held.zones.capacity() * size_of::<u64>()
    }

    /// Gives the memory back if there are no connections.
    pub fn shrink(&mut self) {
        if self.held.table + self.held.reserve == 0 {
            *self = Self { place: self.place, ..Self::default() };
        }
    }

    /// Adds a connection that was admitted.
    fn enter(&mut self, head: &Head, limits: &Limits) {
        *self.payer(head) += 1;
        self.counted += usize::from(head.status.has(Status::COUNTED));
        if let Some(zone) = limits.counted_zone(head.key.zone) {
            if self.held.zones.len() <= zone {
                self.held.zones.resize(zone + 1, 0);
            }
            self.held.zones[zone] += 1;
        }
    }

    /// True for a connection that takes no room.
    pub fn is_guest(&self, slot: u32) -> bool {
        self.guest == Some(slot)
    }

    /// Removes a connection that ends, and returns its units.
    pub fn leave(&mut self, slot: u32, head: &Head, limits: &mut Limits) {
        if self.guest.take_if(|guest| *guest == slot).is_some() {
            return;
        }
        if self.payers.file(slot, None) {
            self.tell(paid_by(head), limits);
        }
        *self.payer(head) -= 1;
        let zone = limits.counted_zone(head.key.zone);
        if let Some(zone) = zone {
            if self.zones.file(slot, None) {
                self.tell(Shortage::Zone(head.key.zone), limits);
            }
            self.held.zones[zone] -= 1;
        }
        limits.release(head.status.has(Status::RESERVED), zone);
        if head.status.has(Status::COUNTED) {
            self.counted -= 1;
            discount(head, limits);
        }
        if head.status.has(Status::HALF_OPEN) {
            self.left_half_open(head, limits);
        }
    }

    /// Records that a connection is no longer half-open.
    fn left_half_open(&mut self, head: &Head, limits: &mut Limits) {
        self.held.half_open.leave(head.key.zone);
        limits.half_open.leave(head.key.zone);
    }

    /// Files a connection under its present rank.
    fn rank(&mut self, slot: u32, entry: &Entry, limits: &mut Limits) {
        let Entry { head, body } = entry;
        let rank = Rank::of(head.status, &body.state).map(|rank| rank as u16);
        let payer = u16::from(head.status.has(Status::RESERVED));
        if self.payers.file(slot, rank.map(|rank| payer * RANKS + rank)) {
            self.tell(paid_by(head), limits);
        }
        if let Some(zone) = limits.counted_zone(head.key.zone)
            && self.zones.file(slot, rank.map(|rank| zone as u16 * RANKS + rank))
        {
            self.tell(Shortage::Zone(head.key.zone), limits);
        }
    }

    /// Reports to the worker whether this table has a candidate for eviction.
    fn tell(&self, shortage: Shortage, limits: &mut Limits) {
        let has = self.victim(shortage, limits).is_some();
        limits.note_giver(shortage, self.place, has);
    }

    /// The connection that is evicted first.
    fn victim(&self, shortage: Shortage, limits: &Limits) -> Option<u32> {
        let (candidates, group) = match shortage {
            Shortage::Table => (&self.payers, 0),
            Shortage::Reserve => (&self.payers, 1),
            Shortage::Zone(zone) => (&self.zones, limits.counted_zone(zone)? as u16),
        };
        candidates.first_of(group * RANKS)
    }

    /// The connection that the next new one will most likely replace, with its links
    /// prefetched.
    #[inline]
    pub fn prefetch_victim(&self, prefetch: impl Prefetch) -> Option<u32> {
        let victim = self.is_full.then(|| self.payers.first_of(0))??;
        self.payers.prefetch(victim, prefetch);
        Some(victim)
    }

    fn payer(&mut self, head: &Head) -> &mut u64 {
        if head.status.has(Status::RESERVED) {
            &mut self.held.reserve
        } else {
            &mut self.held.table
        }
    }

    /// The connections that are counted by source. A half-open connection was never assured, so
    /// it is in one of these lists.
    fn counted(&self, slab: &Slab) -> Vec<u32> {
        if self.counted == 0 {
            return Vec::new();
        }
        let ranks = [Rank::Unreplied, Rank::Unassured].map(|rank| rank as u16);
        let lists = ranks.into_iter().chain(ranks.map(|rank| RANKS + rank));
        let slots = lists.flat_map(|list| self.payers.slots(list));
        slots.filter(|&slot| slab[slot].head.status.has(Status::COUNTED)).collect()
    }
}

impl Table {
    /// Evicts the first candidate; false if there is none. Takes constant time.
    pub fn evict(&mut self, shortage: Shortage, context: &mut Context<'_>) -> bool {
        let Some(victim) = self.room.victim(shortage, context.limits) else { return false };
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
    ) -> Result<Status, DropReason> {
        if packet.screening == Screening::Answer {
            return Ok(Status::NONE);
        }
        let packet = packet.keyed;
        let key = &packet.key;
        let limit = context.settings.half_open_per_source;
        if limit == 0 {
            return self.pay(packet, context);
        }
        let source = key.endpoint(packet.sender);
        let counted = context.limits.sources.count(source, key.family, key.zone, limit);
        let counted = counted.ok_or(DropReason::SourceLimit)?;
        match self.pay(packet, context) {
            Ok(status) => Ok(status.with(Status::when(counted, Status::COUNTED))),
            Err(reason) => {
                if counted {
                    context.limits.sources.discount(source, key.family, key.zone);
                }
                Err(reason)
            }
        }
    }

    /// The same without the limit of half-open connections of a source.
    pub(super) fn pay(
        &mut self,
        packet: &KeyedPacket,
        context: &mut Context<'_>,
    ) -> Result<Status, DropReason> {
        let KeyedPacket { key, sender } = packet;
        let zone = context.limits.counted_zone(key.zone);
        if let Some(zone) = zone
            && !context.limits.spend_zone(zone)
            && !(self.evict(Shortage::Zone(key.zone), context) && context.limits.spend_zone(zone))
        {
            return Err(DropReason::ZoneLimit);
        }
        self.room.is_full = !context.limits.spend();
        if !self.room.is_full || self.evict(Shortage::Table, context) && context.limits.spend() {
            return Ok(Status::default());
        }
        if context.limits.is_reserved_for(key.endpoint(*sender), key.family)
            && (context.limits.spend_reserve()
                || self.evict(Shortage::Reserve, context) && context.limits.spend_reserve())
        {
            return Ok(Status::RESERVED);
        }
        if let Some(zone) = zone {
            context.limits.release_zone(zone);
        }
        Err(DropReason::TableFull)
    }

    /// Adds an admitted connection to the accounts, unless it takes no room.
    pub(super) fn enter(&mut self, slot: u32, screening: Screening, context: &mut Context<'_>) {
        if screening == Screening::Answer {
            debug_assert_eq!(self.room.guest, None, "one packet is judged at a time");
            self.room.guest = Some(slot);
            return;
        }
        let entry = &mut self.slab[slot];
        if is_tcp_opening(entry) {
            entry.head.status.set(Status::HALF_OPEN);
            let zone = entry.head.key.zone;
            self.room.held.half_open.enter(zone);
            context.limits.half_open.enter(zone);
        }
        self.room.enter(&entry.head, context.limits);
        self.room.rank(slot, entry, context.limits);
    }

    /// Updates the accounts after a change of a connection's state or status.
    pub(super) fn rank(&mut self, slot: u32, context: &mut Context<'_>) {
        let Entry { head, body } = &mut self.slab[slot];
        let in_progress = !head.status.has(Status::SEEN_REPLY) || body.state.is_opening();
        let half_open = in_progress && !head.status.has(Status::ASSURED);
        if head.status.has(Status::COUNTED) && !half_open {
            discount(head, context.limits);
            head.status.clear(Status::COUNTED);
            self.room.counted -= 1;
        }
        if head.status.has(Status::HALF_OPEN) && !body.state.is_opening() {
            self.room.left_half_open(head, context.limits);
            head.status.clear(Status::HALF_OPEN);
        }
        self.room.rank(slot, &self.slab[slot], context.limits);
    }

    /// Takes the units of the connections out of the limits of a worker, because the table
    /// leaves it for a worker with limits from the same pools.
    pub fn surrender(&self, limits: &mut Limits) {
        limits.forget_giver(self.room.place);
        limits.surrender(&self.room.held);
        for slot in self.room.counted(&self.slab) {
            discount(&self.slab[slot].head, limits);
        }
        limits.holdings.remove_table();
        for (slot, pool) in self.slab.pools() {
            limits.holdings.leave(&self.stake(slot, pool));
        }
    }

    /// The other half of [`Table::surrender`]. The table becomes number `place` of the worker,
    /// which [`Limits::giver`] returns; below 4096.
    pub fn adopt(&mut self, limits: &mut Limits, place: u16) {
        self.room.place = place;
        let shortages: Vec<_> = limits.shortages().collect();
        for shortage in shortages {
            self.room.tell(shortage, limits);
        }
        limits.adopt(&self.room.held);
        limits.holdings.add_table();
        for (slot, pool) in self.slab.pools() {
            limits.holdings.enter(&self.stake(slot, pool));
        }
        for slot in self.room.counted(&self.slab) {
            let head = &mut self.slab[slot].head;
            let (key, source) = (head.key, head.key.endpoint(head.originator()));
            if limits.sources.count(source, key.family, key.zone, u32::MAX) != Some(true) {
                head.status.clear(Status::COUNTED);
                self.room.counted -= 1;
            }
        }
    }
}

/// The limit that holds the unit of a connection.
fn paid_by(head: &Head) -> Shortage {
    if head.status.has(Status::RESERVED) { Shortage::Reserve } else { Shortage::Table }
}

fn is_tcp_opening(entry: &Entry) -> bool {
    matches!(&entry.body.state, State::Tcp(tcp) if tcp.state().is_opening())
}

fn discount(head: &Head, limits: &mut Limits) {
    let source = head.key.endpoint(head.originator());
    limits.sources.discount(source, head.key.family, head.key.zone);
}

#[cfg(test)]
#[path = "room_tests.rs"]
mod tests;
