//! Claims: a packet that opens a connection finds the expectation that it fulfils, and keeps others
//! from it until the connection is open.

use std::net::Ipv6Addr;

use flow::{Endpoint, KeyedPacket, Timestamp};
use wire::{mapped, protocol};

use super::{Book, Destination, Expectation, Expectations, Listener};
use crate::helper::Announced;

/// A connection's claim on an expectation while the connection is being opened. The expectation
/// stays in the book, so that it can end with its master, but no other packet finds it. The
/// holder of the claim must settle it with [`Expectations::fulfil`] or
/// [`Expectations::release`].
#[derive(Debug)]
#[must_use]
pub(crate) struct Claim {
    /// The expectation as it was announced.
    pub expectation: Expectation,
    /// The expectations that the connection uses up: the claimed one and all that equal it.
    /// Empty if it is permanent.
    pub(super) numbers: Vec<u64>,
}

impl Expectations {
    /// The expectation that a packet fulfils by opening a connection. Unless it is permanent,
    /// only this packet has it until the claim is settled.
    ///
    /// Several connections may have announced one destination. The most precise announcement
    /// wins, and among equally precise ones the oldest; the others go on waiting. Only
    /// announcements that equal it are used up with it. A destination has one listener, so such
    /// an announcement is of the same call heard on another path, or of a dead connection. The
    /// kernel differs: it refuses the later announcement and drops its packet (a SIP message
    /// passes), so a host that announces a destination first keeps others from it, even after
    /// it has died.
    #[inline]
    pub(crate) fn claim(
        &self,
        packet: &KeyedPacket,
        now: Timestamp,
        events: &mut Listener<'_>,
    ) -> Option<Box<Claim>> {
        if self.shared.filter.any() { self.claim_if_any(packet, now, events) } else { None }
    }

    #[cold]
    #[inline(never)]
    fn claim_if_any(
        &self,
        packet: &KeyedPacket,
        now: Timestamp,
        events: &mut Listener<'_>,
    ) -> Option<Box<Claim>> {
        let KeyedPacket { key, sender } = packet;
        let to = key.endpoint(sender.opposite());
        let is_worth_a_look = self.shared.filter.any_at(key.zone, key.protocol, &to);
        if is_worth_a_look { self.claim_slowly(packet, now, events) } else { None }
    }

    #[cold]
    #[inline(never)]
    fn claim_slowly(
        &self,
        packet: &KeyedPacket,
        now: Timestamp,
        events: &mut Listener<'_>,
    ) -> Option<Box<Claim>> {
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
        let vague = |number: &u64| book.entries[number].announced.wildcards();
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
        Some(Box::new(Claim { expectation, numbers }))
    }

    /// Ends a claim whose connection was opened.
    pub(crate) fn fulfil(&self, claim: &Claim, now: Timestamp, events: &mut Listener<'_>) {
        let mut book = self.book();
        if let Some(call) = claim.expectation.call() {
            self.begin_call(&mut book, claim, &call, now, events);
        }
        for &number in &claim.numbers {
            // The expectation may be gone with its master, or the master may have announced it
            // anew.
            self.remove(&mut book, number, now, events);
        }
        self.note(&book);
    }

    /// Ends a claim whose connection could not be opened. The connection is expected as before,
    /// unless the master has ended or the expectation has expired.
    pub(crate) fn release(&self, claim: &Claim) {
        let mut book = self.book();
        for number in &claim.numbers {
            if book.entries.contains_key(number) {
                self.offer(&mut book, &claim.expectation.destination(), *number);
            }
        }
    }
}

impl Announced {
    /// GRE packets do not carry the number in the place of their sender's port.
    fn admits(&self, source: &Endpoint) -> bool {
        let any_port = self.protocol == protocol::GRE;
        let address = Ipv6Addr::from(source.address).to_canonical();
        self.source.is_none_or(|address| mapped(address) == source.address)
            && self.source_network.is_none_or(|it| it.contains(address))
            && (any_port || self.source_port.is_none_or(|port| port == source.port))
    }

    /// How many of the sender's address and port an announcement leaves open, 0 to 2.
    fn wildcards(&self) -> usize {
        usize::from(self.source.is_none()) + usize::from(self.source_port.is_none())
    }
}
