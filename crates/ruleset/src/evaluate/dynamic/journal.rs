//! The changes of the elements of a shard for a peer, and which elements the peer owns.

use std::time::Duration;

use flow::Timestamp;
use flow::replica::{Origin, Taken, next_stamp};

use super::{Added, Kinds, Life, PartState, Shard};
use crate::compile::PackedKey;

/// Ends of elements that wait for a look, at most.
const ENDS_MAX: usize = 256;
/// The longest time between two reports of an element whose end is put off, or whose statements
/// count.
const REFRESH: Duration = Duration::from_secs(10);
/// An element is told often enough if this part of its timeout passes between two reports.
const PART_OF_TIMEOUT: u64 = 3;

/// The changes of a shard.
#[derive(Clone, Debug, Default)]
pub(super) struct Journal {
    is_followed: bool,
    /// A peer hears at once of statements that count.
    is_exact: bool,
    /// Numbers of elements with [`Note::LISTED`].
    changed: Vec<u32>,
    /// The peer owned those for which it is true.
    ended: Vec<(bool, PackedKey)>,
    has_lost: bool,
    stamp: u64,
}

/// Facts about an element and the peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Note {
    bits: u8,
    /// The tick from which on the peer hears of an end that is put off.
    due: u32,
}

impl Note {
    /// The peer owns it.
    const COPY: u8 = 1;
    /// Its number is on the list of those that have changed. It stays there when the element ends.
    const LISTED: u8 = 1 << 1;

    const fn has(self, bit: u8) -> bool {
        self.bits & bit != 0
    }

    fn set(&mut self, bit: u8, is_set: bool) {
        self.bits = if is_set { self.bits | bit } else { self.bits & !bit };
    }
}

/// Time in quarters of a second, about.
const fn tick(nanos: u64) -> u32 {
    (nanos >> 28) as u32
}

/// A change of an element that was told to nobody.
pub(in crate::evaluate) enum ToTell {
    /// The element has ended.
    End(PackedKey),
    /// This is its number.
    State(u32),
}

/// An element for a peer.
pub(in crate::evaluate) struct Telling {
    pub what: ToTell,
    pub is_copy: bool,
    pub stamp: u64,
}

impl Shard {
    /// Collects changes from now on, or none. `is_exact`: also of statements that count, each time. As
    /// in [`flow::replica::Journal::follow`], news of elements that the peer owns stay.
    pub fn follow(&mut self, follows: bool, is_exact: bool) {
        let Self { journal, entries, .. } = self;
        journal.ended.retain(|(is_copy, _)| *is_copy && follows);
        journal.changed.retain(|number| {
            let note = entries.get_mut(*number as usize).map(|entry| &mut entry.note);
            let Some(note) = note.filter(|note| !note.has(Note::COPY)) else { return true };
            note.set(Note::LISTED, false);
            false
        });
        (journal.is_followed, journal.is_exact, journal.has_lost) = (follows, is_exact, false);
    }

    /// True if a peer has to hear of something.
    pub fn has_news(&self) -> bool {
        let Journal { changed, ended, has_lost, .. } = &self.journal;
        *has_lost || !changed.is_empty() || !ended.is_empty()
    }

    /// An element is new, or is another one.
    pub fn note_change(&mut self, number: u32) {
        let note = &mut self.entries[number as usize].note;
        if self.journal.is_followed && !note.has(Note::LISTED) {
            note.set(Note::LISTED, true);
            self.journal.changed.push(number);
        }
    }

    /// The end of an element was put off, or one of its statements has counted. True if the peer
    /// hears of it now.
    pub fn note_refresh(&mut self, number: u32, now: Timestamp) -> bool {
        let is_due = self.journal.is_followed
            && (self.journal.is_exact
                || tick(now.as_nanos()) >= self.entries[number as usize].note.due);
        if is_due {
            self.note_change(number);
        }
        is_due
    }

    /// An element is taken out.
    pub(super) fn note_end(&mut self, number: u32) {
        let key = self.packed_key(number);
        let note = &mut self.entries[number as usize].note;
        let is_copy = note.has(Note::COPY);
        note.set(Note::COPY, false);
        if !self.journal.is_followed {
            return;
        }
        if self.journal.ended.len() < ENDS_MAX {
            self.journal.ended.push((is_copy, key));
        } else {
            self.journal.has_lost = true;
        }
    }

    /// All elements are taken out.
    pub(super) fn note_ends(&mut self) {
        for number in 0..self.entries.len() as u32 {
            if self.entries[number as usize].live {
                self.note_end(number);
            }
        }
        self.journal.changed.clear();
    }

    /// The peer knows the state of an element from now on.
    fn note_told(&mut self, number: u32, now: Timestamp) {
        let entry = &mut self.entries[number as usize];
        let period = REFRESH.as_nanos() as u64;
        let timeout = entry.life.timeout.map_or(period, |timeout| timeout / PART_OF_TIMEOUT);
        entry.note.due = tick(now.as_nanos().saturating_add(period.min(timeout)));
    }

    /// The next change that nobody was told of: first ends.
    pub fn next_change(&mut self, now: Timestamp) -> Option<Telling> {
        if let Some((is_copy, key)) = self.journal.ended.pop() {
            let stamp = next_stamp(&mut self.journal.stamp, now);
            return Some(Telling { what: ToTell::End(key), is_copy, stamp });
        }
        while let Some(number) = self.journal.changed.pop() {
            // It may have been taken out meanwhile.
            let Some(entry) = self.entries.get_mut(number as usize) else { continue };
            entry.note.set(Note::LISTED, false);
            if self.lives(number, now) {
                return Some(self.telling(number, now));
            }
        }
        None
    }

    fn telling(&mut self, number: u32, now: Timestamp) -> Telling {
        self.note_told(number, now);
        let is_copy = self.entries[number as usize].note.has(Note::COPY);
        let stamp = next_stamp(&mut self.journal.stamp, now);
        Telling { what: ToTell::State(number), is_copy, stamp }
    }

    /// The element of this number, if it lives and this node owns it, or its owner has to hear of
    /// it.
    pub fn tell(&mut self, number: u32, now: Timestamp) -> Option<Telling> {
        let note = self.entries.get(number as usize)?.note;
        let is_told = !note.has(Note::COPY) || note.has(Note::LISTED);
        (is_told && self.lives(number, now)).then(|| self.telling(number, now))
    }

    /// True once after ends were lost, because there were too many.
    pub fn take_lost(&mut self) -> bool {
        std::mem::take(&mut self.journal.has_lost)
    }

    /// This node owns all elements from now on, and the peer hears of those that it owned.
    pub fn adopt(&mut self) {
        for number in 0..self.entries.len() as u32 {
            let note = &mut self.entries[number as usize].note;
            if note.has(Note::COPY) {
                note.set(Note::COPY, false);
                self.note_change(number);
            }
        }
    }

    /// The peer owns the element of this number from now on. True if this node owned it.
    pub fn give(&mut self, number: u32, now: Timestamp) -> bool {
        let gives = self.lives(number, now) && !self.is_copy(number);
        if gives {
            self.entries[number as usize].note.set(Note::COPY, true);
        }
        gives
    }

    /// True if the peer owns the element of this number.
    fn is_copy(&self, number: u32) -> bool {
        self.entries[number as usize].note.has(Note::COPY)
    }

    /// Gives the element of a key the state of a record, or adds it. `None` if there is no room.
    pub fn import(
        &mut self,
        hashed: (u64, &PackedKey),
        (life, states): (Life, &[PartState]),
        (origin, kinds): (Origin, &Kinds),
        now: Timestamp,
        take_room: impl FnOnce() -> bool,
    ) -> Option<(u32, Taken)> {
        let (number, taken) = match self.add(hashed, life, kinds, now, take_room) {
            Added::New(number) => (number, Taken::Made),
            Added::Known(number) => (number, Taken::of_known(origin, !self.is_copy(number))),
            Added::Full => return None,
        };
        if taken == Taken::Kept {
            self.note_change(number);
            return Some((number, taken));
        }
        let entry = &mut self.entries[number as usize];
        // Packets that have met it here meanwhile count as well.
        if origin != Origin::News || life.deadline > entry.life.deadline {
            entry.life = life;
        }
        if taken == Taken::Made || origin != Origin::News {
            self.set_bare(number, states.is_empty() && !kinds.is_empty());
        }
        for (own, other) in self.states_mut(number, kinds).0.iter_mut().zip(states) {
            let merged = PartState {
                packets: own.packets.max(other.packets),
                bytes: own.bytes.max(other.bytes),
            };
            *own = if origin == Origin::News { merged } else { *other };
        }
        let is_copy = matches!(origin, Origin::Owner { .. });
        self.entries[number as usize].note.set(Note::COPY, is_copy);
        match origin {
            Origin::File => self.note_change(number),
            Origin::Owner { .. } | Origin::News => self.note_told(number, now),
        }
        Some((number, taken))
    }

    /// Ends the element of a key. `only_copy`: only if the peer owns it, as the peer has done;
    /// otherwise whoever owns it, and the peer hears of it. Says whether it took room.
    pub fn end(&mut self, hash: u64, key: &PackedKey, only_copy: bool) -> bool {
        let (_, found) = self.slot(hash, key.slice());
        let Some(number) = found.filter(|it| !only_copy || self.is_copy(*it)) else {
            return false;
        };
        match only_copy {
            true => self.unfile_untold(number),
            false => self.unfile(number),
        }
        true
    }

    /// Takes out an element that has expired. The owner of a copy may have put its end off.
    pub(super) fn unfile_expired(&mut self, number: u32) {
        match self.is_copy(number) {
            true => self.unfile_untold(number),
            false => self.unfile(number),
        }
    }

    /// Takes out an element, of which the peer hears nothing.
    fn unfile_untold(&mut self, number: u32) {
        let was_followed = std::mem::replace(&mut self.journal.is_followed, false);
        self.unfile(number);
        self.journal.is_followed = was_followed;
    }
}
