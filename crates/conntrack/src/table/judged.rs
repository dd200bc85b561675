//! What becomes of a connection when its first packet has been judged.

use flow::{DropReason, Verdict};

use super::{Table, report};
use crate::entry::Status;
use crate::{ConnectionId, Context, EventKind, Tracked, TrackedPacket};

impl Table {
    /// Tracks a packet that nobody judges: what it opens is confirmed at once.
    #[inline]
    pub fn track_unjudged(
        &mut self,
        packet: &TrackedPacket<'_>,
        context: &mut Context<'_>,
    ) -> Tracked {
        let tracked = self.track(packet, context);
        self.pass(tracked, packet, context)
    }

    /// A packet goes on, as far as anybody but its helper is concerned: what it has opened is
    /// confirmed, and the helper reads it, which may say that it ends here after all. Costs a
    /// look at the result of tracking where there is nothing to do.
    #[inline]
    pub fn pass(
        &mut self,
        tracked: Tracked,
        packet: &TrackedPacket<'_>,
        context: &mut Context<'_>,
    ) -> Tracked {
        if (tracked.fresh || tracked.is_watched()) && tracked.verdict == Verdict::Accept {
            self.pass_to_helper(tracked, packet, context)
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
        context: &mut Context<'_>,
    ) -> Tracked {
        if let (Some(id), true) = (tracked.connection, tracked.fresh)
            && let Err(reason) = self.confirm(id, context)
        {
            return tracked.dropped(reason);
        }
        if tracked.is_watched() { self.inspect(tracked, packet, context) } else { tracked }
    }

    /// The packet that has opened a connection goes on: the connection is there for all to
    /// see, and what it was expected as is expected no longer.
    ///
    /// # Errors
    /// [`DropReason::NatClash`] if another bucket has opened a tunnel meanwhile with the packets of
    /// one direction of this one. The connection is withdrawn, and the packet is to be dropped, as
    /// in the kernel.
    pub fn confirm(
        &mut self,
        id: ConnectionId,
        context: &mut Context<'_>,
    ) -> Result<(), DropReason> {
        let ConnectionId(slot) = id;
        if !self.is_fresh(slot) {
            return Ok(());
        }
        debug_assert!(!self.room.is_guest(slot), "it has no room to stay");
        let is_news = self.make_known(slot, context).inspect_err(|_| self.close(slot, context))?;
        self.slab[slot].head.status.clear(Status::FRESH);
        if let Some(claim) = self.slab.take_claim(slot) {
            let now = context.now;
            let (expectations, mut listener) = context.expecting();
            expectations.fulfil(&claim, now, &mut listener);
            context.counters.expect_new += 1;
        }
        context.counters.insert += 1;
        if is_news {
            report(&self.slab, slot, EventKind::New, context);
        }
        Ok(())
    }

    /// The packet that has opened a connection does not go on: there was none. What it took of
    /// the limits is given back, and what it was expected as is expected again; who gave way
    /// for it does not come back. Without effect on a connection that is confirmed.
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
#[path = "judged_tests.rs"]
mod tests;
