//! The way of a packet through the stages, from top to bottom.
//!
//! A frame arrives, its headers are read, and it becomes a packet of a bucket
//! ([`PacketPath::take_frame`]). The owner of the bucket takes the packet through the other stages,
//! with a batch of others.
//!
//! A stage is a function of the packet, what the worker owns for its bucket, and the packet's
//! scratch area. It says what becomes of the packet, and disposes of nothing: the driver does
//! ([`PacketPath::dispose`]).

use std::ops::ControlFlow;

use conntrack::syn_proxy::Screening;
use conntrack::{Guess, Table};
use flow::Timestamp;
use netio::Frame;

use crate::BATCH;
use crate::path::disposal::Next;
use crate::path::fast_path::FastPath;
use crate::path::packet::Packet;
use crate::path::prefetch::Hardware;
use crate::path::scratch::{Progress, Scratch};
use crate::path::step::{End, Stage, Step};
use crate::path::{PacketPath, TimeSource};

impl PacketPath {
    /// Takes a frame through the stages up to steering. Its packet joins the batch, or goes to the
    /// worker that owns its bucket. In line, because a frame is copied when it is handed to a
    /// function.
    #[inline(always)]
    pub(crate) fn take_frame(&mut self, mut frame: Frame, now: Timestamp) {
        let arrived = self.arrive(&frame);
        seam(Stage::Arrive, &arrived);
        if let ControlFlow::Break(end) = arrived {
            return self.dispose_of_frame(end, frame, now);
        }
        let mut headers = wire::dissect(frame.bytes());
        let dissected = self.dissect(&mut frame, &mut headers, now);
        seam(Stage::Dissect, &dissected);
        let (network, origin) = match dissected {
            ControlFlow::Continue(dissected) => dissected,
            ControlFlow::Break(end) => return self.dispose_of_frame(end, frame, now),
        };
        let packet = self.steer(frame, network, origin, None);
        if self.buckets.is_routed_here(packet.bucket) {
            seam::<End, _>(Stage::Steer, &ControlFlow::Continue(()));
            self.batch.push(packet);
        } else {
            seam::<_, ()>(Stage::Steer, &ControlFlow::Break(End::Steer(None)));
            self.hand_over_checked(packet, now);
        }
    }

    /// Takes a frame, and processes its packet at once.
    pub(crate) fn take_alone(&mut self, frame: Frame, now: Timestamp) {
        self.take_frame(frame, now);
        self.process_received(now);
    }

    /// Does the same with a frame whose packet was found before, by the finder of this worker. Only a
    /// bridge that remembers no stations has nothing else to do in the stages before.
    pub(crate) fn take_found(&mut self, packet: &mut Packet, mut frame: Frame, now: Timestamp) {
        let is_wire = self.forwarder.router().is_none() && !self.forwarder.learns();
        if !is_wire || !frame.admit_offload(Some(&packet.network)) {
            return self.take_alone(frame, now);
        }
        packet.frame = frame;
        for stage in [Stage::Arrive, Stage::Dissect] {
            seam::<End, _>(stage, &ControlFlow::Continue(()));
        }
        if self.buckets.is_routed_here(packet.bucket) {
            seam::<End, _>(Stage::Steer, &ControlFlow::Continue(()));
            packet.guess = self.guess(packet);
            self.process(packet, now);
        } else {
            seam::<_, ()>(Stage::Steer, &ControlFlow::Break(End::Steer(None)));
            self.hand_over_checked(packet.take(), now);
        }
    }

    /// Hands a packet that has just arrived to the owner of its bucket, if its sender may send it.
    #[inline(never)]
    fn hand_over_checked(&mut self, mut packet: Packet, now: Timestamp) {
        let checked = self.check_sender(&mut packet);
        seam(Stage::Sender, &checked);
        match checked {
            ControlFlow::Continue(()) => self.hand_over(packet),
            ControlFlow::Break(end) => self.end_at_once(end, &mut packet, now),
        }
    }

    /// Tracks a batch: first the lines of the indices are asked for, then those
    /// of the entries, and when the first packet is looked at, its lines are near.
    pub(super) fn process_batch(&mut self, now: Timestamp) {
        if self.batch.is_empty() {
            return;
        }
        let mut batch = std::mem::take(&mut self.batch);
        for packet in &mut batch {
            if let Some(flow) = &mut packet.flow {
                flow.table_hash(&self.hasher);
            }
            self.prefetch_index(packet);
        }
        for packet in &mut batch {
            packet.guess = self.prefetch_entry(packet);
        }
        for packet in &mut batch {
            self.process(packet, now);
        }
        batch.clear();
        self.batch = batch;
    }

    /// The table of the connection of a packet, and the hash by which it is found there.
    #[inline(always)]
    fn table_of(&self, packet: &Packet) -> Option<(&Table, u64)> {
        let hash = packet.flow.as_ref()?.hash?;
        Some((&self.buckets.get(packet.bucket)?.connections, hash))
    }

    /// Asks for the line of the index by which the connection of a packet is found.
    #[inline]
    pub(crate) fn prefetch_index(&self, packet: &Packet) {
        if let Some((table, hash)) = self.table_of(packet) {
            table.prefetch_index(hash, Hardware);
        }
    }

    /// Where the connection of a packet most likely lies.
    fn guess(&self, packet: &Packet) -> Guess {
        self.table_of(packet).map_or(Guess::NONE, |(table, hash)| table.guess(hash))
    }

    /// Asks for the lines of the connection of a packet, and says where it most likely lies.
    #[inline]
    pub(crate) fn prefetch_entry(&self, packet: &Packet) -> Guess {
        let asked = self.table_of(packet);
        asked.map_or(Guess::NONE, |(table, hash)| table.prefetch_entry(hash, Hardware))
    }

    /// Puts a packet into the batch, and processes the batch if it is full.
    pub(super) fn take_packet(&mut self, packet: Packet, now: Timestamp) {
        self.batch.push(packet);
        if self.batch.len() >= BATCH {
            self.process_batch(now);
        }
    }

    /// Takes a packet through the stages, again if it is led to another bucket of this worker. It
    /// leaves its place.
    pub(super) fn process(&mut self, packet: &mut Packet, now: Timestamp) {
        while self.process_once(packet, now) == Next::Restart {}
    }

    fn process_once(&mut self, packet: &mut Packet, now: Timestamp) -> Next {
        // A replay does without the SYN proxy: cookies can not be in a capture.
        let (now, screening) = match self.time {
            TimeSource::Turn => (now, Screening::Ask),
            TimeSource::Frame => (Timestamp::from_nanos(packet.frame.timestamp), Screening::Off),
        };
        match self.take_fast_path(packet, screening, now) {
            FastPath::Forward(forwarding) => {
                seam::<_, ()>(Stage::FastPath, &ControlFlow::Break(End::Forward));
                self.send_recorded(packet, forwarding, now);
                Next::Done
            }
            FastPath::Tracked(tracked) => {
                seam::<End, _>(Stage::FastPath, &ControlFlow::Continue(()));
                self.take_slow_path(packet, Progress::InFastPath(tracked), screening, now)
            }
            FastPath::No => {
                seam::<End, _>(Stage::FastPath, &ControlFlow::Continue(()));
                self.take_slow_path(packet, Progress::Untracked, screening, now)
            }
        }
    }

    fn take_slow_path(
        &mut self,
        packet: &mut Packet,
        progress: Progress,
        screening: Screening,
        now: Timestamp,
    ) -> Next {
        let input = self.rules.as_ref().map_or(0, |it| it.interface(packet.frame.port));
        let mut scratch = Scratch::new(packet, progress, screening, input, now);
        let mut end = self.walk(packet, &mut scratch);
        loop {
            match self.dispose(end, packet, &mut scratch) {
                Next::Retrack => end = self.walk_from_tracking(packet, &mut scratch),
                Next::RuleProxy(proxy) => {
                    end = self.take_by_rule(packet, &mut scratch, proxy);
                    seam::<_, ()>(Stage::RuleProxy, &ControlFlow::Break(end));
                }
                next => return next,
            }
        }
    }

    /// All stages.
    pub(super) fn walk(&mut self, packet: &mut Packet, scratch: &mut Scratch) -> End {
        match self.stages_before_tracking(packet, scratch) {
            ControlFlow::Continue(()) => self.walk_from_tracking(packet, scratch),
            ControlFlow::Break(end) => end,
        }
    }

    /// The stages from tracking on.
    fn walk_from_tracking(&mut self, packet: &mut Packet, scratch: &mut Scratch) -> End {
        match self.stages_from_tracking(packet, scratch) {
            ControlFlow::Continue(()) => End::Forward,
            ControlFlow::Break(end) => end,
        }
    }

    fn stages_before_tracking(&mut self, packet: &mut Packet, scratch: &mut Scratch) -> Step {
        // Where rules set zones, nobody knows before whose packet it is.
        let sets_zones = self.rules.as_ref().is_some_and(|rules| rules.sets_zones());
        if scratch.tracking == Progress::Untracked {
            self.stage(Stage::Bucket, packet, scratch, Self::find_bucket)?;
            // It is asked in front of the stages too, where a packet has no scratch area.
            self.stage(Stage::Sender, packet, scratch, |path, it, _| path.check_sender(it))?;
            if !sets_zones {
                self.stage(Stage::Alias, packet, scratch, Self::follow_alias)?;
            }
            self.count_arrived(packet);
            self.stage(Stage::Reassembly, packet, scratch, Self::reassemble)?;
            if !sets_zones {
                self.stage(Stage::Host, packet, scratch, Self::leave_known_to_host)?;
            }
        }
        self.stage(Stage::RawRules, packet, scratch, Self::ask_raw_rules)?;
        // A packet that the fast path has tracked is in the zone that it arrived in.
        if sets_zones && scratch.tracking == Progress::Untracked {
            self.stage(Stage::Alias, packet, scratch, Self::follow_alias)?;
            self.stage(Stage::Host, packet, scratch, Self::leave_known_to_host)?;
        }
        self.stage(Stage::Proxied, packet, scratch, Self::take_proxied)
    }

    fn stages_from_tracking(&mut self, packet: &mut Packet, scratch: &mut Scratch) -> Step {
        self.stage(Stage::NumbersIn, packet, scratch, Self::shift_numbers_in)?;
        self.stage(Stage::Track, packet, scratch, Self::track_packet)?;
        self.stage(Stage::Destination, packet, scratch, Self::find_destination)?;
        self.stage(Stage::Route, packet, scratch, Self::find_route)?;
        self.stage(Stage::ForwardRules, packet, scratch, Self::ask_forward_rules)?;
        self.stage(Stage::Source, packet, scratch, Self::find_source)?;
        self.stage(Stage::Promise, packet, scratch, Self::promise_if_accepted)?;
        self.stage(Stage::Inner, packet, scratch, Self::check_inner)?;
        self.stage(Stage::Fit, packet, scratch, Self::fit)?;
        self.stage(Stage::Confirm, packet, scratch, Self::confirm)?;
        self.stage(Stage::Record, packet, scratch, Self::record)?;
        self.stage(Stage::NumbersOut, packet, scratch, Self::shift_numbers_out)?;
        self.stage(Stage::ProxiedOut, packet, scratch, Self::finish_proxied)?;
        // It is the last: a packet that has to wait here only has to be sent then.
        self.stage(Stage::Replies, packet, scratch, Self::direct_replies)
    }

    /// The stages of a segment that the gateway has made towards the sender of a packet. It is the
    /// gateway's own, so no rule is asked, and it leaves by the port that the packet came in by.
    pub(super) fn walk_back(&mut self, packet: &mut Packet, scratch: &mut Scratch) -> Step {
        self.stage(Stage::Track, packet, scratch, Self::track_made)?;
        self.stage(Stage::Confirm, packet, scratch, Self::confirm)?;
        self.stage(Stage::Translate, packet, scratch, Self::translate_made)
    }

    /// Takes one stage.
    #[inline(always)]
    fn stage(
        &mut self,
        stage: Stage,
        packet: &mut Packet,
        scratch: &mut Scratch,
        run: impl FnOnce(&mut Self, &mut Packet, &mut Scratch) -> Step,
    ) -> Step {
        let step = run(self, packet, scratch);
        seam(stage, &step);
        step
    }
}

/// The seam between two stages, where a trace of packets listens. The observer of the tests does,
/// and a program without it has nothing here.
#[inline(always)]
fn seam<E: Copy + Into<End>, T>(stage: Stage, step: &ControlFlow<E, T>) {
    #[cfg(test)]
    observer::note(stage, step);
    #[cfg(not(test))]
    let _ = (stage, step);
}

#[cfg(test)]
#[path = "observer.rs"]
pub mod observer;

#[cfg(test)]
#[path = "stages_tests.rs"]
mod tests;
