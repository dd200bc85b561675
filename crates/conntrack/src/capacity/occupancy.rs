//! The room that the connections of a table take, and which of them is evicted first.

use flow::{DropReason, Prefetch, Zone};

use super::eviction_lists::{EvictionLists, Rank};
use super::{Held, Limits};
use crate::connection::{Head, Status};
use crate::proto::State;

/// The limit that leaves no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shortage {
    /// The limit of the gateway, for connections that may not use the reserve.
    Table,
    /// The reserve.
    Reserve,
    /// The limit of a zone.
    Zone(Zone),
    /// The limit of half-open connections of a source, for which no other gives way.
    Source,
}

impl Shortage {
    /// The reason to drop a packet whose connection has no room.
    pub const fn reason(self) -> DropReason {
        match self {
            Self::Table | Self::Reserve => DropReason::TableFull,
            Self::Zone(_) => DropReason::ZoneLimit,
            Self::Source => DropReason::SourceLimit,
        }
    }
}

/// The units of the limits that the connections of a table hold, and the order in which they are
/// evicted.
#[derive(Debug, Default)]
pub(crate) struct Occupancy {
    /// Lists for the connections under the gateway's limit, then as many for the reserve.
    payers: EvictionLists,
    /// As many for each zone, by the zone's number.
    zones: EvictionLists,
    held: Held,
    /// Number of connections that are counted by source.
    counted: usize,
    /// True if the last new connection found no free room, so that it needed an eviction. The
    /// next one will probably find none either.
    is_full: bool,
    /// The table's number at the worker.
    place: u16,
    /// The connection that is being judged for the SYN proxy and takes no room.
    uncounted: Option<u32>,
}

/// Lists of a group: one for each rank, and one for connections that the peer owns. Those are
/// never evicted.
const LISTS: u16 = Rank::ALL.len() as u16 + 1;
const COPIES: u16 = LISTS - 1;

impl Occupancy {
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

    /// Remembers whether the last new connection found the limit of the gateway used up.
    pub fn note_full(&mut self, is_full: bool) {
        self.is_full = is_full;
    }

    /// Adds a connection that takes no room, because the SYN proxy answers its packet.
    pub fn add_uncounted(&mut self, slot: u32) {
        debug_assert_eq!(self.uncounted, None, "one packet is judged at a time");
        self.uncounted = Some(slot);
    }

    /// Adds a connection that was admitted.
    pub fn enter(&mut self, slot: u32, head: &mut Head, state: &State, limits: &mut Limits) {
        if matches!(state, State::Tcp(tcp) if tcp.state().is_opening()) {
            head.status.set(Status::HALF_OPEN);
            self.held.half_open.enter(head.key.zone);
            limits.half_open.enter(head.key.zone);
        }
        self.count(head, limits);
        self.file(slot, head, (state, false), limits);
    }

    fn count(&mut self, head: &Head, limits: &Limits) {
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
    pub fn is_uncounted(&self, slot: u32) -> bool {
        self.uncounted == Some(slot)
    }

    /// Removes a connection that ends, and returns its units.
    pub fn leave(&mut self, slot: u32, head: &Head, limits: &mut Limits) {
        if self.uncounted.take_if(|uncounted| *uncounted == slot).is_some() {
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

    /// Counts a connection anew after a change of its state or status. The second part of the state
    /// is true if the peer owns the connection.
    pub fn update(
        &mut self,
        slot: u32,
        head: &mut Head,
        (state, is_copy): (&State, bool),
        limits: &mut Limits,
    ) {
        let in_progress = !head.status.has(Status::SEEN_REPLY) || state.is_opening();
        let half_open = in_progress && !head.status.has(Status::ASSURED);
        if head.status.has(Status::COUNTED) && !half_open {
            discount(head, limits);
            head.status.clear(Status::COUNTED);
            self.counted -= 1;
        }
        if head.status.has(Status::HALF_OPEN) && !state.is_opening() {
            self.left_half_open(head, limits);
            head.status.clear(Status::HALF_OPEN);
        }
        self.file(slot, head, (state, is_copy), limits);
    }

    /// Files a connection under its present rank.
    fn file(
        &mut self,
        slot: u32,
        head: &Head,
        (state, is_copy): (&State, bool),
        limits: &mut Limits,
    ) {
        let rank = Rank::of(head.status, state);
        let list = rank.map(|rank| if is_copy { COPIES } else { rank as u16 });
        let payer = u16::from(head.status.has(Status::RESERVED));
        if self.payers.file(slot, list.map(|list| payer * LISTS + list)) {
            self.tell(paid_by(head), limits);
        }
        if let Some(zone) = limits.counted_zone(head.key.zone)
            && self.zones.file(slot, list.map(|list| zone as u16 * LISTS + list))
        {
            self.tell(Shortage::Zone(head.key.zone), limits);
        }
    }

    /// Reports to the worker whether this table has a candidate for eviction.
    fn tell(&self, shortage: Shortage, limits: &mut Limits) {
        let has = self.victim(shortage, limits).is_some();
        limits.note_candidate(shortage, self.place, has);
    }

    /// The connection that is evicted first.
    pub fn victim(&self, shortage: Shortage, limits: &Limits) -> Option<u32> {
        let (candidates, group) = match shortage {
            Shortage::Table => (&self.payers, 0),
            Shortage::Reserve => (&self.payers, 1),
            Shortage::Zone(zone) => (&self.zones, limits.counted_zone(zone)? as u16),
            Shortage::Source => return None,
        };
        candidates.first_of(group * LISTS)
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

    /// The connections that may be counted by source. A half-open connection was never assured,
    /// so it is in one of these lists.
    pub fn maybe_counted_by_source(&self) -> impl Iterator<Item = u32> {
        let own = [Rank::Unreplied as u16, Rank::Unassured as u16, COPIES];
        let lists = own.into_iter().chain(own.map(|list| LISTS + list));
        let lists = lists.take_while(|_| self.counted > 0);
        lists.flat_map(|list| self.payers.slots(list))
    }

    /// The units that the connections hold.
    #[cfg(test)]
    pub const fn held(&self) -> &Held {
        &self.held
    }

    /// Number of connections that are counted by source.
    #[cfg(test)]
    pub const fn counted_by_source(&self) -> usize {
        self.counted
    }

    /// Gives up all units, because the table leaves the worker with these limits.
    pub fn surrender(&self, limits: &mut Limits) {
        limits.forget_table(self.place);
        limits.surrender(&self.held);
    }

    /// Takes over all units, because the table has come to the worker with these limits, as its
    /// number `place`.
    pub fn adopt(&mut self, limits: &mut Limits, place: u16) {
        self.place = place;
        let shortages: Vec<_> = limits.shortages().collect();
        for shortage in shortages {
            self.tell(shortage, limits);
        }
        limits.adopt(&self.held);
    }

    /// Counts a connection by source at the worker to which the table has come, if there is room
    /// to count it.
    pub fn adopt_source(&mut self, head: &mut Head, limits: &mut Limits) {
        let (key, source) = (head.key, head.key.endpoint(head.originator()));
        if limits.sources.count(source, key.family, key.zone, u32::MAX) != Some(true) {
            head.status.clear(Status::COUNTED);
            self.counted -= 1;
        }
    }
}

/// The limit that holds the unit of a connection.
fn paid_by(head: &Head) -> Shortage {
    if head.status.has(Status::RESERVED) { Shortage::Reserve } else { Shortage::Table }
}

/// Counts a half-open connection of a source less.
pub(crate) fn discount(head: &Head, limits: &mut Limits) {
    let source = head.key.endpoint(head.originator());
    limits.sources.discount(source, head.key.family, head.key.zone);
}
