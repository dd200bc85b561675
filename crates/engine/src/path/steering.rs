//! Steering: finds the flow and the bucket of a frame, and hands it to the worker that owns the
//! bucket.

use std::num::NonZeroU32;
use std::ops::ControlFlow;

use conntrack::Guess;
use flow::{DropReason, Timestamp};
use netio::Frame;
use steer::Steered;
use wire::{ETHERNET_LEN, Network};

use crate::egress::router::Arrival;
use crate::path::PacketPath;
use crate::path::packet::{Item, Packet, TrackedFlow};
use crate::path::reassembly::Pieces;
use crate::path::zones::Origin;

impl PacketPath {
    /// Finds the bucket of a frame and hands it to the bucket's owner. In line, although it is
    /// called from two places: a frame is copied when it is handed to a function.
    #[inline(always)]
    pub(crate) fn steer(&mut self, mut frame: Frame, now: Timestamp) {
        if let arrival @ (Arrival::Host | Arrival::Drop(_)) = self.forwarder.arrival(&frame) {
            return self.end_arrival(frame, arrival, now);
        }
        let (network, vlan) = match wire::dissect(frame.bytes()) {
            Ok(dissected) => (dissected.network, dissected.vlan),
            Err(malformed) => return self.drop_frame(frame, malformed.into()),
        };
        if !frame.admit_offload(network.as_ref()) {
            return self.drop_frame(frame, DropReason::OffloadMismatch.into());
        }
        let Some(network) =
            network.filter(|it| it.offset == ETHERNET_LEN || self.forwarder.router().is_none())
        else {
            return self.take_unrouted(frame, network, now);
        };
        self.learn_station(&frame, now);
        let origin = self.tracking.zones().origin(frame.port, vlan);
        let packet = self.packet(frame, network, origin, None);
        if self.buckets.is_routed_here(packet.bucket) {
            self.batch.push(packet);
        } else {
            self.hand_over_checked(packet, now);
        }
    }

    /// Hands a packet that has just arrived to the owner of its bucket.
    #[inline(never)]
    fn hand_over_checked(&mut self, mut packet: Packet, now: Timestamp) {
        match self.check_sender(&mut packet) {
            ControlFlow::Continue(()) => self.hand_over(packet),
            ControlFlow::Break(end) => self.end_at_once(end, &mut packet, now),
        }
    }

    /// Finds the flow and the bucket of a packet.
    pub(super) fn packet(
        &self,
        frame: Frame,
        network: Network,
        origin: Origin,
        pieces: Option<Box<Pieces>>,
    ) -> Packet {
        let supplied = NonZeroU32::new(frame.supplied_hash);
        let steered = self.hasher.steer_frame(frame.bytes(), &network, origin.zone, supplied);
        let (flow, bucket, carries) = match steered {
            Steered::Flow { keyed, hash, bucket } | Steered::Quoted { keyed, hash, bucket } => {
                (Some(TrackedFlow { keyed, hash }), bucket, false)
            }
            Steered::Carrying { keyed, hash, bucket } => {
                (Some(TrackedFlow { keyed, hash }), bucket, true)
            }
            Steered::Fragment { bucket } | Steered::Keyless { bucket } => (None, bucket, false),
        };
        Packet {
            frame,
            network,
            flow,
            guess: Guess::NONE,
            bucket,
            origin,
            pieces,
            zones: None,
            mark: 0,
            passed_raw: false,
            per_packet: false,
            untracked: false,
            carries,
            is_checked: false,
            is_for_host: false,
            alias_in: None,
        }
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
        match link.admit(flow_hash) {
            Ok(()) => link.stage(Item::Packet(packet)),
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
}

#[cfg(test)]
#[path = "steering_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "steering_offload_tests.rs"]
mod offload_tests;

#[cfg(test)]
#[path = "steering_tunnels_tests.rs"]
mod tunnels_tests;
