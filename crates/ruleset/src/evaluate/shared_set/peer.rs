//! Elements as they come from another gateway, and as a peer hears of them.

use std::sync::atomic::Ordering;

use flow::Timestamp;
use flow::replica::{Origin, Taken, Told};

use super::SharedSet;
use crate::compile::PackedKey;
use crate::evaluate::dynamic::{Telling, ToTell};
use crate::evaluate::element_record::{ElementRecord, ElementRefusal, Restored};
use crate::model::{Part, Set};

impl SharedSet {
    /// Collects changes for a peer from now on, or none. `is_exact`: also of statements that count, each
    /// time.
    pub fn follow(&self, follows: bool, is_exact: bool) {
        let follows = follows && !self.counts_connections();
        self.has_news.store(false, Ordering::Relaxed);
        for at in 0..self.shards.len() {
            let mut shard = self.shard_mut(at);
            shard.follow(follows, is_exact);
            if shard.has_news() {
                self.note_news();
            }
        }
    }

    /// An element that counts connections lives only while it counts some, so it belongs to no peer.
    fn counts_connections(&self) -> bool {
        self.kinds.iter().any(|(part, _)| matches!(part, Part::Connections(_)))
    }

    /// True if a peer may have to hear of changes. Takes no lock.
    pub fn has_news(&self) -> bool {
        self.has_news.load(Ordering::Relaxed)
    }

    /// Shows those who hold no lock that a peer has to hear of something, if one follows.
    pub(super) fn note_news(&self) {
        // The reader clears the flag before it takes the lock of any shard, so the flag needs no
        // order of its own. Workers that find it set do not write it.
        if !self.has_news() {
            self.has_news.store(true, Ordering::Relaxed);
        }
    }

    /// Shows changes to `each`, `budget` at most. Returns true if ends were lost, so that the peer
    /// needs all elements once more. `set` is what this set was made of.
    pub fn take_changes(
        &self,
        set: &Set,
        budget: &mut usize,
        now: Timestamp,
        each: &mut dyn FnMut(Told<ElementRecord>),
    ) -> bool {
        self.has_news.store(false, Ordering::Relaxed);
        let mut has_lost = false;
        for at in 0..self.shards.len() {
            if !self.shard(at).has_news() {
                continue;
            }
            let mut shard = self.shard_mut(at);
            has_lost |= shard.take_lost();
            while *budget > 0 {
                let Some(telling) = shard.next_change(now) else { break };
                *budget -= 1;
                each_told(self.told(set, &shard, &telling, now), each);
            }
            if shard.has_news() {
                self.note_news();
                return has_lost;
            }
        }
        has_lost
    }

    /// Shows elements that this node owns, and news of others, to `each`: those in `budget` places
    /// of a shard from this one on. Returns the next place, `None` at the end of the shard.
    pub fn tell_places(
        &self,
        set: &Set,
        (at, from): (usize, usize),
        budget: usize,
        now: Timestamp,
        each: &mut dyn FnMut(Told<ElementRecord>),
    ) -> Option<usize> {
        let mut shard = self.shard_mut(at);
        let end = (from + budget).min(shard.places());
        for number in from..end {
            if let Some(telling) = shard.tell(number as u32, now) {
                each_told(self.told(set, &shard, &telling, now), each);
            }
        }
        (end < shard.places()).then_some(end)
    }

    fn told(
        &self,
        set: &Set,
        shard: &super::Shard,
        &Telling { ref what, is_copy, stamp }: &Telling,
        now: Timestamp,
    ) -> Option<Told<ElementRecord>> {
        Some(match what {
            ToTell::End(key) => Told::End { is_copy, stamp, name: ElementRecord::named(set, key)? },
            ToTell::State(number) => {
                let record = self.record(set, shard, *number, now)?;
                Told::State { is_copy, stamp, record }
            }
        })
    }

    /// The record of an element; `None` if it has expired, or has none.
    pub(super) fn record(
        &self,
        set: &Set,
        shard: &super::Shard,
        number: u32,
        now: Timestamp,
    ) -> Option<ElementRecord> {
        let (key, life) = shard.element(number as usize, now)?;
        let (states, _) = shard.states(number, &self.kinds);
        ElementRecord::of(set, (&key, life), (states, &*self.kinds), shard.comment(number), now)
    }

    /// This node owns all elements from now on.
    pub fn adopt(&self) {
        for at in 0..self.shards.len() {
            self.shard_mut(at).adopt();
        }
        self.note_news();
    }

    /// The peer owns the elements in `budget` places of a shard from now on. Shows the names of
    /// those that this node owned to `each`. Returns the next place, `None` at the end of the
    /// shard.
    pub fn give_places(
        &self,
        set: &Set,
        (at, from): (usize, usize),
        budget: usize,
        now: Timestamp,
        each: &mut dyn FnMut(ElementRecord),
    ) -> Option<usize> {
        if self.counts_connections() {
            return None;
        }
        let mut shard = self.shard_mut(at);
        let end = (from + budget).min(shard.places());
        for number in from..end {
            if let Some((key, _)) = shard.element(number, now)
                && let Some(name) = ElementRecord::named(set, &key)
                && shard.give(number as u32, now)
            {
                each(name);
            }
        }
        (end < shard.places()).then_some(end)
    }

    /// The number of shards.
    pub const fn shards(&self) -> usize {
        self.shards.len()
    }

    /// Gives the element of a record its state, or adds it.
    ///
    /// # Errors
    /// [`ElementRefusal`]; nothing has changed.
    pub fn import(
        &self,
        set: &Set,
        record: &ElementRecord,
        origin: Origin,
        now: Timestamp,
    ) -> Result<Taken, ElementRefusal> {
        let restored = record.restore(set, &self.kinds, now);
        let Restored { key, life, states, comment } = restored.ok_or(ElementRefusal::OtherSet)?;
        let hash = self.hash(&key);
        loop {
            let mut shard = self.write(hash);
            if origin == Origin::File && shard.find(hash, &key, now).is_some() {
                return Err(ElementRefusal::Known);
            }
            let room = || self.take_room();
            let state = (life, &states[..]);
            let imported = shard.import((hash, &key), state, (origin, &self.kinds), now, room);
            if let Some((number, taken)) = imported {
                if taken != Taken::Kept
                    && let Some(comment) = comment
                {
                    shard.comment_on(number, comment);
                }
                self.note_news();
                return Ok(taken);
            }
            drop(shard);
            if !self.make_room(hash, now) {
                return Err(ElementRefusal::Full);
            }
        }
    }

    /// Ends the element that a record names. `only_copy`: only if the peer owns it, as the peer has
    /// done; otherwise whoever owns it, and the peer hears of it. False if there is no such element.
    pub fn end_named(&self, set: &Set, name: &ElementRecord, only_copy: bool) -> bool {
        let Some(key) = name.key_of(set) else { return false };
        self.end_key(&key, only_copy)
    }

    fn end_key(&self, key: &PackedKey, only_copy: bool) -> bool {
        let hash = self.hash(key);
        let has_ended = self.write(hash).end(hash, key, only_copy);
        self.give_room(u32::from(has_ended));
        self.note_news();
        has_ended
    }
}

fn each_told(told: Option<Told<ElementRecord>>, each: &mut dyn FnMut(Told<ElementRecord>)) {
    // A set without a name has no records.
    if let Some(told) = told {
        each(told);
    }
}

#[cfg(test)]
#[path = "peer_tests.rs"]
mod tests;
