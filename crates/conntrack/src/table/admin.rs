//! Operations of operators on a table: list, look up, change, delete. All of them work in
//! bounded steps, so that a large table does not delay its worker.

use flow::{FlowKey, KeyedPacket, Timestamp};

use super::slab::SECOND;
use super::{Table, deadline};
use crate::{Connection, Context, Filter, Labels};

/// A position in a walk over a table. Connections that open or end during the walk may be met
/// or missed; all others are met exactly once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Cursor(pub(super) u32);

/// The changes to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Changes {
    /// New mark: a value and a mask. First the bits of the mask become 0, then the bits of the
    /// value are inverted, as with the kernel's tool.
    pub mark: Option<(u32, u32)>,
    /// New lifetime from now on, seconds.
    pub timeout_s: Option<u32>,
    /// Labels to remove.
    pub drop_labels: Labels,
    /// Labels to add, also if `drop_labels` contains them.
    pub add_labels: Labels,
}

/// An operation on the connections that a filter chooses.
pub enum Action<'a> {
    /// Show them.
    Show(&'a mut dyn FnMut(Connection)),
    /// End them.
    Delete,
    /// Change them.
    Update(Changes),
}

/// The cost of a chosen connection in the budget of [`Table::select`], in slots that are not
/// chosen.
pub const CHOSEN_COST: u32 = 16;

impl Table {
    /// The connection of a flow.
    pub fn get(&self, key: &FlowKey, hash: u64, now: Timestamp) -> Option<Connection> {
        self.view(self.slot_of(key, hash)?, now)
    }

    /// Shows live connections to `each`; looks at most at `budget` slots. Returns the position
    /// to continue from, `None` at the end.
    pub fn list(
        &self,
        from: Cursor,
        budget: u32,
        now: Timestamp,
        mut each: impl FnMut(Connection),
    ) -> Option<Cursor> {
        let end = from.0.saturating_add(budget).min(self.slab.slots());
        (from.0..end).filter_map(|slot| self.view(slot, now)).for_each(&mut each);
        (end < self.slab.slots()).then_some(Cursor(end))
    }

    /// Changes a connection; false if there is no such connection.
    pub fn update(
        &mut self,
        key: &FlowKey,
        hash: u64,
        changes: Changes,
        context: &mut Context<'_>,
    ) -> bool {
        let Some(slot) = self.live_slot_of(key, hash, context) else { return false };
        self.change(slot, changes, context);
        true
    }

    /// Returns false if nothing changes; then nothing is reported.
    fn change(&mut self, slot: u32, changes: Changes, context: &mut Context<'_>) -> bool {
        let before = self.slab.mark(slot);
        let mark = changes.mark.map_or(before, |(value, mask)| (before & !mask) ^ value);
        let is_marked_anew = mark != before;
        if is_marked_anew {
            self.slab.set_mark(slot, mark);
        }
        if let Some(timeout_s) = changes.timeout_s {
            self.slab[slot].head.deadline = deadline(context.now, timeout_s);
            if let Some(part) = self.slab.part(slot) {
                part.tell(&self.slab[slot].head);
            }
            self.refile(slot);
        }
        let labels = self.slab.labels(slot);
        let wanted = labels & !changes.drop_labels | changes.add_labels;
        if wanted != labels {
            self.slab.set_labels(slot, wanted);
        }
        let is_changed = is_marked_anew || changes.timeout_s.is_some() || wanted != labels;
        if is_changed {
            self.report_change(slot, context);
        }
        is_changed
    }

    /// Ends a connection; false if there is no such connection.
    pub fn delete(&mut self, key: &FlowKey, hash: u64, context: &mut Context<'_>) -> bool {
        let Some(slot) = self.live_slot_of(key, hash, context) else { return false };
        self.end_whole(slot, context);
        true
    }

    /// Applies `action` to the live connections that `filter` chooses; looks at most at
    /// `budget` slots. Returns the number of connections that it applied to, without those that
    /// it did not change, and the position to continue from, `None` at the end.
    ///
    /// The conditions on the flow are tested with the first line of an entry alone, so a slot
    /// that is not chosen costs one cache line; a chosen one costs as much of the budget as
    /// [`CHOSEN_COST`] of them.
    pub fn select(
        &mut self,
        filter: &Filter,
        mut action: Action<'_>,
        (from, budget): (Cursor, u32),
        context: &mut Context<'_>,
    ) -> (u64, Option<Cursor>) {
        let (mut done, mut cost) = (0, 0);
        for slot in from.0..self.slab.slots() {
            if cost >= budget {
                return (done, Some(Cursor(slot)));
            }
            cost += 1;
            if let Some(is_done) = self.act(slot, filter, &mut action, context) {
                done += u64::from(is_done);
                cost += CHOSEN_COST;
            }
        }
        (done, None)
    }

    /// True if such packets belong to a connection that has not expired. Packets of a call may
    /// be [named](KeyedPacket::named); they stand for all with the call id of their receiver.
    pub fn has(&self, packet: &KeyedPacket, hash: u64, now: Timestamp) -> bool {
        self.slot_of_packet(packet, hash).is_some_and(|slot| !self.slab[slot].is_over(now))
    }

    /// Ends the connection that such packets belong to, if there is one.
    pub fn end(&mut self, packet: &KeyedPacket, hash: u64, context: &mut Context<'_>) {
        if let Some(slot) = self.slot_of_packet(packet, hash) {
            self.end_whole(slot, context);
        }
    }

    pub(super) fn slot_of_packet(&self, packet: &KeyedPacket, hash: u64) -> Option<u32> {
        let name = packet.name();
        let found = self.index.find(hash as u32, |filed| self.slab.is_named(filed, &name));
        found.map(|filed| filed & !SECOND)
    }

    /// Applies `action` to the connection of a flow if `filter` chooses it; false if it does
    /// not, or if nothing changed.
    pub fn select_flow(
        &mut self,
        key: &FlowKey,
        hash: u64,
        filter: &Filter,
        mut action: Action<'_>,
        context: &mut Context<'_>,
    ) -> bool {
        // There may be two, if one of them is translated and the other comes from the address
        // behind the translation.
        let mut slots = [None; 2];
        let mut rest = slots.iter_mut();
        let slab = &self.slab;
        self.index.find(hash as u32, |filed| {
            let is_it = filed & SECOND == 0 && slab[filed].head.key == *key;
            is_it && rest.next().map(|place| *place = Some(filed)).is_none()
        });
        let act = |slot| self.act(slot, filter, &mut action, context);
        slots.into_iter().flatten().filter_map(act).fold(false, |any, one| any | one)
    }

    /// The connection with this key as its first, which may have expired. If there are two, the
    /// one that the index finds first.
    pub(super) fn slot_of(&self, key: &FlowKey, hash: u64) -> Option<u32> {
        let slab = &self.slab;
        let is_it = |filed| filed & SECOND == 0 && slab[filed].head.key == *key;
        self.index.find(hash as u32, is_it)
    }

    /// The same for live connections; an expired one ends here.
    fn live_slot_of(&mut self, key: &FlowKey, hash: u64, context: &mut Context<'_>) -> Option<u32> {
        let slot = self.slot_of(key, hash)?;
        if self.slab[slot].is_over(context.now) {
            self.close(slot, context);
            return None;
        }
        Some(slot)
    }

    /// Applies `action` to a slot; `None` if the filter does not choose it, false if nothing
    /// changed.
    fn act(
        &mut self,
        slot: u32,
        filter: &Filter,
        action: &mut Action<'_>,
        context: &mut Context<'_>,
    ) -> Option<bool> {
        let entry = self.slab.live(slot)?;
        let head = &entry.head;
        if entry.is_over(context.now) || !filter.admits(&head.key, head.originator()) {
            return None;
        }
        let connection = Connection::of(&self.slab, slot, context.now);
        if !filter.matches(&connection) {
            return None;
        }
        match action {
            Action::Show(each) => each(connection),
            Action::Delete => self.end_whole(slot, context),
            Action::Update(changes) => return Some(self.change(slot, *changes, context)),
        }
        Some(true)
    }

    /// Ends the connections for which `doomed` is true; looks at most at `budget` slots.
    /// Returns the number that it ended and the position to continue from, `None` at the end.
    pub fn flush(
        &mut self,
        from: Cursor,
        budget: u32,
        mut doomed: impl FnMut(&Connection) -> bool,
        context: &mut Context<'_>,
    ) -> (usize, Option<Cursor>) {
        let end = from.0.saturating_add(budget).min(self.slab.slots());
        let before = self.len();
        for slot in from.0..end {
            let live = self.slab.live(slot).is_some();
            if live && doomed(&Connection::of(&self.slab, slot, context.now)) {
                self.end_whole(slot, context);
            }
        }
        (before - self.len(), (end < self.slab.slots()).then_some(Cursor(end)))
    }

    fn view(&self, slot: u32, now: Timestamp) -> Option<Connection> {
        self.slab.live(slot).filter(|entry| !entry.is_over(now))?;
        Some(Connection::of(&self.slab, slot, now))
    }
}

#[cfg(test)]
#[path = "admin_tests.rs"]
mod tests;
