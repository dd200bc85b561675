//! Packets of connections that may have continued at another gateway.

use super::entry::{Body, Entry};
use super::{Table, input_of};
use crate::fault::Faults;
use crate::proto::{Before, Input, Step};
use crate::{Context, TimeoutPolicy, TrackedPacket};

impl Table {
    /// Gives a packet to the tracker of its connection. If the connection may have continued at
    /// another gateway, the packet may teach the tracker what it has missed.
    #[inline]
    pub(super) fn step(
        &mut self,
        slot: u32,
        policy: Option<&TimeoutPolicy>,
        packet: &TrackedPacket<'_>,
        before: Before,
        context: &Context<'_>,
    ) -> Step {
        let input = Input { policy, ..input_of(packet, context) };
        let Entry { body, .. } = &mut self.slab[slot];
        match body.is_behind(packet.map_epoch) {
            true => self.catch_up(slot, &input, packet.map_epoch, before),
            false => body.state.advance(&input, before),
        }
    }

    #[cold]
    fn catch_up(&mut self, slot: u32, input: &Input<'_>, map_epoch: u16, before: Before) -> Step {
        let heard = self.slab.relearning(slot);
        let Body { state, map_epoch: last_epoch, .. } = &mut self.slab[slot].body;
        let (step, rest) = state.catch_up(input, before, heard);
        match rest {
            Some(rest) => self.slab.set_relearning(slot, rest),
            None => {
                *last_epoch = map_epoch;
                self.slab.forget_relearning(slot);
            }
        }
        step
    }

    /// The connection in a slot may have continued at another gateway until the last packet with
    /// this [epoch](TrackedPacket::map_epoch).
    pub(super) fn set_behind(&mut self, slot: u32, map_epoch: u16, faults: Faults) {
        self.slab[slot].body.map_epoch = map_epoch;
        if faults.never_relearns() {
            self.slab[slot].body.map_epoch = map_epoch.wrapping_add(1);
            return;
        }
        let heard = self.slab.relearning(slot).after_news();
        self.slab.set_relearning(slot, heard);
    }
}
