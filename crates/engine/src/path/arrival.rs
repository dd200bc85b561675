//! Arrival: what a worker does with a frame or packet that is not on its way through the gateway.

use std::ops::ControlFlow;

use flow::{Class, DropReason, Timestamp};
use netio::Frame;
use wire::Network;

use crate::egress::bridge::is_never_forwarded;
use crate::egress::router::Arrival;
use crate::path::packet::{Item, Packet};
use crate::path::step::{End, Reply, Step, dropped};
use crate::path::{PacketPath, TimeSource};

impl PacketPath {
    /// Disposes of a frame in whose packet a router has no part: one that is not IP, or lies
    /// behind tags.
    #[cold]
    #[inline(never)]
    pub(super) fn take_unrouted(&mut self, frame: Frame, network: Option<Network>, now: Timestamp) {
        let arrival = self.forwarder.packet_arrival(&frame, network.as_ref());
        self.end_arrival(frame, arrival, now);
    }

    /// Takes the tags off a frame whose tags have nothing but a priority, and steers it.
    #[cold]
    #[inline(never)]
    fn steer_untagged(&mut self, mut frame: Frame, now: Timestamp) {
        frame.take_priority_tags();
        self.steer(frame, now);
    }

    /// Passes what is not IP if it is on the list. It has no flow and stays in the order of its
    /// queue.
    #[cold]
    #[inline(never)]
    fn pass_unjudged(&mut self, frame: Frame, now: Timestamp) {
        if !is_never_forwarded(frame.bytes()) && !self.pass.takes(frame.bytes()) {
            return self.drop_frame(frame, DropReason::EthertypeRefused.into());
        }
        self.learn_station(&frame, now);
        self.counters.softnet.processed += 1;
        self.counters.classify(Class::Untracked);
        self.forward(frame, None, None, now.as_nanos());
        self.drop_refused();
    }

    /// Notes where the sender of a frame is, before rules ask by which port an answer leaves, and
    /// tells the other workers. Only a bridge does.
    #[inline(always)]
    pub(super) fn learn_station(&mut self, frame: &Frame, now: Timestamp) {
        if self.forwarder.learns() {
            self.learn_new_station(frame, now);
        }
    }

    #[inline(never)]
    fn learn_new_station(&mut self, frame: &Frame, now: Timestamp) {
        let now_ns = match self.time {
            TimeSource::Turn => now.as_nanos(),
            TimeSource::Frame => frame.timestamp,
        };
        let Self { forwarder, buckets, .. } = self;
        forwarder.learn(frame, now_ns, |heard| {
            let take_news = buckets.take_news();
            if take_news {
                buckets.tell_all(|| Item::Station(heard));
            }
            take_news
        });
    }

    /// Has a router look at the addresses and options of a packet, once.
    #[inline]
    pub(super) fn check_sender(&mut self, packet: &mut Packet) -> Step {
        if packet.is_checked || self.forwarder.router().is_none() {
            return ControlFlow::Continue(());
        }
        match self.forwarder.packet_arrival(&packet.frame, Some(&packet.network)) {
            Arrival::Forward => {
                packet.set_checked(&self.forwarder);
                ControlFlow::Continue(())
            }
            // Steering has taken priority tags off.
            Arrival::Host | Arrival::Untag => {
                self.counters.softnet.processed += 1;
                ControlFlow::Break(End::Host)
            }
            Arrival::Drop(reason) => dropped(reason),
            Arrival::Refuse(reason, message) => {
                ControlFlow::Break(End::Drop(reason.into(), Some(Reply::Icmp(message))))
            }
        }
    }

    /// Disposes of a frame that a router does not route.
    #[inline(never)]
    pub(super) fn end_arrival(&mut self, frame: Frame, arrival: Arrival, now: Timestamp) {
        match arrival {
            Arrival::Forward => self.pass_unjudged(frame, now),
            Arrival::Untag => self.steer_untagged(frame, now),
            Arrival::Host => {
                self.counters.softnet.processed += 1;
                self.counters.output.to_host += 1;
                self.pool.give_back(frame);
            }
            Arrival::Drop(reason) => self.drop_frame(frame, reason.into()),
            Arrival::Refuse(reason, message) => {
                self.tell(&frame, message, now);
                self.drop_frame(frame, reason.into());
            }
        }
    }
}
