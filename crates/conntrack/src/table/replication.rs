//! The dirty list of a table: see [`crate::replication`].

use flow::codec::Millis;
use flow::{KeyedPacket, Timestamp};

use super::entry::Entry;
use super::slab::Slab;
use super::{Cursor, Table, report};
use crate::connection::Status;
use crate::{
    Change, ConnectionId, ConnectionRecord, Context, EventKind, InterfaceName, Interfaces,
    Replication,
};

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
        context: &mut Context<'_>,
        mut each: impl FnMut(Change),
    ) -> bool {
        for _ in 0..budget {
            if let Some((stamp, original)) = self.slab.dirty.next_end() {
                each(Change::End { stamp, original });
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

    /// Shows the states of live connections to `each`, and notes that the peer has heard of them;
    /// looks at most at `budget` slots. Returns the position to continue from, `None` at the end.
    pub fn tell_all_from(
        &mut self,
        from: Cursor,
        budget: u32,
        interfaces: &dyn Interfaces,
        context: &Context<'_>,
        each: impl FnMut(Change),
    ) -> Option<Cursor> {
        let end = from.0.saturating_add(budget).min(self.slab.slots());
        (from.0..end).filter_map(|slot| self.tell(slot, interfaces, context)).for_each(each);
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
        self.slab[slot].body.note.note_told(left, context.replication);
        Some(Change::State { stamp, record })
    }

    /// Brings planted faults into a record.
    fn mar(&self, record: &mut ConnectionRecord, slot: u32, context: &Context<'_>) {
        let faults = context.settings.faults;
        if faults.records_deadlines() {
            record.left = Millis::until(self.slab[slot].head.deadline, Timestamp::ZERO);
        }
        if faults.records_interface_numbers()
            && let Some(translation) = &mut record.translation
        {
            let number = self.slab.translation(slot).and_then(|it| it.interface);
            translation.interface = number.and_then(|it| InterfaceName::new(&it.to_string()));
        }
    }

    /// Notes that a connection is the copy of a peer's, which ends only when the peer says so.
    pub fn set_copy(&mut self, id: ConnectionId) {
        self.slab[id.0].body.note.set_copy();
    }

    /// Ends the connection whose originator sends such packets. False if there is none.
    pub fn end_original(
        &mut self,
        original: &KeyedPacket,
        hash: u64,
        context: &mut Context<'_>,
    ) -> bool {
        let slot = self.slot_of(&original.key, hash);
        let Some(slot) = slot.filter(|slot| self.original(*slot) == *original) else {
            return false;
        };
        self.end_whole(slot, context);
        true
    }

    /// Reports a connection whose state has changed, and puts it on the dirty list.
    pub(super) fn has_changed(&mut self, slot: u32, context: &mut Context<'_>) {
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

/// True for a connection that is over because its time is.
#[inline]
pub(super) fn is_over(entry: &Entry, context: &Context<'_>) -> bool {
    entry.head.is_expired(context.now) && !is_kept_copy(entry, context)
}

/// True for the copy of a peer's connection at a gateway on standby: only its owner ends it.
pub(super) fn is_kept_copy(entry: &Entry, context: &Context<'_>) -> bool {
    context.replication.stands_by()
        && entry.body.note.is_copy()
        && !context.settings.faults.expires_copies()
}

#[cfg(test)]
#[path = "replication_tests.rs"]
mod tests;
