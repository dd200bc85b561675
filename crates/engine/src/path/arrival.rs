//! The stages that take frames, and the look of a router at the ends of a packet.

use std::ops::ControlFlow;

use flow::{DropReason, Timestamp};
use netio::Frame;
use wire::{Dissected, ETHERNET_LEN, Malformed, Network};

use crate::egress::bridge::is_never_forwarded;
use crate::egress::router::Arrival;
use crate::path::packet::{Item, Packet};
use crate::path::step::{End, FrameEnd, Reply, Step};
use crate::path::zones::Origin;
use crate::path::{PacketPath, TimeSource};

/// The headers of a frame, or the first fault in them.
pub(super) type Headers = Result<Dissected, Malformed>;

impl PacketPath {
    /// Takes the frames that are for this station. A bridge takes all.
    #[inline]
    pub(super) fn arrive(&self, frame: &Frame) -> ControlFlow<FrameEnd> {
        match self.forwarder.arrival(frame) {
            Arrival::Forward => ControlFlow::Continue(()),
            Arrival::Host => ControlFlow::Break(FrameEnd::Host),
            Arrival::Drop(reason, _) => ControlFlow::Break(FrameEnd::Drop(reason.into())),
        }
    }

    /// Takes the headers that were read from a frame. The way of a frame ends here if it is not IP.
    /// They stay where they were read, because they are copied wherever they are handed on.
    #[inline(always)]
    pub(super) fn dissect<'a>(
        &mut self,
        frame: &mut Frame,
        headers: &'a mut Headers,
        now: Timestamp,
    ) -> ControlFlow<FrameEnd, (&'a Network, Origin)> {
        let is_plain = match headers {
            Err(malformed) => return ControlFlow::Break(FrameEnd::Drop((*malformed).into())),
            Ok(Dissected { network, .. }) => {
                if !frame.admit_offload(network.as_ref()) {
                    let end = FrameEnd::Drop(DropReason::OffloadMismatch.into());
                    return ControlFlow::Break(end);
                }
                let is_router = self.forwarder.router().is_some();
                network.as_ref().is_some_and(|it| it.offset == ETHERNET_LEN || !is_router)
            }
        };
        if !is_plain {
            return self.dissect_unusual(frame, headers, now);
        }
        match headers {
            Ok(Dissected { network: Some(network), vlan, .. }) => {
                self.learn_station(frame, now);
                let origin = self.tracking.zones().origin(frame.port, *vlan);
                ControlFlow::Continue((network, origin))
            }
            // No such frame is plain.
            _ => ControlFlow::Break(FrameEnd::Host),
        }
    }

    /// Does the same with a frame that has no packet, or has tags in front of the packet that a
    /// router is to take.
    #[cold]
    #[inline(never)]
    fn dissect_unusual<'a>(
        &mut self,
        frame: &mut Frame,
        headers: &'a mut Headers,
        now: Timestamp,
    ) -> ControlFlow<FrameEnd, (&'a Network, Origin)> {
        if self.forwarder.router().is_none() {
            // It has no flow, and stays in the order of its queue.
            if !is_never_forwarded(frame.bytes()) && !self.pass.takes(frame.bytes()) {
                return ControlFlow::Break(FrameEnd::Drop(DropReason::EthertypeRefused.into()));
            }
            self.learn_station(frame, now);
            return ControlFlow::Break(FrameEnd::Forward);
        }
        // A packet in a VLAN is for an interface of the kernel on top of this one.
        let has_packet = matches!(headers, Ok(Dissected { network: Some(_), .. }));
        if !has_packet || wire::priority_tags(frame.bytes()).is_none() {
            return ControlFlow::Break(FrameEnd::Host);
        }
        frame.take_priority_tags();
        *headers = wire::dissect(frame.bytes());
        self.dissect(frame, headers, now)
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
            let has_room = buckets.have_room_for_news();
            if has_room {
                buckets.tell_all(|| Item::Station(heard));
            }
            has_room
        });
    }

    /// Has a router look at the addresses and options of a packet, once.
    #[inline]
    pub(super) fn check_sender(&mut self, packet: &mut Packet) -> Step {
        if packet.is_checked || self.forwarder.router().is_none() {
            return ControlFlow::Continue(());
        }
        match self.forwarder.packet_arrival(&packet.frame, &packet.network) {
            Arrival::Forward => {
                packet.set_checked(&mut self.forwarder);
                ControlFlow::Continue(())
            }
            Arrival::Host => {
                self.counters.softnet.processed += 1;
                ControlFlow::Break(End::Host)
            }
            Arrival::Drop(reason, message) => {
                ControlFlow::Break(End::Drop(reason.into(), message.map(Reply::Icmp)))
            }
        }
    }
}

#[cfg(test)]
#[path = "arrival_offload_tests.rs"]
mod offload_tests;
