//! Announcements of connections, as values that mean the same at another gateway.

use std::ops::Bound;

use flow::codec::Millis;
use flow::replica::{Origin, Taken};
use flow::{FlowKey, Timestamp, Zone, ZonePair};

use super::announced_ports::REMEMBERED;
use super::call_ids::IDS;
use super::{
    Book, CallId, Expectation, Expectations, Item, Listener, MOST_OF_MASTER, Master, MediaKey,
    OpenCall,
};
use crate::helper::Announced;
use crate::{InterfaceName, Interfaces, NoInterfaces};

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
    Media(Option<MediaKey>),
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

    /// The record that names the same thing in any state of it. Only what tells things apart counts
    /// in it.
    #[must_use]
    pub fn name(&self) -> Self {
        match &self.0 {
            Announcement::Expectation(record) => record.name(),
            Announcement::Call { call, open, .. } => {
                Self(Announcement::Call { call: *call, open: *open, is_over: false })
            }
            Announcement::CallId { .. } => self.clone(),
            Announcement::Media { place, .. } => {
                Self(Announcement::Media { place: *place, port: 0 })
            }
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
    /// Shows up to `budget` announcements to `each`, kind by kind. Returns the position to continue
    /// from, `None` at the end. Workers that look for an expectation wait meanwhile.
    pub fn records_from(
        &self,
        from: AnnouncementCursor,
        budget: usize,
        interfaces: &dyn Interfaces,
        now: Timestamp,
        mut each: impl FnMut(AnnouncementRecord),
    ) -> Option<AnnouncementCursor> {
        self.book().walk(from, budget, interfaces, now, |_, announcement| {
            each(AnnouncementRecord(announcement));
        })
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
        (limit, origin): (u64, Origin),
        now: Timestamp,
        events: &mut Listener<'_>,
    ) -> Result<Taken, NotTaken> {
        let book = &mut *self.book();
        if let Announcement::Expectation(_) = &record.0 {
            self.forget_expired(book, now, events);
        }
        let known = book.item_of(record);
        let taken = match known {
            Some(item) if origin == Origin::File && book.is_alive(&item, now) => {
                return Err(NotTaken::Known);
            }
            Some(item) => Taken::of_known(origin, !book.journal.is_copy(&item)),
            None => Taken::Made,
        };
        let item = match (known, taken) {
            (Some(item), Taken::Kept) => item,
            (Some(item), _) => self.change(book, item, record, interface, now),
            (None, _) => self.enter(book, record, interface, limit, now)?,
        };
        match origin {
            Origin::File => book.journal.note_change(item),
            Origin::Owner { .. } if taken == Taken::Kept => book.journal.note_change(item),
            Origin::Owner { .. } => book.journal.set_copy(item),
            Origin::News => book.journal.set_own(&item),
        }
        self.note(book);
        Ok(taken)
    }

    /// Gives a thing that is there the state of a record. An expectation may become another item.
    fn change(
        &self,
        book: &mut Book,
        item: Item,
        AnnouncementRecord(record): &AnnouncementRecord,
        interface: Option<u32>,
        now: Timestamp,
    ) -> Item {
        match (item, record) {
            (Item::Expectation(number), Announcement::Expectation(record)) => {
                let new = record.restore(interface, now);
                let is_filed_alike = |old: &Expectation| {
                    (old.master.flow, old.destination()) == (new.master.flow, new.destination())
                };
                if !book.entries.get(&number).is_some_and(is_filed_alike) {
                    self.unfile(book, number, now, &mut None);
                    book.journal.forget(&item);
                    return Item::Expectation(self.file(book, new));
                }
                book.put_off(number, new.deadline);
                book.entries.insert(number, new);
            }
            (Item::Call(call), Announcement::Call { open, is_over, .. }) => {
                let is_over = *is_over || book.calls.over.contains(&call);
                book.calls.enter(call, *open);
                if is_over {
                    book.calls.over.insert(call);
                }
            }
            (Item::Media(place), Announcement::Media { port, .. }) => {
                book.media.remember(place, *port);
            }
            // A call id has no state.
            _ => {}
        }
        item
    }

    /// Files what is not there yet.
    fn enter(
        &self,
        book: &mut Book,
        AnnouncementRecord(record): &AnnouncementRecord,
        interface: Option<u32>,
        limit: u64,
        now: Timestamp,
    ) -> Result<Item, NotTaken> {
        Ok(match record {
            Announcement::Expectation(record) => {
                let expectation = record.restore(interface, now);
                book.takes(&expectation, limit)?;
                Item::Expectation(self.file(book, expectation))
            }
            Announcement::Call { call, open, is_over } => {
                book.calls.enter(*call, *open);
                if *is_over {
                    book.calls.over.insert(*call);
                }
                Item::Call(*call)
            }
            Announcement::CallId { master, id } => {
                book.ids.take(master, id)?;
                Item::CallId(id.way, id.known)
            }
            Announcement::Media { place, port } => {
                book.media.take(*place, *port)?;
                Item::Media(*place)
            }
        })
    }
}

impl Expectation {
    /// The record that names this expectation to a peer. Only what tells expectations of a call
    /// apart counts in it.
    pub(super) fn name(&self) -> AnnouncementRecord {
        ExpectationRecord::of(self, &NoInterfaces, self.deadline).name()
    }
}

impl ExpectationRecord {
    fn name(&self) -> AnnouncementRecord {
        let Self { master, announced, .. } = self;
        let Announced { call, protocol, destination, destination_port, .. } = *announced;
        let Announced { source, source_network, source_port, .. } = *announced;
        let new = Announced::new(protocol, destination, destination_port);
        let announced = Announced { call, source, source_network, source_port, ..new };
        let record = Self {
            master: Master { mark: 0, ..*master },
            announced,
            interface: None,
            // None has no time left.
            left: Millis::new(1),
        };
        AnnouncementRecord(Announcement::Expectation(Box::new(record)))
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
    /// Shows up to `budget` announcements to `each`, as [`Expectations::records_from`] does.
    pub(super) fn walk(
        &self,
        AnnouncementCursor(from): AnnouncementCursor,
        budget: usize,
        interfaces: &dyn Interfaces,
        now: Timestamp,
        mut each: impl FnMut(Item, Announcement),
    ) -> Option<AnnouncementCursor> {
        let mut show = |item| {
            if let Some(announcement) = self.announcement(&item, interfaces, now) {
                each(item, announcement);
            }
        };
        let next = match from {
            At::Expectation(from) => {
                let mut last = None;
                for &number in self.entries.range(from..).take(budget).map(|(number, _)| number) {
                    last = Some(At::Expectation(number + 1));
                    show(Item::Expectation(number));
                }
                last.unwrap_or(At::Call(None))
            }
            At::Call(from) => {
                let mut last = None;
                let calls = self.calls.open.range((after(from), Bound::Unbounded));
                for &call in calls.take(budget).map(|(call, _)| call) {
                    last = Some(At::Call(Some(call)));
                    show(Item::Call(call));
                }
                last.unwrap_or(At::CallId(None))
            }
            At::CallId(from) => {
                let mut last = None;
                let masters = self.ids.of_master.range((after(from), Bound::Unbounded));
                for (&master, ids) in masters.take(budget.div_ceil(2 * IDS)) {
                    last = Some(At::CallId(Some(master)));
                    ids.iter().for_each(|id| show(Item::CallId(id.way, id.known)));
                }
                last.unwrap_or(At::Media(None))
            }
            At::Media(from) => {
                let mut last = None;
                let places = self.media.ports.range((after(from), Bound::Unbounded));
                for &place in places.take(budget).map(|(place, _)| place) {
                    last = Some(At::Media(Some(place)));
                    show(Item::Media(place));
                }
                last?
            }
        };
        Some(AnnouncementCursor(next))
    }

    /// The record of a thing; `None` if it is not there any more, or has expired and no peer owns
    /// it.
    pub(super) fn announcement(
        &self,
        item: &Item,
        interfaces: &dyn Interfaces,
        now: Timestamp,
    ) -> Option<Announcement> {
        Some(match *item {
            Item::Expectation(number) => {
                let expectation = self.entries.get(&number).filter(|it| it.deadline > now)?;
                let record = ExpectationRecord::of(expectation, interfaces, now);
                Announcement::Expectation(Box::new(record))
            }
            Item::Call(call) => {
                let open = *self.calls.open.get(&call)?;
                Announcement::Call { call, open, is_over: self.calls.over.contains(&call) }
            }
            Item::CallId(way, known) => {
                let master = *self.ids.taken.get(&(way, known))?;
                let mut ids = self.ids.of_master.get(&master)?.iter();
                let id = *ids.find(|id| (id.way, id.known) == (way, known))?;
                Announcement::CallId { master, id }
            }
            Item::Media(place) => {
                Announcement::Media { place, port: *self.media.ports.get(&place)? }
            }
        })
    }

    /// The thing that a record names, if it is here.
    pub(super) fn item_of(&self, AnnouncementRecord(record): &AnnouncementRecord) -> Option<Item> {
        match record {
            Announcement::Expectation(it) => {
                let Announced { call, .. } = it.announced;
                let same = |number: &u64| self.entries[number].announced.equals(&it.announced);
                let mut of_call = self.of_call(&it.master.flow.key, call).into_iter();
                of_call.find(same).map(Item::Expectation)
            }
            Announcement::Call { call, .. } => {
                self.calls.open.contains_key(call).then_some(Item::Call(*call))
            }
            Announcement::CallId { master, id } => {
                let is_its = self.ids.taken.get(&(id.way, id.known)) == Some(master);
                is_its.then_some(Item::CallId(id.way, id.known))
            }
            Announcement::Media { place, .. } => {
                self.media.ports.contains_key(place).then_some(Item::Media(*place))
            }
        }
    }

    /// False for an expectation that has expired.
    fn is_alive(&self, item: &Item, now: Timestamp) -> bool {
        match item {
            Item::Expectation(number) => {
                self.entries.get(number).is_some_and(|it| it.deadline > now)
            }
            _ => true,
        }
    }

    /// Says why an expectation of another gateway, which is not here, may not be filed.
    fn takes(&self, new: &Expectation, limit: u64) -> Result<(), NotTaken> {
        let Expectation { master, announced, .. } = new;
        let key = &master.flow.key;
        let mut of_class = 0;
        for number in self.of_call(key, announced.call) {
            let Expectation { announced: other, .. } = &self.entries[&number];
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
        if self.taken.contains_key(&(id.way, id.known)) {
            return Err(NotTaken::Clash);
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
        if self.ports.len() >= REMEMBERED {
            return Err(NotTaken::Full);
        }
        self.remember(place, port);
        Ok(())
    }
}
