//! The messages of translated connections, which helpers edit. A message may become longer or
//! shorter, and then the sequence numbers behind it shift.

use std::ops::ControlFlow;

use conntrack::nat::Edit;
use flow::DropReason;
use netio::Frame;
use wire::{TcpFlags, Transport};

use crate::egress::path_mtu::come_from;
use crate::path::PacketPath;
use crate::path::packet::Packet;
use crate::path::refragment::refragment;
use crate::path::scratch::Scratch;
use crate::path::step::{OrDrop, Step};

impl PacketPath {
    /// Gives a packet of a connection with edited messages the sequence numbers as its sender means
    /// them, for tracking to see.
    #[inline]
    pub(in crate::path) fn shift_numbers_in(
        &mut self,
        packet: &mut Packet,
        scratch: &mut Scratch,
    ) -> Step {
        let bucket = self.buckets.get(packet.bucket);
        if bucket.is_some_and(|bucket| bucket.connections.has_adjustments()) && !packet.untracked {
            self.shift_edited_numbers_in(packet, scratch);
        }
        ControlFlow::Continue(())
    }

    #[cold]
    fn shift_edited_numbers_in(&mut self, packet: &mut Packet, scratch: &mut Scratch) {
        let found = packet.looked_up().zip(self.buckets.get(packet.bucket));
        let Some((direction, adjustment)) = found.and_then(|((keyed, hash), bucket)| {
            bucket.connections.adjustment(&keyed, hash, scratch.now)
        }) else {
            return;
        };
        match packet.network.transport {
            // A SYN may open the next connection, whose numbers nobody has changed.
            Transport::Tcp(tcp) if tcp.flags.contains(TcpFlags::SYN) => {}
            Transport::Tcp(_) => {
                self.edit(packet, |segment| adjustment.before_tracking(direction, segment));
                scratch.shift = Some((direction, adjustment));
            }
            _ => {
                // The quoted packet has gone the other way.
                let quoted = direction.reversed();
                adjustment.quoted(quoted, packet.frame.bytes_mut(), &packet.network);
            }
        }
    }

    /// Gives a packet the sequence numbers that its receiver expects.
    #[inline]
    pub(in crate::path) fn shift_numbers_out(
        &mut self,
        packet: &mut Packet,
        scratch: &mut Scratch,
    ) -> Step {
        if let Some((direction, adjustment)) = scratch.shift {
            self.edit(packet, |segment| adjustment.after_tracking(direction, segment));
        }
        ControlFlow::Continue(())
    }

    /// Edits the message of a packet as the helper that has read it wants.
    #[cold]
    pub(in crate::path) fn edit_payload(&mut self, packet: &mut Packet, edits: &[Edit]) -> Step {
        let Packet { frame, network, pieces, .. } = packet;
        let covers = frame.offload.checksum.covers();
        let places = edits.iter().map(|edit| (edit.place.clone(), &edit.text[..]));
        let mut bytes = Vec::new();
        let too_long = DropReason::OutputTooLong;
        *network = wire::edit_payload(frame.bytes(), network, places, covers, &mut bytes)
            .ok_or(too_long)
            .or_drop()?;
        let mut edited = self.pool.copy_of(&bytes).ok_or(too_long).or_drop()?;
        come_from(frame, &mut edited, &mut self.pool);
        edited.supplied_hash = frame.supplied_hash;
        edited.offload = frame.offload;
        // A packet that fits one segment must not be cut into segments.
        edited.offload.segmentation = frame.offload.segmentation.filter(|it| {
            edited.len() > usize::from(it.header_length) + usize::from(it.segment_size)
        });
        self.pool.give_back(std::mem::replace(frame, edited));
        let Some(pieces) = pieces else {
            return ControlFlow::Continue(());
        };
        // The whole is still needed to be judged, so a copy is cut. The fragments are cut again
        // for the next link when they are sent.
        let mut whole = self.pool.duplicate(frame).ok_or(too_long).or_drop()?;
        let mut cut: Vec<Frame> = Vec::new();
        refragment(&mut whole, pieces, &mut self.pool, &mut cut).or_drop()?;
        pieces.replace(cut, &mut self.pool);
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
#[path = "payload_edits_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "payload_edits_ports_tests.rs"]
mod ports_tests;

#[cfg(test)]
#[path = "payload_edits_sip_tests.rs"]
mod sip_tests;
