//! Who gets the ports towards a destination where they run out, and whose connection gives way.

use std::cmp::Reverse;
use std::time::Duration;

use flow::{DropReason, KeyedPacket, Timestamp};

use super::Table;
use super::candidates::Rank;
use super::translated::refused;
use crate::Context;
use crate::entry::{Entry, Status};
use crate::limits::{NatSource, Pool, Stake};
use crate::nat::{Block, Ends, Request, Supply, candidates};

/// Ports whose connections are looked at for one to give way: all of a block, where 256 buckets
/// share the range of ports.
const LOOKS: usize = 256;
/// The same for a source that has its part, and so may take only what is its own.
const OWN_LOOKS: usize = 32;
/// How long another source's connection must have been there to give way: an answer that is still
/// on its way would come to whoever gets the port.
const ANSWERED_WITHIN: Duration = Duration::from_secs(1);
/// A share, in percent, that sets no limit.
const NO_LIMIT: u32 = 100;

/// Who wants the port that another connection has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claimant {
    source: NatSource,
    /// Ports that it has towards the destination.
    held: u32,
}

/// How readily a connection gives way: that of a source with more ports first (to a power of
/// two), then by what is lost, then the one that has least time left.
type Readiness = (u32, Reverse<Rank>, Reverse<Timestamp>);

impl Table {
    /// The source that a new connection gets: what is `free`, unless its source has its part of
    /// the ports already. Then one of that source's own connections gives way, and if nothing is
    /// free one of any.
    pub(super) fn grant(
        &mut self,
        slot: u32,
        request: &Request,
        free: Option<(KeyedPacket, u32)>,
        supply: Supply<'_>,
        context: &mut Context<'_>,
    ) -> Result<((KeyedPacket, u32), Option<Pool>), DropReason> {
        let share = context.settings.nat_source_share;
        let is_over = free.is_some_and(|(leaves_as, _)| {
            let pool = self.pool(slot, request, &leaves_as, supply, context);
            let holdings = &context.limits.holdings;
            let named = request.ports.map(|ports| holdings.part(Block::from(ports).len()));
            let ports = named.unwrap_or(supply.block.len());
            pool.is_some_and(|pool| !holdings.allows(&self.stake(slot, pool), ports, share))
        });
        let got = match free.filter(|_| !is_over) {
            None => self.take_over(slot, request, is_over, supply, context),
            free => free,
        };
        let reason = match is_over {
            true => DropReason::NatSourceLimit,
            false if self.original(slot).key.is_identified() => DropReason::PortPoolFull,
            false => DropReason::NatClash,
        };
        let got = got.ok_or_else(|| refused(reason, context))?;
        Ok((got, self.pool(slot, request, &got.0, supply, context)))
    }

    /// The ports that a connection is counted among which is to leave so; `None` where nobody
    /// counts.
    pub(super) fn pool(
        &self,
        slot: u32,
        request: &Request,
        leaves_as: &KeyedPacket,
        supply: Supply<'_>,
        context: &Context<'_>,
    ) -> Option<Pool> {
        let is_limited = context.settings.nat_source_share < NO_LIMIT && !request.netmap;
        let counts = is_limited && self.original(slot).key.is_identified();
        counts.then(|| request.pool(leaves_as, supply))
    }

    /// Has the connection give way that is the first to do so of those that have a port which
    /// `request` leaves; `own`: any of the same source.
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
        for ends in candidates(*request, original.key, ends, supply).take(looks) {
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

    /// The source of a connection that gives way for the one in `slot`, which is to leave so.
    pub(super) fn wrest(
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

    /// Has the connection give way whose replies are these, if it does so for `claimant`.
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

    /// Who wants the port of a new connection that is to leave so; `None` where nobody counts.
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

    /// Who wants a port of a pool for a new connection.
    pub(super) fn claimant(&self, slot: u32, pool: Pool, context: &Context<'_>) -> Claimant {
        let stake = self.stake(slot, pool);
        Claimant { source: stake.source, held: context.limits.holdings.held(&stake) }
    }

    /// What the source of a connection has of a pool.
    pub(super) fn stake(&self, slot: u32, pool: Pool) -> Stake {
        Stake::of(pool, self.original(slot))
    }

    /// How readily a connection gives way for a claimant, and whether it is of the same source.
    /// What nobody has answered and what closes does so unless the claimant has more ports; what was
    /// answered, but is not assured, only if the claimant has less than half as many. What is young
    /// gives way to its own source alone.
    fn readiness(
        &self,
        slot: u32,
        claimant: &Claimant,
        context: &Context<'_>,
    ) -> Option<(Readiness, bool)> {
        let Entry { head, body } = &self.slab[slot];
        let translation = self.slab.translation(slot)?;
        let stake = self.stake(slot, translation.pool?);
        let rank = Rank::of(head.status, &body.state)?;
        let held = context.limits.holdings.held(&stake);
        let is_own = stake.source == claimant.source;
        let yields = match rank {
            _ if head.status.has(Status::FRESH) => false,
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

/// The packets that come back to what leaves so.
const fn reply_to(leaves_as: KeyedPacket) -> KeyedPacket {
    KeyedPacket { sender: leaves_as.sender.opposite(), ..leaves_as }
}

#[cfg(test)]
#[path = "giving_way_tests.rs"]
mod tests;
