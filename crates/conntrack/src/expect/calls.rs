//! Announced calls of GRE version 1. A call ends when its control connection says so or ends
//! itself. The call's connection is in a bucket that may have another owner. So the worker that
//! sees the end records it here, and the owner checks: each turn it reads one word, and so it
//! does for each packet of a call.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::atomic::Ordering;

use flow::replica::Journal;
use flow::{Endpoint, FlowKey, Timestamp};
use wire::{mapped, protocol};

use super::{
    Announcement, AnnouncementRecord, Book, Claim, Expectation, Expectations, Item, Listener,
};
use crate::helper::{Announced, Way};

/// The announced calls that have a connection.
#[derive(Debug, Default)]
pub(super) struct Calls {
    /// By the key of their connection.
    pub(super) open: BTreeMap<FlowKey, OpenCall>,
    by_master: BTreeMap<FlowKey, BTreeSet<FlowKey>>,
    /// The call that a packet with this name belongs to.
    named: BTreeMap<Name, FlowKey>,
    /// The calls whose connection has to be ended.
    pub(super) over: BTreeSet<FlowKey>,
}

/// The name that a packet of a call carries: its way and its receiver's call id.
pub(crate) type Name = (Way, u16);

/// A call that has a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpenCall {
    /// The control connection that has announced it.
    pub master: FlowKey,
    /// Its key between the real ends, before translation.
    pub real: FlowKey,
    /// The names of packets from either end.
    pub names: [Name; 2],
}

impl Calls {
    pub(super) fn enter(&mut self, call: FlowKey, open: OpenCall) {
        self.leave(&call);
        self.open.insert(call, open);
        self.by_master.entry(open.master).or_default().insert(call);
        self.named.extend(open.names.into_iter().map(|name| (name, call)));
    }

    /// The control connection that announced a call last decides when it ends, because the ids
    /// had become free again. So another call that has one of these ids on the same way is
    /// over.
    pub fn hand_over(
        &mut self,
        announced: &Expectation,
        journal: &mut Journal<Item, AnnouncementRecord>,
    ) {
        let Some(open) = OpenCall::of(announced) else { return };
        if let Some(other) = self.named.get(&open.names[0]).copied()
            && self.open.get(&other).is_some_and(|it| !it.is_named_like(&open))
        {
            self.over.insert(other);
            journal.note_change(Item::Call(other));
        }
        if let Some(call) = announced.call()
            && self.open.contains_key(&call)
            && !self.over.contains(&call)
        {
            self.enter(call, open);
            journal.note_change(Item::Call(call));
        }
    }

    /// The connection of a call that `master` has announced.
    fn connection(&self, master: &FlowKey, real: &FlowKey) -> Option<FlowKey> {
        let mut calls = self.by_master.get(master)?.iter();
        calls.find(|&call| self.open.get(call).is_some_and(|it| it.real == *real)).copied()
    }

    pub(super) fn leave(&mut self, call: &FlowKey) -> Option<OpenCall> {
        self.over.remove(call);
        let open = self.open.remove(call)?;
        for name in open.names.into_iter() {
            // Another call may use the name by now.
            if self.named.get(&name) == Some(call) {
                self.named.remove(&name);
            }
        }
        if let Some(calls) = self.by_master.get_mut(&open.master) {
            calls.remove(call);
            if calls.is_empty() {
                self.by_master.remove(&open.master);
            }
        }
        Some(open)
    }

    fn end_all_of(&mut self, master: &FlowKey) {
        self.over.extend(self.by_master.get(master).into_iter().flatten());
    }
}

impl Expectations {
    /// Records that the connection of a call was opened: from now on neither end is expected to
    /// open it. If no expectation of it is left, the call was over before it began.
    pub(super) fn begin_call(
        &self,
        book: &mut Book,
        claim: &Claim,
        call: &FlowKey,
        now: Timestamp,
        events: &mut Listener<'_>,
    ) {
        let others = claim.numbers.iter().filter_map(|number| book.entries.get(number));
        let masters: Vec<FlowKey> = others.map(|other| other.master.flow.key).collect();
        let master = claim.expectation.master.flow.key;
        let Some(open) = OpenCall::of(&claim.expectation) else { return };
        let real = open.real;
        let is_expected = self.forget_call(book, &master, &real, now, events);
        for other in masters {
            self.forget_call(book, &other, &real, now, events);
        }
        book.calls.enter(*call, open);
        if !is_expected {
            book.calls.over.insert(*call);
        }
        book.journal.note_change(Item::Call(*call));
        self.note(book);
    }

    /// Removes the announcements of a connection that ends, and ends its calls.
    pub(crate) fn forget(&self, master: &FlowKey, now: Timestamp, events: &mut Listener<'_>) {
        let book = &mut *self.book();
        let numbers: Vec<u64> = book.of_master(master).collect();
        for number in numbers {
            if let Some(ended) = self.unfile(book, number, now, events) {
                let item = Item::Expectation(number);
                book.journal.note_end_with_other(&item, || ended.name());
            }
        }
        // The peer ends the calls by itself when it hears that their control connection has ended.
        book.calls.end_all_of(master);
        for id in book.ids.forget(master) {
            let name = || AnnouncementRecord(Announcement::CallId { master: *master, id });
            book.journal.note_end_with_other(&Item::CallId(id.way, id.known), name);
        }
        self.note(book);
    }

    /// Ends a call of a connection, or stops expecting it. `call` is its key between the real
    /// ends, before translation.
    pub(crate) fn end_call(
        &self,
        master: &FlowKey,
        call: &FlowKey,
        now: Timestamp,
        events: &mut Listener<'_>,
    ) {
        let mut book = self.book();
        self.forget_call(&mut book, master, call, now, events);
        if let Some(connection) = book.calls.connection(master, call) {
            book.calls.over.insert(connection);
            book.journal.note_change(Item::Call(connection));
        }
        self.note(&book);
    }

    /// Records that the connection of a call has ended.
    pub(crate) fn call_has_ended(&self, call: &FlowKey) {
        let mut book = self.book();
        if let Some(open) = book.calls.leave(call) {
            // The peer hears of the end of the connection.
            let name =
                || AnnouncementRecord(Announcement::Call { call: *call, open, is_over: false });
            book.journal.note_end_with_other(&Item::Call(*call), name);
        }
        self.note(&book);
    }

    /// True if there are connections of calls that are over. The owners of their buckets have
    /// to end them ([`Self::calls_over`], [`Table::end_call`](crate::Table::end_call)).
    #[inline]
    pub fn has_calls_over(&self) -> bool {
        // Another worker may have seen the end of the control connection; this load pairs with
        // the release in `note`.
        self.shared.calls_over.load(Ordering::Acquire) != 0
    }

    /// The keys of connections whose calls are over.
    pub fn calls_over(&self) -> Vec<FlowKey> {
        self.book().calls.over.iter().copied().collect()
    }

    /// True if the call of this connection is over.
    pub(crate) fn is_over(&self, call: &FlowKey) -> bool {
        self.has_calls_over() && self.book().calls.over.contains(call)
    }

    /// Removes the expectations of a call, from either end; false if there were none.
    fn forget_call(
        &self,
        book: &mut Book,
        master: &FlowKey,
        call: &FlowKey,
        now: Timestamp,
        events: &mut Listener<'_>,
    ) -> bool {
        let mut expected: Vec<u64> = book.of_master(master).collect();
        expected.retain(|number| book.entries[number].real_call().as_ref() == Some(call));
        for &number in &expected {
            self.remove(book, number, now, events);
        }
        !expected.is_empty()
    }

    /// Shows those who hold no lock what there is to do after a change.
    pub(super) fn note(&self, book: &Book) {
        self.shared.calls_over.store(book.calls.over.len() as u32, Ordering::Release);
        // The reader takes the lock, so the flag guards no other memory.
        self.shared.has_news.store(book.journal.has_news(), Ordering::Relaxed);
    }
}

impl OpenCall {
    /// True for the same ids on the same ways, whichever end opened the call.
    fn is_named_like(&self, other: &Self) -> bool {
        let [one, back] = other.names;
        self.names == [one, back] || self.names == [back, one]
    }

    /// The call of an expectation; `None` if it expects no call.
    fn of(expectation: &Expectation) -> Option<Self> {
        let master = expectation.master.flow.key;
        let real = expectation.real_call()?;
        let Announced { source, source_port, destination, destination_port, follow, .. } =
            expectation.announced;
        let (from, own) = source.zip(source_port)?;
        let (to, _) = follow.and_then(|it| it.destination).unwrap_or((destination, 0));
        let known = follow.and_then(|it| it.source).unwrap_or(from);
        let known_id = follow.and_then(|it| it.source_port).unwrap_or(own);
        let way = |from, to| Way { zone: master.zone, from: mapped(from), to: mapped(to) };
        let names = [(way(from, destination), destination_port), (way(to, known), known_id)];
        Some(Self { master, real, names })
    }
}

impl Expectation {
    /// The key that the connection of the expected call will have; `None` if no call is
    /// expected.
    pub(super) fn call(&self) -> Option<FlowKey> {
        let Announced { destination, destination_port, .. } = self.announced;
        self.call_to(destination, destination_port)
    }

    /// The key of the call between its real ends, whichever of them opens it.
    fn real_call(&self) -> Option<FlowKey> {
        let Announced { destination, destination_port, follow, .. } = self.announced;
        let meant = follow.and_then(|follow| follow.destination);
        let (address, id) = meant.unwrap_or((destination, destination_port));
        self.call_to(address, id)
    }

    fn call_to(&self, destination: IpAddr, id: u16) -> Option<FlowKey> {
        let announced = &self.announced;
        let (source, source_port) = announced.source.zip(announced.source_port)?;
        let endpoint = |address, port| Endpoint { address: mapped(address), port };
        let FlowKey { family, zone, .. } = self.master.flow.key;
        (announced.protocol == protocol::GRE).then(|| {
            let ends = [endpoint(source, source_port), endpoint(destination, id)];
            FlowKey::of_call(family, zone, ends[0], ends[1])
        })
    }
}
