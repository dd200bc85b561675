//! Entries that are parts of tunnels: see [`crate::tunnels`].

use flow::{Class, DropReason, KeyedPacket};

use super::entry::Entry;
use super::opening::keeps;
use super::packet::Detached;
use super::slab::Slab;
use super::translation::refused;
use super::{Hit, Table};
use crate::connection::Status;
use crate::proto::State;
use crate::syn_proxy::Screening;
use crate::tunnels::{Clash, Part, Tunnel};
use crate::{Context, Direction, Labels, Tracked, TrackedPacket};

impl Table {
    /// Tracks a packet of a tunnel that other buckets know: this bucket gets a part of it.
    /// `None` if no bucket knows it.
    #[cold]
    #[inline(never)]
    pub(super) fn join(
        &mut self,
        packet: &TrackedPacket<'_>,
        context: &mut Context<'_>,
    ) -> Option<Tracked> {
        let (part, direction) = context.tunnels.join(packet.keyed, context.now)?;
        context.counters.found += 1;
        let Some(slot) = self.put_part(&part, packet, context) else {
            context.tunnels.leave(&part);
            return Some(pass_by(&part.tunnel, direction, packet));
        };
        context.counters.insert += 1;
        Some(self.advance(Hit { slot, direction }, packet, context))
    }

    /// Adds a part; `None` if there is no room. The packet that is tracked next sets its
    /// lifetime.
    fn put_part(
        &mut self,
        part: &Part,
        packet: &TrackedPacket<'_>,
        context: &mut Context<'_>,
    ) -> Option<u32> {
        let Tunnel { original, hash, translation, .. } = *part.tunnel;
        // It is not counted as half-open once more.
        let paid = self.pay(&original, true, context).ok()?;
        let state = State::Tunnel(part.clone());
        let mut entry = Entry::open(original.key, hash, original.sender, state);
        entry.body.map_epoch = packet.map_epoch;
        entry.head.deadline = context.now;
        entry.head.note_filed(context.now);
        let keeps = keeps(context);
        entry.head.status.set(paid.with(part.tunnel.status()).with(keeps));
        let slot = self.put(entry, Screening::Off, context)?;
        if keeps != Status::NONE {
            self.slab.begin_side(slot, context.now);
        }
        if let Some(it) = translation
            && self.file(slot, (it.leaves_as, it.hash), (it.interface, None), context).is_err()
        {
            self.close(slot, context);
            return None;
        }
        Some(slot)
    }

    /// Tracks an ICMP error about a tunnel of which this bucket has no part. `answer` stands
    /// for an answer to the quoted packet.
    pub(super) fn relate_to_tunnel(
        &self,
        answer: &KeyedPacket,
        context: &Context<'_>,
    ) -> Option<Tracked> {
        if !answer.key.is_tunnel() {
            return None;
        }
        let (tunnel, direction) = context.tunnels.find(answer, context.now)?;
        Some(without_part(&tunnel, Class::Related, direction))
    }

    /// Adopts the facts that other parts have learned. False if the tunnel has ended in another
    /// bucket. Does nothing for an entry that is no part.
    #[inline]
    pub(super) fn learn(&mut self, slot: u32, context: &mut Context<'_>) -> bool {
        let Some(part) = self.slab.part(slot) else { return true };
        if part.tunnel.is_over() {
            return false;
        }
        let head = &self.slab[slot].head;
        let before = head.status;
        let (status, mark) = part.facts(head);
        let head = &mut self.slab[slot].head;
        (head.status, head.mark) = (status, mark);
        if status != before {
            self.rank(slot, context);
        }
        true
    }

    /// Announces a confirmed connection to other buckets if it is a tunnel. False if they knew
    /// it already, because another part was opened at the same time.
    ///
    /// # Errors
    /// [`DropReason::NatClash`] if the packets of one direction belong to another tunnel by
    /// now.
    pub(super) fn make_known(
        &mut self,
        slot: u32,
        context: &mut Context<'_>,
    ) -> Result<bool, DropReason> {
        if !self.slab[slot].head.key.is_tunnel() {
            return Ok(true);
        }
        let original = self.original(slot);
        let head = &self.slab[slot].head;
        let deadline = head.deadline;
        let (translation, labels) = (self.slab.translation(slot).copied(), self.slab.labels(slot));
        let tunnel = Tunnel::new(original, head, translation, labels);
        let (part, is_first) = context
            .tunnels
            .enter(tunnel, deadline, context.now)
            .map_err(|Clash| refused(DropReason::NatClash, context))?;
        self.slab.set_labels(slot, Labels::NONE);
        self.slab[slot].body.state = State::Tunnel(part);
        Ok(is_first)
    }

    /// Ends a connection; if it is a tunnel, all of its parts.
    pub(super) fn end_whole(&mut self, slot: u32, context: &mut Context<'_>) {
        if let Some(part) = self.slab.part(slot) {
            part.tunnel.end();
        }
        self.close(slot, context);
    }
}

/// Tracks a packet for whose part there is no room; its tunnel continues.
fn pass_by(tunnel: &Tunnel, direction: Direction, packet: &TrackedPacket<'_>) -> Tracked {
    tunnel.note(Status::when(direction == Direction::Reply, Status::SEEN_REPLY));
    let is_open = tunnel.status().has(Status::SEEN_REPLY);
    let class = if is_open { Class::Established } else { Class::New };
    let tracked = without_part(tunnel, class, direction);
    match class {
        Class::New if !packet.may_open => tracked.dropped(DropReason::NewRefused),
        _ => tracked,
    }
}

/// The result for a packet of a tunnel, or an error about it, without a part.
fn without_part(tunnel: &Tunnel, class: Class, direction: Direction) -> Tracked {
    let detached = Some(Detached {
        address_changes: tunnel.address_changes(direction),
        zones: tunnel.zones(),
    });
    let (mark, status) = (tunnel.mark(), tunnel.status());
    Tracked { direction: Some(direction), mark, status, detached, ..Tracked::alone(class) }
}

/// Detaches an entry that ends from its tunnel. False if it is a part and no event is due: the
/// tunnel continues, or its end was reported already.
pub(super) fn leave(slab: &mut Slab, slot: u32, context: &Context<'_>) -> bool {
    let Some(part) = slab.part(slot).cloned() else { return true };
    let head = &mut slab[slot].head;
    (head.status, head.mark) = part.facts(head);
    slab[slot].body.state = State::Generic;
    context.tunnels.leave(&part)
}

#[cfg(test)]
#[path = "tunnels_tests.rs"]
mod tests;
