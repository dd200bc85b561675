//! The dirty list of a table: see [`crate::replication`].

use flow::{KeyedPacket, Prefetch};

use super::entry::Entry;
use super::slab::Slab;
use super::{Cursor, Table, report};
use crate::connection::Status;
use crate::expect::COPY_KEPT;
use crate::{Change, ConnectionId, Context, EventKind, Interfaces, Replication};

/// The node that owns a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// This one.
    This,
    /// The peer.
    Peer,
}

impl Table {
    /// The worker that has the table now, where it has this place. To be called after the table has
    /// moved, and at the start.
    pub fn join_replication(&mut self, replication: &mut Replication, place: u16) {
        self.slab.dirty.join(replication, place);
    }

    /// Shows changes that a peer has to hear of to `each`: first ends, then new connections and
    /// changed states, then what is due. Looks at most at `budget` slots and ends. Returns true if
    /// ends were lost, so that the peer needs all connections once more.
    pub fn take_changes(
        &mut self,
        budget: usize,
        interfaces: &dyn Interfaces,
        prefetch: impl Prefetch,
        context: &mut Context<'_>,
        mut each: impl FnMut(Change),
    ) -> bool {
        // When the ring was full for a while, their memory has left the caches.
        for slot in self.slab.dirty.next_slots(budget) {
            prefetch.prefetch(&self.slab[slot].head);
            prefetch.prefetch(&self.slab[slot].body);
        }
        for _ in 0..budget {
            if let Some((stamp, original, is_copy)) = self.slab.dirty.next_end() {
                each(Change::End { is_copy, stamp, original });
                continue;
            }
            let Some((slot, was_listed)) = self.slab.dirty.next_slot() else { break };
            if self.slab[slot].body.note.take_off(was_listed)
                && let Some(change) = self.tell(slot, interfaces, context)
            {
                each(change);
            }
        }
        let has_lost = self.slab.dirty.take_lost();
        self.slab.dirty.was_seen(context.replication);
        has_lost
    }

    /// Shows the states of live connections that this node owns, and news of others, to `each`, and
    /// notes that the peer has heard of them; looks at most at `budget` slots. Returns the position to
    /// continue from, `None` at the end.
    pub fn tell_all_from(
        &mut self,
        from: Cursor,
        budget: u32,
        interfaces: &dyn Interfaces,
        context: &Context<'_>,
        mut each: impl FnMut(Change),
    ) -> Option<Cursor> {
        let end = from.0.saturating_add(budget).min(self.slab.slots());
        for slot in from.0..end {
            let note = &mut self.slab[slot].body.note;
            if note.is_copy() && !note.is_dirty() {
                // It was to be due by the time of the reader before.
                note.set_due(0);
            } else if let Some(change) = self.tell(slot, interfaces, context) {
                each(change);
            }
        }
        (end < self.slab.slots()).then_some(Cursor(end))
    }

    /// The state of a connection, which the peer hears of now. `None` for a slot without one, and
    /// if its first packet is still being judged.
    fn tell(
        &mut self,
        slot: u32,
        interfaces: &dyn Interfaces,
        context: &Context<'_>,
    ) -> Option<Change> {
        let mut record = self.recorded(slot, interfaces, context.now)?;
        let stamp = self.slab.dirty.next_stamp(context.now);
        let left = record.left.duration();
        self.mar(&mut record, slot, context);
        self.slab[slot].body.note.note_sent(left, context.replication);
        let is_copy = self.slab[slot].body.note.is_copy();
        Some(Change::State { is_copy, stamp, record })
    }

    /// The peer owns a connection, and has just told its state. Only the owner ends it because its
    /// time is over, others need its room, or an address is gone.
    pub fn set_copy(&mut self, id: ConnectionId, context: &mut Context<'_>) {
        self.slab[id.0].body.note.set_copy();
        self.rank(id.0, context);
    }

    /// This node owns a connection from now on, and the peer hears so.
    pub fn set_own(&mut self, ConnectionId(slot): ConnectionId, context: &mut Context<'_>) {
        let Entry { head, body } = &mut self.slab[slot];
        body.note.set_own();
        if head.is_expired(context.now) {
            head.deadline = context.now.after(COPY_KEPT);
        }
        self.rank(slot, context);
        self.note_change(slot, context);
    }

    /// True if the peer owns a connection, and has still to hear of the state that it has here.
    pub fn owes_news(&self, ConnectionId(slot): ConnectionId) -> bool {
        self.slab[slot].body.note.owes_news()
    }

    /// The owner of the connection whose originator sends such packets; `None` if there is no such
    /// connection.
    pub fn owner_of(&self, original: &KeyedPacket, hash: u64) -> Option<Owner> {
        let slot = self.slot_of_original(original, hash)?;
        let is_copy = self.slab[slot].body.note.is_copy();
        Some(if is_copy { Owner::Peer } else { Owner::This })
    }

    /// Ends the connection whose originator sends such packets, if the peer owns it, as the peer has
    /// done. False if there is none.
    pub fn end_copy(
        &mut self,
        original: &KeyedPacket,
        hash: u64,
        context: &mut Context<'_>,
    ) -> bool {
        let slot = self.slot_of_original(original, hash);
        let Some(slot) = slot.filter(|slot| self.slab[*slot].body.note.is_copy()) else {
            return false;
        };
        self.slab[slot].body.note.end_copy();
        self.end_whole(slot, context);
        true
    }

    /// Ends the connection whose originator sends such packets, whoever owns it, and tells the peer.
    /// False if there is none.
    pub fn end_original(
        &mut self,
        original: &KeyedPacket,
        hash: u64,
        context: &mut Context<'_>,
    ) -> bool {
        let slot = self.slot_of_original(original, hash);
        slot.map(|slot| self.end_whole(slot, context)).is_some()
    }

    /// Tells the peer of the connection whose originator sends such packets once more.
    pub fn repeat_to_peer(&mut self, original: &KeyedPacket, hash: u64, context: &mut Context<'_>) {
        if let Some(slot) = self.slot_of_original(original, hash) {
            self.note_change(slot, context);
        }
    }

    /// This node owns the connection whose originator sends such packets from now on, and the peer
    /// hears so. False if there is none.
    pub fn own_original(
        &mut self,
        original: &KeyedPacket,
        hash: u64,
        context: &mut Context<'_>,
    ) -> bool {
        let slot = self.slot_of_original(original, hash);
        slot.map(|slot| self.set_own(ConnectionId(slot), context)).is_some()
    }

    fn slot_of_original(&self, original: &KeyedPacket, hash: u64) -> Option<u32> {
        self.slot_of(&original.key, hash).filter(|slot| self.original(*slot) == *original)
    }

    /// This node owns the connections of the peer from now on; looks at most at `budget` slots.
    /// Returns the position to continue from, `None` at the end.
    pub fn adopt_from(
        &mut self,
        from: Cursor,
        budget: u32,
        context: &mut Context<'_>,
    ) -> Option<Cursor> {
        let end = from.0.saturating_add(budget).min(self.slab.slots());
        for slot in from.0..end {
            if self.slab.live(slot).is_some_and(|it| it.body.note.is_copy()) {
                self.set_own(ConnectionId(slot), context);
            }
        }
        (end < self.slab.slots()).then_some(Cursor(end))
    }

    /// The peer owns the connections of this node from now on. Shows those that had another owner
    /// before to `each`, and looks at most at `budget` slots. Returns the position to continue from,
    /// `None` at the end.
    pub fn give_away_from(
        &mut self,
        from: Cursor,
        budget: u32,
        context: &mut Context<'_>,
        mut each: impl FnMut(KeyedPacket),
    ) -> Option<Cursor> {
        let end = from.0.saturating_add(budget).min(self.slab.slots());
        for slot in from.0..end {
            let is_own = self.slab.live(slot).is_some_and(|Entry { head, body }| {
                !body.note.is_copy() && !head.status.has(Status::FRESH)
            });
            if is_own {
                self.slab[slot].body.note.give();
                self.rank(slot, context);
                each(self.original(slot));
            }
        }
        (end < self.slab.slots()).then_some(Cursor(end))
    }

    /// Reports a connection whose state has changed, and puts it on the dirty list.
    pub(super) fn report_change(&mut self, slot: u32, context: &mut Context<'_>) {
        self.note_change(slot, context);
        report(&self.slab, slot, EventKind::Update, context);
    }

    /// Puts a connection whose state has changed on the dirty list. One whose first packet is still
    /// being judged comes on it when that is accepted.
    #[inline]
    pub(super) fn note_change(&mut self, slot: u32, context: &mut Context<'_>) {
        let mut note = self.slab[slot].body.note;
        if !self.slab[slot].head.status.has(Status::FRESH) {
            self.slab.dirty.note_change(slot, &mut note, context.replication);
            self.slab[slot].body.note = note;
        }
    }

    /// A helper has read a packet: it has another state, or its connection another deadline. While it
    /// keeps the beginning of a message, the record is long and changes with each segment, so the
    /// peer hears of it with the windows.
    pub(super) fn note_inspected(&mut self, slot: u32, keeps: bool, context: &mut Context<'_>) {
        match keeps {
            true => self.note_refresh(slot, context),
            false => self.note_change(slot, context),
        }
    }

    /// Puts a connection on the dirty list if its windows, timer and counts are due.
    #[inline]
    pub(super) fn note_refresh(&mut self, slot: u32, context: &mut Context<'_>) {
        let mut note = self.slab[slot].body.note;
        if context.replication.is_due(&note) {
            self.slab.dirty.note_refresh(slot, &mut note, context.replication);
            self.slab[slot].body.note = note;
        }
    }
}

/// A connection ends that was not withdrawn.
#[inline]
pub(super) fn note_end(slab: &mut Slab, slot: u32, context: &mut Context<'_>) {
    let Entry { head, body } = &slab[slot];
    let (note, original) = (body.note, KeyedPacket { key: head.key, sender: head.originator() });
    slab.dirty.note_end(note, original, context.now, context.replication);
}

#[cfg(test)]
#[path = "replication_tests.rs"]
mod tests;
