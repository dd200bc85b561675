//! The actions of rules on the connection of a packet.

use flow::{Tallied, Tally, Timestamp};

use super::entry::Entry;
use super::{Table, deadline};
use crate::connection::Status;
use crate::helper::Kind;
use crate::proto::State;
use crate::proto::tcp::TcpState;
use crate::{Connection, ConnectionId, Context, Labels, TimeoutPolicy, Tracked};

impl Table {
    /// A copy of a connection; `None` if it has ended.
    pub fn connection(&self, id: ConnectionId, now: Timestamp) -> Option<Connection> {
        let ConnectionId(slot) = id;
        self.slab.live(slot).map(|_| Connection::of(&self.slab, slot, now))
    }

    /// Sets the mark of a packet's connection.
    pub fn set_mark(&mut self, tracked: &mut Tracked, mark: u32, context: &mut Context<'_>) {
        let Some(ConnectionId(slot)) = tracked.connection else { return };
        tracked.mark = mark;
        if self.slab.mark(slot) != mark {
            self.slab.set_mark(slot, mark);
            self.report_change(slot, context);
        }
    }

    /// Adds labels to a packet's connection.
    pub fn add_labels(&mut self, tracked: &Tracked, labels: Labels, context: &mut Context<'_>) {
        let Some(ConnectionId(slot)) = tracked.connection else { return };
        let known = self.slab.labels(slot);
        if !known.include(labels) {
            self.slab.set_labels(slot, known | labels);
            self.report_change(slot, context);
        }
    }

    /// Attaches a helper to a connection, which also reads the packet that opened it. Without
    /// effect on a connection that is confirmed or has a helper.
    pub fn set_helper(&mut self, tracked: &mut Tracked, kind: Kind) {
        let Some(ConnectionId(slot)) = tracked.connection.filter(|_| tracked.fresh) else { return };
        if !self.slab[slot].head.status.has(Status::HAS_HELPER) {
            self.slab.attach_helper(slot, kind.start());
        }
        tracked.status = self.slab[slot].head.status;
    }

    /// Gives a connection its own timeouts from its first packet on. Without effect on a
    /// connection that is confirmed or of another protocol.
    pub fn set_policy(&mut self, tracked: &Tracked, policy: &TimeoutPolicy, now: Timestamp) {
        let Some(ConnectionId(slot)) = tracked.connection.filter(|_| tracked.fresh) else { return };
        let head = &mut self.slab[slot].head;
        if head.key.protocol != policy.protocol() {
            return;
        }
        head.deadline = deadline(now, policy.first());
        self.refile(slot);
        self.slab.set_policy(slot, *policy);
    }

    /// Closes the connection of a packet whose sender got a reset in the name of the other end.
    /// Without effect on an unconfirmed connection, for which [`Table::withdraw`] is to be
    /// called.
    pub fn reset(&mut self, tracked: &Tracked, context: &mut Context<'_>) {
        let Some(ConnectionId(slot)) = tracked.connection else { return };
        let own = self.slab.policy(slot).and_then(|policy| policy.of_tcp(&context.settings.tcp));
        let settings = own.as_ref().unwrap_or(&context.settings.tcp);
        let Entry { head, body } = &mut self.slab[slot];
        let State::Tcp(tcp) = &mut body.state else { return };
        if head.status.has(Status::FRESH) || tcp.state() == TcpState::Close {
            return;
        }
        tcp.was_reset();
        head.deadline = deadline(context.now, settings.timeouts.of(TcpState::Close));
        self.refile(slot);
        self.count_no_more(slot);
        self.rank(slot, context);
        self.report_change(slot, context);
    }

    /// Gives a packet's connection its place in a count, until it ends. Without effect on one that
    /// is closed, which counts no more.
    pub fn tally(&mut self, tracked: &Tracked, tallied: Tallied) {
        let Some(ConnectionId(slot)) = tracked.connection else { return };
        if self.slab.live(slot).is_some_and(|entry| !is_closed(&entry.body.state)) {
            self.slab.add_tallied(slot, tallied);
        }
    }

    /// True if a connection has a place in this count.
    pub fn is_tallied(&self, id: ConnectionId, tally: &Tally) -> bool {
        let ConnectionId(slot) = id;
        self.slab.is_tallied(slot, tally)
    }

    /// Gives up the places of a connection that is closed now in all counts.
    pub(super) fn count_no_more(&mut self, slot: u32) {
        if is_closed(&self.slab[slot].body.state) {
            self.slab.leave_tallies(slot);
        }
    }
}

/// True for a connection that only waits for its last segments. As in the kernel, it does not count
/// as one of its host any more (`already_closed` of `nf_conncount`).
fn is_closed(state: &State) -> bool {
    matches!(state, State::Tcp(tcp) if matches!(tcp.state(), TcpState::TimeWait | TcpState::Close))
}
