//! The driver's part: it sends, drops, keeps, answers or hands over a packet whose way through the
//! stages has ended. Reassembly alone keeps packets itself, because it owns the place where fragments
//! wait for their datagram.
//!
//! Other files have parts of the driver too. [`super::stages`] calls the stages,
//! [`super::alias_messages`] releases packets that have waited for an alias,
//! [`super::inner_packets`] confirms connections inside tunnels, and [`super::segments`] makes
//! segments and sends those of an [`Answer`].

use conntrack::syn_proxy::Screening;
use flow::{Class, DropReason, Timestamp};
use netio::{Frame, PortId};
use steer::BucketId;

use crate::egress::bridge::OutputPorts;
use crate::egress::route_decision::RouteDecision;
use crate::path::PacketPath;
use crate::path::alias_table::{Filing, Opener, Waiting};
use crate::path::drop_cause::DropCause;
use crate::path::nat::port_search::Search;
use crate::path::packet::{Item, Kept, Packet, route_of};
use crate::path::reassembly::Pieces;
use crate::path::scratch::{Exit, Progress, Scratch};
use crate::path::step::{Answer, End, FrameEnd, Wait};
use conntrack::Forwarding;

/// The driver's next step after it has disposed of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Nothing: the packet is gone.
    Done,
    /// It takes the packet from the first stage on.
    Restart,
    /// It takes the packet from tracking on.
    Retrack,
    /// It asks the SYN proxy of this number, to which a rule has given the packet.
    RuleProxy(u32),
}

impl PacketPath {
    /// Carries out the end of a packet. The usual end is carried out in line.
    #[inline]
    pub(super) fn dispose(&mut self, end: End, packet: &mut Packet, scratch: &mut Scratch) -> Next {
        let next = match end {
            End::Forward => self.dispose_of_one(End::Forward, packet, scratch),
            end => self.dispose_of_unusual(end, packet, scratch),
        };
        self.drop_discarded(scratch.now);
        next
    }

    #[inline(never)]
    fn dispose_of_unusual(&mut self, end: End, packet: &mut Packet, scratch: &mut Scratch) -> Next {
        self.dispose_of_one(end, packet, scratch)
    }

    #[inline(always)]
    fn dispose_of_one(&mut self, end: End, packet: &mut Packet, scratch: &mut Scratch) -> Next {
        let end = match end {
            End::Retrack => self.take_place(packet, scratch),
            end => end,
        };
        self.finish_tracking(&end, packet, scratch);
        match end {
            End::Forward => {
                if self.deferrals.is_none() || !self.defer(packet, scratch) {
                    self.send_out(packet, &scratch.exit, scratch.now);
                }
            }
            // Reassembly has it.
            End::Wait(Wait::Datagram) => {}
            End::Host if scratch.host_may_refuse && self.ask_host(packet, scratch.now) => {
                self.counters.output.to_host += 1;
            }
            End::Host => {
                let exit = Exit { route: Some(RouteDecision::Host), ..Exit::default() };
                self.send_out(packet, &exit, scratch.now);
            }
            End::Drop(why, _) => {
                let (frame, pieces) = (std::mem::take(&mut packet.frame), packet.pieces.take());
                self.drop_frames(frame, pieces, why);
            }
            End::Wait(Wait::Alias) => self.hold(packet, scratch),
            End::Wait(Wait::Bucket) => self.keep(packet),
            End::Wait(Wait::Opener) => self.hold_follower(packet),
            End::Steer(from) => return self.steer_again(packet, from),
            End::Retrack => {
                scratch.retrack(packet);
                return Next::Retrack;
            }
            End::SynProxy(proxy) => return Next::RuleProxy(proxy),
            End::Answer(answer) => self.answer(answer, packet, scratch),
        }
        Next::Done
    }

    /// Carries out the end of a frame in front of the stages that take packets.
    pub(super) fn dispose_of_frame(&mut self, end: FrameEnd, frame: Frame, now: Timestamp) {
        match end {
            FrameEnd::Forward => {
                self.counters.softnet.processed += 1;
                self.counters.classify(Class::Untracked);
                self.forward(frame, None, None, now.as_nanos());
                self.drop_refused();
            }
            FrameEnd::Host => {
                self.counters.softnet.processed += 1;
                self.counters.output.to_host += 1;
                self.pool.give_back(frame);
            }
            FrameEnd::Drop(why) => self.drop_frame(frame, why),
        }
    }

    /// Carries out the end of a packet in front of all stages.
    #[cold]
    pub(super) fn end_at_once(&mut self, end: End, packet: &mut Packet, now: Timestamp) {
        let mut scratch = Scratch::new(packet, Progress::Untracked, Screening::Off, 0, now);
        let next = self.dispose(end, packet, &mut scratch);
        debug_assert_eq!(next, Next::Done, "the packet has not seen a stage that steers or tracks");
    }

    /// Counts a packet that was tracked, tells the sender if it is refused, and withdraws the
    /// connections that it has opened unless it goes on.
    #[inline(always)]
    fn finish_tracking(&mut self, end: &End, packet: &mut Packet, scratch: &mut Scratch) {
        if let End::Drop(_, Some(reply)) = *end {
            self.reply(reply, packet, scratch);
        }
        scratch.give_hop(&mut packet.frame);
        match scratch.tracking {
            Progress::Untracked | Progress::InFastPath(_) => return,
            Progress::Accepted => self.withdraw(packet, &scratch.tracked, scratch.now),
            Progress::Unreachable => self.end_opened(packet, scratch.now),
            Progress::Confirmed | Progress::Withdrawn => {}
        }
        if let Some(id) = scratch.opened_inside.take() {
            // A packet of a tunnel never waits for an alias.
            self.settle_inside(id, *end == End::Forward, packet, scratch.now);
        }
        if let End::SynProxy(_) = end {
            scratch.tracking = Progress::Withdrawn;
            return;
        }
        scratch.tracking = Progress::Untracked;
        if !matches!(end, End::Host | End::Retrack | End::Answer(Answer::Promise)) {
            self.counters.classify(scratch.tracked.class);
        }
    }

    /// Begins again with a packet for another bucket, or hands it to the owner of that.
    fn steer_again(&mut self, packet: &mut Packet, from: Option<BucketId>) -> Next {
        // A bucket that is about to leave is processed here: its next owner gets packets from this
        // worker only after this one.
        if self.buckets.takes(packet.bucket) {
            return Next::Restart;
        }
        if let Some(from) = from {
            self.require_flush(from);
        }
        self.hand_over(packet.take());
        Next::Done
    }

    /// Hands a packet to the owner of its bucket, another worker.
    pub(super) fn hand_over(&mut self, mut packet: Packet) {
        packet.set_aside();
        let Some(link) = self.buckets.link_of(packet.bucket) else {
            return self.drop_frames(packet.frame, packet.pieces, DropReason::BacklogFull);
        };
        // Packets without a flow count as one flow for each bucket, and so do those of a tunnel, which
        // are of several flows.
        let bucket = u64::from(packet.bucket.0);
        let flow_hash = || match &mut packet.flow {
            Some(flow) => flow.table_hash(&self.hasher) ^ bucket,
            None => bucket,
        };
        let service = packet.frame.service;
        match link.admit(service, flow_hash) {
            Ok(()) => link.stage_packet(service, Item::Packet(packet)),
            Err(reason) => {
                let softnet = &mut self.counters.softnet;
                *match reason {
                    DropReason::FlowLimit => &mut softnet.flow_limit_count,
                    _ => &mut softnet.dropped,
                } += packet.weight() as u64;
                self.drop_frames(packet.frame, packet.pieces, reason);
            }
        }
    }

    /// Has the first packet of a connection wait until replies find it.
    #[cold]
    fn hold(&mut self, packet: &mut Packet, scratch: &mut Scratch) {
        let now = scratch.now;
        let mut packet = packet.take();
        let keyed = packet.flow.map(|flow| flow.keyed.named(&packet.network));
        let search = scratch.search.take().unwrap_or(Search::new(None, 0));
        let bucket = self.buckets.get_mut(packet.bucket);
        match bucket.zip(keyed).filter(|(bucket, _)| bucket.openings.has_room()) {
            Some((bucket, keyed)) => {
                let (exit, generation) = (scratch.exit, self.tracking.generation());
                let opener = Opener { packet, exit, generation, search };
                bucket.openings.push(&keyed, Waiting::Opener(opener));
            }
            None => {
                self.end_search(&mut packet, &search, Filing::Full, now);
                self.end_connection(&packet, now);
                let pieces = packet.pieces.take();
                self.drop_frames(packet.frame, pieces, DropReason::AliasQueueFull);
            }
        }
    }

    /// Has a packet wait behind the one that has opened its connection.
    #[cold]
    fn hold_follower(&mut self, packet: &mut Packet) {
        packet.set_aside();
        if let (Some((keyed, _)), Some(bucket)) =
            (packet.looked_up(), self.buckets.get_mut(packet.bucket))
        {
            bucket.openings.push(&keyed, Waiting::Follower(packet.take()));
        }
    }

    /// Keeps a packet until its bucket arrives.
    fn keep(&mut self, packet: &mut Packet) {
        let bucket = packet.bucket;
        let mut packet = packet.take();
        packet.set_aside();
        let weight = packet.weight();
        if let Err(Kept::Packet(packet)) = self.buckets.keep(bucket, Kept::Packet(packet), weight) {
            self.drop_frames(packet.frame, packet.pieces, DropReason::MoveBufferFull);
        }
    }

    /// Sends a frame, see [`crate::egress::forwarder::Forwarder::send`].
    #[inline(never)]
    pub(super) fn forward(
        &mut self,
        frame: Frame,
        ports: Option<OutputPorts>,
        route: Option<(BucketId, RouteDecision)>,
        now_ns: u64,
    ) {
        let route = route.as_ref().map(|(bucket, route)| (*bucket, route));
        self.forwarder.send(frame, ports, route, now_ns, &mut self.pool, &mut self.counters);
    }

    /// Drops the frame of a packet, or the frames that it came in.
    pub(super) fn drop_frames(
        &mut self,
        frame: Frame,
        pieces: Option<Box<Pieces>>,
        why: impl Into<DropCause>,
    ) {
        let why = why.into();
        let Some(pieces) = pieces else { return self.drop_frame(frame, why) };
        let mut frames = self.take_apart(frame, pieces);
        frames.drain(..).for_each(|frame| self.drop_frame(frame, why));
        self.apart = frames;
    }

    /// Sends the frame of a packet, or the frames that it came in. All of them go one way.
    pub(super) fn send_out(&mut self, packet: &mut Packet, exit: &Exit, now: Timestamp) {
        let found;
        let route = match &exit.route {
            Some(route) => Some(route),
            None => {
                found = route_of(&mut self.forwarder, packet, packet.mark);
                found.as_ref()
            }
        };
        let route = route.map(|route| (packet.bucket, route));
        let now_ns = now.as_nanos();
        let frame = std::mem::take(&mut packet.frame);
        match packet.pieces.take() {
            None => {
                let Self { forwarder, pool, counters, .. } = self;
                forwarder.send(frame, exit.ports, route, now_ns, pool, counters);
            }
            Some(pieces) => {
                let route = route.map(|(bucket, route)| (bucket, *route));
                self.send_pieces(frame, pieces, exit.ports, route, now_ns);
            }
        }
        self.drop_refused();
    }

    #[inline(never)]
    fn send_pieces(
        &mut self,
        frame: Frame,
        pieces: Box<Pieces>,
        ports: Option<OutputPorts>,
        route: Option<(BucketId, RouteDecision)>,
        now_ns: u64,
    ) {
        let mut frames = self.take_apart(frame, pieces);
        for frame in frames.drain(..) {
            self.forward(frame, ports, route, now_ns);
        }
        self.apart = frames;
    }

    /// Sends a packet as it was recorded for its connection.
    #[inline]
    pub(super) fn send_recorded(
        &mut self,
        packet: &mut Packet,
        forwarding: Forwarding,
        now: Timestamp,
    ) {
        let frame = std::mem::take(&mut packet.frame);
        let next = (PortId(forwarding.output), forwarding.station);
        let Self { forwarder, pool, counters, .. } = self;
        forwarder.send_recorded(frame, next, now.as_nanos(), pool, counters);
        self.drop_refused();
    }
}

#[cfg(test)]
#[path = "disposal_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "standby_tests.rs"]
mod standby_tests;
