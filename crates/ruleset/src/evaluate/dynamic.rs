//! Sets that packets change.
//!
//! Each worker has its own copy. A worker tells the others what it adds or deletes with an
//! [`ElementUpdate`], which its engine carries through its rings. So workers share nothing, and the
//! others know of a change a moment later. All memory is allocated at the start.

use std::hash::Hasher;

use flow::Timestamp;
use siphasher::sip::SipHasher13;

use super::limit::{Costs, take_alone};
use crate::compile::{PackedKey, Program};
use crate::listing::LiveElement;
use crate::model::{Data, Part, Set, SetId};

/// A change of a set by one worker, for the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElementUpdate {
    pub(super) set: SetId,
    pub(super) key: PackedKey,
    /// The time at which the element ends; zero if it was deleted.
    pub(super) deadline: Timestamp,
}

impl ElementUpdate {
    /// The element as a listing shows it, with its remaining time; `None` if it was deleted or has
    /// expired.
    pub fn listed(&self, program: &Program, now: Timestamp) -> Option<LiveElement> {
        let Self { set, key, deadline } = *self;
        if deadline <= now {
            return None;
        }
        let kinds = &program.ruleset().sets().get(set.index())?.key;
        let mut halves = key.halves();
        let mut part = |words: usize| {
            (0..words)
                .fold(0, |value: u128, _| value << 32 | u128::from(halves.next().unwrap_or(0)))
        };
        let key = kinds.iter().map(|kind| part(kind.words())).collect();
        let expires = (deadline != Timestamp::NEVER).then(|| deadline.since(now));
        Some(LiveElement { set, key, expires })
    }
}

/// Elements that a full set examines for an expired one.
const SEARCHED: u32 = 16;

/// A set of one worker.
#[derive(Debug)]
pub(super) struct DynamicSet {
    /// Words of a key.
    stride: usize,
    /// Number + 1 of the entry in each slot; 0 for a free slot.
    slots: Vec<u32>,
    keys: Vec<u64>,
    entries: Vec<Entry>,
    free: Vec<u32>,
    /// The state of the elements' statements, a row for each element.
    parts: Vec<PartState>,
    kinds: Vec<(Part, Costs)>,
    room: u32,
    /// The element at which the next search for an expired one begins.
    hand: u32,
    secret: (u64, u64),
    /// Time that an element stays unless it says otherwise, in nanoseconds.
    pub timeout_nanos: Option<u64>,
    /// Additions that were refused because the set was full.
    pub refused: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    deadline: Timestamp,
    live: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct PartState {
    packets: u64,
    bytes: u64,
}

/// The result of an addition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Added {
    New(u32),
    Known(u32),
    Full,
}

impl DynamicSet {
    pub fn new(set: &Set, seed: u64, workers: u64, now: Timestamp) -> Self {
        let words: usize = set.key.iter().map(|kind| kind.words()).sum();
        let stride = words.div_ceil(2);
        let room = set.size.max(set.elements.len() as u32);
        let kinds: Vec<(Part, Costs)> = set
            .parts
            .iter()
            .map(|part| match part {
                Part::Limit(rate) => (*part, Costs::of(rate).shared(workers)),
                _ => (*part, Costs::NONE),
            })
            .collect();
        let mut made = Self {
            stride,
            slots: vec![0; (2 * room as usize).next_power_of_two().max(4)],
            keys: Vec::with_capacity(stride * room as usize),
            entries: Vec::with_capacity(room as usize),
            free: Vec::new(),
            parts: Vec::with_capacity(kinds.len() * room as usize),
            kinds,
            room,
            hand: 0,
            secret: (seed, !seed),
            timeout_nanos: set.timeout.map(|timeout| timeout.as_nanos() as u64),
            refused: 0,
        };
        debug_assert_ne!(set.data, Data::Verdicts, "rules can not add to maps");
        for element in set.elements.iter() {
            let mut key = PackedKey::EMPTY;
            for (part, kind) in element.key().zip(&set.key) {
                key.push(part.low, kind.words());
            }
            let deadline = element.expires().map_or(Timestamp::NEVER, |after| now.after(after));
            if let Added::New(number) = made.add(&key, deadline, now) {
                let (packets, bytes) = element.counted();
                let begin = number as usize * made.kinds.len();
                for (part, (kind, _)) in made.parts[begin..].iter_mut().zip(&made.kinds) {
                    if *kind == Part::Counter {
                        *part = PartState { packets, bytes };
                    }
                }
            }
        }
        made
    }

    fn hash(&self, key: &[u64]) -> usize {
        // Keyed, because senders choose what is added.
        let mut hasher = SipHasher13::new_with_keys(self.secret.0, self.secret.1);
        key.iter().for_each(|word| hasher.write_u64(*word));
        hasher.finish() as usize
    }

    /// The slot of a key, and the number of its entry if there is one.
    fn slot(&self, key: &[u64]) -> (usize, Option<u32>) {
        let mask = self.slots.len() - 1;
        let mut at = self.hash(key) & mask;
        loop {
            match self.slots[at].checked_sub(1) {
                None => return (at, None),
                Some(number) if self.key(number) == key => return (at, Some(number)),
                Some(_) => at = (at + 1) & mask,
            }
        }
    }

    fn key(&self, number: u32) -> &[u64] {
        let begin = number as usize * self.stride;
        &self.keys[begin..begin + self.stride]
    }

    /// The element of a key, unless it has expired.
    pub fn find(&self, key: &PackedKey, now: Timestamp) -> Option<u32> {
        let (_, number) = self.slot(key.slice());
        number.filter(|number| self.entries[*number as usize].deadline > now)
    }

    /// Adds an element. An element that is there already and has not expired stays as it is.
    pub fn add(&mut self, key: &PackedKey, deadline: Timestamp, now: Timestamp) -> Added {
        let words = key.slice();
        let (mut at, found) = self.slot(words);
        if let Some(number) = found {
            let entry = &mut self.entries[number as usize];
            if entry.deadline > now {
                return Added::Known(number);
            }
            // The element had expired: it begins anew.
            entry.deadline = deadline;
            self.reset(number);
            return Added::New(number);
        }
        let number = match self.free.pop() {
            Some(number) => number,
            None if self.entries.len() < self.room as usize => {
                self.entries.push(Entry { deadline, live: false });
                self.keys.resize(self.keys.len() + self.stride, 0);
                self.parts.resize(self.parts.len() + self.kinds.len(), PartState::default());
                self.entries.len() as u32 - 1
            }
            None => match self.reclaim(now) {
                Some(number) => {
                    // Freeing an entry moves others to new slots.
                    (at, _) = self.slot(words);
                    number
                }
                None => {
                    self.refused += 1;
                    return Added::Full;
                }
            },
        };
        let begin = number as usize * self.stride;
        self.keys[begin..begin + self.stride].copy_from_slice(words);
        self.entries[number as usize] = Entry { deadline, live: true };
        self.reset(number);
        self.slots[at] = number + 1;
        Added::New(number)
    }

    /// Frees the entry of an expired element, if the search finds one.
    fn reclaim(&mut self, now: Timestamp) -> Option<u32> {
        for _ in 0..SEARCHED {
            let number = self.hand;
            self.hand = (self.hand + 1) % self.entries.len().max(1) as u32;
            let entry = self.entries[number as usize];
            if entry.live && entry.deadline <= now {
                self.unfile(number);
                return Some(number);
            }
        }
        None
    }

    /// Takes an entry out of the slots and moves those behind it up.
    fn unfile(&mut self, number: u32) {
        let mask = self.slots.len() - 1;
        let (mut hole, _) = self.slot(self.key(number));
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let Some(other) = self.slots[at].checked_sub(1) else { break };
            let home = self.hash(self.key(other)) & mask;
            // An entry whose home is at or before the hole may move into it.
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(hole) & mask) {
                self.slots[hole] = other + 1;
                hole = at;
            }
        }
        self.slots[hole] = 0;
        self.entries[number as usize].live = false;
    }

    pub fn remove(&mut self, key: &PackedKey) -> bool {
        let (_, found) = self.slot(key.slice());
        if let Some(number) = found {
            self.unfile(number);
            self.free.push(number);
        }
        found.is_some()
    }

    /// Puts off the end of an element; true if it gains more than an eighth of its time.
    pub fn refresh(&mut self, number: u32, deadline: Timestamp, now: Timestamp) -> bool {
        let entry = &mut self.entries[number as usize];
        let gained = deadline.since(entry.deadline);
        let length = deadline.since(now);
        entry.deadline = deadline;
        gained > length / 8
    }

    fn reset(&mut self, number: u32) {
        let begin = number as usize * self.kinds.len();
        self.parts[begin..begin + self.kinds.len()].fill(PartState::default());
    }

    /// Counts a packet for an element; false if one of its limits ends the rule.
    pub fn count(&mut self, number: u32, bytes: u64, now: Timestamp) -> bool {
        let begin = number as usize * self.kinds.len();
        for (state, (part, costs)) in self.parts[begin..].iter_mut().zip(&self.kinds) {
            match part {
                Part::Counter => {
                    state.packets += 1;
                    state.bytes += bytes;
                }
                Part::Limit(rate) => {
                    // The state of a rate is the time up to which it is used up.
                    let cost = costs.of_packet(bytes);
                    if take_alone(&mut state.bytes, cost, costs.most, now) == rate.over {
                        return false;
                    }
                }
                Part::Quota { bytes: most, over } => {
                    state.bytes += bytes;
                    if (state.bytes > *most) != *over {
                        return false;
                    }
                }
            }
        }
        true
    }

    /// The result that [`count`](DynamicSet::count) would give; `None` stands for a new element.
    pub fn would_go_on(&self, number: Option<u32>, bytes: u64, now: Timestamp) -> bool {
        let begin = number.map(|number| number as usize * self.kinds.len());
        self.kinds.iter().enumerate().all(|(at, (part, costs))| {
            let state = begin.map_or_else(PartState::default, |begin| self.parts[begin + at]);
            match part {
                Part::Counter => true,
                Part::Limit(rate) => {
                    let (mut used_until, cost) = (state.bytes, costs.of_packet(bytes));
                    take_alone(&mut used_until, cost, costs.most, now) != rate.over
                }
                Part::Quota { bytes: most, over } => (state.bytes + bytes > *most) == *over,
            }
        })
    }

    /// Divides the rates of the elements among `workers`.
    pub fn set_workers(&mut self, workers: u64) {
        for (part, costs) in &mut self.kinds {
            if let Part::Limit(rate) = part {
                *costs = Costs::of(rate).shared(workers);
            }
        }
    }

    /// The number of places for elements, used and free.
    pub fn places(&self) -> usize {
        self.entries.len()
    }

    /// The element in a place, with its end, unless it has expired.
    pub fn element(&self, place: usize, now: Timestamp) -> Option<(PackedKey, Timestamp)> {
        let entry = self.entries.get(place).filter(|entry| entry.live && entry.deadline > now)?;
        let mut key = PackedKey { halves: 2 * self.stride, ..PackedKey::EMPTY };
        key.words[..self.stride].copy_from_slice(self.key(place as u32));
        Some((key, entry.deadline))
    }

    /// The number of elements that have not expired.
    pub fn len(&self, now: Timestamp) -> usize {
        self.entries.iter().filter(|entry| entry.live && entry.deadline > now).count()
    }
}

#[cfg(test)]
#[path = "../dynamic_tests.rs"]
mod tests;
