//! A hierarchical timer wheel over small integer identifiers.
//!
//! The wheel decides when an entry is looked at, not when it is dead: a deadline moves with
//! every packet, so moving it must cost nothing. The owner keeps the true deadline in its
//! entry. When the wheel fires, the owner answers with the later deadline if there is one, and
//! the wheel files the entry anew (Varghese and Lauck, "Hashed and Hierarchical Timing Wheels",
//! 1987).

use crate::{Prefetch, Timestamp};

/// Slots of a level; a power of two.
const SLOTS: usize = 64;
/// Levels: with ticks of about a second the last one spans 194 days.
const LEVELS: usize = 4;
/// log2 of a tick in nanoseconds: 2^30 ns = 1.07 s. Look-ups check the exact deadline and the
/// wheel only returns memory, so a coarse tick is enough.
const TICK_SHIFT: u32 = 30;
const SLOT_BITS: u32 = SLOTS.trailing_zeros();
const NONE: u32 = u32::MAX;

/// Entries of a chunk of links: 1.5 KiB are added at a time, and growth copies none.
const CHUNK: usize = 128;

#[derive(Clone, Copy, Debug)]
struct Link {
    previous: u32,
    next: u32,
    /// Slot that holds the entry, `NONE` when it is not filed.
    slot: u32,
}

const UNFILED: Link = Link { previous: NONE, next: NONE, slot: NONE };

/// Files identifiers (indices of a slab) by the time at which to look at them.
///
/// The slots of the present tick hold the entries that are due and not yet looked at; time does
/// not move on before they are empty. So the wheel never passes an entry over, and every entry
/// lies less than a round ahead of the present slot of its level.
#[derive(Debug)]
pub struct TimerWheel {
    /// First entry of each slot, level by level.
    heads: Box<[u32; LEVELS * SLOTS]>,
    /// The slots of each level that hold something, one bit each.
    occupied: [u64; LEVELS],
    #[expect(clippy::vec_box, reason = "a longer list of chunks must not copy the chunks")]
    links: Vec<Box<[Link; CHUNK]>>,
    /// The present tick.
    tick: u64,
    filed: usize,
}

const _: () = assert!(SLOTS == u64::BITS as usize, "one word tells the slots of a level");

impl TimerWheel {
    /// An empty wheel that starts at `now`.
    pub fn new(now: Timestamp) -> Self {
        Self {
            heads: Box::new([NONE; LEVELS * SLOTS]),
            occupied: [0; LEVELS],
            links: Vec::new(),
            tick: now.as_nanos() >> TICK_SHIFT,
            filed: 0,
        }
    }

    /// How many entries are filed.
    pub fn len(&self) -> usize {
        self.filed
    }

    /// True when nothing is filed.
    pub fn is_empty(&self) -> bool {
        self.filed == 0
    }

    /// Memory held, bytes.
    pub fn memory_bytes(&self) -> usize {
        size_of_val(&*self.heads)
            + self.links.len() * size_of::<[Link; CHUNK]>()
            + self.links.capacity() * size_of::<usize>()
    }

    /// Files `id`, so that [`TimerWheel::advance`] asks its owner about it; moves an id that is
    /// filed already. With sufficient budgets the last question comes after `deadline` and less
    /// than two ticks after it; with smaller ones it comes later. If the deadline is more than
    /// 64 ticks away, the owner is asked earlier too, at most once for each level.
    pub fn insert(&mut self, id: u32, deadline: Timestamp) {
        while id as usize >= self.links.len() * CHUNK {
            self.links.push(Box::new([UNFILED; CHUNK]));
        }
        self.remove(id);
        // The tick after the deadline, so that the deadline has passed when it comes.
        let due = (deadline.as_nanos() >> TICK_SHIFT).saturating_add(1).max(self.tick + 1);
        self.push(id, self.slot_of(due));
    }

    /// Prefetches the links of an id that is to be taken out.
    #[inline]
    pub fn prefetch(&self, id: u32, prefetch: impl Prefetch) {
        if let Some(chunk) = self.links.get(id as usize / CHUNK) {
            prefetch.prefetch(&chunk[id as usize % CHUNK]);
        }
    }

    /// Takes `id` out; nothing happens if it is not filed.
    pub fn remove(&mut self, id: u32) {
        if id as usize >= self.links.len() * CHUNK {
            return;
        }
        let Link { previous, next, slot } = std::mem::replace(self.link(id), UNFILED);
        if slot == NONE {
            return;
        }
        if previous != NONE {
            self.link(previous).next = next;
        } else {
            self.heads[slot as usize] = next;
            if next == NONE {
                self.occupied[slot as usize / SLOTS] &= !(1 << (slot as usize % SLOTS));
            }
        }
        if next != NONE {
            self.link(next).previous = previous;
        }
        self.filed -= 1;
    }

    /// Moves time on towards `now` and calls `expired` for at most `budget` entries. `expired`
    /// answers with a later deadline to file the entry again, or with `None` if the entry is
    /// gone. The budget bounds the work however far `now` is ahead; entries beyond it are due
    /// at the next call. Returns how many entries were looked at.
    pub fn advance(
        &mut self,
        now: Timestamp,
        budget: usize,
        mut expired: impl FnMut(u32) -> Option<Timestamp>,
    ) -> usize {
        let target = now.as_nanos() >> TICK_SHIFT;
        for looked_at in 0..budget {
            let Some(id) = self.turn_towards(target) else { return looked_at };
            self.remove(id);
            if let Some(deadline) = expired(id) {
                self.insert(id, deadline);
            }
        }
        budget
    }

    /// Turns to the first tick at which an entry is due and returns one such entry; turns to
    /// `target` when none is due up to then.
    fn turn_towards(&mut self, target: u64) -> Option<u32> {
        let Some(tick) = self.next_tick().filter(|&tick| tick <= target) else {
            self.tick = self.tick.max(target);
            return None;
        };
        self.tick = tick;
        let mut heads = (0..LEVELS as u32).map(|level| self.heads[slot_at(level, tick) as usize]);
        heads.find(|&id| id != NONE)
    }

    /// The first tick, from the present one on, that reaches a slot with an entry.
    fn next_tick(&self) -> Option<u64> {
        let first = |(level, &occupied): (u32, &u64)| {
            let shift = level * SLOT_BITS;
            let present = self.tick >> shift;
            let ahead = occupied.rotate_right((present % SLOTS as u64) as u32).trailing_zeros();
            (occupied != 0).then(|| (present + u64::from(ahead)) << shift)
        };
        (0..).zip(&self.occupied).filter_map(first).min()
    }

    fn link(&mut self, id: u32) -> &mut Link {
        &mut self.links[id as usize / CHUNK][id as usize % CHUNK]
    }

    fn push(&mut self, id: u32, slot: u32) {
        let next = std::mem::replace(&mut self.heads[slot as usize], id);
        if next != NONE {
            self.link(next).previous = id;
        }
        *self.link(id) = Link { previous: NONE, next, slot };
        self.occupied[slot as usize / SLOTS] |= 1 << (slot as usize % SLOTS);
        self.filed += 1;
    }

    /// The slot for a tick in the future: the lowest level that reaches it.
    fn slot_of(&self, due: u64) -> u32 {
        for level in 0..LEVELS as u32 {
            let shift = level * SLOT_BITS;
            if (due >> shift) - (self.tick >> shift) < SLOTS as u64 {
                return slot_at(level, due);
            }
        }
        // Beyond the last level: the farthest slot, from which the entry is filed again.
        let shift = (LEVELS as u32 - 1) * SLOT_BITS;
        slot_at(LEVELS as u32 - 1, ((self.tick >> shift) + SLOTS as u64 - 1) << shift)
    }
}

fn slot_at(level: u32, tick: u64) -> u32 {
    let index = (tick >> (level * SLOT_BITS)) & (SLOTS as u64 - 1);
    level * SLOTS as u32 + index as u32
}

#[cfg(test)]
#[path = "wheel_tests.rs"]
mod tests;
