//! Calls of GRE version 1, as PPTP uses them (RFC 2637). A packet names only the call id of its
//! receiver, so its key is that of all calls between two hosts. This module finds the call that
//! it belongs to:
//!
//! - an announced call has the call ids of both ends, and packets of both directions belong to
//!   it;
//! - the sender's call id of an unannounced call is not known, so each direction is a
//!   connection of its own, whose sender has the id 0.

use flow::{Class, DropReason, Endpoint, FlowKey, KeyedPacket, Side};
use wire::mapped;

use super::inspection::release;
use super::slab::SECOND;
use super::translation::refused;
use super::{Hit, State, Table};
use crate::connection::{Head, Status};
use crate::nat::{Ends, ExpectedTranslation, Supply};
use crate::{ConnectionId, Context, Direction, Tracked, TrackedPacket};

/// Most calls between two hosts. All of them have one hash, so they are in one place of the
/// index, and a look-up tries them in turn. Beyond it the oldest unannounced call is evicted.
pub const CALLS_OF_A_PAIR: usize = 64;

/// The filed connections that a packet can belong to.
#[derive(Clone, Copy, Default)]
struct Candidates {
    announced: Option<u32>,
    unannounced: Option<u32>,
}

impl Table {
    /// Tracks a packet of a call.
    #[inline(never)]
    pub(super) fn track_call(
        &mut self,
        packet: &TrackedPacket<'_>,
        context: &mut Context<'_>,
    ) -> Tracked {
        let name = packet.keyed.named(packet.network);
        // Only GRE has such a key.
        if !name.key.is_call() {
            return Tracked::alone(Class::Untracked);
        }
        let Candidates { announced, unannounced } = self.candidates(&name, packet.hash);
        if let Some(filed) = announced.filter(|&filed| self.lives(filed, context)) {
            context.counters.found += 1;
            return self.advance(self.hit(filed, name.sender), packet, context);
        }
        // An announcement goes before an unannounced connection, which may be older than it.
        let now = context.now;
        let (expectations, mut listener) = context.expecting();
        let expected = expectations.claim(&name, now, &mut listener);
        if expected.is_none()
            && let Some(filed) = unannounced.filter(|&filed| self.lives(filed, context))
        {
            context.counters.found += 1;
            return self.advance(self.hit(filed, name.sender), packet, context);
        }
        if expected.is_none() && !packet.may_open {
            return Tracked::refused(DropReason::NewRefused);
        }
        if !self.has_room_for_call(packet.keyed, packet.hash, context) {
            release(expected.as_deref(), context);
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
        let KeyedPacket { key, sender } = name;
        let key = key.call(sender, id, key.endpoint(sender.opposite()).port);
        let keyed = KeyedPacket { key, sender };
        self.enlist(&TrackedPacket { keyed: &keyed, ..*packet }, opened, expected, context)
    }

    /// The connection of a packet that an ICMP error quotes. `answer` stands for an answer to
    /// the quoted packet.
    #[cold]
    pub(super) fn quoted_call(
        &self,
        packet: &TrackedPacket<'_>,
        answer: &KeyedPacket,
        context: &Context<'_>,
    ) -> Option<Hit> {
        let name = answer.named(packet.network);
        if !answer.key.is_of_calls() || name == *answer {
            return None;
        }
        let Candidates { announced, unannounced } = self.candidates(&name, packet.hash);
        let lives = |filed: &u32| {
            let entry = &self.slab[filed & !SECOND];
            !entry.is_over(context.now) && !is_over(&entry.head, context)
        };
        let filed = announced.filter(lives).or(unannounced.filter(lives))?;
        Some(self.hit(filed, name.sender))
    }

    /// The filed connection, with the direction of a packet of a call from `sender`.
    fn hit(&self, filed: u32, sender: Side) -> Hit {
        let slot = filed & !SECOND;
        let direction = match filed == slot {
            true => self.slab[slot].head.direction(sender),
            false => Direction::Reply,
        };
        Hit { slot, direction }
    }

    /// Gives its ends to the connection of a call that was announced on a translated
    /// connection.
    ///
    /// # Errors
    /// The errors of [`Table::translate`].
    pub(super) fn follow_call(
        &mut self,
        ConnectionId(slot): ConnectionId,
        follow: &ExpectedTranslation,
        supply: Supply<'_>,
        context: &mut Context<'_>,
    ) -> Result<(), DropReason> {
        let original = self.original(slot);
        let mut ends = Ends::of(&original.key, original.sender);
        if let Some((address, port)) = follow.destination {
            ends.destination = Endpoint { address: mapped(address), port };
        }
        if let Some(address) = follow.source {
            let port = follow.source_port.unwrap_or(ends.source.port);
            ends.source = Endpoint { address: mapped(address), port };
        }
        self.take_back(slot, context);
        let leaves_as = ends.keyed(&original);
        match self.free(slot, &leaves_as, supply, context) {
            Some(hash) => self.file(slot, (leaves_as, hash), (follow.interface, None), context),
            None => Err(refused(DropReason::NatClash, context)),
        }
    }

    /// The connection, other than the one in `slot`, that packets of a call would also belong
    /// to.
    pub(super) fn other_call(&self, packet: &KeyedPacket, hash: u32, slot: u32) -> Option<u32> {
        let is_announced = |filed: u32| self.slab[filed & !SECOND].head.status.has(Status::CALL);
        // Each direction of an unannounced call is a connection without replies.
        if !is_announced(slot) {
            return None;
        }
        let name = packet.name();
        let is_other = |filed: u32| filed & !SECOND != slot && is_announced(filed);
        self.index.find(hash, |filed| is_other(filed) && self.slab.is_named(filed, &name))
    }

    /// True if two hosts have reached the limit of translated calls.
    pub(super) fn is_crowded(&self, packet: &KeyedPacket, hash: u32) -> bool {
        let mut calls = 0;
        let pair = packet.key.of_calls();
        self.index.find(hash, |filed| {
            let translation = (filed & SECOND != 0).then(|| self.slab.second(filed)).flatten();
            calls += usize::from(translation.is_some_and(|it| it.leaves_as.key.of_calls() == pair));
            false
        });
        calls >= CALLS_OF_A_PAIR
    }

    /// Ends the connection of a call that is over. Its key is one of
    /// [`Expectations::calls_over`](crate::Expectations::calls_over).
    pub fn end_call(&mut self, call: &FlowKey, hash: u64, context: &mut Context<'_>) {
        let slab = &self.slab;
        let is_it = |head: &Head| head.status.has(Status::CALL) && head.key == *call;
        let found = |filed: u32| filed & SECOND == 0 && is_it(&slab[filed].head);
        match self.index.find(hash as u32, found) {
            Some(slot) => self.close(slot, context),
            None => context.expectations.call_has_ended(call),
        }
    }

    fn candidates(&self, name: &KeyedPacket, hash: u64) -> Candidates {
        let KeyedPacket { key, sender } = *name;
        let port = |side| key.endpoint(side).port;
        let unknown =
            KeyedPacket { key: key.call(sender, port(sender), port(sender.opposite())), sender };
        let mut unannounced = None;
        let announced = self.index.find(hash as u32, |filed| {
            if self.slab[filed & !SECOND].head.status.has(Status::CALL) {
                return self.slab.is_named(filed, name);
            }
            if self.slab.names(filed, &unknown) {
                unannounced = Some(filed);
            }
            false
        });
        Candidates { announced, unannounced }
    }

    /// False for a connection that has expired or whose call is over; then it ends the
    /// connection.
    fn lives(&mut self, filed: u32, context: &mut Context<'_>) -> bool {
        let slot = filed & !SECOND;
        let entry = &self.slab[slot];
        let lives = !entry.is_over(context.now) && !is_over(&entry.head, context);
        if !lives {
            self.close(slot, context);
        }
        lives
    }

    /// True if two hosts have as many calls as they may have.
    pub(super) fn has_most_calls(&self, call: &KeyedPacket, hash: u64) -> bool {
        let mut calls = 0;
        let pair = call.key.of_calls();
        self.index.find(hash as u32, |filed| {
            let key = &self.slab[filed & !SECOND].head.key;
            calls += usize::from(filed & SECOND == 0 && key.is_call() && key.of_calls() == pair);
            false
        });
        calls >= CALLS_OF_A_PAIR
    }

    /// Makes room for one more call between two hosts; false if all of their calls are
    /// announced.
    fn has_room_for_call(
        &mut self,
        packet: &KeyedPacket,
        hash: u64,
        context: &mut Context<'_>,
    ) -> bool {
        let mut calls = 0;
        let mut oldest = None;
        self.index.find(hash as u32, |filed| {
            if filed & SECOND != 0 {
                return false;
            }
            let head = &self.slab[filed].head;
            if head.key.is_call() && head.key.of_calls() == packet.key {
                calls += 1;
                let age = (head.deadline, filed);
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
