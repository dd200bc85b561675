//! Connections that others have announced: the one table that all workers share.
//!
//! An expectation is announced on the control connection (its *master*) and fulfilled
//! by another flow, whose bucket may have another owner. No worker could find out
//! whose business a new flow is, so the table is common to all of them, and it makes no
//! difference where master and child live or move to: expectations name the master by its
//! key.
//!
//! It is asked only for packets that open connections, and the lock is taken only if
//! something is expected [where the packet goes](hints): while nothing is expected, a new
//! connection costs one look at a word, and beside traffic that is announced two.
//! The announcing packet leaves only after the announcement is filed, so whoever reacts to
//! it is expected.

mod call_ids;
mod calls;
mod hints;
mod told;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use flow::{Endpoint, FlowKey, HashKey, KeyedPacket, Timestamp, Zone};
use wire::{Family, mapped, protocol};

use self::call_ids::CallIds;
pub(crate) use self::call_ids::Way;
use self::calls::Calls;
use self::hints::Hints;
use crate::helper::{Announced, Kind, Memory};
use crate::{EventKind, ExpectationEvent, ExpectationSink, Expected};

/// What one connection may expect for all its calls together; the oldest goes first. Beside
/// what a class may have for each, this is a bound for trunks.
const MOST_OF_MASTER: usize = 256;

/// Expectations that are forgotten in one go because their time is over, while others wait for
/// the lock.
const FORGOTTEN_AT_ONCE: usize = 16;

/// The expectations of a gateway; clones share them.
#[derive(Clone, Debug)]
pub struct Expectations {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    hints: Hints,
    book: Mutex<Book>,
    memory: Memory,
    /// Calls that are over and whose connections are still there.
    calls_over: AtomicU32,
}

/// Expectations by number. Numbers grow, so the oldest comes first everywhere.
///
/// Ordered maps need no secret: nobody can choose announcements that collide.
#[derive(Debug, Default)]
struct Book {
    entries: BTreeMap<u64, Expectation>,
    /// Those that are claimed are in all but this.
    by_destination: BTreeSet<(Destination, u64)>,
    /// With the call of the master.
    by_master: BTreeSet<(FlowKey, u32, u64)>,
    by_deadline: BTreeSet<(Timestamp, u64)>,
    next: u64,
    /// Events that were reported, whoever listened.
    stamp: u64,
    calls: Calls,
    ids: CallIds,
    media: told::Media,
}

/// Who is told of what is expected, and when it is no more.
pub(crate) type Listener<'a> = Option<&'a mut dyn ExpectationSink>;

/// Where an expected connection goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Destination {
    zone: Zone,
    family: Family,
    protocol: u8,
    /// [`FlowKey::kind`], which tells calls from tunnels: their keys stand for ports, too.
    kind: u8,
    endpoint: Endpoint,
}

/// The connection that announces others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Master {
    /// Its key, and the end that has opened it.
    pub flow: KeyedPacket,
    /// Its helper.
    pub helper: Kind,
    /// Its mark when it announced.
    pub mark: u32,
    /// Where the other end is, which is to open what it announces: the zone of the packets that
    /// come from there.
    pub zone: Zone,
}

/// An expected connection.
#[derive(Clone, Debug)]
pub(crate) struct Expectation {
    pub master: Master,
    pub announced: Announced,
    pub deadline: Timestamp,
}

/// What is expected of a connection that is about to be opened. The expectation stays in
/// the book, so that it ends with its master meanwhile, but nobody else finds it: whoever
/// holds the claim says with [`Expectations::fulfil`] or [`Expectations::release`] what
/// has come of it.
#[derive(Debug)]
#[must_use]
pub(crate) struct Claim {
    /// As it was announced.
    pub expectation: Expectation,
    /// What the connection uses up: the expectation and all that say the same. Nothing if
    /// it is permanent.
    numbers: Vec<u64>,
}

/// There are as many expectations as there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;

/// Where a walk over the expectations goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ExpectationCursor(u64);

impl Expectations {
    /// Nothing is expected. With the secret of the process nobody can choose announcements
    /// that have others look for theirs.
    pub fn new(secret: HashKey) -> Self {
        let (book, memory) = (Mutex::default(), Memory::default());
        let (hints, calls_over) = (Hints::new(secret), AtomicU32::new(0));
        Self { shared: Arc::new(Shared { hints, book, memory, calls_over }) }
    }

    /// How many connections are expected, those included whose time is over but that
    /// nobody has come across.
    pub fn len(&self) -> usize {
        self.book().entries.len()
    }

    /// True when nothing is expected.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// False if nobody expects a packet like this one, from whomever; rarely true although
    /// nobody does. Takes no lock. Of a call it has to be [named](KeyedPacket::named).
    pub fn may_expect(&self, packet: &KeyedPacket) -> bool {
        let KeyedPacket { key, sender } = packet;
        let to = key.endpoint(sender.opposite());
        self.shared.hints.any() && self.shared.hints.any_at(key.zone, key.protocol, &to)
    }

    /// Where helpers keep what they have read of announcements.
    pub(crate) fn memory(&self) -> &Memory {
        &self.shared.memory
    }

    /// Shows up to `budget` expectations to `each`, oldest first. Returns where to go
    /// on, `None` at the end.
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

    /// Files an announcement. One that says the same as an earlier one of the master
    /// takes its place; beyond the maximum of its class it takes that of the oldest. What the
    /// same call has announced for another class stays as it is, for both: one port for sound
    /// and pictures (RFC 8843) is one connection, as with the kernel.
    ///
    /// # Errors
    /// [`Full`] if `limit` expectations are there; nothing is filed then.
    pub(crate) fn announce(
        &self,
        master: Master,
        announced: Announced,
        limit: u64,
        now: Timestamp,
        events: &mut Listener<'_>,
    ) -> Result<(), Full> {
        let class = &master.helper.classes()[usize::from(announced.class)];
        let mut book = self.book();
        self.forget_expired(&mut book, now, events);
        let of_call = book.of_call(&master.flow.key, announced.call);
        let of_class = |number: &u64| book.entries[number].announced.class == announced.class;
        let same = |number: &&u64| book.entries[*number].announced.equals(&announced);
        let same = of_call.iter().find(same).copied();
        let is_alive = |number: &u64| book.entries[number].deadline > now;
        let stands = |number: &u64| {
            // What is to be confirmed anew stands until then.
            let is_confirmed = announced.waits && !book.entries[number].announced.waits;
            is_alive(number) && (is_confirmed || !of_class(number))
        };
        if same.as_ref().is_some_and(stands) {
            return Ok(());
        }
        let siblings: Vec<u64> = of_call.into_iter().filter(of_class).collect();
        let replaced = match &same {
            None if siblings.len() >= class.maximum => siblings.first(),
            same => same.as_ref(),
        };
        let replaced = replaced.copied().or_else(|| book.oldest_too_many(&master.flow.key));
        if let Some(number) = replaced {
            self.remove(&mut book, number, now, events);
        }
        if book.entries.len() as u64 >= limit {
            return Err(Full);
        }
        let timeout_s = announced.timeout_s.unwrap_or(class.timeout_s);
        let deadline = now.after(Duration::from_secs(timeout_s.into()));
        let expectation = Expectation { master, announced, deadline };
        book.report(EventKind::New, &expectation, now, events);
        book.calls.hand_over(&expectation);
        self.note_over(&book);
        self.file(&mut book, expectation);
        Ok(())
    }

    /// What waits in a class of a connection is expected from now on, for so many seconds.
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
            let Some(mut expectation) = book.entries.remove(&number) else { continue };
            book.by_deadline.remove(&(expectation.deadline, number));
            expectation.deadline = now.after(Duration::from_secs(seconds.into()));
            book.by_deadline.insert((expectation.deadline, number));
            if std::mem::take(&mut expectation.announced.waits) {
                book.report(EventKind::New, &expectation, now, events);
            }
            book.entries.insert(number, expectation);
        }
    }

    /// The expectation that a packet which opens a connection fulfils. Unless it is
    /// permanent it is this packet's until the claim is settled.
    ///
    /// Several connections may have announced one place. Who said the most exactly who
    /// would come has the connection, of those the oldest; the others go on to wait. Only
    /// what says the very same is used up with it, because a place has one listener: it is
    /// the same call heard on another way, or a connection that is dead. The kernel refuses
    /// the later announcement and drops its packet (a SIP message passes), so whoever names
    /// a place first, or died having named it, keeps others from it.
    #[inline]
    pub(crate) fn claim(
        &self,
        packet: &KeyedPacket,
        now: Timestamp,
        events: &mut Listener<'_>,
    ) -> Option<Claim> {
        if self.shared.hints.any() { self.claim_if_any(packet, now, events) } else { None }
    }

    #[cold]
    #[inline(never)]
    fn claim_if_any(
        &self,
        packet: &KeyedPacket,
        now: Timestamp,
        events: &mut Listener<'_>,
    ) -> Option<Claim> {
        let KeyedPacket { key, sender } = packet;
        let to = key.endpoint(sender.opposite());
        let is_worth_a_look = self.shared.hints.any_at(key.zone, key.protocol, &to);
        if is_worth_a_look { self.claim_slowly(packet, now, events) } else { None }
    }

    #[cold]
    #[inline(never)]
    fn claim_slowly(
        &self,
        packet: &KeyedPacket,
        now: Timestamp,
        events: &mut Listener<'_>,
    ) -> Option<Claim> {
        let mut book = self.book();
        self.forget_expired(&mut book, now, events);
        let destination = Destination::of(packet);
        let source = packet.key.endpoint(packet.sender);
        let waiting = |book: &Book, admits: &dyn Fn(&Announced) -> bool| {
            let range = book.by_destination.range((destination, 0)..=(destination, u64::MAX));
            let numbers = range.map(|&(_, number)| number);
            let fits = |number: &u64| {
                let expectation = &book.entries[number];
                let announced = &expectation.announced;
                expectation.deadline > now && !announced.waits && admits(announced)
            };
            numbers.filter(fits).collect::<Vec<_>>()
        };
        let fitting = waiting(&book, &|announced| announced.admits(&source));
        let vague = |number: &u64| book.entries[number].announced.vagueness();
        let number = fitting.into_iter().min_by_key(vague)?;
        let expectation = book.entries.get(&number)?.clone();
        let mut numbers = Vec::new();
        if !expectation.announced.permanent {
            let like_it = |it: &Announced| !it.permanent && it.equals(&expectation.announced);
            numbers = waiting(&book, &like_it);
        }
        for &number in &numbers {
            self.withhold(&mut book, &destination, number);
        }
        Some(Claim { expectation, numbers })
    }

    /// The connection of a claim was opened.
    pub(crate) fn fulfil(&self, claim: &Claim, now: Timestamp, events: &mut Listener<'_>) {
        let mut book = self.book();
        if let Some(call) = claim.expectation.call() {
            self.begin_call(&mut book, claim, &call, now, events);
        }
        for &number in &claim.numbers {
            // It may be gone with its master, or its master has announced it anew.
            self.remove(&mut book, number, now, events);
        }
    }

    /// The connection of a claim could not be opened: it is expected as before, unless its
    /// master has ended or its time is over.
    pub(crate) fn release(&self, claim: &Claim) {
        let mut book = self.book();
        for number in &claim.numbers {
            if book.entries.contains_key(number) {
                self.offer(&mut book, &claim.expectation.destination(), *number);
            }
        }
    }

    /// Forgets what a connection announced in some classes.
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
    }

    /// Forgets up to `budget` expectations, the oldest first. Returns how many of them were
    /// listed, and whether there may be more.
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
        (listed, doomed.len() == budget)
    }

    /// Forgets a few of those whose time is over; true if there may be more. Nobody has to
    /// call it, but it returns memory that nobody comes across, and tells who listens.
    pub fn expire(&self, now: Timestamp, events: &mut Option<&mut dyn ExpectationSink>) -> bool {
        self.shared.hints.any() && self.forget_expired(&mut self.book(), now, events)
    }

    /// The same under the lock, which others wait for.
    fn forget_expired(&self, book: &mut Book, now: Timestamp, events: &mut Listener<'_>) -> bool {
        for _ in 0..FORGOTTEN_AT_ONCE {
            match book.by_deadline.first() {
                Some(&(deadline, number)) if deadline <= now => {
                    self.remove(book, number, now, events);
                }
                _ => return false,
            }
        }
        true
    }

    fn file(&self, book: &mut Book, expectation: Expectation) {
        let number = book.next;
        book.next += 1;
        book.by_master.insert((expectation.master.flow.key, expectation.announced.call, number));
        book.by_deadline.insert((expectation.deadline, number));
        self.offer(book, &expectation.destination(), number);
        book.entries.insert(number, expectation);
    }

    fn remove(&self, book: &mut Book, number: u64, now: Timestamp, events: &mut Listener<'_>) {
        let Some(expectation) = book.entries.remove(&number) else { return };
        book.report(EventKind::Destroy, &expectation, now, events);
        self.withhold(book, &expectation.destination(), number);
        let Expectation { master, announced, .. } = &expectation;
        book.by_master.remove(&(master.flow.key, announced.call, number));
        book.by_deadline.remove(&(expectation.deadline, number));
    }

    /// Lets packets find an expectation.
    fn offer(&self, book: &mut Book, destination: &Destination, number: u64) {
        if book.by_destination.insert((*destination, number)) {
            self.shared.hints.add(destination);
        }
    }

    /// Has packets find an expectation no more.
    fn withhold(&self, book: &mut Book, destination: &Destination, number: u64) {
        if book.by_destination.remove(&(*destination, number)) {
            self.shared.hints.subtract(destination);
        }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        // Nothing that is done under the lock can panic half-way.
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

    /// What a connection has announced.
    fn of_master(&self, master: &FlowKey) -> impl Iterator<Item = u64> {
        let range = self.by_master.range((*master, 0, 0)..=(*master, u32::MAX, u64::MAX));
        range.map(|&(.., number)| number)
    }

    /// What one of its calls has announced, the oldest first.
    fn of_call(&self, master: &FlowKey, call: u32) -> Vec<u64> {
        let range = self.by_master.range((*master, call, 0)..=(*master, call, u64::MAX));
        range.map(|&(.., number)| number).collect()
    }

    /// What has to go before a connection may announce more.
    fn oldest_too_many(&self, master: &FlowKey) -> Option<u64> {
        let is_full = self.of_master(master).nth(MOST_OF_MASTER - 1).is_some();
        if is_full { self.of_master(master).min() } else { None }
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
    /// GRE packets do not carry what stands for the port of their sender.
    fn admits(&self, source: &Endpoint) -> bool {
        let any_port = self.protocol == protocol::GRE;
        self.source.is_none_or(|address| mapped(address) == source.address)
            && (any_port || self.source_port.is_none_or(|port| port == source.port))
    }

    /// How little is said of who will come, least first.
    fn vagueness(&self) -> usize {
        usize::from(self.source.is_none()) + usize::from(self.source_port.is_none())
    }

    /// True if both stand for the same connections.
    fn equals(&self, other: &Self) -> bool {
        let connections = |it: &Self| {
            (it.protocol, it.source, it.source_port, it.destination, it.destination_port)
        };
        connections(self) == connections(other)
    }
}

#[cfg(test)]
#[path = "expect_tests.rs"]
mod tests;
