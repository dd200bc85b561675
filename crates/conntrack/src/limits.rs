//! How many connections there may be: of the gateway, of a zone, half-open of a source,
//! and the reserve that only some sources may use.
//!
//! The limits of gateway, zones and reserve hold exactly, whatever the number of workers:
//! each is a pool that workers lease from. When a limit is lowered, connections end that give
//! way, the others stay, and none is opened until enough have gone. The limit of a source is
//! divided, see [`Sources`].
//!
//! Connections of every zone that was ever configured are counted, also where the zone has no
//! limit: so a limit can be set at any time without a walk over the tables. Zones have
//! numbers here, in the order in which they became known, that never change.

mod givers;
mod half_open;
mod holdings;
mod sources;

use std::net::IpAddr;
use std::sync::Arc;

use flow::{Alarm, Endpoint, HashKey, Lease, LeasePool, Zone};
use wire::Family;

use self::givers::Givers;
use crate::{Prefix, Settings, Shortage};

pub use half_open::HalfOpen;
pub(crate) use holdings::{Holdings, NatSource, Pool, Stake};
pub use sources::Sources;

/// The reserve is at most 1 / `RESERVE_SHARE` of all connections.
pub const RESERVE_SHARE: u64 = 2;
/// The part of the table, and of the limit of a zone, that is divided among the workers for good: 1 / `FLOOR_SHARE`.
const FLOOR_SHARE: u64 = 4;
/// The limit of what has none.
const NO_LIMIT: u64 = u64::MAX;
/// Most zones that a gateway knows in its life.
pub const MOST_ZONES: usize = 4096;
/// Zones that are looked at in one go.
const ZONES_AT_ONCE: usize = 8;

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
    /// By number.
    zones: Vec<(Zone, LeasePool)>,
    /// Something is lacking in a zone.
    zone_alarm: Alarm,
}

/// There would be too many zones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the gateway has known {MOST_ZONES} zones since its start; restart it to forget old ones")]
pub struct TooManyZones;

/// What one worker may hold.
#[derive(Debug)]
pub struct Limits {
    table: Lease,
    reserve: Lease,
    reserved_for: Arc<[Prefix]>,
    /// By number.
    zones: Vec<(Zone, Lease)>,
    /// Numbers of zones, by zone.
    zone_numbers: Vec<(Zone, u16)>,
    /// The zone that was last asked whether others lack what it holds, and how many are to be
    /// asked yet.
    asked_zone: usize,
    to_ask: usize,
    zone_alarm: Alarm,
    /// The alarms before these have been heard.
    alarms_heard: u64,
    /// Half-open connections by source.
    pub sources: Sources,
    /// Half-open TCP connections by zone.
    pub half_open: HalfOpen,
    /// Which of the worker's tables have connections that give way.
    givers: Givers,
    /// Ports towards each destination, by source.
    pub(crate) holdings: Holdings,
}

/// What the connections of a table hold of the limits: it moves with them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    pub table: u64,
    pub reserve: u64,
    /// By the number of [`Limits::counted_zone`].
    pub zones: Vec<u64>,
    pub half_open: HalfOpen,
}

impl LimitPools {
    /// Pools for these settings, without zones.
    pub fn new(settings: &Settings, reserve: &Reserve) -> Self {
        let pools = Self {
            table: LeasePool::new(0),
            reserve: LeasePool::new(0),
            reserved: reserve.connections,
            reserved_for: reserve.sources.clone().into(),
            zones: Vec::new(),
            zone_alarm: Alarm::default(),
        };
        pools.apply(settings);
        pools
    }

    /// Takes over a changed `nf_conntrack_max`. The reserve is part of it, at most a
    /// [`RESERVE_SHARE`]th. Workers then have to [share](Limits::share) anew, and when all
    /// have, what is lower is to be [settled](LimitPools::settle).
    pub fn apply(&self, settings: &Settings) {
        let reserve = self.reserved.min(settings.max_entries / RESERVE_SHARE);
        self.reserve.plan_cap(reserve);
        self.table.plan_cap(settings.max_entries - reserve);
    }

    /// Has limits hold that are lower than before.
    pub fn settle(&self) {
        let zones = self.zones.iter().map(|(_, pool)| pool);
        [&self.table, &self.reserve].into_iter().chain(zones).for_each(LeasePool::settle_cap);
    }

    /// Takes over the limits of zones; `None`: no limit of its own. What is not among them
    /// has none any more. Workers then have to [learn](Limits::learn) and to
    /// [share](Limits::share) anew, and when all have, what is lower is to be
    /// [settled](LimitPools::settle).
    ///
    /// # Errors
    /// [`TooManyZones`]; nothing has changed.
    pub fn set_zones(&mut self, zones: &[(Zone, Option<u64>)]) -> Result<(), TooManyZones> {
        let known = |zone: &Zone| self.zones.iter().position(|(other, _)| other == zone);
        let new = zones.iter().filter(|(zone, _)| known(zone).is_none()).count();
        if self.zones.len() + new > MOST_ZONES {
            return Err(TooManyZones);
        }
        for (zone, pool) in &self.zones {
            let limit = zones.iter().find(|(other, _)| other == zone).and_then(|&(_, limit)| limit);
            pool.plan_cap(limit.unwrap_or(NO_LIMIT));
        }
        for &(zone, limit) in zones {
            if self.zones.iter().all(|&(other, _)| other != zone) {
                let alarm = self.zone_alarm.clone();
                self.zones.push((zone, LeasePool::with_alarm(limit.unwrap_or(NO_LIMIT), alarm)));
            }
        }
        Ok(())
    }

    /// The zones that are known, with their limits.
    pub fn zones(&self) -> impl Iterator<Item = (Zone, Option<u64>)> {
        let limit = |pool: &LeasePool| Some(pool.cap()).filter(|&cap| cap != NO_LIMIT);
        self.zones.iter().map(move |(zone, pool)| (*zone, limit(pool)))
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
        let mut limits = Limits {
            table: lease(&self.table),
            reserve: lease(&self.reserve),
            reserved_for: self.reserved_for.clone(),
            zones: Vec::new(),
            zone_numbers: Vec::new(),
            asked_zone: 0,
            to_ask: 0,
            zone_alarm: self.zone_alarm.clone(),
            alarms_heard: 0,
            sources: Sources::new(secret),
            half_open: HalfOpen::default(),
            givers: Givers::default(),
            holdings: Holdings::default(),
        };
        limits.learn_in_quanta(self, quantum);
        limits
    }
}

/// Units that a lease asks for at a time.
fn quantum(pool: &LeasePool) -> u64 {
    (pool.planned_cap() / 1024).min(1024)
}

impl Limits {
    /// Takes note of zones that have become known, before any packet of them comes.
    pub fn learn(&mut self, pools: &LimitPools) {
        self.learn_in_quanta(pools, quantum);
    }

    fn learn_in_quanta(&mut self, pools: &LimitPools, quantum: fn(&LeasePool) -> u64) {
        for (zone, pool) in &pools.zones[self.zones.len()..] {
            self.zone_numbers.push((*zone, self.zones.len() as u16));
            self.zones.push((*zone, pool.lease(quantum(pool))));
        }
        self.zone_numbers.sort_unstable();
    }

    /// Takes over limits that have changed, and shares them with so many workers, this one
    /// among them: a part of the table and of each zone is always there for each.
    pub fn share(&mut self, workers: u32) {
        let floor = |pool: &LeasePool| match pool.planned_cap() {
            NO_LIMIT => 0,
            cap => cap / FLOOR_SHARE / u64::from(workers.max(1)),
        };
        // The floor first: what the quantum leaves in the pocket lies above it.
        for (_, lease) in &mut self.zones {
            lease.set_floor(floor(lease.pool()));
            lease.set_quantum(quantum(lease.pool()));
            lease.settle();
        }
        self.to_ask = self.zones.len();
        self.table.set_floor(floor(self.table.pool()));
        for lease in [&mut self.table, &mut self.reserve] {
            lease.set_quantum(quantum(lease.pool()));
        }
        self.settle();
    }

    /// Says how many tables the gateway has: ports towards a destination belong to a worker in
    /// proportion to those that it has [adopted](crate::Table::adopt).
    pub fn set_all_tables(&mut self, tables: u32) {
        self.holdings.set_all_tables(tables);
    }

    /// True if others lack what this worker holds: connections should give way.
    pub fn is_overdrawn(&self) -> bool {
        self.table.is_overdrawn()
    }

    /// A zone of whose limit others lack what this worker holds, which has given back what
    /// it does not need: its connections should give way. Zones are asked only after something
    /// has come to be lacking somewhere, all of them in turn, a few at a time.
    #[inline]
    pub fn overdrawn_zone(&mut self) -> Option<Zone> {
        let alarms = self.zone_alarm.count();
        if alarms != self.alarms_heard {
            self.alarms_heard = alarms;
            self.to_ask = self.zones.len();
        }
        if self.to_ask == 0 { None } else { self.ask_zones() }
    }

    #[cold]
    fn ask_zones(&mut self) -> Option<Zone> {
        for _ in 0..ZONES_AT_ONCE.min(self.to_ask) {
            self.asked_zone %= self.zones.len();
            let (zone, lease) = &mut self.zones[self.asked_zone];
            if lease.is_overdrawn() {
                lease.settle();
                if lease.is_overdrawn() {
                    let zone = *zone;
                    // It is asked again when the others have been.
                    self.to_ask = self.zones.len();
                    return Some(zone);
                }
            }
            self.asked_zone += 1;
            self.to_ask -= 1;
        }
        None
    }

    /// Looks at another zone first the next time.
    pub fn pass_over_zone(&mut self) {
        self.asked_zone += 1;
    }

    /// The zones that are known, each with the connections that this worker holds.
    pub fn zones(&self) -> impl Iterator<Item = (Zone, u64)> {
        self.zones.iter().map(|(zone, lease)| (*zone, lease.used()))
    }

    /// Returns what is lacking elsewhere of the table and the reserve and is not needed here.
    pub fn settle(&mut self) {
        self.table.settle();
        self.reserve.settle();
    }

    /// Those of the only worker of a gateway: so many connections, without zones and
    /// reserve.
    pub fn alone(max_entries: u64, secret: HashKey) -> Self {
        let settings = Settings { max_entries, ..Settings::default() };
        LimitPools::new(&settings, &Reserve::default()).limits(secret)
    }

    /// What the same worker may hold of [connections inside tunnels](crate::Inside): they count in
    /// the limit of the gateway, and in no other.
    #[must_use]
    pub fn for_inside(&self) -> Self {
        Self {
            table: self.table.another(),
            reserve: self.reserve.another(),
            reserved_for: Arc::default(),
            zones: Vec::new(),
            zone_numbers: Vec::new(),
            asked_zone: 0,
            to_ask: 0,
            zone_alarm: Alarm::default(),
            alarms_heard: 0,
            sources: Sources::new(HashKey(0, 0)),
            half_open: HalfOpen::default(),
            givers: Givers::default(),
            holdings: Holdings::default(),
        }
    }

    /// True if nothing is left of the limit of the gateway, and this worker has some of it.
    pub fn is_used_up(&self) -> bool {
        self.table.used() + self.table.spare() > 0 && self.table.pool().is_used_up()
    }

    /// Returns what it has of the limit of the gateway and does not use.
    pub fn give_back(&mut self) {
        self.table.give_back();
    }

    /// Takes over a limit of the gateway that has changed, without a part of it that is always
    /// there.
    pub fn follow(&mut self) {
        self.table.set_quantum(quantum(self.table.pool()));
        self.settle();
    }

    /// The number of a zone whose connections are counted: of all but zone 0.
    #[inline]
    pub(crate) fn counted_zone(&self, zone: Zone) -> Option<usize> {
        if zone == Zone::default() {
            return None;
        }
        let found = self.zone_numbers.binary_search_by_key(&zone, |&(zone, _)| zone);
        found.ok().map(|at| usize::from(self.zone_numbers[at].1))
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
        // Others may have been lacking it before it came.
        self.to_ask = self.zones.len();
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

    /// The table at `place` is about to leave, or has left: nobody there gives way any more.
    pub fn forget_giver(&mut self, place: u16) {
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
            Shortage::Zone(zone) => self.counted_zone(zone).map(|zone| 2 + zone),
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
