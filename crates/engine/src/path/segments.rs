//! TCP segments that the gateway makes from packets, and headers of segments that it changes. Making
//! segments and sending them is the driver's part.

use std::ops::ControlFlow;

use conntrack::nat::TranslatedEnd;
use conntrack::syn_proxy::Screening;
use flow::{Class, DropReason};
use netio::Checksum;
use wire::TcpEditor;
use wire::control_segment::{ControlSegment, MAX_FRAME, Way};

use crate::path::PacketPath;
use crate::path::disposal::Next;
use crate::path::packet::{Packet, TrackedFlow};
use crate::path::scratch::{Progress, Scratch};
use crate::path::step::{Answer, End, Step, dropped};
use crate::path::syn_proxy::REFUSED;

/// The driver's part.
impl PacketPath {
    /// Puts the segment that a stage wants in the place of the packet from which it is made, if a
    /// stage wants one. Returns the end of the packet.
    #[cold]
    pub(super) fn take_place(&mut self, packet: &mut Packet, scratch: &mut Scratch) -> End {
        let Some(segment) = scratch.proxy.instead.take() else { return End::Retrack };
        let Some(made) = self.make(packet, &segment) else { return REFUSED };
        let before = std::mem::replace(packet, made);
        self.pool.give_back(before.frame);
        End::Retrack
    }

    /// Sends the answer to a packet in the place of the packet.
    pub(super) fn answer(&mut self, answer: Answer, packet: &mut Packet, scratch: &Scratch) {
        let back = scratch.proxy.back.and_then(|segment| self.make(packet, &segment));
        let along = scratch.proxy.along.and_then(|segment| self.make(packet, &segment));
        let way_back = self.way_back(packet);
        let (frame, pieces) = (std::mem::take(&mut packet.frame), packet.pieces.take());
        let Some(mut back) = back else {
            along.into_iter().for_each(|along| self.pool.give_back(along.frame));
            return self.drop_frames(frame, pieces, DropReason::SynCookie);
        };
        self.pool.give_back(frame);
        if answer == Answer::Promise {
            self.counters.classify(Class::Untracked);
        } else {
            back.flow = way_back.or(back.flow);
            let mut made = Scratch::new(&back, Progress::Untracked, Screening::Off, 0, scratch.now);
            if let ControlFlow::Break(end) = self.walk_back(&mut back, &mut made) {
                along.into_iter().for_each(|along| self.pool.give_back(along.frame));
                let next = self.dispose(end, &mut back, &mut made);
                debug_assert_eq!(next, Next::Done, "a segment of its own begins nowhere again");
                return;
            }
            self.counters.classify(made.tracked.class);
        }
        let Self { forwarder, pool, counters, .. } = self;
        forwarder.send_made(back.frame.port, back.frame, pool, counters);
        if let Some(mut along) = along {
            self.counters.output.window_updates += 1;
            self.send_out(&mut along, &scratch.exit, scratch.now);
        }
    }

    /// The flow of packets in the direction opposite to a packet.
    fn way_back(&self, packet: &Packet) -> Option<TrackedFlow> {
        let TrackedFlow { keyed, hash: Some(hash) } = packet.flow? else { return None };
        let bucket = self.buckets.get(packet.bucket)?;
        let (keyed, hash) = bucket.connections.way_back(&keyed, hash)?;
        Some(TrackedFlow { keyed, hash: Some(hash) })
    }

    /// Makes a segment from a packet of its connection.
    fn make(&mut self, packet: &Packet, segment: &ControlSegment) -> Option<Packet> {
        let mut bytes = [0; MAX_FRAME];
        let length = segment.write(packet.frame.bytes(), &mut bytes)?;
        let network = wire::dissect(&bytes[..length]).ok()?.network?;
        let mut flow = packet.flow?;
        if segment.way == Way::Back {
            flow.keyed.sender = flow.keyed.sender.opposite();
        }
        let mut frame = self.pool.copy_of(&bytes[..length])?;
        frame.port = packet.frame.port;
        frame.offload.checksum = Checksum::Verified;
        Some(Packet { frame, network, flow: Some(flow), pieces: None, ..*packet })
    }
}

/// The stages of a segment that the gateway has made towards the sender of a packet.
impl PacketPath {
    /// Says how the segment relates to its connection.
    pub(super) fn track_made(&mut self, segment: &mut Packet, scratch: &mut Scratch) -> Step {
        let tracked = self.track(segment, Screening::Off, scratch.now);
        if let Some(why) = tracked.why {
            return dropped(why);
        }
        scratch.set_tracked(tracked);
        ControlFlow::Continue(())
    }

    /// Gives the segment the ends that its connection leaves with.
    pub(super) fn translate_made(&mut self, segment: &mut Packet, scratch: &mut Scratch) -> Step {
        let address_changes = self.address_changes(segment, &scratch.tracked);
        self.readdress(segment, &address_changes, TranslatedEnd::Destination);
        self.readdress(segment, &address_changes, TranslatedEnd::Source);
        ControlFlow::Continue(())
    }
}

impl PacketPath {
    /// Changes the header of a segment, and of the fragment that it came in.
    pub(super) fn edit(&mut self, packet: &mut Packet, change: impl FnOnce(&mut TcpEditor<'_>)) {
        let Packet { frame, network, pieces, .. } = packet;
        let covers_all = !matches!(frame.offload.checksum, Checksum::Partial { .. });
        let Some(mut segment) = TcpEditor::new(frame.bytes_mut(), network, covers_all) else {
            return;
        };
        change(&mut segment);
        if let Some(pieces) = pieces {
            pieces.copy_header(frame.bytes(), network);
        }
    }
}
