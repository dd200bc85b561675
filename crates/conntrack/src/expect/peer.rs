//! Announcements of which a peer has copies, and copies of the peer's.
//!
//! Each thing is owned by one of two nodes. Only the owner ends it because its time is over. All
//! workers share the things, so the reader for the peer takes their changes from here, and not from
//! the workers.

use std::sync::atomic::Ordering;
use std::time::Duration;

use flow::replica::{Told, next_stamp};
use flow::{FlowKey, Timestamp};

use super::{AnnouncementCursor, AnnouncementRecord, Book, Expectations, Listener, MediaKey};
use crate::Interfaces;
use crate::helper::Way;

/// The time that the copy of what a peer owns is given whenever its time is over and its owner has not
/// said that it has ended. It is also the least time that it has left when this node becomes its
/// owner.
pub const COPY_KEPT: Duration = Duration::from_secs(10);

/// Finds something that is announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Item {
    /// The number of an expectation.
    Expectation(u64),
    /// The key of the connection of a call.
    Call(FlowKey),
    /// The way of packets with a call id, and the id that they carry.
    CallId(Way, u16),
    Media(MediaKey),
}

impl Expectations {
    /// Collects changes for a peer from now on, or none.
    pub fn follow_changes(&self, follows: bool) {
        let book = &mut *self.book();
        book.journal.follow(follows);
        self.note(book);
    }

    /// True if a peer has to hear of changes. Takes no lock.
    pub fn has_changes(&self) -> bool {
        self.shared.has_news.load(Ordering::Relaxed)
    }

    /// Shows changes that a peer has to hear of to `each`, `budget` at most: first ends, then
    /// states. Returns true if ends were lost, so that the peer needs all things once more.
    pub fn take_changes(
        &self,
        budget: usize,
        interfaces: &dyn Interfaces,
        now: Timestamp,
        mut each: impl FnMut(Told<AnnouncementRecord>),
    ) -> bool {
        let book = &mut *self.book();
        for _ in 0..budget {
            if let Some((is_copy, name)) = book.journal.next_end() {
                let stamp = next_stamp(&mut book.told, now);
                each(Told::End { is_copy, stamp, name });
                continue;
            }
            let Some(item) = book.journal.next_changed() else { break };
            if let Some(announcement) = book.announcement(&item, interfaces, now) {
                let is_copy = book.journal.is_copy(&item);
                let stamp = next_stamp(&mut book.told, now);
                each(Told::State { is_copy, stamp, record: AnnouncementRecord(announcement) });
            }
        }
        let has_lost = book.journal.take_lost();
        self.note(book);
        has_lost
    }

    /// Shows the states of things that this node owns, and news of others, to `each`; looks at
    /// about `budget` of them. Returns the position to continue from, `None` at the end.
    pub fn tell_all_from(
        &self,
        from: AnnouncementCursor,
        budget: usize,
        interfaces: &dyn Interfaces,
        now: Timestamp,
        mut each: impl FnMut(Told<AnnouncementRecord>),
    ) -> Option<AnnouncementCursor> {
        let book = &mut *self.book();
        let mut told = book.told;
        let rest = book.walk(from, budget, interfaces, now, |item, announcement| {
            let is_copy = book.journal.is_copy(&item);
            if !is_copy || book.journal.has_changed(&item) {
                let stamp = next_stamp(&mut told, now);
                each(Told::State { is_copy, stamp, record: AnnouncementRecord(announcement) });
            }
        });
        book.told = told;
        rest
    }

    /// This node owns the things of the peer from now on.
    pub fn adopt(&self, now: Timestamp) {
        let book = &mut *self.book();
        for item in book.journal.adopt() {
            if let Item::Expectation(number) = item
                && book.entries.get(&number).is_some_and(|it| it.deadline <= now)
            {
                book.put_off(number, now.after(COPY_KEPT));
            }
        }
        self.note(book);
    }

    /// The peer owns the things of this node from now on. Shows their records to `each`, about
    /// `budget` of them. Returns the position to continue from, `None` at the end.
    pub fn give_away_from(
        &self,
        from: AnnouncementCursor,
        budget: usize,
        interfaces: &dyn Interfaces,
        now: Timestamp,
        mut each: impl FnMut(AnnouncementRecord),
    ) -> Option<AnnouncementCursor> {
        let book = &mut *self.book();
        let mut given = Vec::new();
        let rest = book.walk(from, budget, interfaces, now, |item, announcement| {
            if !book.journal.is_copy(&item) {
                given.push(item);
                each(AnnouncementRecord(announcement));
            }
        });
        given.into_iter().for_each(|item| book.journal.give(item));
        rest
    }

    /// Ends what a record names. `is_copy`: only if the peer owns it, as the peer has done. Otherwise
    /// whoever owns it, and the peer hears of it. False if there is no such thing.
    pub(crate) fn end_named(
        &self,
        name: &AnnouncementRecord,
        is_copy: bool,
        now: Timestamp,
        events: &mut Listener<'_>,
    ) -> bool {
        let book = &mut *self.book();
        let item = book.item_of(name).filter(|it| !is_copy || book.journal.is_copy(it));
        if let Some(item) = item {
            self.end_item(book, item, now, events);
            match is_copy {
                true => book.journal.forget(&item),
                false => book.journal.note_end(&item, || name.clone()),
            }
            self.note(book);
        }
        item.is_some()
    }

    fn end_item(&self, book: &mut Book, item: Item, now: Timestamp, events: &mut Listener<'_>) {
        match item {
            Item::Expectation(number) => {
                self.unfile(book, number, now, events);
            }
            Item::Call(call) => _ = book.calls.leave(&call),
            Item::CallId(way, known) => {
                if let Some(master) = book.ids.taken.get(&(way, known)).copied() {
                    book.ids.forget_first(&master, |id| (id.way, id.known) == (way, known));
                }
            }
            Item::Media(place) => _ = book.media.forget(&place),
        }
    }
}

#[cfg(test)]
#[path = "peer_tests.rs"]
mod tests;
