//! Confirming or withdrawing a connection after its first packet has been judged.

use flow::DropReason;

use super::{Checksum, Table, report};
use crate::connection::Status;
use crate::nat::Edit;
use crate::{ConnectionId, Context, EventKind, Tracked, TrackedPacket, Verdict};

impl Table {
    /// Lets a packet pass that every stage but its helper has accepted: confirms the connection
    /// that it has opened, and lets the helper read it. The helper may still drop the packet. This
    /// is for connections that are not translated, whose messages no helper wants to change.
    /// Costs one test of the tracking result if there is nothing to do.
    #[inline]
    pub fn accept(
        &mut self,
        tracked: Tracked,
        packet: &TrackedPacket<'_>,
        context: &mut Context<'_>,
    ) -> Tracked {
        let mut edits = Vec::new();
        let accepted = self.accept_with_edits(tracked, packet, &mut edits, context);
        debug_assert!(edits.is_empty(), "the caller edits no messages");
        accepted
    }

    /// Does the same, and puts the changes that the helper wants in the payload of the packet into
    /// `edits`, in the order of their places. The packet leaves with the sequence number of the
    /// [adjustment](Table::adjustment) before or after this; both give the same.
    #[inline]
    pub fn accept_with_edits(
        &mut self,
        tracked: Tracked,
        packet: &TrackedPacket<'_>,
        edits: &mut Vec<Edit>,
        context: &mut Context<'_>,
    ) -> Tracked {
        if (tracked.fresh || tracked.has_helper()) && tracked.verdict == Verdict::Accept {
            self.pass_to_helper(tracked, packet, edits, context)
        } else {
            tracked
        }
    }

    #[cold]
    #[inline(never)]
    fn pass_to_helper(
        &mut self,
        tracked: Tracked,
        packet: &TrackedPacket<'_>,
        edits: &mut Vec<Edit>,
        context: &mut Context<'_>,
    ) -> Tracked {
        if let (Some(id), true) = (tracked.connection, tracked.fresh)
            && let Err(reason) = self.confirm(id, context)
        {
            return tracked.dropped(reason);
        }
        if !tracked.has_helper() || packet.checksum == Checksum::Cut {
            return tracked;
        }
        self.inspect(tracked, packet, edits, context)
    }

    /// Confirms a connection, because the packet that opened it passes: the connection becomes
    /// visible, and its expectation is fulfilled.
    ///
    /// # Errors
    /// [`DropReason::NatClash`] if another bucket has meanwhile opened a tunnel that has the
    /// packets of one direction of this one. The connection is withdrawn, and the packet has to
    /// be dropped, as in the kernel.
    pub fn confirm(
        &mut self,
        id: ConnectionId,
        context: &mut Context<'_>,
    ) -> Result<(), DropReason> {
        let ConnectionId(slot) = id;
        if !self.is_fresh(slot) {
            return Ok(());
        }
        debug_assert!(!self.occupancy.is_uncounted(slot), "it has no room to stay");
        let is_news = self.make_known(slot, context).inspect_err(|_| self.close(slot, context))?;
        self.slab[slot].head.status.clear(Status::FRESH);
        if let Some(claim) = self.slab.take_claim(slot) {
            let now = context.now;
            let (expectations, mut listener) = context.expecting();
            expectations.fulfil(&claim, now, &mut listener);
            context.counters.expect_new += 1;
        }
        context.counters.insert += 1;
        self.note_change(slot, context);
        if is_news {
            report(&self.slab, slot, EventKind::New, context);
        }
        Ok(())
    }

    /// Withdraws a connection, because the packet that opened it does not pass. Its units of
    /// the limits are returned, and its expectation is found again; a connection that was
    /// evicted for it does not come back. Without effect on a confirmed connection.
    pub fn withdraw(&mut self, id: ConnectionId, context: &mut Context<'_>) {
        let ConnectionId(slot) = id;
        if self.is_fresh(slot) {
            self.close(slot, context);
        }
    }

    fn is_fresh(&self, slot: u32) -> bool {
        self.slab.live(slot).is_some_and(|entry| entry.head.status.has(Status::FRESH))
    }
}

#[cfg(test)]
#[path = "confirmation_tests.rs"]
mod tests;
