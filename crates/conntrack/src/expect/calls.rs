//! Announced calls of GRE version 1. They end when their control connection says so or ends
//! itself, and they live in a bucket that may have another owner. So whoever sees the end
//! notes it here, and the owner looks: each turn at one word, and with each packet of a call.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

use flow::{Endpoint, FlowKey, Timestamp};
use wire::{mapped, protocol};

use super::{Book, Claim, Expectation, Expectations, Listener};

/// The announced calls that have a connection, as many as there are such connections.
#[derive(Debug, Default)]
pub(super) struct Calls {
    /// Who has announced a call.
    masters: BTreeMap<FlowKey, FlowKey>,
    by_master: BTreeMap<FlowKey, BTreeSet<FlowKey>>,
    /// Those whose connection is to be ended.
    over: BTreeSet<FlowKey>,
}

impl Calls {
    fn enter(&mut self, call: FlowKey, master: FlowKey) {
        self.leave(&call);
        self.masters.insert(call, master);
        self.by_master.entry(master).or_default().insert(call);
    }

    /// Who has announced a call last has a say in when it ends: the ids were free again.
    pub fn hand_over(&mut self, call: &FlowKey, master: FlowKey) {
        let is_open = self.masters.contains_key(call) && !self.over.contains(call);
        if is_open {
            self.enter(*call, master);
        }
    }

    fn leave(&mut self, call: &FlowKey) {
        self.over.remove(call);
        let Some(master) = self.masters.remove(call) else { return };
        if let Some(calls) = self.by_master.get_mut(&master) {
            calls.remove(call);
            if calls.is_empty() {
                self.by_master.remove(&master);
            }
        }
    }

    fn end_all_of(&mut self, master: &FlowKey) {
        self.over.extend(self.by_master.get(master).into_iter().flatten());
    }
}

impl Expectations {
    /// The connection of a call was opened: neither end is expected any longer to open it. If
    /// nobody expects it any more, it was over before it began.
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
        let is_expected = self.forget_call(book, &master, call, now, events);
        for other in masters {
            self.forget_call(book, &other, call, now, events);
        }
        book.calls.enter(*call, master);
        if !is_expected {
            book.calls.over.insert(*call);
        }
        self.note_over(book);
    }

    /// Forgets all that a connection has announced, which ends: what is expected no longer
    /// is, and its calls are over.
    pub(crate) fn forget(&self, master: &FlowKey, now: Timestamp, events: &mut Listener<'_>) {
        self.withdraw(master, None, &(0..=u8::MAX), now, events);
        let mut book = self.book();
        book.calls.end_all_of(master);
        self.note_over(&book);
    }

    /// Ends a call of a connection, or does not expect it any longer.
    pub(crate) fn end_call(
        &self,
        master: &FlowKey,
        call: &FlowKey,
        now: Timestamp,
        events: &mut Listener<'_>,
    ) {
        let mut book = self.book();
        self.forget_call(&mut book, master, call, now, events);
        if book.calls.masters.get(call) == Some(master) {
            book.calls.over.insert(*call);
            self.note_over(&book);
        }
    }

    /// The connection of a call has ended.
    pub(crate) fn call_has_ended(&self, call: &FlowKey) {
        let mut book = self.book();
        book.calls.leave(call);
        self.note_over(&book);
    }

    /// True if there are connections of calls that are over: the owners of their buckets
    /// have to end them ([`Self::calls_over`], [`Table::end_call`](crate::Table::end_call)).
    #[inline]
    pub fn has_calls_over(&self) -> bool {
        // Whoever sees the end of the control connection may be another worker; pairs with
        // the release in `note_over`.
        self.shared.calls_over.load(Ordering::Acquire) != 0
    }

    /// The keys of these connections.
    pub fn calls_over(&self) -> Vec<FlowKey> {
        self.book().calls.over.iter().copied().collect()
    }

    /// True if a call is over.
    pub(crate) fn is_over(&self, call: &FlowKey) -> bool {
        self.has_calls_over() && self.book().calls.over.contains(call)
    }

    /// Forgets what is expected of a call, from either end; false if it was nothing.
    fn forget_call(
        &self,
        book: &mut Book,
        master: &FlowKey,
        call: &FlowKey,
        now: Timestamp,
        events: &mut Listener<'_>,
    ) -> bool {
        let mut expected: Vec<u64> = book.of_master(master).collect();
        expected.retain(|number| book.entries[number].call().as_ref() == Some(call));
        for &number in &expected {
            self.remove(book, number, now, events);
        }
        !expected.is_empty()
    }

    fn note_over(&self, book: &Book) {
        self.shared.calls_over.store(book.calls.over.len() as u32, Ordering::Release);
    }
}

impl Expectation {
    /// The key of the call that is expected, if it is one.
    pub(super) fn call(&self) -> Option<FlowKey> {
        let announced = &self.announced;
        let (source, source_port) = announced.source.zip(announced.source_port)?;
        let endpoint = |address, port| Endpoint { address: mapped(address), port };
        let FlowKey { family, zone, .. } = self.master.flow.key;
        (announced.protocol == protocol::GRE).then(|| {
            let destination = endpoint(announced.destination, announced.destination_port);
            FlowKey::of_call(family, zone, endpoint(source, source_port), destination)
        })
    }
}
