//! The number of half-open connections of each source, in bounded memory.

use std::hash::Hasher;

use flow::{Endpoint, HashKey, Zone};
use siphasher::sip::SipHasher13;
use wire::Family;

use crate::connection::source_prefix;

/// Sets of the table; a power of two.
const SETS: usize = 4096;
/// Sources of a set: two cache lines.
const WAYS: usize = 8;

/// Half-open connections by source and zone. A source is an IPv4 address or the first 64 bits
/// of an IPv6 address, because a host with one address of such a network can use all of them.
///
/// The memory is 512 KiB for each worker, from the first counted connection on. There is room
/// for [`Sources::MOST`] sources at a time; connections of a source that finds no room are
/// neither counted nor limited. The sources that send the most are already counted before a
/// flood of spoofed sources begins, and early drop helps against the flood.
#[derive(Debug)]
pub struct Sources {
    sets: Vec<[Source; WAYS]>,
    secret: HashKey,
    workers: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Source {
    prefix: u64,
    /// 0 in a free entry.
    half_open: u32,
    zone: Zone,
    is_v6: bool,
}

const _: () = assert!(size_of::<[Source; WAYS]>() == 128);

impl Sources {
    /// Most sources that one worker counts at a time.
    pub const MOST: usize = SETS * WAYS;

    /// No source has a connection.
    pub(super) const fn new(secret: HashKey) -> Self {
        Self { sets: Vec::new(), secret, workers: 1 }
    }

    /// Sets the number of workers that share the limit. A hash spreads a source's connections
    /// over the workers, and each worker allows its share, rounded up. So a source is refused
    /// at the limit if its connections are spread evenly, and earlier otherwise; it never has
    /// more than the limit plus one for each worker. With 0 workers there is no limit.
    pub fn set_workers(&mut self, workers: u32) {
        self.workers = workers;
    }

    /// Counts one more half-open connection of a source, which may have `limit` on all workers
    /// together. `Some(true)`: counted; `Some(false)`: there was no room to count it; `None`:
    /// the source is at its limit.
    pub(crate) fn count(
        &mut self,
        source: Endpoint,
        family: Family,
        zone: Zone,
        limit: u32,
    ) -> Option<bool> {
        if self.sets.is_empty() {
            self.sets = vec![[Source::default(); WAYS]; SETS];
        }
        let wanted = Source::of(source, family, zone);
        let share = if self.workers == 0 { u32::MAX } else { limit.div_ceil(self.workers) };
        let set = self.set(&wanted);
        if let Some(known) = set.iter_mut().find(|known| known.is(&wanted)) {
            if known.half_open >= share {
                return None;
            }
            known.half_open += 1;
            return Some(true);
        }
        let free = set.iter_mut().find(|known| known.half_open == 0);
        Some(free.map(|free| *free = Source { half_open: 1, ..wanted }).is_some())
    }

    /// Counts a connection less.
    pub(crate) fn discount(&mut self, source: Endpoint, family: Family, zone: Zone) {
        let wanted = Source::of(source, family, zone);
        let known = self.set(&wanted).iter_mut().find(|known| known.is(&wanted));
        debug_assert!(known.is_some(), "a connection was discounted that nobody counted");
        if let Some(known) = known {
            known.half_open -= 1;
        }
    }

    fn set(&mut self, source: &Source) -> &mut [Source; WAYS] {
        let mut hasher = SipHasher13::new_with_keys(self.secret.0, self.secret.1);
        hasher.write_u64(source.prefix);
        hasher.write_u32(u32::from(source.zone.0) << 1 | u32::from(source.is_v6));
        &mut self.sets[hasher.finish() as usize % SETS]
    }

    /// Number of half-open connections that are counted.
    #[cfg(test)]
    pub(crate) fn total(&self) -> u64 {
        self.sets.iter().flatten().map(|source| u64::from(source.half_open)).sum()
    }
}

impl Source {
    fn of(source: Endpoint, family: Family, zone: Zone) -> Self {
        let is_v6 = family == Family::V6;
        Self { prefix: source_prefix(source, family), half_open: 0, zone, is_v6 }
    }

    fn is(&self, other: &Self) -> bool {
        self.half_open > 0
            && (self.prefix, self.zone, self.is_v6) == (other.prefix, other.zone, other.is_v6)
    }
}
