//! Words for things that all workers share and of which a peer has a copy: announcements of
//! connections, and elements of sets.

use std::collections::{BTreeSet, VecDeque};

use crate::Timestamp;

/// Ends of things that wait for a look, at most.
const ENDS_MAX: usize = 4096;

/// The words in which a peer hears of a thing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told<R> {
    /// It has this state.
    State {
        /// The peer owns it, so this is news for it.
        is_copy: bool,
        /// A later change has a higher one.
        stamp: u64,
        /// The state.
        record: R,
    },
    /// It has ended.
    End {
        /// The peer owned it.
        is_copy: bool,
        /// A later change has a higher one.
        stamp: u64,
        /// Its name: a record of which only the parts count that name it.
        name: R,
    },
}

impl<R> Told<R> {
    /// True for news of a thing that the peer owns.
    pub const fn is_news(&self) -> bool {
        match self {
            Self::State { is_copy, .. } | Self::End { is_copy, .. } => *is_copy,
        }
    }

    /// The same with another kind of record.
    pub fn map<S>(self, change: impl FnOnce(R) -> S) -> Told<S> {
        match self {
            Self::State { is_copy, stamp, record } => {
                Told::State { is_copy, stamp, record: change(record) }
            }
            Self::End { is_copy, stamp, name } => Told::End { is_copy, stamp, name: change(name) },
        }
    }
}

/// The origin of a state that a thing is to have here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A file, or a program. The thing is not there yet.
    File,
    /// The peer, which owns it.
    Owner {
        /// If this node owns it too, the peer owns it from now on.
        prevails: bool,
    },
    /// The peer. This node owns it.
    News,
}

/// The result of giving a thing a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It was not there before.
    Made,
    /// It has the state now.
    Changed,
    /// This node owns it, and tells the peer so.
    Kept,
    /// This node owned it, and the peer owns it now.
    GivenUp,
}

impl Taken {
    /// The result for a thing that is there: `owns` is true if this node owns it.
    pub const fn of_known(origin: Origin, owns: bool) -> Self {
        match origin {
            Origin::Owner { prevails: false } if owns => Self::Kept,
            Origin::Owner { .. } if owns => Self::GivenUp,
            Origin::File | Origin::Owner { .. } | Origin::News => Self::Changed,
        }
    }
}

/// The next stamp after `last`: about the time in microseconds.
pub fn next_stamp(last: &mut u64, now: Timestamp) -> u64 {
    *last = (*last + 1).max(now.as_nanos() / 1000);
    *last
}

/// The changes of things since a peer was told of them, and which of them the peer owns. `K` finds
/// a thing here, and `N` names it to a peer.
#[derive(Debug)]
pub struct Journal<K, N> {
    is_followed: bool,
    copies: BTreeSet<K>,
    changed: BTreeSet<K>,
    /// Names of those that have ended, and whether the peer owned them.
    ended: VecDeque<(bool, N)>,
    has_lost: bool,
}

impl<K, N> Default for Journal<K, N> {
    fn default() -> Self {
        Self {
            is_followed: false,
            copies: BTreeSet::new(),
            changed: BTreeSet::new(),
            ended: VecDeque::new(),
            has_lost: false,
        }
    }
}

impl<K: Ord + Copy, N> Journal<K, N> {
    /// Collects changes from now on, or none. The peer hears of all that this node owns before the
    /// first of them, so those from before are forgotten. News of what the peer owns stay: nothing
    /// else tells of them. Their ends go when nobody follows, because the peer may have another thing
    /// of that name when somebody follows again.
    pub fn follow(&mut self, follows: bool) {
        self.is_followed = follows;
        let Self { copies, changed, ended, .. } = self;
        changed.retain(|key| copies.contains(key));
        ended.retain(|(is_copy, _)| *is_copy && follows);
        self.has_lost = false;
    }

    /// True while changes are collected.
    pub const fn is_followed(&self) -> bool {
        self.is_followed
    }

    /// True if a peer has to hear of something.
    pub fn has_news(&self) -> bool {
        self.has_lost || !self.changed.is_empty() || !self.ended.is_empty()
    }

    /// A thing is new or has another state.
    pub fn note_change(&mut self, key: K) {
        if self.is_followed {
            self.changed.insert(key);
        }
    }

    /// A thing has ended.
    pub fn note_end(&mut self, key: &K, name: impl FnOnce() -> N) {
        let is_copy = self.copies.remove(key);
        self.changed.remove(key);
        if !self.is_followed {
            return;
        }
        if self.ended.len() < ENDS_MAX {
            self.ended.push_back((is_copy, name()));
        } else {
            self.has_lost = true;
        }
    }

    /// A thing has ended with another one, of whose end the peer hears. It is told only if this node
    /// owned it.
    pub fn note_end_with_other(&mut self, key: &K, name: impl FnOnce() -> N) {
        if self.copies.remove(key) {
            self.changed.remove(key);
        } else {
            self.note_end(key, name);
        }
    }

    /// A thing has ended, and the peer knows so.
    pub fn forget(&mut self, key: &K) {
        self.copies.remove(key);
        self.changed.remove(key);
    }

    /// True if the peer owns a thing.
    pub fn is_copy(&self, key: &K) -> bool {
        self.copies.contains(key)
    }

    /// True if a peer has to hear of the state of a thing.
    pub fn has_changed(&self, key: &K) -> bool {
        self.changed.contains(key)
    }

    /// The peer owns a thing from now on, and knows its state.
    pub fn set_copy(&mut self, key: K) {
        self.changed.remove(&key);
        self.copies.insert(key);
    }

    /// The peer owns a thing from now on. It hears of a change that it was not told of.
    pub fn give(&mut self, key: K) {
        self.copies.insert(key);
    }

    /// This node owns a thing from now on.
    pub fn set_own(&mut self, key: &K) {
        self.copies.remove(key);
    }

    /// This node owns all things from now on, and the peer hears of those that it owned. Returns
    /// these.
    pub fn adopt(&mut self) -> BTreeSet<K> {
        let copies = std::mem::take(&mut self.copies);
        if self.is_followed {
            self.changed.extend(&copies);
        }
        copies
    }

    /// The next end that was not told, and whether the peer owned the thing.
    pub fn next_end(&mut self) -> Option<(bool, N)> {
        self.ended.pop_front()
    }

    /// The next thing whose state was not told.
    pub fn next_changed(&mut self) -> Option<K> {
        self.changed.pop_first()
    }

    /// True once after ends were lost, because there were too many.
    pub fn take_lost(&mut self) -> bool {
        std::mem::take(&mut self.has_lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thing_that_changes_often_is_told_once_and_its_end_comes_before_its_next_life() {
        let mut journal = Journal::default();
        journal.note_change(1);
        assert!(!journal.has_news(), "nobody follows");
        journal.follow(true);
        journal.note_change(1);
        journal.note_change(1);
        journal.note_end(&1, || "one");
        journal.note_change(2);
        assert_eq!(journal.next_end(), Some((false, "one")));
        assert_eq!((journal.next_changed(), journal.next_changed()), (Some(2), None));
        assert!(!journal.has_news());
    }

    #[test]
    fn ends_beyond_the_limit_are_lost_and_told_so() {
        let mut journal = Journal::default();
        journal.follow(true);
        for number in 0..=ENDS_MAX {
            journal.note_end(&number, || number);
        }
        assert!(journal.take_lost() && !journal.take_lost());
        let told = std::iter::from_fn(|| journal.next_end()).count();
        assert_eq!(told, ENDS_MAX);
    }

    #[test]
    fn a_copy_ends_as_news_and_silently_with_what_the_peer_hears_of_anyway() {
        let mut journal = Journal::default();
        journal.follow(true);
        for number in 0..3 {
            journal.note_change(number);
            journal.set_copy(number);
        }
        assert!(!journal.has_news(), "the peer knows the states of what it owns");
        journal.note_end(&0, || "0");
        journal.note_end_with_other(&1, || "1");
        assert_eq!((journal.next_end(), journal.next_end()), (Some((true, "0")), None));
        assert_eq!(journal.adopt(), BTreeSet::from([2]));
        assert_eq!((journal.next_changed(), journal.is_copy(&2)), (Some(2), false));
        journal.note_end_with_other(&2, || "2");
        assert_eq!(journal.next_end(), Some((false, "2")));
    }

    #[test]
    fn news_of_copies_outlive_the_beginning_of_a_transfer_of_all() {
        let mut journal = Journal::default();
        journal.follow(true);
        for number in 0..4 {
            if number < 2 {
                journal.set_copy(number);
            }
            journal.note_change(number);
        }
        journal.note_end(&1, || "1");
        journal.note_end(&3, || "3");
        journal.follow(true);
        assert_eq!((journal.next_end(), journal.next_end()), (Some((true, "1")), None));
        assert_eq!((journal.next_changed(), journal.next_changed()), (Some(0), None));
        journal.note_change(0);
        journal.note_end(&0, || "0");
        journal.follow(false);
        assert!(!journal.has_news(), "the peer may have another one of that name later");
    }

    #[test]
    fn stamps_rise_also_while_time_stands_still() {
        let (mut last, now) = (0, Timestamp::from_nanos(5_000));
        assert_eq!([(); 3].map(|()| next_stamp(&mut last, now)), [5, 6, 7]);
        assert_eq!(next_stamp(&mut last, Timestamp::from_nanos(9_000)), 9);
    }
}
