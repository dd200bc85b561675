//! The translation of connections that a translated connection has announced, and the changes of
//! the payload that announces them.

use std::net::IpAddr;

use flow::{DropReason, Endpoint};
use wire::{Transport, mapped};

use super::Table;
use crate::nat::{Addresses, Edit, Ends, Ports, Request, Supply, TranslatedEnd};
use crate::proto::tcp::Seq;
use crate::seqadj::{Adjustment, Shift};
use crate::{ConnectionId, Context, Direction, TrackedPacket};

impl Table {
    /// Translates a new connection that a translated one has announced in the same way, and
    /// returns true if it did. Then no rule decides, as with the kernel. To be called before
    /// any rule can translate the connection.
    ///
    /// # Errors
    /// The errors of [`Table::translate`].
    pub fn translate_announced(
        &mut self,
        id: ConnectionId,
        supply: Supply<'_>,
        context: &mut Context<'_>,
    ) -> Result<bool, DropReason> {
        let ConnectionId(slot) = id;
        let claim = self.slab.claim(slot);
        let Some(follow) = claim.and_then(|claim| claim.expectation.announced.follow) else {
            return Ok(false);
        };
        if self.original(slot).key.is_call() {
            return self.follow_call(id, &follow, supply, context).map(|()| true);
        }
        if let Some((address, port)) = follow.destination {
            let request = Request {
                addresses: Some(Addresses::one(address)),
                ports: Ports::new(port, port),
                ..Request::of(TranslatedEnd::Destination)
            };
            self.translate(id, &request, supply, context)?;
        }
        match follow.source {
            None => self.make_reply_unique(id, supply, context)?,
            Some(address) if self.keep_announced_port(slot, address, supply, context)? => {}
            Some(address) => {
                let request = Request {
                    addresses: Some(Addresses::one(address)),
                    interface: follow.interface,
                    ..Request::of(TranslatedEnd::Source)
                };
                self.translate(id, &request, supply, context)?;
            }
        }
        Ok(true)
    }

    /// Gives a new connection the source port that its originator has announced on the same
    /// master, if it sends from the port on which it listens: the host that learned that port
    /// expects answers from there (RFC 4961). False if there is no such port, or if another
    /// connection has it.
    fn keep_announced_port(
        &mut self,
        slot: u32,
        address: IpAddr,
        supply: Supply<'_>,
        context: &mut Context<'_>,
    ) -> Result<bool, DropReason> {
        let Some(claim) = self.slab.claim(slot) else { return Ok(false) };
        let expectation = &claim.expectation;
        let (master, interface) = (
            expectation.master.flow.key,
            expectation.announced.follow.and_then(|follow| follow.interface),
        );
        let original = self.original(slot);
        let source = original.key.end(original.sender);
        let protocol = original.key.protocol;
        let port = context.expectations.port_of(&master, protocol, &source, address);
        let Some(port) = port else { return Ok(false) };
        self.take_back(slot, context);
        let leaves = self.leaves_as(slot);
        let ends = Ends::of(&leaves.key, leaves.sender);
        let new_ends = Ends { source: Endpoint { address: mapped(address), port }, ..ends };
        let leaves_as = new_ends.keyed(&self.outside(slot));
        match self.free(slot, &leaves_as, supply, context) {
            Some(hash) => {
                self.file(slot, (leaves_as, hash), (interface, None), context).map(|()| true)
            }
            None => Ok(false),
        }
    }

    /// True if a connection of the table has shifted sequence numbers.
    #[inline]
    pub const fn has_adjustments(&self) -> bool {
        self.slab.has_shifts()
    }

    /// The shifts of the sequence numbers of a connection that such edits cause, and the
    /// direction of this packet; `None` if there are none or if the connection has expired. The
    /// caller applies [`Adjustment::before_tracking`] before it tracks the packet, after the
    /// changes of the SYN proxy; and [`Adjustment::after_tracking`] after [`Table::accept`],
    /// before the changes of the SYN proxy. Costs one test if no connection has shifts.
    #[inline]
    pub fn adjustment(
        &self,
        packet: &flow::KeyedPacket,
        hash: u64,
        now: flow::Timestamp,
    ) -> Option<(Direction, Adjustment)> {
        if !self.slab.has_shifts() {
            return None;
        }
        let hit = self.look_up(packet, hash)?;
        if self.slab[hit.slot].is_over(now) {
            return None;
        }
        let sequences = *self.slab.shifts(hit.slot)?;
        Some((hit.direction, Adjustment { sequences, ..Adjustment::default() }))
    }

    /// Forgets what belongs to the messages of a connection, if its ends have opened it anew: its helper
    /// has to read from the start, and nothing of the new messages is edited yet.
    #[cold]
    pub(super) fn forget_if_opened_anew(
        &mut self,
        slot: u32,
        packet: &TrackedPacket<'_>,
        direction: Direction,
    ) {
        if !self.slab[slot].body.state.is_opening() {
            return;
        }
        self.slab.drop_shifts(slot);
        if let (Some(helper), Transport::Tcp(tcp)) =
            (self.slab.attached(slot), packet.network.transport)
        {
            let helper = helper.kind.start_anew(direction, &tcp);
            self.slab.attach_helper(slot, helper);
        }
    }

    /// Records the effect of edits of a packet on the following sequence numbers.
    pub(super) fn shift_by_edits(
        &mut self,
        slot: u32,
        direction: Direction,
        sequence: Option<u32>,
        edits: &[Edit],
    ) {
        let longer = edits.iter().fold(0u32, |sum, edit| {
            sum.wrapping_add(edit.text.len() as u32).wrapping_sub(edit.place.len() as u32)
        });
        if let Some(sequence) = sequence.filter(|_| longer != 0) {
            let lengthen =
                |shifts: &mut [Shift; 2]| shifts[direction.index()].lengthen(sequence, longer);
            self.slab.shift(slot, lengthen);
        }
    }
}

impl Shift {
    /// Records that the segment at a sequence number becomes longer by `by` on its way, modulo
    /// 2^32. Without effect for a repeated segment. If two segments change their lengths, the
    /// earlier must have arrived before the later is sent, as in protocols whose ends take
    /// turns: the shift of a repeated segment from before both is forgotten.
    pub(crate) fn lengthen(&mut self, sequence: u32, by: u32) {
        if self.before == self.after || Seq(sequence).is_after(Seq(self.position)) {
            let after = self.after.wrapping_add(by);
            *self = Self { position: sequence, before: self.after, after };
        }
    }
}

#[cfg(test)]
#[path = "expected_translation_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "expected_translation_sip_tests.rs"]
mod sip_tests;
