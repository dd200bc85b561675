//! The SCTP tracker: a state machine over chunks, and the verification tags that an
//! honest sender must know (RFC 9260 sections 8.4 and 8.5). States, timers and most
//! rules are those of the Linux kernel's tracker.
//!
//! Each path of a multi-homed association is a connection of its own, opened by its
//! heartbeats: the address lists of INIT and INIT ACK are not read.
//!
//! It differs from the kernel's tracker in these points:
//!
//! - An INIT amid an association does not invalidate its tags, so nobody can cut it off with a
//!   forged INIT, and packets under way while an end restarts still pass.
//! - When a repeated INIT was answered twice, the cookie of either answer is accepted.
//! - The tag of a SHUTDOWN ACK is verified while there is an association, a tag of zero is
//!   accepted only with an INIT, and chunks must not reach beyond the packet.
//! - A SHUTDOWN COMPLETE or ABORT that answers a SHUTDOWN ACK out of the blue is accepted with
//!   the tag that it reflects.
//! - When heartbeats correct the tags, the tags of both directions are known at once.
//! - After the end an INIT opens a new connection, with directions of its own. An INIT ACK
//!   answers an INIT; a late one revives nothing.

mod record;
mod state;
mod tags;

use flow::DropReason;
use wire::Transport;
use wire::sctp::{Chunk, Chunks, chunks};

use self::tags::{Asked, Tag, Tags};
use super::{Input, Step};
use crate::{Direction, TrackingCause};

pub use state::{ChunkClass, SctpState, opening, transition};

/// The state of an association.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sctp {
    /// The tags by direction of the packets that carry them.
    tags: [Tags; 2],
    /// Direction and tag of a heartbeat whose tag did not fit. If it is answered, both ends
    /// know newer tags than the tracker.
    foreign: Option<(Direction, Tag)>,
    asked: Asked,
    /// True if a part of the association was not seen: an unknown tag is taken from the next
    /// packet.
    learns: bool,
    state: SctpState,
}

/// The treatment of a packet that belongs to the association.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Course {
    /// It keeps the association alive.
    Refresh,
    /// It does not: its receiver has to judge it.
    Ignore,
}

impl Sctp {
    /// The first packet of an association or path.
    pub fn open(input: &Input<'_>) -> Result<Self, TrackingCause> {
        let packet = Packet::read(input)?;
        for chunk in packet.classes() {
            opening(chunk).ok_or(TrackingCause::State {
                state: None,
                what: chunk.name(),
                direction: Direction::Original,
            })?;
        }
        let first = packet.classes().next().and_then(opening);
        let state = first.ok_or(DropReason::ProtocolState)?;
        let tags = [Tags::default(); 2];
        let mut opened = Self { tags, foreign: None, asked: Asked::Nobody, learns: false, state };
        opened.follow(&packet, Direction::Original)?;
        Ok(opened)
    }

    /// One more packet.
    pub fn advance(&mut self, input: &Input<'_>, direction: Direction) -> Step {
        let packet = match Packet::read(input) {
            Ok(packet) => packet,
            Err(why) => return Step::Invalid { why, cap: None },
        };
        let is_over = self.state == SctpState::Closed && self.asked == Asked::Nobody;
        if is_over && packet.classes().next() == Some(ChunkClass::Init) {
            return Step::Reopen;
        }
        // Either all chunks of a packet count, or none.
        let mut next = *self;
        let course = match next.follow(&packet, direction) {
            Ok(course) => course,
            Err(why) => return Step::Invalid { why, cap: None },
        };
        let before = std::mem::replace(self, next);
        match course {
            Course::Ignore => Step::Pass,
            Course::Refresh => Step::Accept {
                timeout: self.timeout(input),
                assure: self.state == SctpState::Established,
                changed: self.state != before.state,
            },
        }
    }

    /// Picks up an association in its middle, and returns its lifetime in seconds. `None`, with
    /// nothing changed, if this packet does not belong to the middle of one. The tag of the
    /// other direction is learnt from its next packet.
    pub fn start_over(&mut self, input: &Input<'_>, direction: Direction) -> Option<u32> {
        let packet = Packet::read(input).ok()?;
        let is_amid = |chunk| {
            use ChunkClass::{Data, Heartbeat, HeartbeatAck, Other};
            matches!(chunk, Data | Heartbeat | HeartbeatAck | Other)
        };
        if !packet.classes().all(is_amid) {
            return None;
        }
        let (tags, state) = ([Tags::default(); 2], SctpState::Established);
        let mut amid = Self { tags, foreign: None, asked: Asked::Nobody, learns: true, state };
        amid.follow(&packet, direction).ok()?;
        *self = amid;
        Some(self.timeout(input))
    }

    pub fn state(&self) -> SctpState {
        self.state
    }

    /// Lifetime in this state, seconds.
    pub fn timeout(&self, input: &Input<'_>) -> u32 {
        input.timeouts.sctp[self.state as usize]
    }

    fn follow(
        &mut self,
        packet: &Packet<'_>,
        direction: Direction,
    ) -> Result<Course, TrackingCause> {
        let mut course = Course::Refresh;
        for chunk in packet.chunks.clone() {
            let chunk = chunk?;
            let class = ChunkClass::of(chunk.kind);
            if self.verify(class, &chunk, packet, direction)? == Course::Ignore {
                course = Course::Ignore;
                continue;
            }
            let from = self.state;
            self.state = transition(from, direction, class).ok_or(TrackingCause::State {
                state: Some(from.name()),
                what: class.name(),
                direction,
            })?;
            match (class, self.state) {
                (ChunkClass::CookieAck, SctpState::Established)
                | (ChunkClass::Abort | ChunkClass::ShutdownComplete, SctpState::Closed) => {
                    self.asked = Asked::Nobody;
                }
                // Otherwise repeated INITs to a silent host would keep an entry for ever.
                (ChunkClass::Init, SctpState::Closed) if from == SctpState::Closed => {
                    course = Course::Ignore;
                }
                _ => {}
            }
        }
        Ok(course)
    }

    /// Compares the tag of `packet` with the one that `chunk` must have, and learns from it.
    fn verify(
        &mut self,
        class: ChunkClass,
        chunk: &Chunk<'_>,
        packet: &Packet<'_>,
        direction: Direction,
    ) -> Result<Course, TrackingCause> {
        let back = direction.reversed();
        match class {
            ChunkClass::Init => {
                self.asked = self.asked.and(direction);
                self.tags[back.index()].offer(chunk.initiate_tag()?);
            }
            ChunkClass::InitAck => {
                self.known(packet, direction)?;
                let tag = chunk.initiate_tag()?;
                let answers = self.asked == Asked::One(back);
                if !answers && !self.tags[back.index()].fit(Some(tag)) {
                    return Err(self.tags[back.index()].refuse(Some(tag)));
                }
                self.tags[back.index()].offer(tag);
            }
            ChunkClass::CookieEcho | ChunkClass::CookieAck => {
                let tag = self.known(packet, direction)?;
                self.tags[direction.index()].prove(tag);
            }
            ChunkClass::Abort | ChunkClass::ShutdownComplete if chunk.is_tag_reflected() => {
                self.known(packet, back)?;
            }
            ChunkClass::ShutdownAck => self.verify_shutdown_ack(packet, direction)?,
            ChunkClass::Heartbeat | ChunkClass::HeartbeatAck => {
                return self.verify_heartbeat(class, packet, direction);
            }
            _ => {
                self.known(packet, direction)?;
            }
        }
        Ok(Course::Refresh)
    }

    /// The tag of `packet` if it is a tag of `direction`.
    fn known(&mut self, packet: &Packet<'_>, direction: Direction) -> Result<Tag, TrackingCause> {
        let tags = &mut self.tags[direction.index()];
        if let (true, true, Some(tag)) = (self.learns, tags.are_unknown(), packet.tag) {
            tags.prove(tag);
        }
        let fitting = packet.tag.filter(|tag| tags.fit(Some(*tag)));
        fitting.ok_or_else(|| tags.refuse(packet.tag))
    }

    /// A SHUTDOWN ACK may belong to an association that its receiver has forgotten: then it
    /// comes out of the blue, or while the receiver is opening another (RFC 9260 section 8.5.1
    /// (E)).
    fn verify_shutdown_ack(
        &mut self,
        packet: &Packet<'_>,
        direction: Direction,
    ) -> Result<(), TrackingCause> {
        let tags = &mut self.tags[direction.index()];
        if tags.are_unknown() && !self.state.is_opening() {
            tags.prove(packet.tag.ok_or_else(|| tags.refuse(None))?);
        } else if !self.state.is_opening() {
            self.known(packet, direction)?;
        }
        Ok(())
    }

    /// Heartbeats teach unknown tags. They may also correct known ones: by a heartbeat and its
    /// answer, if neither fits.
    fn verify_heartbeat(
        &mut self,
        class: ChunkClass,
        packet: &Packet<'_>,
        direction: Direction,
    ) -> Result<Course, TrackingCause> {
        let (here, back) = (direction.index(), direction.reversed());
        let tag = packet.tag.ok_or_else(|| self.tags[here].refuse(None))?;
        if self.tags[here].are_unknown() {
            self.tags[here].prove(tag);
        } else if self.tags[here].fit(Some(tag)) {
            self.foreign = None;
        } else if packet.has_data {
            return Err(self.tags[here].refuse(packet.tag));
        } else if class == ChunkClass::Heartbeat {
            self.foreign = Some((direction, tag));
            return Ok(Course::Ignore);
        } else if let Some((asker, theirs)) = self.foreign
            && asker == back
        {
            self.tags[here].prove(tag);
            self.tags[back.index()].prove(theirs);
            self.foreign = None;
        } else {
            return Err(self.tags[here].refuse(packet.tag));
        }
        Ok(Course::Refresh)
    }
}

/// A packet with a permitted combination of chunks.
struct Packet<'a> {
    tag: Option<Tag>,
    chunks: Chunks<'a>,
    has_data: bool,
}

impl<'a> Packet<'a> {
    /// INIT, INIT ACK and SHUTDOWN COMPLETE are alone in their packets, a COOKIE ECHO or
    /// COOKIE ACK is the first chunk (RFC 9260 sections 5.1 and 6.10), and the tag of
    /// zero belongs to INIT (section 8.5.1 (A)).
    fn read(input: &Input<'a>) -> Result<Self, TrackingCause> {
        // The protocol is part of the flow key, so another transport never comes here.
        let Transport::Sctp { verification_tag, .. } = input.network.transport else {
            return Err(DropReason::ProtocolState.into());
        };
        let tag = Tag::new(verification_tag);
        let chunks = chunks(input.frame, input.network);
        let (mut count, mut has_data, mut alone) = (0, false, false);
        for chunk in chunks.clone() {
            let chunk = chunk?;
            let class = ChunkClass::of(chunk.kind);
            let is_init = matches!(class, ChunkClass::Init | ChunkClass::InitAck);
            let is_cookie = matches!(class, ChunkClass::CookieEcho | ChunkClass::CookieAck);
            count += 1;
            alone |= is_init || class == ChunkClass::ShutdownComplete;
            if count > 1 && (alone || is_cookie) {
                return Err(DropReason::ProtocolState.into());
            }
            if class == ChunkClass::Init && tag.is_some() {
                return Err(DropReason::VerificationTag.into());
            }
            if is_init {
                chunk.initiate_tag()?;
            }
            has_data |= class == ChunkClass::Data;
        }
        if count == 0 {
            return Err(DropReason::MalformedSctp.into());
        }
        Ok(Self { tag, chunks, has_data })
    }

    fn classes(&self) -> impl Iterator<Item = ChunkClass> {
        self.chunks.clone().flatten().map(|chunk| ChunkClass::of(chunk.kind))
    }
}

#[cfg(test)]
#[path = "tracker_tests.rs"]
mod tests;
