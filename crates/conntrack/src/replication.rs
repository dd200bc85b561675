//! Copies of connections at another gateway: which changes it has to hear of, and when.
//!
//! A table keeps a list of the connections that have changed, its *dirty list*, which moves with the
//! table. A worker keeps a list of its tables that have dirty lists. docs/internals/replication.md
//! explains the rules.

use std::collections::VecDeque;
use std::time::Duration;

use flow::{KeyedPacket, Timestamp};

use crate::ConnectionRecord;

/// log2 of the unit of coarse time in nanoseconds: about half a second.
const TICK_SHIFT: u32 = 29;
/// The last tick, after 2.2 years. Nothing is due after it.
const LAST_TICK: u32 = u32::MAX >> FLAG_BITS;
/// Bits of a note that are facts, below those of its tick.
const FLAG_BITS: u32 = 5;
/// Ends of connections that wait in a table at most. If more end, the peer needs all connections
/// once more.
pub const ENDS_MAX: usize = 4096;
/// Connections that are due, so many that a worker sends their states, and the longest time that fewer
/// of them wait. Each costs less in the company of others, and none of them is urgent.
const DUE_MANY: u32 = 64;
const DUE_LONGEST: Duration = Duration::from_millis(10);

/// How changes of connections are collected by a worker.
#[derive(Debug)]
pub struct Replication {
    /// The coarse time, from 1 on. 0 while nobody wants changes: no deadline is before that.
    tick: u32,
    /// How long windows, timers and counts of a connection may differ at the peer, in ticks.
    refresh: u32,
    /// They may not differ at all.
    is_exact: bool,
    /// The tables with dirty lists, by the place that they have at the worker.
    tables: Vec<u16>,
    /// The time since the peer began to follow, at the beginning of the turn.
    followed: Duration,
    /// Something is on the lists that the peer hears of at the end of the turn.
    has_urgent: bool,
    /// Connections that have become due since all lists were empty, and when the first did.
    due: u32,
    due_since: Duration,
}

impl Default for Replication {
    fn default() -> Self {
        let refresh = ticks(Self::REFRESH);
        Self {
            tick: 0,
            refresh,
            is_exact: false,
            tables: Vec::new(),
            followed: Duration::ZERO,
            has_urgent: false,
            due: 0,
            due_since: Duration::ZERO,
        }
    }
}

impl Replication {
    /// How long windows, timers and counts of a connection may differ at the peer by default.
    pub const REFRESH: Duration = Duration::from_secs(10);

    /// Begins a turn in which changes are collected, so long after the peer began to follow; `None`
    /// if nobody follows. All workers count from the same time.
    pub fn begin_turn(&mut self, followed: Option<Duration>) {
        self.tick = followed.map_or(0, |followed| (ticks(followed) + 1).min(LAST_TICK));
        let followed = followed.unwrap_or_default();
        // Another peer begins to follow. The connections that are due have waited by the time of the
        // peer before.
        self.has_urgent |= followed < self.followed;
        self.followed = followed;
    }

    /// Sets how long windows, timers and counts of a connection may differ at the peer. They are
    /// told earlier if a third of its timeout is less.
    pub fn set_refresh(&mut self, refresh: Duration) {
        self.refresh = ticks(refresh).max(1);
    }

    /// Sets whether every packet makes its connection due once more, so that nothing is left to differ
    /// when all changes have been told. It costs a record for each connection with packets, again and
    /// again.
    pub fn set_exact(&mut self, is_exact: bool) {
        self.is_exact = is_exact;
    }

    /// A table with a dirty list, by its place; it is no longer listed here.
    pub fn next_table(&mut self) -> Option<u16> {
        let table = self.tables.pop();
        if table.is_none() {
            (self.has_urgent, self.due) = (false, 0);
        }
        table
    }

    /// True if a table has a dirty list.
    pub fn has_tables(&self) -> bool {
        !self.tables.is_empty()
    }

    /// True if it is time to look at the tables with dirty lists: something is urgent, many
    /// connections are due, or a few have been due for a while.
    pub fn has_news(&self) -> bool {
        let is_worth_it = || self.due >= DUE_MANY || self.followed >= self.due_since + DUE_LONGEST;
        self.has_tables() && (self.has_urgent || is_worth_it())
    }

    /// Makes all that is due worth a look, however little it is.
    pub fn hurry(&mut self) {
        self.has_urgent = true;
    }

    fn note_due(&mut self) {
        if self.due == 0 {
            self.due_since = self.followed;
        }
        self.due += 1;
    }

    /// True for a connection whose windows, timers or counts were told so long ago that the peer
    /// has to hear of them.
    #[inline(always)]
    pub(crate) const fn is_due(&self, note: &Note) -> bool {
        // The facts are below the tick, so they decide nothing.
        self.tick << FLAG_BITS > note.0
    }

    /// When a connection is due again that has been told now.
    fn due_after(&self, left: Duration) -> u32 {
        if self.is_exact {
            return self.tick.saturating_sub(1);
        }
        let pause = self.refresh.min(ticks(left / 3));
        self.tick.saturating_add(pause).min(LAST_TICK - 1)
    }
}

fn ticks(time: Duration) -> u32 {
    u32::try_from(time.as_nanos() >> TICK_SHIFT).map_or(LAST_TICK, |ticks| ticks.min(LAST_TICK))
}

/// The part of an entry that is about copies: a tick, and facts about the slot and its connection. A
/// packet after that tick makes the connection dirty. While it is dirty, the tick is the last one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Note(u32);

impl Note {
    /// The slot is on the list of those that are told at once.
    const URGENT: u32 = 1;
    /// The slot is on the list of those that are told when the others have been.
    const LISTED: u32 = 1 << 1;
    /// The peer has heard of the connection; if the peer owns it, of packets that came here.
    const SENT: u32 = 1 << 2;
    /// The peer owns the connection.
    const COPY: u32 = 1 << 3;
    /// This node has owned the connection and said so to the peer, which owns it now. If the peer's
    /// had ended by then, the peer has a copy of this node's.
    const YIELDED: u32 = 1 << 4;

    const fn has(self, bit: u32) -> bool {
        self.0 & bit != 0
    }

    const fn due(self) -> u32 {
        self.0 >> FLAG_BITS
    }

    /// A packet after this tick makes the connection dirty.
    pub const fn set_due(&mut self, tick: u32) {
        self.0 = tick << FLAG_BITS | self.0 & ((1 << FLAG_BITS) - 1);
    }

    /// The note of a new connection in the slot that had this one: the slot stays on its lists.
    pub const fn of_next(self) -> Self {
        Self(self.0 & (Self::URGENT | Self::LISTED))
    }

    /// True for a connection that this node owns and the peer has not heard of.
    const fn is_unheard_of(self) -> bool {
        !self.has(Self::SENT) && !self.is_copy()
    }

    /// True for a connection that the peer owns.
    pub const fn is_copy(self) -> bool {
        self.has(Self::COPY)
    }

    /// The peer owns the connection, and has just told its state. The next packet makes news for it.
    pub const fn set_copy(&mut self) {
        if !self.is_copy() && self.has(Self::SENT) {
            self.0 |= Self::YIELDED;
        }
        self.0 = self.0 & !Self::SENT | Self::COPY;
        self.set_due(0);
    }

    /// The peer has ended the connection that it owned. It hears of that only if it may have a copy
    /// from this node.
    pub const fn end_copy(&mut self) {
        let may_have_copy = self.has(Self::YIELDED);
        self.0 &= !(Self::COPY | Self::SENT);
        if may_have_copy {
            self.0 |= Self::SENT;
        }
    }

    /// The peer owns the connection, which was this node's. Changes that it has not got are news for it.
    pub const fn give(&mut self) {
        self.0 |= Self::COPY;
    }

    /// This node owns the connection, of which the peer has not heard.
    pub const fn set_own(&mut self) {
        self.0 &= !(Self::COPY | Self::SENT | Self::YIELDED);
    }

    /// True for a connection of which the state here may be newer than the last one of the peer: this
    /// node owns it, or packets of it have come here.
    pub const fn may_be_ahead(self) -> bool {
        !self.is_copy() || self.has(Self::SENT) || self.is_dirty()
    }

    /// True if the peer owns the connection, and its state has changed here since it was told last.
    pub const fn owes_news(self) -> bool {
        self.is_copy() && self.is_dirty() && self.has(Self::URGENT)
    }

    /// True if the connection has changed since the peer heard of it last.
    pub const fn is_dirty(self) -> bool {
        self.due() == LAST_TICK
    }

    /// Takes the slot off a list. True if its connection has to be sent to the peer now: it was not
    /// sent since the slot was put on the list.
    pub const fn take_off(&mut self, was_listed: bool) -> bool {
        self.0 &= !(if was_listed { Self::LISTED } else { Self::URGENT });
        // A connection on both lists is sent with the urgent ones.
        self.is_dirty() && !self.has(Self::URGENT)
    }

    /// Notes that the connection is sent to the peer now, with so much time left.
    pub fn note_sent(&mut self, left: Duration, replication: &Replication) {
        self.0 |= Self::SENT;
        self.set_due(replication.due_after(left));
    }
}

/// A change of a connection.
#[expect(
    clippy::large_enum_variant,
    reason = "nearly all are states, and a box for each would be an allocation on the packet path"
)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is new, or its state has changed.
    State {
        /// The peer owns it.
        is_copy: bool,
        /// A later change of a connection with the same key has a higher stamp.
        stamp: u64,
        /// Its state.
        record: ConnectionRecord,
    },
    /// It has ended.
    End {
        /// The peer owns it.
        is_copy: bool,
        /// As above.
        stamp: u64,
        /// Key and sender of its originator's packets.
        original: KeyedPacket,
    },
}

impl Change {
    /// True for news of a connection that the peer owns.
    pub const fn is_news(&self) -> bool {
        match self {
            Self::State { is_copy, .. } | Self::End { is_copy, .. } => *is_copy,
        }
    }
}

/// The dirty list of a table.
#[derive(Debug, Default)]
pub(crate) struct DirtyList {
    urgent: VecDeque<u32>,
    listed: VecDeque<u32>,
    ended: VecDeque<(u64, KeyedPacket, bool)>,
    /// Ends were lost, because there were too many.
    has_lost: bool,
    stamp: u64,
    /// The place of the table at its worker.
    place: u16,
    /// The worker has the table on its list.
    is_known: bool,
}

impl DirtyList {
    /// True if nothing is on it.
    pub fn is_empty(&self) -> bool {
        self.urgent.is_empty() && self.listed.is_empty() && self.ended.is_empty() && !self.has_lost
    }

    /// The worker that has the table now, where it has this place.
    pub fn join(&mut self, replication: &mut Replication, place: u16) {
        self.place = place;
        // It may have been here before.
        self.is_known = replication.tables.contains(&place);
        if !self.is_empty() {
            self.make_known(replication);
            replication.has_urgent = true;
        }
    }

    fn make_known(&mut self, replication: &mut Replication) {
        if !std::mem::replace(&mut self.is_known, true) {
            replication.tables.push(self.place);
        }
    }

    /// The state of a connection has changed: its peer hears of it at once.
    #[inline]
    pub fn note_change(&mut self, slot: u32, note: &mut Note, replication: &mut Replication) {
        if replication.tick == 0 {
            // News for the owner waits until somebody wants all that is known here.
            if note.is_copy() {
                note.set_due(LAST_TICK);
            }
            return;
        }
        // The slot may be on the list because of a connection that it had before.
        note.set_due(LAST_TICK);
        if !note.has(Note::URGENT) {
            note.0 |= Note::URGENT;
            self.urgent.push_back(slot);
            self.make_known(replication);
            replication.has_urgent = true;
        }
    }

    /// A packet has moved windows, timer or counts of a connection that is
    /// [due](Replication::is_due).
    #[cold]
    #[inline(never)]
    pub fn note_refresh(&mut self, slot: u32, note: &mut Note, replication: &mut Replication) {
        note.set_due(LAST_TICK);
        // The transfer of all connections tells of those that were there before the peer.
        if !note.has(Note::LISTED) && !note.is_unheard_of() {
            note.0 |= Note::LISTED;
            self.listed.push_back(slot);
            self.make_known(replication);
            replication.note_due();
        }
    }

    /// A connection has ended. The peer hears of it if it has heard of the connection or owns it, or
    /// if another part of the same tunnel may have been told.
    pub fn note_end(
        &mut self,
        note: Note,
        original: KeyedPacket,
        now: Timestamp,
        replication: &mut Replication,
    ) {
        if replication.tick == 0
            || !(note.has(Note::SENT) || note.is_copy() || original.key.is_tunnel())
        {
            return;
        }
        if self.ended.len() < ENDS_MAX {
            let stamp = self.next_stamp(now);
            self.ended.push_back((stamp, original, note.is_copy()));
        } else {
            self.has_lost = true;
        }
        self.make_known(replication);
        replication.has_urgent = true;
    }

    /// A number that no change of the table has had, and a later one in any table has a higher one:
    /// about the time in microseconds. A table counts for itself within that, wherever it moves.
    pub fn next_stamp(&mut self, now: Timestamp) -> u64 {
        self.stamp = (self.stamp + 1).max(now.as_nanos() / 1000);
        self.stamp
    }

    /// The next end of a connection that was not told.
    pub fn next_end(&mut self) -> Option<(u64, KeyedPacket, bool)> {
        self.ended.pop_front()
    }

    /// The next slot of the list of those that are told at once, or else of the other one. The
    /// second value is true for the latter.
    pub fn next_slot(&mut self) -> Option<(u32, bool)> {
        let urgent = self.urgent.pop_front().map(|slot| (slot, false));
        urgent.or_else(|| Some((self.listed.pop_front()?, true)))
    }

    /// The slots that [`DirtyList::next_slot`] gives next, so many at most.
    pub fn next_slots(&self, count: usize) -> impl Iterator<Item = u32> {
        self.urgent.iter().chain(&self.listed).take(count).copied()
    }

    /// True once after ends were lost.
    pub fn take_lost(&mut self) -> bool {
        std::mem::take(&mut self.has_lost)
    }

    /// The table is on no list of its worker, because the worker has looked at it.
    pub fn was_seen(&mut self, replication: &mut Replication) {
        self.is_known = false;
        if self.is_empty() {
            // A burst has made them long.
            self.urgent.shrink_to(64);
            self.listed.shrink_to(64);
        } else {
            self.make_known(replication);
        }
    }

    /// The table has no connections, so none of its slots is on a list.
    pub fn forget_slots(&mut self) {
        self.urgent = VecDeque::new();
        self.listed = VecDeque::new();
    }

    pub fn memory_bytes(&self) -> usize {
        (self.urgent.capacity() + self.listed.capacity()) * size_of::<u32>()
            + self.ended.capacity() * size_of::<(u64, KeyedPacket, bool)>()
    }
}
