//! The shares of sources in a room that all sources use together.
//!
//! The source that has most of a full room makes place for the others, so no source keeps them
//! out. No source has a fixed limit: one alone may fill the room.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use flow::{KeyedPacket, Zone};
use wire::Family;

use crate::connection::source_prefix;

/// A source for these shares: an IPv4 address, or the first 64 bits of an IPv6 address, in one
/// zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Holder {
    family: Family,
    zone: Zone,
    prefix: u64,
}

impl Holder {
    /// The originator of a connection.
    pub fn of(KeyedPacket { key, sender }: KeyedPacket) -> Self {
        let prefix = source_prefix(key.endpoint(sender), key.family);
        Self { family: key.family, zone: key.zone, prefix }
    }
}

/// The things in a room by the source that holds them. Things have numbers, which grow. Each
/// call takes time in proportion to the logarithm of their number.
///
/// Ordered maps need no secret: no choice of addresses makes them slow.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    /// Each thing and its size, the oldest of a source first.
    things: BTreeMap<(Holder, u64), u64>,
    /// The size of all things of a source.
    sizes: BTreeMap<Holder, u64>,
    /// The sources by that size, and among equals by the age of their oldest thing.
    ranks: BTreeSet<(u64, Reverse<u64>, Holder)>,
}

impl Shares {
    /// Counts a new thing.
    pub fn add(&mut self, holder: Holder, number: u64, size: u64) {
        self.change(holder, |things, total| {
            things.insert((holder, number), size);
            *total += size;
        });
    }

    /// Counts a thing no more.
    pub fn remove(&mut self, holder: Holder, number: u64) {
        self.change(holder, |things, total| {
            *total -= things.remove(&(holder, number)).unwrap_or(0);
        });
    }

    /// The size of all things of a source.
    pub fn of(&self, holder: Holder) -> u64 {
        self.sizes.get(&holder).copied().unwrap_or(0)
    }

    /// The source that has most, with the number of its oldest thing.
    pub fn greatest(&self) -> Option<(Holder, u64)> {
        self.ranks.last().map(|&(_, Reverse(oldest), holder)| (holder, oldest))
    }

    fn change(
        &mut self,
        holder: Holder,
        change: impl FnOnce(&mut BTreeMap<(Holder, u64), u64>, &mut u64),
    ) {
        let mut total = self.of(holder);
        if let Some(oldest) = self.oldest(holder) {
            self.ranks.remove(&(total, Reverse(oldest), holder));
        }
        change(&mut self.things, &mut total);
        match self.oldest(holder) {
            Some(oldest) => {
                self.ranks.insert((total, Reverse(oldest), holder));
                self.sizes.insert(holder, total);
            }
            None => {
                self.sizes.remove(&holder);
            }
        }
    }

    fn oldest(&self, holder: Holder) -> Option<u64> {
        let mut things = self.things.range((holder, 0)..=(holder, u64::MAX));
        things.next().map(|(&(_, number), _)| number)
    }

    /// True if nobody holds anything.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.things.is_empty() && self.sizes.is_empty() && self.ranks.is_empty()
    }
}
