//! Follows translated connections: translates the connections that they announce, and edits their
//! messages, which may become longer or shorter.

use conntrack::DropCause;
use conntrack::Tracked;
use conntrack::syn_proxy::Screening;
use flow::{DropReason, Timestamp};
use netio::Frame;
use wire::{TcpFlags, Transport};

use crate::judging::Passed;
use crate::packet::Packet;
use crate::path_mtu::come_from;
use crate::refragment::refragment;
use crate::worker::Worker;

impl Worker {
    /// Translates a new connection that a translated one has announced. True if it is such a
    /// connection; no rule is asked for its translation then.
    ///
    /// # Errors
    /// The reason to drop the packet.
    #[inline]
    pub(crate) fn follow(
        &mut self,
        packet: &Packet,
        tracked: &Tracked,
        now: Timestamp,
    ) -> Result<bool, DropCause> {
        if !(tracked.fresh && tracked.is_expected()) {
            return Ok(false);
        }
        self.choose(packet, tracked, now, |table, id, supply, context| {
            table.follow(id, supply, context)
        })
    }

    /// Judges a packet in whose bucket there are connections with edited messages. Tracking sees
    /// the sequence numbers as their sender means them, and each end gets the numbers that it
    /// expects.
    #[cold]
    pub(crate) fn admit_adjusted(
        &mut self,
        packet: &mut Packet,
        screening: Screening,
        now: Timestamp,
    ) -> Result<Passed, DropCause> {
        let found = packet.looked_up().zip(self.ownership.get(packet.bucket));
        let found = found
            .filter(|_| !packet.untracked)
            .and_then(|((keyed, hash), bucket)| bucket.connections.adjustment(&keyed, hash, now));
        let Some((direction, adjustment)) = found else {
            return self.admit_as_it_is(packet, screening, now);
        };
        match packet.network.transport {
            // A SYN may open the next connection, whose numbers nobody has changed.
            Transport::Tcp(tcp) if tcp.flags.contains(TcpFlags::SYN) => {
                self.admit_as_it_is(packet, screening, now)
            }
            Transport::Tcp(_) => {
                self.edit(packet, |segment| adjustment.before_tracking(direction, segment));
                let passed = self.admit_as_it_is(packet, screening, now)?;
                self.edit(packet, |segment| adjustment.after_tracking(direction, segment));
                Ok(passed)
            }
            _ => {
                // The quoted packet has gone the other way.
                let quoted = direction.reversed();
                adjustment.quoted(quoted, packet.frame.bytes_mut(), &packet.network);
                self.admit_as_it_is(packet, screening, now)
            }
        }
    }

    /// Edits the message of a packet that a helper has just read, if it has to change.
    ///
    /// # Errors
    /// The reason to drop the packet.
    #[cold]
    pub(crate) fn edit_payload(&mut self, packet: &mut Packet) -> Result<(), DropCause> {
        let Some(bucket) = self.ownership.get_mut(packet.bucket) else { return Ok(()) };
        let edits = bucket.connections.take_edits();
        if edits.is_empty() {
            return Ok(());
        }
        let Packet { frame, network, pieces, .. } = packet;
        let covers = frame.offload.checksum.covers();
        let places = edits.iter().map(|edit| (edit.place.clone(), &edit.text[..]));
        let mut bytes = Vec::new();
        let too_long = DropCause::from(DropReason::OutputTooLong);
        *network = wire::edit_payload(frame.bytes(), network, places, covers, &mut bytes)
            .ok_or(too_long)?;
        let mut edited = self.pool.copy_of(&bytes).ok_or(too_long)?;
        come_from(frame, &mut edited, &mut self.pool);
        edited.supplied_hash = frame.supplied_hash;
        edited.offload = frame.offload;
        // A packet that fits one segment must not be cut into segments.
        edited.offload.segmentation = frame.offload.segmentation.filter(|it| {
            edited.len() > usize::from(it.header_length) + usize::from(it.segment_size)
        });
        self.pool.give_back(std::mem::replace(frame, edited));
        let Some(pieces) = pieces else { return Ok(()) };
        // The whole is still needed to be judged, so a copy is cut. The fragments are cut again
        // for the next link when they are sent.
        let mut whole = self.pool.duplicate(frame).ok_or(too_long)?;
        let mut cut: Vec<Frame> = Vec::new();
        refragment(&mut whole, pieces, u32::MAX, None, &mut self.pool, &mut cut)
            .map_err(|refused| refused.reason)?;
        pieces.replace(cut, &mut self.pool);
        Ok(())
    }
}
