//! Limits on connections: of the gateway, of each zone, half-open ones of each source, and the
//! reserve that only some sources may use.
//!
//! The limits of gateway, zones and reserve are exact for any number of workers: each is a pool
//! from which workers lease units. After a limit is lowered, candidates for eviction end and
//! other connections stay; none is opened until enough have ended. The limit of a source is
//! divided among the workers, see [`Sources`].
//!
//! Connections of every zone that was ever configured are counted, also of zones without a
//! limit. So a limit can be set at any time without a walk over the tables. Here zones have
//! numbers in the order in which they became known; a number never changes.

mod eviction_lists;
mod eviction_tables;
mod half_open;
mod occupancy;
mod port_usage;
mod sources;

use std::sync::Arc;

use flow::{Alarm, Endpoint, HashKey, KeyedPacket, Lease, LeasePool, Zone};
use wire::Family;

use self::eviction_tables::EvictionTables;
use crate::Settings;
use crate::connection::{Prefix, ip_address};
use crate::nat::{ChangedPorts, PortChange, Translation};

pub(crate) use eviction_lists::Rank;
pub use half_open::HalfOpen;
pub use occupancy::Shortage;
pub(crate) use occupancy::{Occupancy, discount};
pub(crate) use port_usage::{NatSource, PortShare, PortUsage};
pub use sources::Sources;

/// The reserve is at most 1 / `RESERVE_SHARE` of all connections.
pub const RESERVE_SHARE: u64 = 2;
/// 1 / `FLOOR_SHARE` of the table, and of the limit of a zone, is divided among the workers for
/// good.
const FLOOR_SHARE: u64 = 4;
/// The cap of a pool without a limit.
const NO_LIMIT: u64 = u64::MAX;
/// Most zones over the lifetime of a gateway.
pub const MOST_ZONES: usize = 4096;
/// Most zones that one call checks.
const ZONES_AT_ONCE: usize = 8;

/// Connections that only some sources may use, so that an operator can connect to hosts behind
/// a gateway whose table is full.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reserve {
    /// Originators that may use it.
    pub sources: Vec<Prefix>,
    /// Its part of `nf_conntrack_max`, which no other source may use.
    pub connections: u64,
}

/// The limits of a gateway; its workers have [`Limits`] of their own.
#[derive(Clone, Debug)]
pub struct LimitPools {
    table: LeasePool,
    reserve: LeasePool,
    /// The configured size of the reserve.
    reserved: u64,
    reserved_for: Arc<[Prefix]>,
    /// The zones by number.
    zones: Vec<(Zone, LeasePool)>,
    /// Rings when a pool of a zone lacks units.
    zone_alarm: Alarm,
    changed_ports: ChangedPorts,
}

/// The limit of zones is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the gateway has known {MOST_ZONES} zones since its start; restart it to forget old ones")]
pub struct TooManyZones;

/// The limits of one worker.
#[derive(Debug)]
pub struct Limits {
    table: Lease,
    reserve: Lease,
    reserved_for: Arc<[Prefix]>,
    /// The zones by number.
    zones: Vec<(Zone, Lease)>,
    /// Numbers of zones, by zone.
    zone_numbers: Vec<(Zone, u16)>,
    /// The number of the zone that is checked next for a lack of units at other workers, and
    /// how many zones are still to be checked.
    asked_zone: usize,
    to_ask: usize,
    zone_alarm: Alarm,
    /// The count of the alarm at the last check.
    alarms_heard: u64,
    /// Half-open connections by source.
    pub sources: Sources,
    /// Half-open TCP connections by zone.
    pub half_open: HalfOpen,
    /// The worker's tables with candidates for eviction.
    eviction_tables: EvictionTables,
    /// Ports that each source uses towards each destination.
    pub(crate) port_usage: PortUsage,
    /// The ports that sources have got in place of their own.
    pub(crate) changed_ports: ChangedPorts,
}

/// The units of the limits that the connections of a table hold. They move with the table.
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
            changed_ports: ChangedPorts::new(),
        };
        pools.apply(settings);
        pools
    }

    /// Announces a changed `nf_conntrack_max`. The reserve is part of it, at most a
    /// [`RESERVE_SHARE`]th. After that all workers have to [share](Limits::share) anew, and
    /// then the caller [settles](LimitPools::repay) lower limits.
    pub fn apply(&self, settings: &Settings) {
        let reserve = self.reserved.min(settings.max_entries / RESERVE_SHARE);
        self.reserve.plan_cap(reserve);
        self.table.plan_cap(settings.max_entries - reserve);
    }

    /// Puts lower limits into effect.
    pub fn repay(&self) {
        let zones = self.zones.iter().map(|(_, pool)| pool);
        [&self.table, &self.reserve].into_iter().chain(zones).for_each(LeasePool::repay_over_cap);
    }

    /// Announces the limits of zones; `None`: no limit. Zones that are not in the list lose
    /// theirs. After that all workers have to [learn](Limits::learn) the zones and to
    /// [share](Limits::share) anew, and then the caller [settles](LimitPools::repay) lower
    /// limits.
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

    /// The known zones with their limits.
    pub fn zones(&self) -> impl Iterator<Item = (Zone, Option<u64>)> {
        let limit = |pool: &LeasePool| Some(pool.cap()).filter(|&cap| cap != NO_LIMIT);
        self.zones.iter().map(move |(zone, pool)| (*zone, limit(pool)))
    }

    /// The limits of one worker. It takes about a thousandth of a pool at a time, so it rarely
    /// touches the shared counters, and keeps little from workers that need it.
    pub fn limits(&self, secret: HashKey) -> Limits {
        self.limits_in_quanta(quantum, secret)
    }

    /// The limits of one worker of a replay, whose result must not depend on how flows are
    /// spread over workers. It takes exactly the units that it needs, and it does not limit
    /// sources.
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
            eviction_tables: EvictionTables::default(),
            port_usage: PortUsage::default(),
            changed_ports: self.changed_ports.keyed(secret),
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
    /// Learns zones that have become known, before any packet of them comes.
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

    /// Adopts changed limits, and shares them among `workers` workers including this one: a
    /// part of the table and of each zone is reserved for each worker.
    pub fn share(&mut self, workers: u32) {
        let floor = |pool: &LeasePool| match pool.planned_cap() {
            NO_LIMIT => 0,
            cap => cap / FLOOR_SHARE / u64::from(workers.max(1)),
        };
        // Sets the floor first: the units that the quantum keeps lie above it.
        for (_, lease) in &mut self.zones {
            lease.set_floor(floor(lease.pool()));
            lease.set_quantum(quantum(lease.pool()));
            lease.repay();
        }
        self.to_ask = self.zones.len();
        self.table.set_floor(floor(self.table.pool()));
        for lease in [&mut self.table, &mut self.reserve] {
            lease.set_quantum(quantum(lease.pool()));
        }
        self.repay();
    }

    /// Counts the port of a translation no more. `original` are the packets of the originator as they
    /// come.
    pub(crate) fn give_port_back(&mut self, original: KeyedPacket, translation: &Translation) {
        if let Some(pool) = translation.pool {
            let KeyedPacket { key, sender } = &original;
            self.port_usage.leave(&PortShare::of(pool, key, *sender));
        }
        if translation.is_port_filed
            && let Some(change) = PortChange::of(original, &translation.leaves_as)
        {
            self.changed_ports.leave(&change);
        }
    }

    /// Sets the number of tables of the gateway: of the ports towards a destination, a worker
    /// has the share of the tables that it has [adopted](crate::Table::count_in).
    pub fn set_all_tables(&mut self, tables: u32) {
        self.port_usage.set_all_tables(tables);
    }

    /// True if other workers lack units that this worker holds: connections should be evicted.
    pub fn is_overdrawn(&self) -> bool {
        self.table.is_overdrawn()
    }

    /// A zone of whose limit other workers lack units that this worker holds, after it has
    /// returned its spare units: connections of the zone should be evicted. Zones are checked
    /// only after a pool has lacked units, then all of them in turn, a few at a time.
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
                lease.repay();
                if lease.is_overdrawn() {
                    let zone = *zone;
                    // It is checked again after all others.
                    self.to_ask = self.zones.len();
                    return Some(zone);
                }
            }
            self.asked_zone += 1;
            self.to_ask -= 1;
        }
        None
    }

    /// Makes the next check begin with another zone.
    pub fn pass_over_zone(&mut self) {
        self.asked_zone += 1;
    }

    /// The known zones, each with the number of connections that this worker holds.
    pub fn zones(&self) -> impl Iterator<Item = (Zone, u64)> {
        self.zones.iter().map(|(zone, lease)| (*zone, lease.used()))
    }

    /// Returns spare units of the table and the reserve that other workers lack.
    pub fn repay(&mut self) {
        self.table.repay();
        self.reserve.repay();
    }

    /// The limits of the only worker of a gateway, with this many connections and without zones
    /// and reserve.
    pub fn alone(max_entries: u64, secret: HashKey) -> Self {
        let settings = Settings { max_entries, ..Settings::default() };
        LimitPools::new(&settings, &Reserve::default()).limits(secret)
    }

    /// The limits of the same worker for [connections inside tunnels](crate::Inside), which
    /// count only in the limit of the gateway.
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
            eviction_tables: EvictionTables::default(),
            port_usage: PortUsage::default(),
            changed_ports: self.changed_ports.clone(),
        }
    }

    /// True if the limit of the gateway is used up and this worker holds some of it.
    pub fn is_used_up(&self) -> bool {
        self.table.used() + self.table.spare() > 0 && self.table.pool().is_used_up()
    }

    /// Returns the spare units of the gateway's limit.
    pub fn give_back(&mut self) {
        self.table.give_back();
    }

    /// Adopts a changed limit of the gateway, without a reserved part of it.
    pub fn follow(&mut self) {
        self.table.set_quantum(quantum(self.table.pool()));
        self.repay();
    }

    /// The number of a zone whose connections are counted; `None` for zone 0, whose connections
    /// are not, and for unknown zones.
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

    /// Gives up the units that the connections of a table hold, because the table leaves. The
    /// worker that gets it must [`Limits::adopt`] as many.
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
        // Other workers may have lacked units since before it came.
        self.to_ask = self.zones.len();
        self.half_open.add(&held.half_open);
    }

    /// The next of the worker's tables with a candidate for eviction, by the number that it was
    /// [adopted](crate::Table::count_in) with. The search begins behind `after`.
    pub fn table_with_candidate(&self, shortage: Shortage, after: u16) -> Option<u16> {
        self.eviction_tables.next(self.group(shortage)?, after)
    }

    /// Records whether the table at `place` has a candidate for eviction.
    pub(crate) fn note_candidate(&mut self, shortage: Shortage, place: u16, has: bool) {
        if let Some(group) = self.group(shortage) {
            self.eviction_tables.set(group, place, has);
        }
    }

    /// Forgets the candidates of the table at `place`, which leaves or has left.
    pub fn forget_table(&mut self, place: u16) {
        self.eviction_tables.forget(place);
    }

    /// All limits in which an eviction may make room.
    pub(crate) fn shortages(&self) -> impl Iterator<Item = Shortage> {
        let zones = self.zones.iter().map(|&(zone, _)| Shortage::Zone(zone));
        [Shortage::Table, Shortage::Reserve].into_iter().chain(zones)
    }

    /// The index of a limit among [`Self::shortages`].
    fn group(&self, shortage: Shortage) -> Option<usize> {
        match shortage {
            Shortage::Table => Some(0),
            Shortage::Reserve => Some(1),
            Shortage::Zone(zone) => self.counted_zone(zone).map(|zone| 2 + zone),
            Shortage::Source => None,
        }
    }

    /// Number of connections that this worker holds, including those of the reserve.
    pub fn used(&self) -> u64 {
        self.table.used() + self.reserve.used()
    }
}

#[cfg(test)]
#[path = "limits_tests.rs"]
mod tests;
