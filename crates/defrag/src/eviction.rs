//! The end of datagrams that do not become complete, and the choice of those that make room.

use flow::{DropReason, Timestamp};
use wire::Family;

use crate::discard_cause::DiscardCause;
use crate::fifo::{ByAge, ByClass, Fifo};
use crate::memory::family_index;
use crate::queue::{Identity, Phase, Queue};
use crate::reassembler::{Buffer, Context, Reassembler};
use crate::settings::FamilySettings;
use crate::slab::{NONE, Slab};

/// Datagrams in progress that were given up are remembered, so that their later fragments do
/// not begin them anew. They may hold 1 / `DEAD_SHARE` of all charged memory.
const DEAD_SHARE: u128 = 32;
/// A datagram has come to a halt if its pace is below 1 / `HALTED` of another's, or if it has
/// waited for its next fragment `HALTED` times as long as for the others.
const HALTED: u128 = 4;
/// Fragments may wait in a receive queue for this long before all of them come at once,
/// microseconds.
const BATCH_US: u128 = 100;

/// The datagrams of a family, ordered by age and, for each phase, by the time when they reached
/// it.
#[derive(Debug)]
pub(crate) struct Shelf {
    pub ages: Fifo<ByAge>,
    /// By [`Phase::index`].
    pub phases: [Fifo<ByClass>; Phase::COUNT],
    /// Bytes charged for the datagrams of each phase.
    charged: [u64; Phase::COUNT],
}

/// The queue that [`Shelf::enter_by_age`] put in last, and the last one of each phase.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entered {
    age: u32,
    phases: [u32; Phase::COUNT],
}

impl Entered {
    pub const NOTHING: Self = Self { age: NONE, phases: [NONE; Phase::COUNT] };
}

impl Shelf {
    pub const fn new() -> Self {
        Self {
            ages: Fifo::new(),
            phases: [const { Fifo::new() }; Phase::COUNT],
            charged: [0; Phase::COUNT],
        }
    }

    pub const fn charged(&self, phase: Phase) -> u64 {
        self.charged[phase.index()]
    }

    /// Takes in a queue that was created elsewhere, maybe long ago. A caller that enters
    /// several goes from the youngest to the oldest and passes the same `last`: then all calls
    /// together visit every queue once.
    pub fn enter_by_age(&mut self, queues: &mut Slab<Queue>, slot: u32, last: &mut Entered) {
        let phase = queues[slot].identity.phase.index();
        self.ages.insert_by_age(queues, slot, last.age);
        self.phases[phase].insert_by_age(queues, slot, last.phases[phase]);
        last.age = slot;
        last.phases[phase] = slot;
    }

    /// Takes a queue out, with all bytes charged to it.
    #[inline]
    pub fn leave(&mut self, queues: &mut Slab<Queue>, slot: u32) {
        let phase = queues[slot].identity.phase.index();
        self.charged[phase] -= u64::from(queues[slot].state.tally.charged);
        self.ages.remove(queues, slot);
        self.phases[phase].remove(queues, slot);
    }

    /// Moves a newcomer to the datagrams in progress. `charged` is its whole charge, of which
    /// `fresh` bytes were not charged to its phase yet.
    #[inline]
    pub fn promote(&mut self, queues: &mut Slab<Queue>, slot: u32, charged: u64, fresh: u64) {
        self.phases[Phase::Newcomer.index()].remove(queues, slot);
        self.phases[Phase::Progress.index()].push(queues, slot);
        self.discharge(Phase::Newcomer, charged - fresh);
        self.charge(Phase::Progress, charged);
    }

    #[inline]
    pub fn charge(&mut self, phase: Phase, bytes: u64) {
        self.charged[phase.index()] += bytes;
    }

    fn discharge(&mut self, phase: Phase, bytes: u64) {
        self.charged[phase.index()] -= bytes;
    }

    /// The datagram that makes room, never `spared`; `NONE` if there is no other.
    fn victim(
        &self,
        queues: &mut Slab<Queue>,
        limits: &FamilySettings,
        spared: u32,
        now: Timestamp,
    ) -> u32 {
        let [newcomers, progress, dead] = &self.phases;
        let [few, many, remembered] = self.charged.map(u128::from);
        if remembered * DEAD_SHARE > few + many + remembered {
            return dead.first();
        }
        let over_share =
            many * u128::from(limits.high_thresh) > (few + many) * u128::from(limits.low_thresh);
        let oldest_newcomer = newcomers.first_but(queues, spared);
        let least_promising = least_promising(progress, queues, spared, now);
        let order = if over_share {
            [least_promising, oldest_newcomer, dead.first()]
        } else {
            [oldest_newcomer, least_promising, dead.first()]
        };
        order.into_iter().find(|&slot| slot != NONE).unwrap_or(NONE)
    }
}

/// The oldest of the datagrams in progress if it has come to a halt, otherwise the youngest. A
/// datagram has come to a halt if no fragment has come for several times the usual time between
/// its fragments, or if it has gained bytes at a fraction of the pace of the youngest. So the
/// datagrams that a flood began make room, whatever they look like. The youngest has the
/// longest way to go: if all are honest and memory is too short for them, giving up the oldest
/// would complete none.
fn least_promising(
    progress: &Fifo<ByClass>,
    queues: &mut Slab<Queue>,
    spared: u32,
    now: Timestamp,
) -> u32 {
    let oldest = progress.first_but(queues, spared);
    let youngest = progress.last_but(queues, spared);
    if oldest == youngest {
        return oldest;
    }
    let pace = |slot: u32| {
        let Queue { identity, state } = &queues[slot];
        // At least a microsecond, so that a datagram whose fragments came in one batch has a
        // pace too.
        let age_us = now.since(identity.created).as_micros().max(1);
        (u128::from(state.tally.received), age_us)
    };
    let (old_bytes, old_age) = pace(oldest);
    let (young_bytes, young_age) = pace(youngest);
    let tally = &queues[oldest].state.tally;
    let gaps = u128::from(tally.pieces.max(2) - 1);
    let active = u128::from(tally.active_us);
    let is_idle = old_age.saturating_sub(active + BATCH_US) * gaps > active * HALTED;
    let is_slow = old_bytes * young_age * HALTED < young_bytes * old_age;
    if is_idle || is_slow { oldest } else { youngest }
}

impl<F: Buffer> Reassembler<F> {
    /// Ends the datagrams whose timeout has passed. If the limits have fallen below the memory
    /// held, it also ends as many others as it takes. Ends at most `budget`; returns how many
    /// it ended.
    pub fn expire(&mut self, budget: usize, context: &mut Context<'_, F>) -> usize {
        self.promote_grown_up(context);
        let mut ended = 0;
        for family in [Family::V4, Family::V6] {
            let limits = context.settings.family(family);
            while ended < budget {
                let oldest = self.shelves[family_index(family)].ages.first();
                let is_due = |queue: &Queue| limits.is_due(queue.identity.created, context.now);
                if !self.queues.get(oldest).is_some_and(is_due) {
                    break;
                }
                self.time_out(oldest, context);
                ended += 1;
            }
            while ended < budget && self.gives_way(family, context) {
                ended += 1;
            }
        }
        let queues = &self.queues;
        self.index.shrink(|slot| queues[slot].identity.hash);
        self.queues.shrink();
        self.pieces.shrink();
        ended
    }

    /// Evicts one datagram if more is leased than the limit allows.
    fn gives_way(&mut self, family: Family, context: &mut Context<'_, F>) -> bool {
        context.memory.lease(family).repay();
        if !context.memory.lease(family).is_overdrawn() {
            return false;
        }
        let evicted = self.evict(family, NONE, context);
        context.memory.lease(family).repay();
        evicted
    }

    /// Spends memory. If need be it evicts other datagrams for it, but never the one in slot
    /// `spared`.
    #[inline]
    pub(crate) fn make_room(
        &mut self,
        family: Family,
        bytes: u64,
        spared: u32,
        context: &mut Context<'_, F>,
    ) -> bool {
        context.memory.lease(family).spend(bytes)
            || self.make_room_by_force(family, bytes, spared, context)
    }

    #[cold]
    #[inline(never)]
    fn make_room_by_force(
        &mut self,
        family: Family,
        bytes: u64,
        spared: u32,
        context: &mut Context<'_, F>,
    ) -> bool {
        while self.evict(family, spared, context) {
            if context.memory.lease(family).spend(bytes) {
                return true;
            }
        }
        false
    }

    fn evict(&mut self, family: Family, spared: u32, context: &mut Context<'_, F>) -> bool {
        // The datagram that has to go may be in the nursery.
        self.promote_all(context);
        let limits = context.settings.family(family);
        let shelf = &self.shelves[family_index(family)];
        let slot = shelf.victim(&mut self.queues, limits, spared, context.now);
        if slot == NONE {
            return false;
        }
        match self.queues[slot].identity.phase {
            Phase::Newcomer => {
                context.counters.evicted_newcomer += 1;
                let why = self.unfinished(slot, DropReason::FragEvicted, context);
                self.give_up(slot, why, context);
            }
            Phase::Progress => {
                context.counters.evicted_progress += 1;
                let why = self.unfinished(slot, DropReason::FragEvictedProgress, context);
                self.kill(slot, why, context);
            }
            Phase::Dead(_) => {
                context.counters.evicted_dead += 1;
                self.forget(slot, context);
            }
        }
        true
    }

    #[cold]
    pub(crate) fn time_out(&mut self, slot: u32, context: &mut Context<'_, F>) {
        if !self.queues[slot].identity.phase.is_dead() {
            context.counters.reasm_timeout += 1;
        }
        let why = self.unfinished(slot, DropReason::FragTimeout, context);
        self.give_up(slot, why, context);
    }

    fn unfinished(&self, slot: u32, reason: DropReason, context: &Context<'_, F>) -> DiscardCause {
        DiscardCause::unfinished(reason, &self.queues[slot], context.now)
    }

    /// Ends a datagram. Its identification may be used again.
    pub(crate) fn give_up(&mut self, slot: u32, why: DiscardCause, context: &mut Context<'_, F>) {
        if !self.queues[slot].identity.phase.is_dead() {
            context.counters.reasm_fails += 1;
        }
        self.discard_pieces(slot, why, context);
        self.forget(slot, context);
    }

    /// Ends a datagram but remembers it until its timeout, so that none of its fragments begins
    /// it anew.
    #[cold]
    pub(crate) fn kill(&mut self, slot: u32, why: DiscardCause, context: &mut Context<'_, F>) {
        context.counters.reasm_fails += 1;
        self.discard_pieces(slot, why, context);
        let reason = why.reason();
        let Queue { identity, state } = &mut self.queues[slot];
        let family = identity.key.family();
        let before = std::mem::replace(&mut identity.phase, Phase::Dead(reason));
        let charged = std::mem::replace(&mut state.tally.charged, Self::QUEUE_BYTES as u32).into();
        context.memory.lease(family).release(charged - Self::QUEUE_BYTES);
        let map = state.take_map();
        self.keep_map(map);
        let shelf = &mut self.shelves[family_index(family)];
        shelf.discharge(before, charged);
        shelf.charge(Phase::Dead(reason), Self::QUEUE_BYTES);
        shelf.phases[before.index()].remove(&mut self.queues, slot);
        shelf.phases[Phase::Dead(reason).index()].push(&mut self.queues, slot);
    }

    fn discard_pieces(&mut self, slot: u32, why: DiscardCause, context: &mut Context<'_, F>) {
        let state = &mut self.queues[slot].state;
        let mut at = state.first;
        (state.first, state.last) = (NONE, NONE);
        while let Some(held) = self.pieces.remove(at) {
            at = held.next;
            (context.discard)(held.frame, why);
        }
    }

    /// Takes out a queue that holds no fragments any more, and returns its memory.
    #[inline(always)]
    pub(crate) fn forget(&mut self, slot: u32, context: &mut Context<'_, F>) {
        let Queue { identity, state } = &mut self.queues[slot];
        context.memory.lease(identity.key.family()).release(u64::from(state.tally.charged));
        let map = state.take_map();
        self.keep_map(map);
        self.unlink(slot);
        self.queues.clear(slot);
    }

    /// Takes a queue out of all lists.
    #[inline]
    pub(crate) fn unlink(&mut self, slot: u32) {
        let Identity { key, hash, .. } = self.queues[slot].identity;
        self.index.remove(hash, slot);
        self.shelves[family_index(key.family())].leave(&mut self.queues, slot);
    }
}
