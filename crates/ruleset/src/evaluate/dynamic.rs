//! A shard of a set that packets change: the elements of some of its keys.
//!
//! A [`SharedSet`](super::shared_set::SharedSet) holds the shards, each behind a lock.

mod journal;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};

use flow::{Tallied, Tally, Timestamp};

use self::journal::{Journal, Note};
pub(super) use self::journal::{Telling, ToTell};
use super::limit::{Costs, take_alone};
use super::view::Details;
use crate::compile::PackedKey;
use crate::model::Part;

/// Elements that a full set examines for an expired one.
pub(super) const SEARCHED: usize = 16;
/// A packet that would put off the end of an element by less leaves it as it is, nanoseconds. The
/// kernel reads the time at its ticks, which are at least as far apart.
const TICK: u64 = 1_000_000;

/// The elements of some keys of a set.
#[derive(Clone, Debug)]
pub(super) struct Shard {
    /// Words of a key.
    stride: usize,
    /// Number + 1 of the entry in each slot; 0 for a free slot. At least half of them are free.
    slots: Vec<u32>,
    keys: Vec<u64>,
    entries: Vec<Entry>,
    free: Vec<u32>,
    /// The state of the elements' statements, a row for each element.
    parts: Vec<PartState>,
    /// By element: the number of connections, if that is one of the statements.
    tallies: Vec<Tally>,
    /// The operator's comments, by number of the element.
    comments: BTreeMap<u32, Box<str>>,
    /// The changes that a peer has to hear of.
    journal: Journal,
}

/// How long an element stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Life {
    /// The time at which it ends.
    pub deadline: Timestamp,
    /// The time for which it was added, nanoseconds; `None` if it stays.
    pub timeout: Option<u64>,
}

impl Life {
    /// An element that stays.
    pub const FOREVER: Self = Self { deadline: Timestamp::NEVER, timeout: None };

    /// The life of an element that is added now.
    pub fn from(now: Timestamp, timeout: Option<u64>) -> Self {
        let Some(nanos) = timeout else { return Self::FOREVER };
        Self { deadline: now.after(std::time::Duration::from_nanos(nanos)), timeout }
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// The hash of its key.
    hash: u64,
    life: Life,
    live: bool,
    /// It has none of the statements that rules give to the elements that they add, so it lets each
    /// rule go on.
    bare: bool,
    note: Note,
}

/// The state of a statement of an element.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PartState {
    /// Packets that a counter has counted.
    pub packets: u64,
    /// Bytes of a counter or quota; of a rate, the time up to which it is used up.
    pub bytes: u64,
}

/// A statement that each element of a set holds, with the costs of a rate.
pub(super) type Kinds = [(Part, Costs)];

/// The result of an addition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Added {
    New(u32),
    Known(u32),
    Full,
}

impl Shard {
    /// A shard with memory for `room` elements. It takes more when it needs it.
    pub fn new(stride: usize, parts: usize, room: usize) -> Self {
        Self {
            stride,
            slots: vec![0; (2 * room).next_power_of_two().max(4)],
            keys: Vec::with_capacity(stride * room),
            entries: Vec::with_capacity(room),
            free: Vec::new(),
            parts: Vec::with_capacity(parts * room),
            tallies: Vec::new(),
            comments: BTreeMap::new(),
            journal: Journal::default(),
        }
    }

    /// The slot of a key, and the number of its entry if there is one.
    fn slot(&self, hash: u64, key: &[u64]) -> (usize, Option<u32>) {
        let mask = self.slots.len() - 1;
        let mut at = hash as usize & mask;
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
    pub fn find(&self, hash: u64, key: &PackedKey, now: Timestamp) -> Option<u32> {
        let (_, number) = self.slot(hash, key.slice());
        number.filter(|number| self.lives(*number, now))
    }

    /// True if an element has neither expired nor lost its last connection. As in the kernel, an
    /// element that counts connections ends with the last of them.
    fn lives(&self, number: u32, now: Timestamp) -> bool {
        let entry = &self.entries[number as usize];
        let tally = self.tallies.get(number as usize);
        entry.live
            && entry.life.deadline > now
            && (entry.bare || tally.is_none_or(|connections| connections.count() > 0))
    }

    /// Adds an element. An element that is there already and has not expired stays as it is.
    /// `take_room` is asked for room in the set for one more.
    pub fn add(
        &mut self,
        (hash, key): (u64, &PackedKey),
        life: Life,
        kinds: &Kinds,
        now: Timestamp,
        take_room: impl FnOnce() -> bool,
    ) -> Added {
        let words = key.slice();
        if let (_, Some(number)) = self.slot(hash, words) {
            if self.lives(number, now) {
                return Added::Known(number);
            }
            // The element had ended: it begins anew.
            self.entries[number as usize].life = life;
            self.reset(number, kinds);
            return Added::New(number);
        }
        if !take_room() {
            return Added::Full;
        }
        let entry = Entry { hash, life, live: true, bare: false, note: Note::default() };
        let number = if let Some(number) = self.free.pop() {
            let begin = number as usize * self.stride;
            self.keys[begin..begin + self.stride].copy_from_slice(words);
            // The number may still be on the list of those that have changed.
            let note = self.entries[number as usize].note;
            self.entries[number as usize] = Entry { note, ..entry };
            number
        } else {
            self.entries.push(entry);
            self.keys.extend_from_slice(words);
            self.parts.resize(self.parts.len() + kinds.len(), PartState::default());
            if kinds.iter().any(|(part, _)| matches!(part, Part::Connections(_))) {
                self.tallies.push(Tally::default());
            }
            self.entries.len() as u32 - 1
        };
        self.reset(number, kinds);
        if 2 * self.entries.len() > self.slots.len() {
            self.grow();
        } else {
            let (at, _) = self.slot(hash, words);
            self.slots[at] = number + 1;
        }
        Added::New(number)
    }

    /// Doubles the slots.
    #[cold]
    fn grow(&mut self) {
        let mask = 2 * self.slots.len() - 1;
        self.slots = vec![0; mask + 1];
        for (number, entry) in (1..).zip(&self.entries) {
            let mut at = entry.hash as usize & mask;
            while entry.live && self.slots[at] != 0 {
                at = (at + 1) & mask;
            }
            if entry.live {
                self.slots[at] = number;
            }
        }
    }

    /// True if one of the elements from `hand` on has expired. Each element that is looked at is
    /// taken off `searched`.
    pub fn has_expired(&self, hand: &AtomicU32, searched: &mut usize, now: Timestamp) -> bool {
        let count = self.entries.len();
        for _ in 0..count.min(*searched) {
            let at = hand.load(Ordering::Relaxed) as usize % count;
            if self.entries[at].live && !self.lives(at as u32, now) {
                return true;
            }
            hand.store(at as u32 + 1, Ordering::Relaxed);
            *searched -= 1;
        }
        false
    }

    /// Frees the element at `hand` if it has expired.
    pub fn reclaim(&mut self, hand: &AtomicU32, now: Timestamp) -> bool {
        let number = hand.load(Ordering::Relaxed) as usize % self.entries.len().max(1);
        let is_filed = self.entries.get(number).is_some_and(|entry| entry.live);
        let is_over = is_filed && !self.lives(number as u32, now);
        if is_over {
            self.unfile_expired(number as u32);
        }
        is_over
    }

    /// Takes an entry out of the slots and moves those behind it up.
    fn unfile(&mut self, number: u32) {
        self.note_end(number);
        let mask = self.slots.len() - 1;
        let (mut hole, _) = self.slot(self.entries[number as usize].hash, self.key(number));
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let Some(other) = self.slots[at].checked_sub(1) else { break };
            let home = self.entries[other as usize].hash as usize & mask;
            // An entry whose home is at or before the hole may move into it.
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(hole) & mask) {
                self.slots[hole] = other + 1;
                hole = at;
            }
        }
        self.slots[hole] = 0;
        self.entries[number as usize].live = false;
        self.forget_connections(number);
        self.comments.remove(&number);
        self.free.push(number);
    }

    /// Deletes the element of a key. Says whether it took room, and whether it had not expired.
    pub fn remove(&mut self, hash: u64, key: &PackedKey, now: Timestamp) -> (bool, bool) {
        let (_, found) = self.slot(hash, key.slice());
        let lives = found.is_some_and(|it| self.lives(it, now));
        if let Some(number) = found {
            self.unfile(number);
        }
        (found.is_some(), lives)
    }

    /// True if putting off the end of an element changes it.
    pub fn gains(&self, number: u32, life: Life) -> bool {
        let entry = &self.entries[number as usize];
        entry.life.timeout != life.timeout
            || life.deadline.since(entry.life.deadline).as_nanos() as u64 >= TICK
    }

    /// Puts off the end of an element.
    pub fn refresh(&mut self, number: u32, life: Life) {
        self.entries[number as usize].life = life;
    }

    fn reset(&mut self, number: u32, kinds: &Kinds) {
        self.forget_connections(number);
        self.comments.remove(&number);
        self.entries[number as usize].bare = false;
        self.states_mut(number, kinds).0.fill(PartState::default());
    }

    /// Has an element count connections from none on.
    fn forget_connections(&mut self, number: u32) {
        if let Some(tally) = self.tallies.get_mut(number as usize).filter(|it| it.count() > 0) {
            *tally = Tally::default();
        }
    }

    /// Says whether an element has none of the statements of its set.
    pub fn set_bare(&mut self, number: u32, bare: bool) {
        self.entries[number as usize].bare = bare;
    }

    /// True if an element has none of the statements of its set.
    pub fn is_bare(&self, number: u32) -> bool {
        self.entries[number as usize].bare
    }

    /// Gives an element a comment.
    pub fn comment_on(&mut self, number: u32, comment: &str) {
        self.comments.insert(number, comment.into());
    }

    /// The operator's comment on an element.
    pub fn comment(&self, number: u32) -> Option<&str> {
        self.comments.get(&number).map(|comment| &**comment)
    }

    /// Deletes every element. Returns how many took room, and how many had not ended.
    pub fn clear(&mut self, now: Timestamp) -> (u32, usize) {
        let held = self.held() as u32;
        let lived = (0..self.entries.len() as u32).filter(|it| self.lives(*it, now)).count();
        self.note_ends();
        self.slots.fill(0);
        self.entries.clear();
        self.keys.clear();
        self.parts.clear();
        self.tallies.clear();
        self.comments.clear();
        self.free.clear();
        (held, lived)
    }

    /// Frees the elements that have ended. Returns how many.
    pub fn reclaim_all(&mut self, now: Timestamp) -> u32 {
        let mut freed = 0;
        for number in 0..self.entries.len() as u32 {
            if self.entries[number as usize].live && !self.lives(number, now) {
                self.unfile_expired(number);
                freed += 1;
            }
        }
        freed
    }

    /// The state of an element's statements; none of an element that is bare.
    pub fn states(&self, number: u32, kinds: &Kinds) -> (&[PartState], Option<&Tally>) {
        if self.is_bare(number) {
            return (&[], None);
        }
        let begin = number as usize * kinds.len();
        (&self.parts[begin..begin + kinds.len()], self.tallies.get(number as usize))
    }

    /// The state of an element's statements, to change it.
    pub fn states_mut(&mut self, number: u32, kinds: &Kinds) -> (&mut [PartState], Option<&Tally>) {
        if self.is_bare(number) {
            return (&mut [], None);
        }
        let begin = number as usize * kinds.len();
        (&mut self.parts[begin..begin + kinds.len()], self.tallies.get(number as usize))
    }

    /// The number of elements, expired ones included.
    pub fn held(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// The number of places for elements, used and free.
    pub fn places(&self) -> usize {
        self.entries.len()
    }

    /// The element in a place, unless it is free or has expired.
    pub fn element(&self, place: usize, now: Timestamp) -> Option<(PackedKey, Life)> {
        let entry = self.entries.get(place).filter(|_| self.lives(place as u32, now))?;
        Some((self.packed_key(place as u32), entry.life))
    }

    fn packed_key(&self, number: u32) -> PackedKey {
        let mut key = PackedKey { halves: 2 * self.stride, ..PackedKey::EMPTY };
        key.words[..self.stride].copy_from_slice(self.key(number));
        key
    }
}

/// A packet that meets an element.
pub(super) struct Meeting<'m> {
    /// Length of the packet, in bytes.
    pub bytes: u64,
    pub now: Timestamp,
    /// The connection of the packet.
    pub connection: Joining<'m>,
}

/// The connection of a packet, which rules count.
pub(super) struct Joining<'m> {
    /// Its properties, if it is tracked.
    pub details: Option<&'m dyn Details>,
    /// The counts of connections that it has joined since it was asked last.
    pub joined: &'m mut Vec<Tallied>,
}

impl Joining<'_> {
    fn joins(&self, tally: &Tally) -> bool {
        self.details.is_none_or(|details| details.may_join(tally))
            && !self.joined.iter().any(|it| it.is_of(tally))
    }

    /// Counts the connection if it is new and not counted yet. Returns the number of connections.
    pub fn join(&mut self, tally: &Tally) -> u32 {
        if !self.joins(tally) {
            return tally.count();
        }
        let (tallied, count) = tally.join();
        self.joined.push(tallied);
        count
    }

    /// The number of connections that [`join`](Self::join) would return.
    pub fn would_join(&self, tally: &Tally) -> u32 {
        tally.count() + u32::from(self.joins(tally))
    }
}

/// Counts a packet for an element; false if one of its statements ends the rule.
pub(super) fn count(
    (states, tally): (&mut [PartState], Option<&Tally>),
    kinds: &Kinds,
    Meeting { bytes, now, connection }: &mut Meeting<'_>,
) -> bool {
    states.iter_mut().zip(kinds).all(|(state, (part, costs))| match part {
        Part::Counter => {
            state.packets += 1;
            state.bytes += *bytes;
            true
        }
        Part::Limit(rate) => {
            // The state of a rate is the time up to which it is used up.
            let cost = costs.of_packet(*bytes);
            take_alone(&mut state.bytes, cost, costs.most, *now) != rate.over
        }
        Part::Quota { bytes: most, over } => {
            state.bytes += *bytes;
            (state.bytes > *most) == *over
        }
        Part::Connections(bound) => {
            tally.is_some_and(|tally| bound.lets_on(connection.join(tally)))
        }
    })
}

/// The result that [`count`] gives if it changes nothing, as for packets over a rate. `None` if it
/// changes something.
pub(super) fn unchanged(
    (states, tally): (&[PartState], Option<&Tally>),
    kinds: &Kinds,
    Meeting { bytes, now, connection }: &Meeting<'_>,
) -> Option<bool> {
    for (state, (part, costs)) in states.iter().zip(kinds) {
        let goes_on = match part {
            Part::Limit(rate) => {
                let mut used_until = state.bytes;
                if take_alone(&mut used_until, costs.of_packet(*bytes), costs.most, *now) {
                    return None;
                }
                rate.over
            }
            Part::Connections(bound) => {
                let tally = tally.filter(|tally| !connection.joins(tally))?;
                bound.lets_on(tally.count())
            }
            Part::Counter | Part::Quota { .. } => return None,
        };
        if !goes_on {
            return Some(false);
        }
    }
    Some(true)
}

/// The result that [`count`] would give. A new element has no states and no tally yet.
pub(super) fn would_go_on(
    (states, tally): (&[PartState], Option<&Tally>),
    kinds: &Kinds,
    Meeting { bytes, now, connection }: &Meeting<'_>,
) -> bool {
    kinds.iter().enumerate().all(|(at, (part, costs))| {
        let state = states.get(at).copied().unwrap_or_default();
        match part {
            Part::Counter => true,
            Part::Limit(rate) => {
                let (mut used_until, cost) = (state.bytes, costs.of_packet(*bytes));
                take_alone(&mut used_until, cost, costs.most, *now) != rate.over
            }
            Part::Quota { bytes: most, over } => (state.bytes + bytes > *most) == *over,
            Part::Connections(bound) => {
                let none = Tally::default();
                bound.lets_on(connection.would_join(tally.unwrap_or(&none)))
            }
        }
    })
}
