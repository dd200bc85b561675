//! Calls of GRE version 1, as PPTP has them (RFC 2637). A packet names one call id only, that
//! of its receiver, so its key is that of all calls between two hosts. Here the one is found
//! that it belongs to:
//!
//! - an announced call has the call ids of both ends, and packets of both directions belong
//!   to it;
//! - of what nobody has announced the other call id is not known, so each direction is a
//!   connection of its own, whose sender has the id 0.

use flow::{Class, DropReason, FlowKey, KeyedPacket, Side};
use wire::{IcmpError, QuotedTransport, Transport};

use super::watched::release;
use super::{Met, State, Table};
use crate::entry::{Head, Status};
use crate::{Context, Tracked, TrackedPacket};

/// Most calls between two hosts, which all have one hash: they lie in one place of the index
/// and are looked at in turn. Beyond it the oldest that nobody has announced gives way.
pub(super) const CALLS_OF_A_PAIR: usize = 64;

/// What a packet of a call says of it.
#[derive(Clone, Copy)]
struct Named {
    keyed: KeyedPacket,
    /// Call id of the receiver.
    id: u16,
    hash: u64,
}

/// The connections that a packet can belong to.
#[derive(Clone, Copy, Default)]
struct Candidates {
    announced: Option<u32>,
    unannounced: Option<u32>,
}

impl Named {
    fn receiver(&self) -> Side {
        self.keyed.sender.opposite()
    }

    /// The key of the call, with the call id of the sender.
    fn call(&self, sender_id: u16) -> FlowKey {
        self.keyed.key.call(self.keyed.sender, sender_id, self.id)
    }

    /// True if the packet belongs to an announced call.
    fn is_of(&self, head: &Head) -> bool {
        head.status.has(Status::CALL)
            && head.key.endpoint(self.receiver()).port == self.id
            && self.is_between(head)
    }

    /// True if the call is between the ends of the packet.
    fn is_between(&self, head: &Head) -> bool {
        head.key.is_call() && head.key.of_calls() == self.keyed.key
    }
}

impl Table {
    /// A packet of a call.
    #[inline(never)]
    pub(super) fn track_call(
        &mut self,
        packet: &TrackedPacket<'_>,
        context: &mut Context<'_>,
    ) -> Tracked {
        // Only GRE has such a key.
        let Transport::Gre { key, .. } = packet.network.transport else {
            return Tracked::alone(Class::Untracked);
        };
        let named = Named { keyed: *packet.keyed, id: key as u16, hash: packet.hash };
        let Candidates { announced, unannounced } = self.candidates(&named);
        if let Some(slot) = announced.filter(|&slot| self.lives(slot, context)) {
            context.counters.found += 1;
            return self.advance(self.met(slot, packet), packet, context);
        }
        // Before what was not announced: that may be from before the announcement.
        let unknown = KeyedPacket { key: named.call(0), sender: packet.keyed.sender };
        let now = context.now;
        let (expectations, mut listener) = context.expecting();
        let expected = expectations.claim(&unknown, now, &mut listener);
        if expected.is_none()
            && let Some(slot) = unannounced.filter(|&slot| self.lives(slot, context))
        {
            context.counters.found += 1;
            return self.advance(self.met(slot, packet), packet, context);
        }
        if expected.is_none() && !packet.may_open {
            return Tracked::alone(Class::New).dropped(DropReason::NewRefused);
        }
        if !self.has_room_for_call(&named, context) {
            release(expected.as_ref(), context);
            context.counters.insert_failed += 1;
            context.counters.drop += 1;
            return Tracked::refused(DropReason::CallLimit);
        }
        let timeouts = &context.settings.timeouts;
        let (opened, id) = match &expected {
            None => ((State::Gre, timeouts.gre), 0),
            Some(claim) => {
                let id = claim.expectation.announced.source_port.unwrap_or(0);
                ((State::Call, timeouts.call), id)
            }
        };
        let keyed = KeyedPacket { key: named.call(id), sender: packet.keyed.sender };
        self.enlist(&TrackedPacket { keyed: &keyed, ..*packet }, opened, expected, context)
    }

    /// The connection of a packet that an ICMP error quotes.
    #[cold]
    pub(super) fn quoted_call(
        &self,
        packet: &TrackedPacket<'_>,
        context: &Context<'_>,
    ) -> Option<Met> {
        let Transport::IcmpError(IcmpError { quoted: Some(quoted), .. }) =
            &packet.network.transport
        else {
            return None;
        };
        let QuotedTransport::Gre { key, .. } = quoted.transport else { return None };
        if !packet.keyed.key.is_of_calls() {
            return None;
        }
        let named = Named { keyed: *packet.keyed, id: key as u16, hash: packet.hash };
        let Candidates { announced, unannounced } = self.candidates(&named);
        let lives = |slot: &u32| {
            let head = &self.slab[*slot].head;
            !head.is_expired(context.now) && !is_over(head, context)
        };
        let slot = announced.filter(lives).or(unannounced.filter(lives))?;
        let Met { direction, .. } = self.met(slot, packet);
        Some(Met { slot, direction: direction.reversed() })
    }

    /// The connection in a slot, as the packet of a call meets it.
    fn met(&self, slot: u32, packet: &TrackedPacket<'_>) -> Met {
        Met { slot, direction: self.slab[slot].head.direction(packet.keyed.sender) }
    }

    /// Ends the connection of a call that is over; its key is one of
    /// [`Expectations::calls_over`](crate::Expectations::calls_over).
    pub fn end_call(&mut self, call: &FlowKey, hash: u64, context: &mut Context<'_>) {
        let slab = &self.slab;
        let is_it = |head: &Head| head.status.has(Status::CALL) && head.key == *call;
        match self.index.find(hash as u32, |slot| is_it(&slab[slot].head)) {
            Some(slot) => self.close(slot, context),
            None => context.expectations.call_has_ended(call),
        }
    }

    fn candidates(&self, named: &Named) -> Candidates {
        let unannounced_key = named.call(0);
        let mut unannounced = None;
        let announced = self.index.find(named.hash as u32, |slot| {
            let head = &self.slab[slot].head;
            if !head.status.has(Status::CALL) && head.key == unannounced_key {
                unannounced = Some(slot);
            }
            named.is_of(head)
        });
        Candidates { announced, unannounced }
    }

    /// False for a connection whose time is over or whose call is; it is ended then.
    fn lives(&mut self, slot: u32, context: &mut Context<'_>) -> bool {
        let head = &self.slab[slot].head;
        let lives = !head.is_expired(context.now) && !is_over(head, context);
        if !lives {
            self.close(slot, context);
        }
        lives
    }

    /// Makes room for one more call between two hosts; false if all of them are announced.
    fn has_room_for_call(&mut self, named: &Named, context: &mut Context<'_>) -> bool {
        let mut calls = 0;
        let mut oldest = None;
        self.index.find(named.hash as u32, |slot| {
            let head = &self.slab[slot].head;
            if named.is_between(head) {
                calls += 1;
                let age = (head.deadline, slot);
                if !head.status.has(Status::CALL) && oldest.is_none_or(|oldest| age < oldest) {
                    oldest = Some(age);
                }
            }
            false
        });
        if calls < CALLS_OF_A_PAIR {
            return true;
        }
        let Some((_, slot)) = oldest else { return false };
        self.close(slot, context);
        context.counters.early_drop += 1;
        true
    }
}

fn is_over(head: &Head, context: &Context<'_>) -> bool {
    head.status.has(Status::CALL) && context.expectations.is_over(&head.key)
}

#[cfg(test)]
#[path = "calls_tests.rs"]
mod tests;
