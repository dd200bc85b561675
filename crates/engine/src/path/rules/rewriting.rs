//! Fields of headers that rules set without state.

use netio::Frame;
use steer::BucketId;
use wire::{Dissected, FieldWrite, Network};

use crate::path::PacketPath;
use crate::path::packet::Packet;
use crate::path::steering::flow_of;
use conntrack::Guess;

impl PacketPath {
    /// Writes the fields that rules have just set into a packet, and into the fragments that it came
    /// in. `hop_taken` says that rules see the packet with a hop less than the output expects.
    pub(in crate::path) fn rewrite(&self, packet: &mut Packet, hop_taken: bool) {
        let Some(rules) = &self.rules else { return };
        let Packet { frame, network, pieces, .. } = packet;
        let transport_len = network.transport_len() as usize;
        let writes = rules.writes();
        let apply = |write: &FieldWrite, frame: &mut Frame, network: &mut Network| {
            let covers = frame.offload.checksum.covers();
            write.apply(frame.bytes_mut(), network, transport_len, covers)
        };
        for piece in pieces.iter_mut().flat_map(|pieces| pieces.frames_mut()) {
            let Ok(Dissected { network: Some(mut network), .. }) = wire::dissect(piece.bytes())
            else {
                continue;
            };
            for write in writes {
                let is_written = apply(write, piece, &mut network);
                if hop_taken
                    && is_written
                    && write.is_hops(network.family)
                    && let Some(packet) = piece.bytes_mut().get_mut(network.offset.into()..)
                {
                    wire::give_hop(packet);
                }
            }
        }
        for write in writes {
            apply(write, frame, network);
        }
        // The interface has hashed other ends.
        frame.supplied_hash = 0;
    }

    /// Finds the flow and the bucket of a packet anew, after rules in front of tracking have
    /// written into it: tracking is to see it as it is now. Returns the bucket that it leaves, if
    /// its flow is another one.
    #[cold]
    pub(in crate::path) fn steer_rewritten(&self, packet: &mut Packet) -> Option<BucketId> {
        let Packet { frame, network, origin, .. } = &*packet;
        let steered = self.hasher.steer_frame(frame.bytes(), network, origin.zone, None);
        let (flow, bucket, carries) = flow_of(steered);
        if flow.map(|flow| flow.keyed) == packet.flow.map(|flow| flow.keyed) {
            return None;
        }
        let left = packet.alias_in.take().unwrap_or(packet.bucket);
        (packet.flow, packet.bucket, packet.carries) = (flow, bucket, carries);
        packet.guess = Guess::NONE;
        packet.is_checked = false;
        Some(left)
    }
}

#[cfg(test)]
#[path = "rewriting_tests.rs"]
mod tests;
