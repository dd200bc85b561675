//! Announcements of connections, as values that mean the same at another gateway.

use std::ops::Bound;

use flow::codec::Millis;
use flow::{FlowKey, Timestamp, Zone, ZonePair};

use super::announced_ports::REMEMBERED;
use super::call_ids::IDS;
use super::{
    Book, CallId, Expectation, Expectations, Listener, MOST_OF_MASTER, Master, MediaKey, OpenCall,
};
use crate::helper::Announced;
use crate::{InterfaceName, Interfaces};

/// Something that helpers have agreed on with the ends of a connection, as another gateway can take
/// it over. It is made by [`Expectations`] or read from bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnnouncementRecord(pub(crate) Announcement);

/// The content of an [`AnnouncementRecord`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Announcement {
    /// A connection is expected.
    Expectation(Box<ExpectationRecord>),
    /// An announced call has a connection.
    Call {
        /// The key of the connection.
        call: FlowKey,
        open: OpenCall,
        /// Its connection has to be ended.
        is_over: bool,
    },
    /// A control connection has a call id.
    CallId { master: FlowKey, id: CallId },
    /// A place for media has a port.
    Media { place: MediaKey, port: u16 },
}

/// An expected connection in a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExpectationRecord {
    pub master: Master,
    /// Its place in a payload is empty, and its translation has no interface.
    pub announced: Announced,
    /// The interface of its translation.
    pub interface: Option<InterfaceName>,
    pub left: Millis,
}

/// Why the table does not take a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotTaken {
    /// It is there already.
    Known,
    /// Another connection has what it claims.
    Clash,
    /// A limit is reached, and nothing gives way to a record.
    Full,
}

/// A position in the announcements of a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnnouncementCursor(At);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Expectation(u64),
    Call(Option<FlowKey>),
    /// The control connection whose ids were shown last.
    CallId(Option<FlowKey>),
    Media(usize),
}

impl Default for AnnouncementCursor {
    fn default() -> Self {
        Self(At::Expectation(0))
    }
}

impl AnnouncementRecord {
    /// The key of the connection that has to be there before: that of the announcing one, or of the
    /// call. `None` if it needs none.
    pub fn key(&self) -> Option<&FlowKey> {
        match &self.0 {
            Announcement::Expectation(it) => Some(&it.master.flow.key),
            Announcement::Call { call, .. } => Some(call),
            Announcement::CallId { master, .. } => Some(master),
            Announcement::Media { .. } => None,
        }
    }

    /// The zones that have to be there.
    pub(crate) fn zones(&self) -> ZonePair {
        let one = |zone: Zone| ZonePair { original: zone, reply: zone };
        match &self.0 {
            Announcement::Expectation(it) => {
                ZonePair { original: it.master.flow.key.zone, reply: it.master.zone }
            }
            Announcement::Call { call, open, .. } => {
                ZonePair { original: call.zone, reply: open.master.zone }
            }
            Announcement::CallId { master, .. } => one(master.zone),
            Announcement::Media { place: (zone, ..), .. } => one(*zone),
        }
    }

    /// The interface that has to be there.
    pub(crate) fn interface(&self) -> Option<&InterfaceName> {
        match &self.0 {
            Announcement::Expectation(it) => it.interface.as_ref(),
            _ => None,
        }
    }
}

impl Expectations {
    /// Shows up to `budget` announcements to `each`, the oldest of a kind first. Returns the
    /// position to continue from, `None` at the end. Workers that look for an expectation wait
    /// meanwhile.
    pub fn records_from(
        &self,
        AnnouncementCursor(from): AnnouncementCursor,
        budget: usize,
        interfaces: &dyn Interfaces,
        now: Timestamp,
        mut each: impl FnMut(AnnouncementRecord),
    ) -> Option<AnnouncementCursor> {
        let book = self.book();
        let mut seen = 0;
        let mut show = |announcement| {
            seen += 1;
            each(AnnouncementRecord(announcement));
        };
        let next = match from {
            At::Expectation(from) => {
                let mut last = None;
                for (&number, expectation) in book.entries.range(from..).take(budget) {
                    last = Some(At::Expectation(number + 1));
                    if expectation.deadline > now {
                        let record = ExpectationRecord::of(expectation, interfaces, now);
                        show(Announcement::Expectation(Box::new(record)));
                    }
                }
                last.unwrap_or(At::Call(None))
            }
            At::Call(from) => {
                let calls = &book.calls;
                let mut last = None;
                for (&call, &open) in calls.open.range((after(from), Bound::Unbounded)).take(budget)
                {
                    last = Some(At::Call(Some(call)));
                    let is_over = calls.over.contains(&call);
                    show(Announcement::Call { call, open, is_over });
                }
                last.unwrap_or(At::CallId(None))
            }
            At::CallId(from) => {
                let ids = &book.ids;
                let mut last = None;
                let masters = ids.of_master.range((after(from), Bound::Unbounded));
                for (&master, ids) in masters.take(budget.div_ceil(2 * IDS)) {
                    last = Some(At::CallId(Some(master)));
                    ids.iter().for_each(|&id| show(Announcement::CallId { master, id }));
                }
                last.unwrap_or(At::Media(0))
            }
            At::Media(from) => {
                for place in book.media.order.iter().skip(from).take(budget) {
                    if let Some(&port) = book.media.ports.get(place) {
                        show(Announcement::Media { place: *place, port });
                    }
                }
                return (seen == budget).then_some(AnnouncementCursor(At::Media(from + budget)));
            }
        };
        Some(AnnouncementCursor(next))
    }

    /// Files what a record says, without an event. `limit` is the largest number of expectations.
    /// The caller has seen that the connection of its key is there.
    ///
    /// # Errors
    /// [`NotTaken`]; nothing has changed.
    pub(crate) fn import(
        &self,
        record: &AnnouncementRecord,
        interface: Option<u32>,
        limit: u64,
        now: Timestamp,
        events: &mut Listener<'_>,
    ) -> Result<(), NotTaken> {
        let mut book = self.book();
        match &record.0 {
            Announcement::Expectation(record) => {
                self.forget_expired(&mut book, now, events);
                let expectation = record.restore(interface, now);
                book.takes(&expectation, limit, now)?;
                self.file(&mut book, expectation);
            }
            Announcement::Call { call, open, is_over } => {
                if book.calls.open.contains_key(call) {
                    return Err(NotTaken::Known);
                }
                book.calls.enter(*call, *open);
                if *is_over {
                    book.calls.over.insert(*call);
                }
                self.note_over(&book);
            }
            Announcement::CallId { master, id } => book.ids.take(master, id)?,
            Announcement::Media { place, port } => book.media.take(*place, *port)?,
        }
        Ok(())
    }
}

/// The start of a range that goes on behind a key.
fn after<K>(key: Option<K>) -> Bound<K> {
    key.map_or(Bound::Unbounded, Bound::Excluded)
}

impl ExpectationRecord {
    fn of(expectation: &Expectation, interfaces: &dyn Interfaces, now: Timestamp) -> Self {
        let Expectation { master, announced, deadline } = expectation;
        let number = announced.follow.and_then(|follow| follow.interface);
        let mut announced = Announced { place: 0..0, timeout_s: None, ..announced.clone() };
        if let Some(follow) = &mut announced.follow {
            follow.interface = None;
        }
        let interface = number.and_then(|number| interfaces.name_of(number));
        Self { master: *master, announced, interface, left: Millis::until(*deadline, now) }
    }

    fn restore(&self, interface: Option<u32>, now: Timestamp) -> Expectation {
        let mut announced = self.announced.clone();
        if let Some(follow) = &mut announced.follow {
            follow.interface = interface;
        }
        Expectation { master: self.master, announced, deadline: now.after(self.left.duration()) }
    }
}

impl Book {
    /// Says why an expectation of another gateway may not be filed.
    fn takes(&self, new: &Expectation, limit: u64, now: Timestamp) -> Result<(), NotTaken> {
        let Expectation { master, announced, .. } = new;
        let key = &master.flow.key;
        let mut of_class = 0;
        for number in self.of_call(key, announced.call) {
            let Expectation { announced: other, deadline, .. } = &self.entries[&number];
            if other.equals(announced) && *deadline > now {
                return Err(NotTaken::Known);
            }
            of_class += usize::from(other.class == announced.class);
        }
        let most = master.helper.classes()[usize::from(announced.class)].maximum;
        let is_full = self.entries.len() as u64 >= limit
            || of_class >= most
            || self.of_master(key).nth(MOST_OF_MASTER - 1).is_some();
        if is_full { Err(NotTaken::Full) } else { Ok(()) }
    }
}

impl super::CallIds {
    fn take(&mut self, master: &FlowKey, id: &CallId) -> Result<(), NotTaken> {
        match self.taken.get(&(id.way, id.known)) {
            Some(other) if other == master => return Err(NotTaken::Known),
            Some(_) => return Err(NotTaken::Clash),
            None => {}
        }
        let ids = self.of_master.entry(*master).or_default();
        let same = |other: &&CallId| other.end == id.end;
        let refusal = if ids.iter().filter(same).any(|other| other.own == id.own) {
            Some(NotTaken::Clash)
        } else {
            (ids.iter().filter(same).count() >= IDS).then_some(NotTaken::Full)
        };
        if let Some(refusal) = refusal {
            // It has ids, so its entry stays.
            return Err(refusal);
        }
        ids.push(*id);
        self.taken.insert((id.way, id.known), *master);
        Ok(())
    }
}

impl super::announced_ports::Media {
    fn take(&mut self, place: MediaKey, port: u16) -> Result<(), NotTaken> {
        match self.ports.get(&place) {
            Some(known) if *known == port => Err(NotTaken::Known),
            Some(_) => Err(NotTaken::Clash),
            None if self.ports.len() >= REMEMBERED => Err(NotTaken::Full),
            None => {
                self.remember(place, port);
                Ok(())
            }
        }
    }
}
