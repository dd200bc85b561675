//! A hierarchical timer wheel over small integer identifiers.
//!
//! The wheel decides when an entry is looked at, not when it is dead: deadlines
//! move with every packet, so moving them must cost nothing. An owner keeps the
//! true deadline in its entry; when the wheel fires, it answers with the later
//! deadline if there is one, and the entry is filed anew (Varghese and Lauck,
//! "Hashed and Hierarchical Timing Wheels", 1987).

use crate::Timestamp;

/// Slots of a level; a power of two.
const SLOTS: usize = 64;
/// Levels: with ticks of about a second the last one spans 194 days.
const LEVELS: usize = 4;
/// log2 of a tick in nanoseconds: 2^30 ns = 1.07 s. Expiry is exact at look-up
/// time, the wheel only returns memory, so coarse is fine.
const TICK_SHIFT: u32 = 30;
const SLOT_BITS: u32 = SLOTS.trailing_zeros();
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Link {
    previous: u32,
    next: u32,
    /// Slot that holds the entry, `NONE` when it is not filed.
    slot: u32,
}

const UNFILED: Link = Link { previous: NONE, next: NONE, slot: NONE };

/// Files identifiers (indices of a slab) by the time at which to look at them.
#[derive(Debug)]
pub struct TimerWheel {
    /// First entry of each slot, level by level, and after them the list of what
    /// is due now.
    heads: Box<[u32; LEVELS * SLOTS + 1]>,
    links: Vec<Link>,
    /// The last tick that has been taken up.
    tick: u64,
    filed: usize,
}

/// Index of the list of entries that are due.
const DUE: u32 = (LEVELS * SLOTS) as u32;

impl TimerWheel {
    /// An empty wheel that starts at `now`.
    pub fn new(now: Timestamp) -> Self {
        Self {
            heads: Box::new([NONE; LEVELS * SLOTS + 1]),
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
        size_of_val(&*self.heads) + self.links.capacity() * size_of::<Link>()
    }

    /// Files `id` to be looked at no earlier than `deadline`, less than two ticks
    /// after it at the lowest level. An id that is filed already is moved.
    pub fn insert(&mut self, id: u32, deadline: Timestamp) {
        let at = id as usize;
        if at >= self.links.len() {
            self.links.resize(at + 1, UNFILED);
        }
        self.remove(id);
        // The tick after the deadline, so that the deadline has passed when it comes.
        let due = (deadline.as_nanos() >> TICK_SHIFT).saturating_add(1).max(self.tick + 1);
        self.push(id, self.slot_of(due));
    }

    /// Takes `id` out; nothing happens if it is not filed.
    pub fn remove(&mut self, id: u32) {
        let Some(&link) = self.links.get(id as usize) else { return };
        if link.slot == NONE {
            return;
        }
        if link.previous == NONE {
            self.heads[link.slot as usize] = link.next;
        } else {
            self.links[link.previous as usize].next = link.next;
        }
        if link.next != NONE {
            self.links[link.next as usize].previous = link.previous;
        }
        self.links[id as usize] = UNFILED;
        self.filed -= 1;
    }

    /// Moves time on to `now` and calls `expired` for at most `budget` entries
    /// that are due. It answers with a later deadline to file the entry again, or
    /// with `None` when the entry is gone. What the budget leaves is due at the
    /// next call. Returns how many entries were looked at.
    pub fn advance(
        &mut self,
        now: Timestamp,
        budget: usize,
        mut expired: impl FnMut(u32) -> Option<Timestamp>,
    ) -> usize {
        self.turn_to(now.as_nanos() >> TICK_SHIFT);
        let mut looked_at = 0;
        while looked_at < budget {
            let id = self.heads[DUE as usize];
            if id == NONE {
                break;
            }
            looked_at += 1;
            self.remove(id);
            if let Some(deadline) = expired(id) {
                self.insert(id, deadline);
            }
        }
        looked_at
    }

    /// Moves everything whose tick has come to the list of what is due.
    fn turn_to(&mut self, target: u64) {
        if self.filed == 0 {
            self.tick = self.tick.max(target);
            return;
        }
        while self.tick < target {
            self.tick += 1;
            // A level turns when all below it have come round.
            for level in (1..LEVELS as u32).rev() {
                if self.tick.trailing_zeros() >= level * SLOT_BITS {
                    self.refile(slot_at(level, self.tick));
                }
            }
            self.append_to_due(slot_at(0, self.tick));
        }
    }

    /// Files the entries of a higher slot again, now that they are nearer.
    fn refile(&mut self, slot: u32) {
        let mut id = std::mem::replace(&mut self.heads[slot as usize], NONE);
        while id != NONE {
            let next = self.links[id as usize].next;
            self.links[id as usize] = UNFILED;
            self.filed -= 1;
            // The exact tick is not kept: the slot's first tick is the earliest it
            // can be due, and the owner files it again if that is too early.
            self.push(id, slot_at(0, self.tick));
            id = next;
        }
    }

    fn append_to_due(&mut self, slot: u32) {
        let mut id = std::mem::replace(&mut self.heads[slot as usize], NONE);
        while id != NONE {
            let next = self.links[id as usize].next;
            self.links[id as usize] = UNFILED;
            self.filed -= 1;
            self.push(id, DUE);
            id = next;
        }
    }

    fn push(&mut self, id: u32, slot: u32) {
        let head = std::mem::replace(&mut self.heads[slot as usize], id);
        if head != NONE {
            self.links[head as usize].previous = id;
        }
        self.links[id as usize] = Link { previous: NONE, next: head, slot };
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
        // Beyond the last level: its farthest slot, from where it is filed again.
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
