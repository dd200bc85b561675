//! How many connections there may be: of the gateway, of a zone, half-open of a source,
//! and the reserve that only some sources may use.
//!
//! The limits of gateway, zones and reserve hold exactly, whatever the number of workers:
//! each is a pool that workers lease from. When a limit is lowered, no connection is ended,
//! and none is opened until enough have gone. The limit of a source is divided, see
//! [`Sources`].

mod givers;
mod half_open;
mod sources;

use std::net::IpAddr;
use std::sync::Arc;

use flow::{Endpoint, HashKey, Lease, LeasePool, Zone};
use wire::Family;

use self::givers::Givers;
use crate::{Prefix, Settings, Shortage};

pub use half_open::HalfOpen;
pub use sources::Sources;

/// The reserve is at most 1 / `RESERVE_SHARE` of all connections.
pub const RESERVE_SHARE: u64 = 2;
/// The part of the table that is divided among the workers for good: 1 / `FLOOR_SHARE`.
const FLOOR_SHARE: u64 = 4;

/// Connections that only some sources may use, so that an operator can connect to what
/// lies behind a gateway whose table is full.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reserve {
    /// Whose connections may use it: addresses of the opener.
    pub sources: Vec<Prefix>,
    /// How many connections of `nf_conntrack_max` it takes away from all others.
    pub connections: u64,
}

/// The limits of a gateway; its workers have [`Limits`] of their own.
#[derive(Clone, Debug)]
pub struct LimitPools {
    table: LeasePool,
    reserve: LeasePool,
    /// What the reserve is meant to be.
    reserved: u64,
    reserved_for: Arc<[Prefix]>,
    /// By zone.
    zones: Arc<[(Zone, LeasePool)]>,
}

/// What one worker may hold.
#[derive(Debug)]
pub struct Limits {
    table: Lease,
    reserve: Lease,
    reserved_for: Arc<[Prefix]>,
    /// By zone.
    zones: Vec<(Zone, Lease)>,
    /// Half-open connections by source.
    pub sources: Sources,
    /// Half-open TCP connections by zone.
    pub half_open: HalfOpen,
    /// Which of the worker's tables have connections that give way.
    givers: Givers,
}

/// What the connections of a table hold of the limits: it moves with them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    pub table: u64,
    pub reserve: u64,
    /// By the index of [`Limits::limited_zone`].
    pub zones: Vec<u64>,
    pub half_open: HalfOpen,
}

impl LimitPools {
    /// Pools for these settings; `zones` are those with a limit of their own.
    pub fn new(
        settings: &Settings,
        reserve: &Reserve,
        zones: impl IntoIterator<Item = (Zone, u64)>,
    ) -> Self {
        let mut zones: Vec<_> =
            zones.into_iter().map(|(zone, limit)| (zone, LeasePool::new(limit))).collect();
        zones.sort_by_key(|&(zone, _)| zone);
        let pools = Self {
            table: LeasePool::new(0),
            reserve: LeasePool::new(0),
            reserved: reserve.connections,
            reserved_for: reserve.sources.clone().into(),
            zones: zones.into(),
        };
        pools.apply(settings);
        pools
    }

    /// Takes over a changed `nf_conntrack_max`. The reserve is part of it, at most a
    /// [`RESERVE_SHARE`]th. Workers then have to [share](Limits::share) anew.
    pub fn apply(&self, settings: &Settings) {
        let reserve = self.reserved.min(settings.max_entries / RESERVE_SHARE);
        self.reserve.set_cap(reserve);
        self.table.set_cap(settings.max_entries - reserve);
    }

    /// The limits of one worker. It takes from the pools about a thousandth of each at a
    /// time: the shared counters are rarely touched, and little is kept from those who
    /// need it.
    pub fn limits(&self, secret: HashKey) -> Limits {
        self.limits_in_quanta(quantum, secret)
    }

    /// The limits of one worker of a replay, where it must not show how flows are spread
    /// over workers: it takes from the pools what it needs and no more, and sources are not
    /// limited.
    pub fn limits_of_replay(&self, secret: HashKey) -> Limits {
        let mut limits = self.limits_in_quanta(|_| 0, secret);
        limits.sources.set_workers(0);
        limits
    }

    fn limits_in_quanta(&self, quantum: fn(&LeasePool) -> u64, secret: HashKey) -> Limits {
        let lease = |pool: &LeasePool| pool.lease(quantum(pool));
        Limits {
            table: lease(&self.table),
            reserve: lease(&self.reserve),
            reserved_for: self.reserved_for.clone(),
            zones: self.zones.iter().map(|(zone, pool)| (*zone, lease(pool))).collect(),
            sources: Sources::new(secret),
            half_open: HalfOpen::default(),
            givers: Givers::default(),
        }
    }
}

/// Units that a lease asks for at a time.
fn quantum(pool: &LeasePool) -> u64 {
    (pool.cap() / 1024).min(1024)
}

impl Limits {
    /// Takes over limits that have changed, and shares them with so many workers, this one
    /// among them: a part of the table is always there for each.
    pub fn share(&mut self, workers: u32) {
        let zones = self.zones.iter_mut().map(|(_, lease)| lease);
        for lease in zones.chain([&mut self.table, &mut self.reserve]) {
            lease.set_quantum(quantum(lease.pool()));
        }
        let floor = self.table.pool().cap() / FLOOR_SHARE / u64::from(workers.max(1));
        self.table.set_floor(floor);
        self.settle();
    }

    /// True if others lack what this worker holds: connections should give way.
    pub fn is_overdrawn(&self) -> bool {
        self.table.is_overdrawn()
    }

    /// Returns what is lacking elsewhere and not needed here.
    pub fn settle(&mut self) {
        self.zones.iter_mut().for_each(|(_, lease)| lease.settle());
        self.table.settle();
        self.reserve.settle();
    }

    /// Those of the only worker of a gateway: so many connections, without zones and
    /// reserve.
    pub fn alone(max_entries: u64, secret: HashKey) -> Self {
        let settings = Settings { max_entries, ..Settings::default() };
        LimitPools::new(&settings, &Reserve::default(), []).limits(secret)
    }

    /// Which of the zones with a limit of their own this is.
    #[inline]
    pub(crate) fn limited_zone(&self, zone: Zone) -> Option<usize> {
        if self.zones.is_empty() {
            return None;
        }
        self.zones.binary_search_by_key(&zone, |&(zone, _)| zone).ok()
    }

    #[inline]
    pub(crate) fn spend(&mut self) -> bool {
        self.table.spend(1)
    }

    pub(crate) fn spend_reserve(&mut self) -> bool {
        self.reserve.spend(1)
    }

    pub(crate) fn spend_zone(&mut self, zone: usize) -> bool {
        self.zones[zone].1.spend(1)
    }

    #[inline]
    pub(crate) fn release(&mut self, from_reserve: bool, zone: Option<usize>) {
        if from_reserve { &mut self.reserve } else { &mut self.table }.release(1);
        if let Some(zone) = zone {
            self.release_zone(zone);
        }
    }

    pub(crate) fn release_zone(&mut self, zone: usize) {
        self.zones[zone].1.release(1);
    }

    /// True for a source that may use the reserve.
    pub(crate) fn is_reserved_for(&self, source: Endpoint, family: Family) -> bool {
        !self.reserved_for.is_empty() && {
            let source = ip_address(source.address, family);
            self.reserved_for.iter().any(|prefix| prefix.contains(source))
        }
    }

    /// Gives up what the connections of a table hold: the table leaves, and whoever gets
    /// it must [`Limits::adopt`] as much.
    pub(crate) fn surrender(&mut self, held: &Held) {
        self.table.surrender(held.table);
        self.reserve.surrender(held.reserve);
        for ((_, lease), &units) in self.zones.iter_mut().zip(&held.zones) {
            lease.surrender(units);
        }
        self.half_open.subtract(&held.half_open);
    }

    pub(crate) fn adopt(&mut self, held: &Held) {
        self.table.adopt(held.table);
        self.reserve.adopt(held.reserve);
        for ((_, lease), &units) in self.zones.iter_mut().zip(&held.zones) {
            lease.adopt(units);
        }
        self.half_open.add(&held.half_open);
    }

    /// The next of the worker's tables that has a connection which gives way, by the number
    /// that it was [adopted](crate::Table::adopt) with; the one at `after` comes last.
    pub fn giver(&self, shortage: Shortage, after: u16) -> Option<u16> {
        self.givers.next(self.group(shortage)?, after)
    }

    /// Takes note of whether the table at `place` has somebody who gives way.
    pub(crate) fn note_giver(&mut self, shortage: Shortage, place: u16, has: bool) {
        if let Some(group) = self.group(shortage) {
            self.givers.set(group, place, has);
        }
    }

    /// The table at `place` has left.
    pub(crate) fn forget_giver(&mut self, place: u16) {
        self.givers.forget(place);
    }

    /// All limits in which a connection may make room.
    pub(crate) fn shortages(&self) -> impl Iterator<Item = Shortage> {
        let zones = self.zones.iter().map(|&(zone, _)| Shortage::Zone(zone));
        [Shortage::Table, Shortage::Reserve].into_iter().chain(zones)
    }

    /// Its index among [`Self::shortages`].
    fn group(&self, shortage: Shortage) -> Option<usize> {
        match shortage {
            Shortage::Table => Some(0),
            Shortage::Reserve => Some(1),
            Shortage::Zone(zone) => self.limited_zone(zone).map(|zone| 2 + zone),
        }
    }

    /// Connections that this worker holds, those of the reserve included.
    pub fn used(&self) -> u64 {
        self.table.used() + self.reserve.used()
    }
}

/// An address as it stands in a flow key.
pub(crate) fn ip_address(bytes: [u8; 16], family: Family) -> IpAddr {
    match family {
        Family::V4 => IpAddr::from([bytes[12], bytes[13], bytes[14], bytes[15]]),
        Family::V6 => IpAddr::from(bytes),
    }
}

#[cfg(test)]
#[path = "limits_tests.rs"]
mod tests;
