//! The stations behind the ports of a bridge.
//!
//! A sender can pretend to be any number of stations. So each port has a limit of its own, and a
//! new station takes the place of the one that has been silent for the longest: behind its own
//! port where that is at its limit, else behind the port that has most. A sender that makes
//! stations up pushes out those of its own port, and none of a port that has fewer.
//!
//! Each step takes the same time however many stations there are: they are found by a keyed hash,
//! and those of a port stand in the order in which they were heard.

use flow::{HashKey, SlotIndex};
use netio::PortId;
use siphasher::sip::SipHasher13;

use crate::egress::allowance::Allowance;

/// How long a silent station is remembered, nanoseconds (IEEE 802.1D-2004 table
/// 7-5: 300 s).
const STATION_AGE_NS: u64 = 300 * 1_000_000_000;
/// Stations of one port that are given up with each frame at most, because they have been silent
/// for too long. More than one frame can bring.
const FORGET_AT_ONCE: usize = 2;
/// How long other workers remember what they were told before they are told again, nanoseconds.
/// Much less than the age of a station, so that none forgets one that another hears.
const TELL_AGAIN_NS: u64 = STATION_AGE_NS / 5;
/// How often a worker tells the others of stations of one port, each second and at once: a sender
/// that makes stations up fills no ring, and takes nothing from other ports.
const UPDATES_PER_SECOND: u64 = 500;
/// See [`UPDATES_PER_SECOND`].
const UPDATES_AT_ONCE: u64 = 128;
/// No place.
const NONE: u32 = u32::MAX;

/// A station, as Ethernet numbers it.
pub type Station = [u8; 6];

/// How many stations a worker remembers at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StationLimits {
    /// Behind all ports.
    pub all: u32,
    /// Behind one port.
    pub of_port: u32,
}

impl StationLimits {
    /// Any limit is from here to [`StationLimits::MAX`].
    pub const MIN: u32 = 16;
    /// See [`StationLimits::MIN`].
    pub const MAX: u32 = 1 << 20;

    /// So many in all, half of them behind one port: a sender behind one leaves the others room.
    pub const fn of(all: u32) -> Self {
        Self { all, of_port: all / 2 }
    }
}

impl Default for StationLimits {
    fn default() -> Self {
        Self::of(16_384)
    }
}

/// News of a station, from one worker to the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StationUpdate {
    /// The station.
    pub station: Station,
    /// The port behind which it is.
    pub port: PortId,
    /// When it was heard, nanoseconds.
    pub seen_ns: u64,
}

/// The stations that one worker has heard, or was told of.
#[derive(Debug)]
pub struct Stations {
    limits: StationLimits,
    key: HashKey,
    index: SlotIndex,
    entries: Vec<Entry>,
    /// Places in `entries` that are free.
    free: Vec<u32>,
    ports: Vec<Port>,
    /// How much others may be told of each port.
    update_limits: Vec<Allowance>,
    /// The port whose oldest station is looked at next.
    turn: usize,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    station: Station,
    port: u16,
    seen_ns: u64,
    /// When all others knew that it is behind this port; `None` if they may not.
    announced_ns: Option<u64>,
    /// The next of its port that has been silent for longer.
    older: u32,
    /// The next that was heard later.
    newer: u32,
}

/// The stations behind a port.
#[derive(Clone, Copy, Debug)]
struct Port {
    oldest: u32,
    newest: u32,
    count: u32,
}

impl Port {
    const EMPTY: Self = Self { oldest: NONE, newest: NONE, count: 0 };
}

impl Stations {
    /// None yet, of so many ports. `key` is a secret, so that nobody can send from stations
    /// that are filed in one place.
    pub fn new(ports: usize, limits: StationLimits, key: HashKey) -> Self {
        Self {
            limits,
            key,
            index: SlotIndex::new(),
            entries: Vec::new(),
            free: Vec::new(),
            ports: vec![Port::EMPTY; ports],
            update_limits: (0..ports)
                .map(|_| Allowance::new(UPDATES_PER_SECOND, UPDATES_AT_ONCE))
                .collect(),
            turn: 0,
        }
    }

    /// Notes that a station was heard at a port, and tells the others where they may not know.
    /// `tell` returns false if it could not: then the next frame of the station tells them. Where
    /// the time goes back, as in a capture, some are remembered for longer.
    pub fn learn(
        &mut self,
        station: Station,
        port: PortId,
        now_ns: u64,
        tell: impl FnOnce(StationUpdate) -> bool,
    ) {
        let Some(slot) = self.note(station, port, now_ns) else { return };
        let Some(allowance) = self.update_limits.get_mut(usize::from(port.0)) else { return };
        let entry = &mut self.entries[slot as usize];
        let is_known = |announced_ns: u64| now_ns.saturating_sub(announced_ns) < TELL_AGAIN_NS;
        if !entry.announced_ns.is_some_and(is_known)
            && allowance.take(now_ns)
            && tell(StationUpdate { station, port, seen_ns: now_ns })
        {
            entry.announced_ns = Some(now_ns);
        }
    }

    /// Notes what another worker has heard, unless this one has heard from the station since.
    pub fn learn_from_peer(&mut self, StationUpdate { station, port, seen_ns }: StationUpdate) {
        let known = self.find(self.hash(station), station);
        if known.is_some_and(|slot| self.entries[slot as usize].seen_ns > seen_ns) {
            return;
        }
        if let Some(slot) = self.note(station, port, seen_ns) {
            self.entries[slot as usize].announced_ns = Some(seen_ns);
        }
    }

    /// The stations in `budget` places from place `from` on, and the place to go on at; `None` at
    /// the end.
    pub fn known_stations(
        &self,
        from: usize,
        budget: usize,
    ) -> (Vec<StationUpdate>, Option<usize>) {
        let is_there = |(at, entry): &(usize, &Entry)| {
            // A place that is free keeps its last station.
            self.find(self.hash(entry.station), entry.station) == Some(*at as u32)
        };
        let places = self.entries.iter().enumerate().skip(from).take(budget).filter(is_there);
        let heard = places.map(|(_, &Entry { station, port, seen_ns, .. })| StationUpdate {
            station,
            port: PortId(port),
            seen_ns,
        });
        let next = from + budget;
        (heard.collect(), (next < self.entries.len()).then_some(next))
    }

    /// Notes that a station was heard at a port; where, if there was room for it.
    fn note(&mut self, station: Station, port: PortId, now_ns: u64) -> Option<u32> {
        let at = usize::from(port.0);
        if at >= self.ports.len() {
            return None;
        }
        self.forget_silent(now_ns);
        let hash = self.hash(station);
        let slot = match self.find(hash, station) {
            Some(slot) => {
                self.unlink(slot);
                self.make_room(at);
                slot
            }
            None => {
                self.make_room(at);
                self.file(hash, station)?
            }
        };
        self.link(slot, port, now_ns);
        Some(slot)
    }

    /// The port that a station is behind, if it was heard of late.
    pub fn port_of(&self, station: Station, now_ns: u64) -> Option<PortId> {
        let entry = self.entries[self.find(self.hash(station), station)? as usize];
        (!entry.is_silent(now_ns)).then_some(PortId(entry.port))
    }

    fn hash(&self, station: Station) -> u32 {
        hash(self.key, station)
    }

    fn find(&self, hash: u32, station: Station) -> Option<u32> {
        self.index.find(hash, |slot| {
            step();
            self.entries[slot as usize].station == station
        })
    }

    /// Gives up those of one port that nobody has heard for too long: another port each time.
    fn forget_silent(&mut self, now_ns: u64) {
        self.turn = (self.turn + 1) % self.ports.len();
        for _ in 0..FORGET_AT_ONCE {
            let oldest = self.ports[self.turn].oldest;
            step();
            match self.entries.get(oldest as usize) {
                Some(entry) if entry.is_silent(now_ns) => self.remove(oldest),
                _ => break,
            }
        }
    }

    /// Makes sure that there may be one more station behind a port.
    fn make_room(&mut self, port: usize) {
        let count: u32 = self.ports.iter().map(|port| port.count).sum();
        let oldest = if self.ports[port].count >= self.limits.of_port {
            self.ports[port].oldest
        } else if count >= self.limits.all {
            let most = self.ports.iter().max_by_key(|port| port.count);
            most.map_or(NONE, |port| port.oldest)
        } else {
            NONE
        };
        if oldest != NONE {
            self.remove(oldest);
        }
    }

    /// Gives a station a place. `None` if its hash is that of too many others.
    fn file(&mut self, hash: u32, station: Station) -> Option<u32> {
        let (port, seen_ns, announced_ns) = (0, 0, None);
        let entry = Entry { station, port, seen_ns, announced_ns, older: NONE, newer: NONE };
        let slot = self.free.pop().unwrap_or_else(|| {
            self.entries.push(entry);
            self.entries.len() as u32 - 1
        });
        self.entries[slot as usize] = entry;
        let (entries, key) = (&self.entries, self.key);
        let hash_of = |slot: u32| self::hash(key, entries[slot as usize].station);
        if self.index.insert(hash, slot, hash_of).is_err() {
            self.free.push(slot);
            return None;
        }
        Some(slot)
    }

    fn remove(&mut self, slot: u32) {
        self.unlink(slot);
        let hash = self.hash(self.entries[slot as usize].station);
        let was_there = self.index.remove(hash, slot);
        debug_assert!(was_there, "every entry is filed");
        self.free.push(slot);
    }

    /// Makes a station the last of its port's.
    fn link(&mut self, slot: u32, port: PortId, now_ns: u64) {
        step();
        let list = &mut self.ports[usize::from(port.0)];
        let entry = &mut self.entries[slot as usize];
        if entry.port != port.0 {
            entry.announced_ns = None;
        }
        (entry.port, entry.seen_ns) = (port.0, now_ns);
        (entry.older, entry.newer) = (list.newest, NONE);
        let before = std::mem::replace(&mut list.newest, slot);
        list.count += 1;
        match self.entries.get_mut(before as usize) {
            Some(before) => before.newer = slot,
            None => list.oldest = slot,
        }
    }

    /// Takes a station out of its port's.
    fn unlink(&mut self, slot: u32) {
        step();
        let Entry { port, older, newer, .. } = self.entries[slot as usize];
        let list = &mut self.ports[usize::from(port)];
        list.count -= 1;
        match self.entries.get_mut(older as usize) {
            Some(older) => older.newer = newer,
            None => list.oldest = newer,
        }
        match self.entries.get_mut(newer as usize) {
            Some(newer) => newer.older = older,
            None => list.newest = older,
        }
    }
}

impl Entry {
    fn is_silent(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.seen_ns) >= STATION_AGE_NS
    }
}

fn hash(key: HashKey, station: Station) -> u32 {
    SipHasher13::new_with_keys(key.0, key.1).hash(&station) as u32
}

/// One more look at entries: tests count them.
#[inline(always)]
fn step() {
    #[cfg(test)]
    observer::note();
}

#[cfg(test)]
#[path = "stations_observer.rs"]
mod observer;

#[cfg(test)]
#[path = "stations_tests.rs"]
mod tests;
