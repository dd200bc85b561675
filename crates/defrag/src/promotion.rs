//! Moving datagrams from the nursery to the table.

use flow::DropReason;

use crate::eviction::Entered;
use crate::memory::family_index;
use crate::nursery::{SEATS, YOUTH};
use crate::reassembler::{Buffer, Context, Reassembler, append};

/// All datagrams settle once this many have settled out of their turn, while older ones stayed in
/// the nursery. So a datagram that settles searches for its place by age among no more than this
/// many younger ones.
pub(crate) const MOST_AHEAD: u8 = 32;

impl<F: Buffer> Reassembler<F> {
    /// Moves a datagram to the table out of its turn. Returns its slot; `None` if the index had
    /// no place for it, so that it was given up.
    #[cold]
    #[inline(never)]
    pub(crate) fn promote(&mut self, seat: u8, context: &mut Context<'_, F>) -> Option<u32> {
        let place = self.nursery[seat].place;
        let slot = self.move_in(seat, &mut [Entered::NOTHING; 2]);
        let slot = self.file(slot, place, context).then_some(slot);
        self.nursery.ahead += 1;
        if self.nursery.ahead >= MOST_AHEAD || self.nursery.len() == 0 {
            self.promote_all(context);
        }
        slot
    }

    /// Moves the oldest datagrams to the table. Together they visit each younger datagram that
    /// settled before them once.
    #[cold]
    #[inline(never)]
    fn promote_oldest(&mut self, count: usize, context: &mut Context<'_, F>) {
        let mut entered = [Entered::NOTHING; 2];
        let mut seats = [0; SEATS];
        for &seat in self.nursery.by_age(&mut seats)[..count].iter().rev() {
            let place = self.nursery[seat].place;
            let slot = self.move_in(seat, &mut entered);
            self.file(slot, place, context);
        }
    }

    /// Moves the older half to the table.
    pub(crate) fn promote_half(&mut self, context: &mut Context<'_, F>) {
        self.promote_oldest(self.nursery.len() / 2, context);
    }

    /// Moves all datagrams to the table. Then none in the table is younger than one in the
    /// nursery.
    #[inline]
    pub(crate) fn promote_all(&mut self, context: &mut Context<'_, F>) {
        self.nursery.ahead = 0;
        if self.nursery.len() > 0 {
            self.promote_oldest(self.nursery.len(), context);
        }
    }

    /// Moves the datagrams to the table that have been in the nursery for [`YOUTH`].
    pub(crate) fn promote_grown_up(&mut self, context: &mut Context<'_, F>) {
        let now = context.now;
        if now.since(self.nursery.swept) < YOUTH {
            return;
        }
        self.nursery.swept = now;
        let is_grown_up = |created| now.since(created) >= YOUTH;
        let count = self.nursery.iter().filter(|young| is_grown_up(young.created)).count();
        if count > 0 {
            self.promote_oldest(count, context);
        }
    }

    /// Moves a datagram from its seat to a slot, and to its place by age; only datagrams of the
    /// last moments are younger. Records in `entered` where that is.
    fn move_in(&mut self, seat: u8, entered: &mut [Entered; 2]) -> u32 {
        let (mut queue, pieces) = self.nursery.leave(seat, self.secret);
        pieces.for_each(|held| append(&mut self.pieces, &mut queue.state, held));
        let (family, phase) = (family_index(queue.identity.key.family()), queue.identity.phase);
        let charged = queue.state.tally.charged.into();
        let slot = self.queues.insert(queue);
        let shelf = &mut self.shelves[family];
        shelf.enter_by_age(&mut self.queues, slot, &mut entered[family]);
        shelf.charge(phase, charged);
        slot
    }

    /// Puts a datagram into the index. False if the index has no place, so that it was given
    /// up.
    pub(crate) fn file(&mut self, slot: u32, place: u32, context: &mut Context<'_, F>) -> bool {
        let (queues, hash) = (&self.queues, self.queues[slot].identity.hash);
        let filed = self.index.insert(hash, slot, |slot| queues[slot].identity.hash).is_ok();
        if filed {
            self.remember(slot, place);
        } else {
            self.give_up(slot, DropReason::FragNoMemory.into(), context);
        }
        filed
    }
}
