//! The short way of the packets that nearly all are: of TCP connections that both ends keep up.

use flow::{Class, Verdict};
use wire::Transport;

use super::{Met, Table, deadline};
use crate::entry::{Entry, Status};
use crate::proto::State;
use crate::proto::tcp::{Segment, Timeout};
use crate::{ConnectionId, Context, Tracked, TrackedPacket};

impl Table {
    /// Does what [`Table::track`] does with a segment of an assured TCP connection that moves
    /// nothing but its windows and its timer, and has nobody who wants to know of it. `None` for
    /// all other packets; nothing has changed then.
    #[inline(always)]
    pub(super) fn keep_up(
        &mut self,
        Met { slot, direction }: Met,
        packet: &TrackedPacket<'_>,
        context: &Context<'_>,
    ) -> Option<Tracked> {
        const SETTLED: Status = Status::SEEN_REPLY.with(Status::ASSURED);
        if self.slab.has_policies() {
            return None;
        }
        let Entry { head, body } = &mut self.slab[slot];
        let status = head.status;
        if !status.has_all(SETTLED) || status.has(Status::ACCOUNTED.with(Status::FRESH)) {
            return None;
        }
        if body.is_behind(packet.map_epoch) {
            return None;
        }
        let State::Tcp(tracker) = &mut body.state else { return None };
        let Transport::Tcp(tcp) = &packet.network.transport else { return None };
        let segment = Segment::parse(tcp, packet.network, packet.frame).ok()?;
        let Timeout(timeout) = tracker.keep_up(direction, &segment, &context.settings.tcp)?;
        head.deadline = deadline(context.now, timeout);
        let (mark, is_filed_late) = (head.mark, head.is_filed_late());
        if is_filed_late {
            self.refile(slot);
        }
        Some(Tracked {
            class: Class::Established,
            direction: Some(direction),
            mark,
            verdict: Verdict::Accept,
            why: None,
            connection: Some(ConnectionId(slot)),
            fresh: false,
            status,
        })
    }
}
