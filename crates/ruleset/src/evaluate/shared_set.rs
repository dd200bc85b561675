//! Sets that packets change.
//!
//! All workers share one set, so an element has one state, whichever worker's packet meets it: a
//! rate inside an element lets as much pass as the rule says, however many workers there are.
//!
//! A set is cut into [shards](Shard) by a keyed hash, each behind a lock. Only packets of rules
//! that ask for the set or change it take a lock, and only that of their key's shard. A packet
//! that changes nothing, which is one that looks for an element without statements or is over an
//! element's rate, reads beside others.

mod peer;

use std::hash::Hasher;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use flow::Timestamp;
use siphasher::sip::SipHasher13;

use super::dynamic::{
    Added, Life, Meeting, PartState, SEARCHED, Shard, count, unchanged, would_go_on,
};
use super::element_record::ElementRecord;
use super::limit::Costs;
use crate::compile::PackedKey;
use crate::contents::ElementChange;
use crate::model::{Data, Part, Set, Update, UpdateOp};

/// Most shards of a set. Two of sixteen workers that meet a set at once seldom meet one shard.
const MOST_SHARDS: usize = 64;
/// Elements for which a set has one more shard.
const ELEMENTS_PER_SHARD: usize = 64;

/// A set that all workers share.
#[derive(Debug)]
pub(super) struct SharedSet {
    shards: Vec<RwLock<Shard>>,
    /// By shard: the place at which the next search for an expired element begins.
    hands: Vec<AtomicU32>,
    /// Elements that take room, expired ones included.
    held: AtomicU32,
    /// The largest number of elements.
    room: u32,
    kinds: Vec<(Part, Costs)>,
    secret: (u64, u64),
    /// Time that an element stays unless it says otherwise, in nanoseconds.
    timeout: Option<u64>,
    /// A peer has to hear of changes.
    has_news: AtomicBool,
}

/// An element that the operator names.
#[derive(Debug)]
pub(super) struct NamedElement {
    pub key: PackedKey,
    /// Its own timeout, nanoseconds.
    pub timeout: Option<u64>,
    /// The time that is left of its timeout.
    pub left: Option<Duration>,
    /// True if it has none of the statements that rules give to the elements that they add.
    pub is_bare: bool,
    pub comment: Option<String>,
}

/// An element as it is listed.
pub(super) struct ListedElement<'t> {
    /// Packets and bytes of its counter.
    pub counted: Option<(u64, u64)>,
    /// True if it has none of the statements of its set.
    pub is_bare: bool,
    pub comment: Option<&'t str>,
}

/// The outcome of a change of a set for its rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Changed {
    /// The rule goes on.
    GoesOn,
    /// A statement of the element ends it.
    Ends,
    /// The set is full, which ends it.
    Full,
}

impl SharedSet {
    /// The set with the elements that the ruleset gives it, which was loaded `now`.
    pub fn new(set: &Set, seed: u64, now: Timestamp) -> Self {
        let made = Self::empty(set, seed);
        debug_assert_eq!(set.data, Data::None, "import refuses maps whose elements change");
        for element in set.elements.iter() {
            let mut key = PackedKey::EMPTY;
            for (part, kind) in element.key().zip(&set.key) {
                key.push(part.low, kind.words());
            }
            let life = match element.expires() {
                None => Life::FOREVER,
                Some(after) => Life {
                    deadline: now.after(after),
                    timeout: made.timeout.or(Some(after.as_nanos() as u64)),
                },
            };
            let hash = made.hash(&key);
            let mut shard = made.write(hash);
            let Added::New(number) =
                shard.add((hash, &key), life, &made.kinds, now, || made.take_room())
            else {
                continue;
            };
            if let Some(comment) = element.comment() {
                shard.comment_on(number, comment);
            }
            let gets_parts = set.declares_parts || element.has_parts();
            shard.set_bare(number, !made.kinds.is_empty() && !gets_parts);
            let (packets, bytes) = element.counted();
            let (states, _) = shard.states_mut(number, &made.kinds);
            for (state, (part, _)) in states.iter_mut().zip(&made.kinds) {
                if *part == Part::Counter {
                    *state = PartState { packets, bytes };
                }
            }
        }
        made
    }

    fn empty(set: &Set, seed: u64) -> Self {
        let words: usize = set.key.iter().map(|kind| kind.words()).sum();
        let room = set.size.max(set.elements.len() as u32);
        let count = (room as usize / ELEMENTS_PER_SHARD).next_power_of_two().min(MOST_SHARDS);
        let mean = room as usize / count;
        // A shard gets more than the mean, because hashes scatter. It takes more if it must.
        let each = if count == 1 { mean } else { mean + mean / 8 + 32 };
        let costs = |part: &Part| match part {
            Part::Limit(rate) => Costs::of(rate),
            _ => Costs::NONE,
        };
        let shard = |_| RwLock::new(Shard::new(words.div_ceil(2), set.parts.len(), each));
        Self {
            shards: (0..count).map(shard).collect(),
            hands: (0..count).map(|_| AtomicU32::new(0)).collect(),
            held: AtomicU32::new(0),
            room,
            kinds: set.parts.iter().map(|part| (*part, costs(part))).collect(),
            secret: (seed, !seed),
            timeout: set.timeout.map(|timeout| timeout.as_nanos() as u64),
            has_news: AtomicBool::new(false),
        }
    }

    /// A set of its own with the same elements.
    pub fn copied(&self) -> Self {
        let mut shards: Vec<Shard> =
            (0..self.shards.len()).map(|at| self.shard(at).clone()).collect();
        // No peer hears of these.
        shards.iter_mut().for_each(|shard| shard.follow(false, false));
        let held = shards.iter().map(Shard::held).sum::<usize>() as u32;
        Self {
            shards: shards.into_iter().map(RwLock::new).collect(),
            hands: self.hands.iter().map(|_| AtomicU32::new(0)).collect(),
            held: AtomicU32::new(held),
            kinds: self.kinds.clone(),
            has_news: AtomicBool::new(false),
            ..*self
        }
    }

    fn hash(&self, key: &PackedKey) -> u64 {
        // Keyed, because senders choose what is added.
        let mut hasher = SipHasher13::new_with_keys(self.secret.0, self.secret.1);
        key.slice().iter().for_each(|word| hasher.write_u64(*word));
        hasher.finish()
    }

    /// The shard of a hash. Its slots are chosen by the low bits.
    fn place(&self, hash: u64) -> usize {
        (hash >> 32) as usize & (self.shards.len() - 1)
    }

    fn shard(&self, at: usize) -> RwLockReadGuard<'_, Shard> {
        self.shards[at].read().unwrap_or_else(PoisonError::into_inner)
    }

    fn shard_mut(&self, at: usize) -> RwLockWriteGuard<'_, Shard> {
        self.shards[at].write().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self, hash: u64) -> RwLockReadGuard<'_, Shard> {
        self.shard(self.place(hash))
    }

    fn write(&self, hash: u64) -> RwLockWriteGuard<'_, Shard> {
        self.shard_mut(self.place(hash))
    }

    /// Takes room for one more element, if there is any.
    fn take_room(&self) -> bool {
        // Relaxed: the number guards no other memory.
        let (success, failure) = (Ordering::Relaxed, Ordering::Relaxed);
        let more = |held| (held < self.room).then(|| held + 1);
        self.held.fetch_update(success, failure, more).is_ok()
    }

    fn give_room(&self, elements: u32) {
        self.held.fetch_sub(elements, Ordering::Relaxed);
    }

    /// Frees the room of an expired element, if a short search from this shard on finds one.
    fn make_room(&self, hash: u64, now: Timestamp) -> bool {
        let (first, mut left) = (self.place(hash), SEARCHED);
        for step in 0..self.shards.len() {
            let at = (first + step) & (self.shards.len() - 1);
            let hand = &self.hands[at];
            while left > 0 && self.shard(at).has_expired(hand, &mut left, now) {
                // Meanwhile another worker may have taken it, or moved the hand.
                let mut shard = self.shard_mut(at);
                if shard.reclaim(hand, now) {
                    self.give_room(1);
                    return true;
                }
                left -= 1;
            }
            if left == 0 {
                break;
            }
        }
        false
    }

    /// Looks for the element of a packet's key, and counts the packet for it if it `uses` it. True
    /// if there is one and its statements let the rule go on.
    pub fn meet(&self, key: &PackedKey, meeting: &mut Meeting<'_>, uses: bool) -> bool {
        let (hash, kinds, now) = (self.hash(key), &*self.kinds, meeting.now);
        let shard = self.read(hash);
        let Some(number) = shard.find(hash, key, now) else { return false };
        if !uses {
            return shard.is_bare(number)
                || would_go_on(shard.states(number, kinds), kinds, meeting);
        }
        if let Some(goes_on) = unchanged(shard.states(number, kinds), kinds, meeting) {
            return goes_on;
        }
        drop(shard);
        let mut shard = self.write(hash);
        let Some(number) = shard.find(hash, key, now) else { return false };
        let goes_on = count(shard.states_mut(number, kinds), kinds, meeting);
        if shard.note_refresh(number, now) {
            self.note_news();
        }
        goes_on
    }

    /// The life of an element that a statement adds.
    fn life(&self, update: &Update, now: Timestamp) -> Life {
        let timeout = update.timeout.map(|timeout| timeout.as_nanos() as u64);
        Life::from(now, timeout.or(self.timeout))
    }

    /// Changes the set for a packet.
    pub fn update(&self, update: &Update, key: &PackedKey, meeting: &mut Meeting<'_>) -> Changed {
        let (hash, kinds, now) = (self.hash(key), &*self.kinds, meeting.now);
        if update.op == UpdateOp::Delete {
            self.remove((hash, key), now);
            return Changed::GoesOn;
        }
        let life = self.life(update, now);
        let refreshes = update.op == UpdateOp::Refresh && life.timeout.is_some();
        let shard = self.read(hash);
        if let Some(number) = shard.find(hash, key, now)
            && !(refreshes && shard.gains(number, life))
            && let Some(goes_on) = unchanged(shard.states(number, kinds), kinds, meeting)
        {
            return if goes_on { Changed::GoesOn } else { Changed::Ends };
        }
        drop(shard);
        loop {
            let mut shard = self.write(hash);
            let added = shard.add((hash, key), life, kinds, now, || self.take_room());
            let (number, has_news) = match added {
                Added::New(number) => {
                    shard.note_change(number);
                    (number, true)
                }
                Added::Known(number) => {
                    if refreshes {
                        shard.refresh(number, life);
                    }
                    (number, shard.note_refresh(number, now))
                }
                Added::Full => {
                    drop(shard);
                    if self.make_room(hash, now) {
                        continue;
                    }
                    return Changed::Full;
                }
            };
            let goes_on = count(shard.states_mut(number, kinds), kinds, meeting);
            if has_news {
                self.note_news();
            }
            return if goes_on { Changed::GoesOn } else { Changed::Ends };
        }
    }

    /// True if the rule of a statement would go on; changes nothing.
    pub fn would_update(&self, update: &Update, key: &PackedKey, meeting: &Meeting<'_>) -> bool {
        if update.op == UpdateOp::Delete {
            return true;
        }
        let (hash, kinds) = (self.hash(key), &*self.kinds);
        let shard = self.read(hash);
        match shard.find(hash, key, meeting.now) {
            Some(number) if shard.is_bare(number) => true,
            Some(number) => would_go_on(shard.states(number, kinds), kinds, meeting),
            None => would_go_on((&[], None), kinds, meeting),
        }
    }

    /// Deletes an element. True if there was one that had not expired.
    fn remove(&self, (hash, key): (u64, &PackedKey), now: Timestamp) -> bool {
        if self.read(hash).find(hash, key, now).is_none() {
            return false;
        }
        let (took_room, lived) = self.write(hash).remove(hash, key, now);
        self.give_room(u32::from(took_room));
        self.note_news();
        lived
    }

    /// Changes the elements as the operator asks. No packet sees a part of it. Returns how many
    /// elements were added, put off or deleted.
    ///
    /// # Errors
    /// The numbers of the elements that do not allow it, each with the reason. Nothing changes.
    pub fn change(
        &self,
        change: ElementChange,
        wanted: &[NamedElement],
        now: Timestamp,
    ) -> Result<usize, Vec<(usize, String)>> {
        // Packets lock one shard at a time, so all of them can be locked in a fixed order.
        let mut shards: Vec<_> = (0..self.shards.len()).map(|at| self.shard_mut(at)).collect();
        let changed = match change {
            ElementChange::Flush => {
                let cleared: Vec<_> = shards.iter_mut().map(|shard| shard.clear(now)).collect();
                self.give_room(cleared.iter().map(|(held, _)| held).sum());
                Ok(cleared.iter().map(|(_, lived)| lived).sum())
            }
            ElementChange::Delete => self.delete(&mut shards, wanted, now),
            ElementChange::Add => {
                // Elements that have ended leave their room to new ones.
                let freed: u32 = shards.iter_mut().map(|shard| shard.reclaim_all(now)).sum();
                self.give_room(freed);
                self.add(&mut shards, wanted, now)
            }
        };
        self.note_news();
        changed
    }

    fn delete(
        &self,
        shards: &mut [RwLockWriteGuard<'_, Shard>],
        wanted: &[NamedElement],
        now: Timestamp,
    ) -> Result<usize, Vec<(usize, String)>> {
        let mut missing = Vec::new();
        for (at, NamedElement { key, .. }) in wanted.iter().enumerate() {
            let hash = self.hash(key);
            if shards[self.place(hash)].find(hash, key, now).is_none() {
                missing.push((at, "is not in the set".to_owned()));
            }
        }
        if !missing.is_empty() {
            return Err(missing);
        }
        let mut deleted = 0;
        for NamedElement { key, .. } in wanted {
            let hash = self.hash(key);
            let (took_room, lived) = shards[self.place(hash)].remove(hash, key, now);
            self.give_room(u32::from(took_room));
            deleted += usize::from(lived);
        }
        Ok(deleted)
    }

    fn add(
        &self,
        shards: &mut [RwLockWriteGuard<'_, Shard>],
        wanted: &[NamedElement],
        now: Timestamp,
    ) -> Result<usize, Vec<(usize, String)>> {
        let room = self.room.saturating_sub(self.held.load(Ordering::Relaxed)) as usize;
        let is_new = |(_, NamedElement { key, .. }): &(usize, &NamedElement)| {
            let hash = self.hash(key);
            shards[self.place(hash)].find(hash, key, now).is_none()
        };
        let too_many = wanted.iter().enumerate().filter(is_new).skip(room);
        let what = format!("finds the set full: it holds {} elements at most", self.room);
        let too_many: Vec<_> = too_many.map(|(at, _)| (at, what.clone())).collect();
        if !too_many.is_empty() {
            return Err(too_many);
        }
        let mut changed = 0;
        for NamedElement { key, timeout, left, is_bare, comment } in wanted {
            let hash = self.hash(key);
            let shard = &mut shards[self.place(hash)];
            let life = Life::from(now, timeout.or(self.timeout));
            let deadline = left.map_or(life.deadline, |left| now.after(left));
            let life = Life { deadline, ..life };
            let room = || self.take_room();
            let number = match shard.add((hash, key), life, &self.kinds, now, room) {
                Added::New(number) => {
                    shard.set_bare(number, *is_bare);
                    number
                }
                Added::Known(number) if timeout.is_some() => {
                    shard.refresh(number, life);
                    number
                }
                Added::Known(_) | Added::Full => continue,
            };
            if let Some(comment) = comment {
                shard.comment_on(number, comment);
            }
            shard.note_change(number);
            changed += 1;
        }
        Ok(changed)
    }

    /// Tells of every element that has not expired, in no order.
    pub fn list(&self, now: Timestamp, mut tell: impl FnMut(PackedKey, Life, ListedElement<'_>)) {
        for at in 0..self.shards.len() {
            let shard = self.shard(at);
            for place in 0..shard.places() {
                if let Some((key, life)) = shard.element(place, now) {
                    let (states, _) = shard.states(place as u32, &self.kinds);
                    let counter = self.kinds.iter().position(|(part, _)| *part == Part::Counter);
                    let counted =
                        counter.and_then(|at| states.get(at)).map(|it| (it.packets, it.bytes));
                    tell(
                        key,
                        life,
                        ListedElement {
                            counted,
                            is_bare: shard.is_bare(place as u32),
                            comment: shard.comment(place as u32),
                        },
                    );
                }
            }
        }
    }

    /// Shows the records of the elements in a shard to `each`; true if there are more shards. `set`
    /// is what this set was made of.
    pub fn records_in(
        &self,
        set: &Set,
        at: usize,
        now: Timestamp,
        each: &mut dyn FnMut(ElementRecord),
    ) -> bool {
        if at < self.shards.len() {
            let shard = self.shard(at);
            for place in 0..shard.places() as u32 {
                self.record(set, &shard, place, now).map(&mut *each);
            }
        }
        at + 1 < self.shards.len()
    }

    /// Time that an element stays unless it says otherwise, in nanoseconds.
    pub const fn timeout(&self) -> Option<u64> {
        self.timeout
    }

    /// The number of elements that have not expired.
    pub fn len(&self, now: Timestamp) -> usize {
        let mut count = 0;
        self.list(now, |_, _, _| count += 1);
        count
    }
}

#[cfg(test)]
#[path = "../shared_set_tests.rs"]
mod tests;
