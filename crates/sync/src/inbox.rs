//! The frames of the peer's stream that have arrived and that the owner has not taken or applied.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use flow::Timestamp;

use crate::message::Message;
use crate::outbox::WINDOW_FRAMES;
use crate::packet::{ACK_RANGES_MAX, Ack, Place};
use crate::refusal::Refusal;

/// Most bytes of frames that wait for one before them, or for the owner.
pub(crate) const HELD_BYTES_MAX: usize = 8 << 20;
/// Longest time after which a frame is acknowledged ...
const ACK_DELAY: Duration = Duration::from_millis(1);
/// ... and most frames that arrive before that.
const ACK_FRAMES: u32 = 8;

/// The peer's stream. `outbox_tests.rs` tests it together with its other end.
#[derive(Debug)]
pub(crate) struct Inbox {
    /// 0 before the first frame.
    stream: u32,
    /// Number of the frame that the owner takes next.
    next: u64,
    held: BTreeMap<u64, (usize, Message)>,
    held_bytes: usize,
    /// Frames that the owner has taken, and of which it has still to say that it has applied them.
    /// They lie within the window, so they are few.
    unapplied: VecDeque<u64>,
    acks_at: Timestamp,
    since_ack: u32,
    repeated: u64,
}

impl Default for Inbox {
    fn default() -> Self {
        Self {
            stream: 0,
            next: 0,
            held: BTreeMap::new(),
            held_bytes: 0,
            unapplied: VecDeque::new(),
            acks_at: Timestamp::NEVER,
            since_ack: 0,
            repeated: 0,
        }
    }
}

/// The result of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// It waits for the owner.
    Held,
    /// The same, and it is the first of another stream: frames of the one before are forgotten.
    Restarted,
    /// It had been there before.
    Repeated,
}

impl Inbox {
    /// Frames that arrived more than once.
    pub fn repeated(&self) -> u64 {
        self.repeated
    }

    /// Bytes of the frames that wait here.
    pub fn bytes(&self) -> usize {
        self.held_bytes
    }

    /// Refuses a frame that can not be taken in.
    pub fn check(&self, place: Place, bytes: usize) -> Result<(), Refusal> {
        let Place { stream, number } = place;
        let is_restart = stream > self.stream;
        let (done, next, held) = match is_restart {
            true => (0, 0, 0),
            false => (self.done(), self.next, self.held_bytes),
        };
        // The frame that all others wait for is always taken.
        let has_room = number == next || held + bytes <= HELD_BYTES_MAX;
        if stream < self.stream || stream == 0 {
            Err(Refusal::PastStream)
        } else if number >= done.saturating_add(WINDOW_FRAMES) || !has_room {
            Err(Refusal::BeyondWindow)
        } else {
            Ok(())
        }
    }

    /// Takes in a frame that has been checked.
    pub fn insert(
        &mut self,
        now: Timestamp,
        Place { stream, number }: Place,
        (bytes, message): (usize, Message),
    ) -> Arrival {
        let is_restart = stream > self.stream;
        if is_restart {
            *self = Self { stream, repeated: self.repeated, ..Self::default() };
        }
        let is_next = number == self.next + self.held.len() as u64;
        self.since_ack += 1;
        let wait = if is_next && self.since_ack < ACK_FRAMES { ACK_DELAY } else { Duration::ZERO };
        self.acks_at = self.acks_at.min(now.after(wait));
        if number < self.next || self.held.contains_key(&number) {
            self.repeated += 1;
            return Arrival::Repeated;
        }
        self.held_bytes += bytes;
        self.held.insert(number, (bytes, message));
        if is_restart { Arrival::Restarted } else { Arrival::Held }
    }

    /// The next message in order, and its place.
    pub fn take(&mut self, now: Timestamp) -> Option<(Place, Message)> {
        let place = Place { stream: self.stream, number: self.next };
        let (bytes, message) = self.held.remove(&self.next)?;
        self.held_bytes -= bytes;
        self.next += 1;
        self.acks_at = self.acks_at.min(now.after(ACK_DELAY));
        Some((place, message))
    }

    /// The frame that was taken last is acknowledged only when it is applied.
    pub fn await_applied(&mut self) {
        self.unapplied.extend(self.next.checked_sub(1));
    }

    /// The owner has applied the frames up to this place.
    pub fn applied(&mut self, now: Timestamp, Place { stream, number }: Place) {
        if stream != self.stream {
            return;
        }
        while self.unapplied.front().is_some_and(|first| *first <= number) {
            self.unapplied.pop_front();
            self.acks_at = self.acks_at.min(now.after(ACK_DELAY));
        }
    }

    /// The owner's word is awaited no longer.
    pub fn all_applied(&mut self, now: Timestamp) {
        self.applied(now, Place { stream: self.stream, number: u64::MAX });
    }

    /// All frames below this are taken, and applied if that has to be awaited.
    fn done(&self) -> u64 {
        self.unapplied.front().copied().unwrap_or(self.next)
    }

    /// When an acknowledgment has to be sent.
    pub fn acks_at(&self) -> Timestamp {
        self.acks_at
    }

    /// True if an acknowledgment needs ranges.
    pub fn has_ranges(&self) -> bool {
        !self.held.is_empty() || !self.unapplied.is_empty()
    }

    /// An acknowledgment without ranges, which a datagram with a frame has room for. One with
    /// ranges has still to be sent if there are any.
    pub fn acknowledge_briefly(&mut self) -> Ack {
        if !self.has_ranges() {
            return self.acknowledge();
        }
        Ack { stream: self.stream, next: self.done(), ranges: Vec::new() }
    }

    /// The acknowledgment to send now.
    pub fn acknowledge(&mut self) -> Ack {
        (self.acks_at, self.since_ack) = (Timestamp::NEVER, 0);
        let (done, mut end) = (self.done(), self.next);
        // All numbers lie within the window, so they fit.
        let taken = (end - done) as u16;
        let mut ranges: Vec<(u16, u16)> = Vec::new();
        ranges.extend((taken > 0).then_some((0, taken)));
        for number in self.held.keys() {
            let is_full = ranges.len() == ACK_RANGES_MAX;
            match ranges.last_mut() {
                Some((_, there)) if *number == end => *there += 1,
                _ if is_full => break,
                _ => ranges.push(((number - end) as u16, 1)),
            }
            end = number + 1;
        }
        Ack { stream: self.stream, next: done, ranges }
    }
}
