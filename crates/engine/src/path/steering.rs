//! The stage that finds the flow and the bucket of a packet.

use std::num::NonZeroU32;

use conntrack::Guess;
use netio::{Frame, PortId};
use steer::{BucketId, Steered, SteeringHasher};
use wire::{Dissected, Network};

use crate::path::PacketPath;
use crate::path::packet::{Packet, TrackedFlow};
use crate::path::reassembly::Pieces;
use crate::path::zones::{Origin, Zones};

impl PacketPath {
    /// Finds the flow and the bucket of a packet. Every packet is made here, and a call would copy it.
    #[inline(always)]
    pub(super) fn steer(
        &self,
        frame: Frame,
        network: &Network,
        origin: Origin,
        pieces: Option<Box<Pieces>>,
    ) -> Packet {
        let supplied = NonZeroU32::new(frame.supplied_hash);
        let steered = self.hasher.steer_frame(frame.bytes(), network, origin.zone, supplied);
        packet_of(frame, network, origin, pieces, steered)
    }

    /// Finds packets as the first stages of this worker do.
    pub(crate) fn packet_finder(&self) -> PacketFinder {
        PacketFinder { hasher: self.hasher.clone(), zones: self.tracking.zones().clone() }
    }
}

/// Finds packets in frames before a worker takes these. It holds for as long as the zones, buckets
/// and settings of the worker stay as they are.
#[derive(Clone, Debug)]
pub struct PacketFinder {
    hasher: SteeringHasher,
    zones: Zones,
}

impl PacketFinder {
    /// The packet of a frame, without the frame. `None` for a frame that is not IP or is malformed.
    #[inline(always)]
    pub fn packet_of(&self, frame: &[u8], port: PortId) -> Option<Packet> {
        let headers = wire::dissect(frame);
        let Ok(Dissected { network: Some(network), vlan, .. }) = &headers else { return None };
        let origin = self.zones.origin(port, *vlan);
        let steered = self.hasher.steer_frame(frame, network, origin.zone, None);
        let mut packet = packet_of(Frame::default(), network, origin, None, steered);
        if let Some(flow) = &mut packet.flow {
            flow.table_hash(&self.hasher);
        }
        Some(packet)
    }
}

#[inline(always)]
fn packet_of(
    frame: Frame,
    network: &Network,
    origin: Origin,
    pieces: Option<Box<Pieces>>,
    steered: Steered,
) -> Packet {
    let (flow, bucket, carries) = flow_of(steered);
    Packet {
        frame,
        network: *network,
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
        is_local: false,
        alias_in: None,
    }
}

/// The flow of a packet and its bucket, and whether what the packet carries is to be judged.
#[inline]
pub(super) fn flow_of(steered: Steered) -> (Option<TrackedFlow>, BucketId, bool) {
    match steered {
        Steered::Flow { keyed, hash, bucket } | Steered::Quoted { keyed, hash, bucket } => {
            (Some(TrackedFlow { keyed, hash }), bucket, false)
        }
        Steered::Carrying { keyed, hash, bucket } => {
            (Some(TrackedFlow { keyed, hash }), bucket, true)
        }
        Steered::Fragment { bucket } | Steered::Keyless { bucket } => (None, bucket, false),
    }
}

#[cfg(test)]
#[path = "steering_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "steering_tunnels_tests.rs"]
mod tunnels_tests;
