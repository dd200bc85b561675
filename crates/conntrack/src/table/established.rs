//! The quick check of nearly all packets: those of established connections that change only windows,
//! timer and counters.

use flow::Class;

use super::entry::Entry;
use super::{Hit, Table, deadline, input_of};
use crate::connection::Status;
use crate::{ConnectionId, Context, Tracked, TrackedPacket, Verdict};

impl Table {
    /// Does the same as [`Table::track`] for a packet of a connection that has seen a reply, if
    /// the packet changes only windows, timer and counters. `None`, with nothing changed, for
    /// all other packets.
    // Inlined into its only caller, so that its values stay in registers, which makes it fast.
    #[inline(always)]
    pub(super) fn track_established(
        &mut self,
        Hit { slot, direction }: Hit,
        packet: &TrackedPacket<'_>,
        context: &mut Context<'_>,
    ) -> Option<Tracked> {
        if self.slab.policy(slot).is_some() {
            return None;
        }
        let Entry { head, body } = &mut self.slab[slot];
        let status = head.status;
        if !status.has(Status::SEEN_REPLY) {
            return None;
        }
        debug_assert!(
            !status.has(Status::FRESH),
            "a connection that is not confirmed has no replies"
        );
        if body.is_behind(packet.map_epoch) {
            return None;
        }
        let assured = status.has(Status::ASSURED);
        let timeout =
            body.state.advance_established(direction, assured, &input_of(packet, context))?;
        head.deadline = deadline(context.now, timeout);
        let mark = head.mark;
        let is_due = context.replication.is_due(&body.note);
        if head.is_filed_late() {
            self.refile(slot);
        }
        if is_due {
            self.note_refresh(slot, context);
        }
        if status.has(Status::ACCOUNTED) {
            self.account(slot, packet, direction);
        }
        #[cfg(test)]
        observer::note();
        Some(Tracked {
            class: Class::Established,
            direction: Some(direction),
            mark,
            verdict: Verdict::Accept,
            why: None,
            connection: Some(ConnectionId(slot)),
            fresh: false,
            status,
            detached: None,
        })
    }
}

#[cfg(test)]
#[path = "established_observer.rs"]
mod observer;

#[cfg(test)]
#[path = "established_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "established_model_tests.rs"]
mod model_tests;
