//! The distribution of the ports towards a destination when they run out: which source gets
//! one, and which connection is evicted for it.

use std::cmp::Reverse;
use std::time::Duration;

use flow::{DropReason, KeyedPacket, Timestamp};

use super::Table;
use super::entry::Entry;
use super::translation::refused;
use crate::Context;
use crate::capacity::Rank;
use crate::capacity::{NatSource, PortShare};
use crate::connection::Status;
use crate::nat::{Candidates, Ends, Pool, Request, Subject, Supply};

/// Most ports whose connections are compared as candidates for eviction: all of a bucket, if there
/// are 256 buckets.
const LOOKS: usize = 256;
/// The same for a source that has its share and may take over only its own ports.
const OWN_LOOKS: usize = 32;
/// Age below which a connection of another source is not evicted: an answer on its way would
/// reach the new owner of the port.
const ANSWERED_WITHIN: Duration = Duration::from_secs(1);
/// A share, in percent, that means no limit.
const NO_LIMIT: u32 = 100;

/// A source that wants the port of another connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claimant {
    source: NatSource,
    /// Number of its ports towards the destination.
    held: u32,
}

/// The order of eviction: first a connection of a source with more ports (to a power of two),
/// then one of the lowest rank, then the one with the least time left.
type Readiness = (u32, Reverse<Rank>, Reverse<Timestamp>);

impl Table {
    /// The source for a new connection. It is `free`, unless the originator has its share of
    /// the ports already: then one of its own connections is evicted. If there is no free one,
    /// a connection of any source is evicted.
    pub(super) fn grant(
        &mut self,
        slot: u32,
        request: &Request,
        free: Option<(KeyedPacket, u32)>,
        supply: Supply<'_>,
        context: &mut Context<'_>,
    ) -> Result<((KeyedPacket, u32), Option<Pool>), DropReason> {
        let share = context.settings.nat_source_share;
        let mut is_over = false;
        if let Some((leaves_as, _)) = &free {
            let pool = self.pool(slot, request, leaves_as, supply, context);
            let usage = &context.limits.port_usage;
            let ports = usage
                .part(request.range(Ends::of(&leaves_as.key, leaves_as.sender).source.port).len());
            is_over =
                pool.is_some_and(|pool| !usage.allows(&self.port_share(slot, pool), ports, share));
            if let (Some(free), false) = (free, is_over) {
                return Ok((free, pool));
            }
        }
        let reason = match is_over {
            true => DropReason::NatSourceLimit,
            false if self.original(slot).key.is_identified() => DropReason::PortPoolFull,
            false => DropReason::NatClash,
        };
        let got = self.take_over(slot, request, is_over, supply, context);
        let got = got.ok_or_else(|| refused(reason, context))?;
        Ok((got, self.pool(slot, request, &got.0, supply, context)))
    }

    /// The pool in which a connection that leaves as `leaves_as` is counted; `None` if it is
    /// not counted.
    pub(super) fn pool(
        &self,
        slot: u32,
        request: &Request,
        leaves_as: &KeyedPacket,
        supply: Supply<'_>,
        context: &Context<'_>,
    ) -> Option<Pool> {
        let is_limited = context.settings.nat_source_share < NO_LIMIT && !request.netmap;
        let counts = is_limited && self.slab[slot].head.key.is_identified();
        counts.then(|| request.pool(leaves_as, supply))
    }

    /// Evicts the first candidate among the connections on the ports that `request` allows;
    /// with `own`, any connection of the same source.
    fn take_over(
        &mut self,
        slot: u32,
        request: &Request,
        own: bool,
        supply: Supply<'_>,
        context: &mut Context<'_>,
    ) -> Option<(KeyedPacket, u32)> {
        let (original, leaves, outside) =
            (self.original(slot), self.leaves_as(slot), self.outside(slot));
        let ends = Ends::of(&leaves.key, leaves.sender);
        let mut claimant = None;
        let mut first: Option<(Readiness, u32, (KeyedPacket, u32))> = None;
        let looks = if own { OWN_LOOKS } else { LOOKS };
        let subject = Subject { key: original.key, hash: None, ends, known_port: None };
        let wanted = Candidates::new(0, request, &subject, supply);
        for (_, ends) in wanted.take(looks) {
            let leaves_as = ends.keyed(&outside);
            let hash = (supply.hash)(&leaves_as.key) as u32;
            if claimant.is_none() {
                claimant = Some(self.claimant_as(slot, request, &leaves_as, supply, context)?);
            }
            let Some(other) = self.owner(&reply_to(leaves_as), hash, slot) else { continue };
            let found = self.readiness(other, &claimant?, context);
            let Some((readiness, is_own)) = found.filter(|(_, is_own)| *is_own || !own) else {
                continue;
            };
            if first.as_ref().is_none_or(|(before, ..)| *before < readiness) {
                first = Some((readiness, other, (leaves_as, hash)));
            }
            if is_own && own {
                break;
            }
        }
        let (_, other, got) = first?;
        self.end_early(other, context);
        Some(got)
    }

    /// Evicts the connection on the source of `leaves_as` for the connection in `slot`, if it
    /// may, and returns that source.
    pub(super) fn evict_owner_of(
        &mut self,
        slot: u32,
        request: &Request,
        leaves_as: KeyedPacket,
        supply: Supply<'_>,
        context: &mut Context<'_>,
    ) -> Option<(KeyedPacket, u32)> {
        let claimant = self.claimant_as(slot, request, &leaves_as, supply, context)?;
        let hash = (supply.hash)(&leaves_as.key);
        let gives_way = self.give_way(&reply_to(leaves_as), hash, &claimant, context);
        gives_way.then_some((leaves_as, hash as u32))
    }

    /// Evicts the connection with these replies, if it may be evicted for `claimant`.
    pub fn give_way(
        &mut self,
        reply: &KeyedPacket,
        hash: u64,
        claimant: &Claimant,
        context: &mut Context<'_>,
    ) -> bool {
        let other = self.owner(reply, hash as u32, u32::MAX);
        let other = other.filter(|&other| self.readiness(other, claimant, context).is_some());
        other.map(|other| self.end_early(other, context)).is_some()
    }

    /// The claimant of the port of a new connection that is to leave as `leaves_as`; `None` if the
    /// port belongs to no pool.
    fn claimant_as(
        &self,
        slot: u32,
        request: &Request,
        leaves_as: &KeyedPacket,
        supply: Supply<'_>,
        context: &Context<'_>,
    ) -> Option<Claimant> {
        let pool = self.pool(slot, request, leaves_as, supply, context)?;
        Some(self.claimant(slot, pool, context))
    }

    /// The claimant of a port of a pool for a new connection.
    pub(super) fn claimant(&self, slot: u32, pool: Pool, context: &Context<'_>) -> Claimant {
        let port_share = self.port_share(slot, pool);
        Claimant { source: port_share.source, held: context.limits.port_usage.held(&port_share) }
    }

    /// The share of a connection's originator in a pool.
    pub(super) fn port_share(&self, slot: u32, pool: Pool) -> PortShare {
        let head = &self.slab[slot].head;
        PortShare::of(pool, &head.key, head.originator())
    }

    /// The order of a connection's eviction for a claimant, and whether both are of the same
    /// source; `None` if it is not evicted. An unanswered or a closing connection is evicted
    /// unless the claimant has more ports; one that is answered but not assured only if the
    /// claimant has less than half as many. A young connection is evicted only for its own
    /// source.
    fn readiness(
        &self,
        slot: u32,
        claimant: &Claimant,
        context: &Context<'_>,
    ) -> Option<(Readiness, bool)> {
        let Entry { head, body } = &self.slab[slot];
        let translation = self.slab.translation(slot)?;
        let port_share = self.port_share(slot, translation.pool?);
        let rank = Rank::of(head.status, &body.state)?;
        let held = context.limits.port_usage.held(&port_share);
        let is_own = port_share.source == claimant.source;
        let yields = match rank {
            _ if head.status.has(Status::FRESH) || body.note.is_copy() => false,
            _ if is_own => true,
            _ if translation.age(context.now) < ANSWERED_WITHIN => false,
            Rank::Unreplied | Rank::Closing => claimant.held <= held,
            Rank::Unassured => claimant.held < held.div_ceil(2),
        };
        let magnitude = u32::BITS - held.leading_zeros();
        yields.then_some(((magnitude, Reverse(rank), Reverse(head.deadline)), is_own))
    }

    fn end_early(&mut self, slot: u32, context: &mut Context<'_>) {
        self.close(slot, context);
        context.counters.early_drop += 1;
    }
}

/// The replies to packets that leave as `leaves_as`.
pub(super) const fn reply_to(leaves_as: KeyedPacket) -> KeyedPacket {
    KeyedPacket { sender: leaves_as.sender.opposite(), ..leaves_as }
}

#[cfg(test)]
#[path = "port_eviction_tests.rs"]
mod tests;
