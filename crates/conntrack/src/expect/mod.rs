//! Expectations: connections that helpers have announced. This is the one table that all
//! workers share.
//!
//! A helper announces an expectation on the control connection (its *master*), and another flow
//! fulfils it, whose bucket may have another owner. A worker can not know which bucket expects
//! a new flow, so all workers share one table. Expectations name the master by its key, so it
//! makes no difference where master and child are or move to.
//!
//! Only packets that open connections ask the table, and [claim](claims) an expectation. A worker
//! takes the lock only if [the filter](destination_filter) says that something is expected at the
//! packet's destination: a new connection reads one word while nothing is expected, and two while
//! something is. The announcing packet
//! leaves only after the announcement is filed, so a flow that reacts to it is expected.

mod announced_ports;
mod announcer;
mod call_ids;
mod calls;
mod claims;
mod destination_filter;
mod passage;
mod peer;
mod record;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use flow::replica::Journal;
use flow::{Endpoint, FlowKey, HashKey, KeyedPacket, Timestamp, Zone};
use wire::{Family, mapped};

pub(crate) use self::announced_ports::MediaKey;
pub(crate) use self::announcer::{Announcer, Measure, put_together};
pub(crate) use self::call_ids::CallId;
use self::call_ids::CallIds;
use self::calls::Calls;
pub(crate) use self::calls::{Name, OpenCall};
pub(crate) use self::claims::Claim;
use self::destination_filter::DestinationFilter;
pub(crate) use self::passage::Passage;
pub use self::peer::COPY_KEPT;
use self::peer::Item;
pub(crate) use self::record::{Announcement, ExpectationRecord, NotTaken};
pub use self::record::{AnnouncementCursor, AnnouncementRecord};
use crate::Direction;
use crate::helper::{Announced, Holder, Kind, Memory, Shares};
use crate::view::{
    EventKind, ExpectationEvent, ExpectationSink, Expected, Tuple, seconds_left, zone_number,
};

/// Most expectations of one connection for all its calls together; the oldest goes first. Each
/// class limits a single call; this limit is for trunks, which carry many calls.
const MOST_OF_MASTER: usize = 256;

/// Expired expectations that one holder of the lock removes at most, because others wait for
/// it.
const FORGOTTEN_AT_ONCE: usize = 16;

/// The expectations of a gateway; clones share them.
#[derive(Clone, Debug)]
pub struct Expectations {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    filter: DestinationFilter,
    book: Mutex<Book>,
    memory: Memory,
    /// Number of calls that are over and whose connections still exist.
    calls_over: AtomicU32,
    /// A peer has to hear of changes.
    has_news: AtomicBool,
}

/// Expectations by number. Numbers grow, so the oldest comes first in every index.
///
/// Ordered maps need no secret: nobody can choose announcements that collide.
#[derive(Debug, Default)]
struct Book {
    entries: BTreeMap<u64, Expectation>,
    /// The expectations that packets can find. Claimed ones are in the other indices only.
    by_destination: BTreeSet<(Destination, u64)>,
    /// The call within the master is part of the key.
    by_master: BTreeSet<(FlowKey, u32, u64)>,
    by_deadline: BTreeSet<(Timestamp, u64)>,
    /// By the source of the master; each has size 1.
    by_source: Shares,
    next: u64,
    /// Number of events so far, whether or not somebody listened.
    stamp: u64,
    calls: Calls,
    ids: CallIds,
    media: announced_ports::Media,
    /// The changes that a peer has to hear of, and the things that it owns.
    journal: Journal<Item, AnnouncementRecord>,
    /// The last change that a peer was told of.
    told: u64,
}

/// The listener for announcements and ends of expectations.
pub(crate) type Listener<'a> = Option<&'a mut dyn ExpectationSink>;

/// The destination of an expected connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Destination {
    zone: Zone,
    family: Family,
    protocol: u8,
    /// [`FlowKey::kind`]. It tells calls from tunnels, whose keys also have numbers in the
    /// place of ports.
    kind: u8,
    endpoint: Endpoint,
}

/// The connection that announces others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Master {
    /// Its key, and the end that opened it.
    pub flow: KeyedPacket,
    /// Its helper.
    pub helper: Kind,
    /// Its mark at the time of the announcement.
    pub mark: u32,
    /// The zone of the packets from the other end, which will open the announced connections.
    pub zone: Zone,
}

/// An expected connection.
#[derive(Clone, Debug)]
pub(crate) struct Expectation {
    pub master: Master,
    pub announced: Announced,
    pub deadline: Timestamp,
}

/// The limit of expectations is reached, and no other source has more than this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;

/// A position in a listing of the expectations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ExpectationCursor(u64);

impl Expected {
    fn of(expectation: &Expectation, now: Timestamp) -> Self {
        let Expectation { master, announced, deadline } = expectation;
        let class = &master.helper.classes()[usize::from(announced.class)];
        Self {
            zone: zone_number(master.zone),
            protocol: announced.protocol,
            source: announced.source,
            source_port: announced.source_port,
            destination: announced.destination,
            destination_port: announced.destination_port,
            timeout_s: seconds_left(*deadline, now),
            permanent: announced.permanent,
            master: Tuple::of(&master.flow.key, master.flow.sender, Direction::Original),
            helper: master.helper.name(),
            class: (class.name, announced.class),
            mark: master.mark,
        }
    }
}

impl Expectations {
    /// An empty table. `secret` is the secret of the process: it keys the filter, so nobody can
    /// choose announcements that make other packets take the lock.
    pub fn new(secret: HashKey) -> Self {
        let (book, memory) = (Mutex::default(), Memory::default());
        let (filter, calls_over) = (DestinationFilter::new(secret), AtomicU32::new(0));
        let has_news = AtomicBool::new(false);
        Self { shared: Arc::new(Shared { filter, book, memory, calls_over, has_news }) }
    }

    /// Number of expectations, including expired ones that no worker has removed yet.
    pub fn len(&self) -> usize {
        self.book().entries.len()
    }

    /// True when nothing is expected.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// False if no expectation can match this packet, whoever announced it; rarely true
    /// although none does. Takes no lock. The packet of a call has to be
    /// [named](KeyedPacket::named).
    pub fn may_expect(&self, packet: &KeyedPacket) -> bool {
        let KeyedPacket { key, sender } = packet;
        let to = key.endpoint(sender.opposite());
        self.shared.filter.any() && self.shared.filter.any_at(key.zone, key.protocol, &to)
    }

    /// The memory in which helpers keep parts of announcements.
    pub(crate) fn memory(&self) -> &Memory {
        &self.shared.memory
    }

    /// Shows up to `budget` expectations to `each`, oldest first. Returns the position to
    /// continue from, `None` at the end.
    pub fn list(
        &self,
        from: ExpectationCursor,
        budget: usize,
        now: Timestamp,
        mut each: impl FnMut(Expected),
    ) -> Option<ExpectationCursor> {
        let mut last = None;
        let book = self.book();
        for (&number, expectation) in book.entries.range(from.0..).take(budget) {
            if expectation.is_listed(now) {
                each(Expected::of(expectation, now));
            }
            last = Some(ExpectationCursor(number + 1));
        }
        last
    }

    /// Files an announcement. It replaces an earlier one of the same master and call that
    /// equals it; beyond the maximum of its class it replaces the oldest. If the same call has
    /// announced an equal connection in another class, that one stands for both classes: one
    /// port for sound and pictures (RFC 8843) is one connection, as with the kernel.
    ///
    /// If there are `limit` expectations, the oldest of the source that has most gives way. The
    /// result is true then.
    ///
    /// # Errors
    /// [`Full`] if that is no other source with more than the master's; nothing changes then.
    pub(crate) fn announce(
        &self,
        master: Master,
        announced: Announced,
        limit: u64,
        now: Timestamp,
        events: &mut Listener<'_>,
    ) -> Result<bool, Full> {
        let class = &master.helper.classes()[usize::from(announced.class)];
        let mut book = self.book();
        self.forget_expired(&mut book, now, events);
        let of_call = book.of_call(&master.flow.key, announced.call);
        let of_class = |number: &u64| book.entries[number].announced.class == announced.class;
        let same = |number: &&u64| book.entries[*number].announced.equals(&announced);
        let same = of_call.iter().find(same).copied();
        let is_alive = |number: &u64| book.entries[number].deadline > now;
        let stands = |number: &u64| {
            // An announcement that waits for its confirmation does not replace one that is
            // confirmed.
            let is_confirmed = announced.waits && !book.entries[number].announced.waits;
            is_alive(number) && (is_confirmed || !of_class(number))
        };
        if same.as_ref().is_some_and(stands) {
            return Ok(false);
        }
        let siblings: Vec<u64> = of_call.into_iter().filter(of_class).collect();
        let replaced = match &same {
            None if siblings.len() >= class.maximum => siblings.first(),
            same => same.as_ref(),
        };
        let replaced = replaced.copied().or_else(|| book.oldest_too_many(&master.flow.key));
        let kept = book.entries.len() - usize::from(replaced.is_some());
        let is_full = kept as u64 >= limit;
        let victim = if is_full { Some(book.gives_way_to(&master).ok_or(Full)?) } else { None };
        for number in replaced.into_iter().chain(victim) {
            self.remove(&mut book, number, now, events);
        }
        let timeout_s = announced.timeout_s.unwrap_or(class.timeout_s);
        let deadline = now.after(Duration::from_secs(timeout_s.into()));
        let expectation = Expectation { master, announced, deadline };
        book.report(EventKind::New, &expectation, now, events);
        let Book { calls, journal, .. } = &mut *book;
        calls.hand_over(&expectation, journal);
        let number = self.file(&mut book, expectation);
        book.journal.note_change(Item::Expectation(number));
        self.note(&book);
        Ok(is_full)
    }

    /// Confirms the waiting announcements of a connection in a class, and gives all in that
    /// class this timeout from now on.
    pub(crate) fn confirm(
        &self,
        master: &FlowKey,
        class: u8,
        seconds: u32,
        now: Timestamp,
        events: &mut Listener<'_>,
    ) {
        let mut book = self.book();
        let numbers: Vec<u64> = book.of_master(master).collect();
        for number in numbers {
            let announced = &book.entries[&number].announced;
            if announced.class != class {
                continue;
            }
            book.put_off(number, now.after(Duration::from_secs(seconds.into())));
            let Some(mut expectation) = book.entries.remove(&number) else { continue };
            if std::mem::take(&mut expectation.announced.waits) {
                book.report(EventKind::New, &expectation, now, events);
            }
            book.entries.insert(number, expectation);
            book.journal.note_change(Item::Expectation(number));
        }
        self.note(&book);
    }

    /// Removes the announcements of a connection, or of one of its calls, in some classes.
    pub(crate) fn withdraw(
        &self,
        master: &FlowKey,
        call: Option<u32>,
        classes: &RangeInclusive<u8>,
        now: Timestamp,
        events: &mut Listener<'_>,
    ) {
        let mut book = self.book();
        let numbers = match call {
            Some(call) => book.of_call(master, call),
            None => book.of_master(master).collect(),
        };
        for number in numbers {
            if classes.contains(&book.entries[&number].announced.class) {
                self.remove(&mut book, number, now, events);
            }
        }
        self.note(&book);
    }

    /// Removes up to `budget` expectations, oldest first. Returns how many of them were listed,
    /// and whether there may be more.
    pub fn flush(
        &self,
        budget: usize,
        now: Timestamp,
        events: &mut Option<&mut dyn ExpectationSink>,
    ) -> (usize, bool) {
        let mut book = self.book();
        let doomed: Vec<u64> = book.entries.keys().copied().take(budget).collect();
        let mut listed = 0;
        for &number in &doomed {
            listed += usize::from(book.entries[&number].is_listed(now));
            self.remove(&mut book, number, now, events);
        }
        self.note(&book);
        (listed, doomed.len() == budget)
    }

    /// Removes a few expired expectations; true if there may be more. Expired expectations are
    /// never found, so this call only returns memory and informs the listener.
    pub fn expire(&self, now: Timestamp, events: &mut Option<&mut dyn ExpectationSink>) -> bool {
        self.shared.filter.any() && self.forget_expired(&mut self.book(), now, events)
    }

    /// The same for a caller that holds the lock, for which others may wait.
    fn forget_expired(&self, book: &mut Book, now: Timestamp, events: &mut Listener<'_>) -> bool {
        for _ in 0..FORGOTTEN_AT_ONCE {
            match book.by_deadline.first() {
                Some(&(deadline, number)) if deadline <= now => {
                    // Only its owner knows whether it was put off.
                    match book.journal.is_copy(&Item::Expectation(number)) {
                        true => book.put_off(number, now.after(COPY_KEPT)),
                        false => self.remove(book, number, now, events),
                    }
                }
                _ => {
                    self.note(book);
                    return false;
                }
            }
        }
        self.note(book);
        true
    }

    fn file(&self, book: &mut Book, expectation: Expectation) -> u64 {
        let number = book.next;
        book.next += 1;
        book.by_master.insert((expectation.master.flow.key, expectation.announced.call, number));
        book.by_deadline.insert((expectation.deadline, number));
        book.by_source.add(Holder::of(expectation.master.flow), number, 1);
        self.offer(book, &expectation.destination(), number);
        book.entries.insert(number, expectation);
        number
    }

    fn remove(&self, book: &mut Book, number: u64, now: Timestamp, events: &mut Listener<'_>) {
        if let Some(expectation) = self.unfile(book, number, now, events) {
            book.journal.note_end(&Item::Expectation(number), || expectation.name());
        }
    }

    /// Takes an expectation out of the book. The journal does not say so.
    fn unfile(
        &self,
        book: &mut Book,
        number: u64,
        now: Timestamp,
        events: &mut Listener<'_>,
    ) -> Option<Expectation> {
        let expectation = book.entries.remove(&number)?;
        book.report(EventKind::Destroy, &expectation, now, events);
        self.withhold(book, &expectation.destination(), number);
        let Expectation { master, announced, .. } = &expectation;
        book.by_master.remove(&(master.flow.key, announced.call, number));
        book.by_deadline.remove(&(expectation.deadline, number));
        book.by_source.remove(Holder::of(master.flow), number);
        Some(expectation)
    }

    /// Makes an expectation visible to packets.
    fn offer(&self, book: &mut Book, destination: &Destination, number: u64) {
        if book.by_destination.insert((*destination, number)) {
            self.shared.filter.add(destination);
        }
    }

    /// Hides an expectation from packets.
    fn withhold(&self, book: &mut Book, destination: &Destination, number: u64) {
        if book.by_destination.remove(&(*destination, number)) {
            self.shared.filter.subtract(destination);
        }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        // No code panics half-way through a change under the lock.
        self.shared.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Book {
    fn report(
        &mut self,
        kind: EventKind,
        expectation: &Expectation,
        now: Timestamp,
        events: &mut Listener<'_>,
    ) {
        if expectation.announced.waits {
            return;
        }
        self.stamp += 1;
        if let Some(events) = events {
            let expected = Expected::of(expectation, now);
            events.expectation(self.stamp, ExpectationEvent { kind, expected });
        }
    }

    /// Gives an expectation another deadline.
    fn put_off(&mut self, number: u64, deadline: Timestamp) {
        let Some(expectation) = self.entries.get_mut(&number) else { return };
        self.by_deadline.remove(&(expectation.deadline, number));
        expectation.deadline = deadline;
        self.by_deadline.insert((deadline, number));
    }

    /// The expectations of a connection.
    fn of_master(&self, master: &FlowKey) -> impl Iterator<Item = u64> {
        let range = self.by_master.range((*master, 0, 0)..=(*master, u32::MAX, u64::MAX));
        range.map(|&(.., number)| number)
    }

    /// The expectations of one of its calls, the oldest first.
    fn of_call(&self, master: &FlowKey, call: u32) -> Vec<u64> {
        let range = self.by_master.range((*master, call, 0)..=(*master, call, u64::MAX));
        range.map(|&(.., number)| number).collect()
    }

    /// The expectation that has to go before a connection may announce another.
    fn oldest_too_many(&self, master: &FlowKey) -> Option<u64> {
        let is_full = self.of_master(master).nth(MOST_OF_MASTER - 1).is_some();
        if is_full { self.of_master(master).min() } else { None }
    }

    /// The expectation that goes from a full table before a connection may announce another.
    fn gives_way_to(&self, master: &Master) -> Option<u64> {
        let (greatest, oldest) = self.by_source.greatest()?;
        let own = self.by_source.of(Holder::of(master.flow));
        (self.by_source.of(greatest) > own).then_some(oldest)
    }
}

impl Destination {
    fn of(packet: &KeyedPacket) -> Self {
        let KeyedPacket { key, sender } = packet;
        Self {
            zone: key.zone,
            family: key.family,
            protocol: key.protocol,
            kind: key.kind,
            endpoint: key.endpoint(sender.opposite()),
        }
    }
}

impl Expectation {
    fn is_listed(&self, now: Timestamp) -> bool {
        self.deadline > now && !self.announced.waits
    }

    fn destination(&self) -> Destination {
        let Announced { protocol, destination, destination_port: port, .. } = self.announced;
        Destination {
            zone: self.master.zone,
            family: if destination.is_ipv4() { Family::V4 } else { Family::V6 },
            protocol,
            kind: self.call().map_or(0, |call| call.kind),
            endpoint: Endpoint { address: mapped(destination), port },
        }
    }
}

impl Announced {
    /// True if both announce the same connection.
    fn equals(&self, other: &Self) -> bool {
        let connections = |it: &Self| {
            (it.protocol, it.source, it.source_port, it.destination, it.destination_port)
        };
        connections(self) == connections(other) && self.source_network == other.source_network
    }
}

#[cfg(test)]
#[path = "expect_tests.rs"]
mod tests;
