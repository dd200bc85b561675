//! The frames of this node's stream that the peer has not acknowledged.

use std::collections::VecDeque;
use std::time::Duration;

use flow::Timestamp;

use crate::message::{Message, begin_records};
use crate::packet::{Ack, Place};
use crate::record::{Part, Record};
use crate::refusal::Refusal;
use crate::round_trip::RoundTrip;

/// How many frames a sender may be ahead of the first one that is not acknowledged. It bounds the
/// frames that a receiver keeps because one before them is missing.
pub(crate) const WINDOW_FRAMES: u64 = 1024;
/// Frames in flight after nothing was acknowledged for a while, and at the beginning.
const FLYING_FEWEST: usize = 2;
const FLYING_FIRST: usize = 32;
/// A frame counts as lost if so many frames behind it have arrived ...
const REORDERED_FRAMES: u64 = 3;
/// ... or one that was sent so much later.
const REORDERED_TIME: Duration = Duration::from_millis(2);
/// Messages other than records that may wait.
const CONTROL_FRAMES_MAX: usize = 16;
/// Longest time between the first and the last record of a frame.
const OPEN_LONGEST: Duration = Duration::from_millis(50);
/// Charged for each frame in addition to its bytes.
pub(crate) const FRAME_COST_BYTES: usize = 80;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flight {
    /// Not sent yet.
    Waiting,
    /// Sent, and not known to have arrived.
    Flying { at: Timestamp, is_first: bool },
    /// Sent, and counted as lost.
    Lost,
    /// It has arrived, but the peer's owner is not done with it or with one before it.
    Landed,
}

#[derive(Debug)]
struct Frame {
    bytes: Vec<u8>,
    records: u64,
    /// When the oldest record in it was offered.
    since: Timestamp,
    flight: Flight,
}

/// A frame that still takes records in.
#[derive(Debug)]
struct Open {
    part: Part,
    bytes: Vec<u8>,
    /// Where the records begin.
    start: usize,
    records: u16,
    since: Timestamp,
}

/// The stream that this node sends.
#[derive(Debug)]
pub(crate) struct Outbox {
    stream: u32,
    /// Number of the first frame in `frames`, which is not acknowledged.
    first: u64,
    frames: VecDeque<Frame>,
    open: Option<Open>,
    bytes: usize,
    records: u64,
    control: usize,
    /// How many frames from the front on have been sent at least once.
    sent: usize,
    flying: usize,
    lost: usize,
    /// Most frames in flight.
    allowed: usize,
    round_trip: RoundTrip,
    timeouts: u32,
    /// The time-out runs from here.
    progress: Timestamp,
    /// The last news from the peer about a frame, or when the first one began to wait.
    waits_since: Timestamp,
    slowed: Timestamp,
    resent: u64,
}

impl Default for Outbox {
    fn default() -> Self {
        Self {
            stream: 1,
            first: 0,
            frames: VecDeque::new(),
            open: None,
            bytes: 0,
            records: 0,
            control: 0,
            sent: 0,
            flying: 0,
            lost: 0,
            allowed: FLYING_FIRST,
            round_trip: RoundTrip::default(),
            timeouts: 0,
            progress: Timestamp::ZERO,
            waits_since: Timestamp::ZERO,
            slowed: Timestamp::ZERO,
            resent: 0,
        }
    }
}

impl Outbox {
    /// Forgets all frames and begins the next stream.
    pub fn restart(&mut self) {
        *self = Self {
            stream: self.stream.saturating_add(1),
            round_trip: self.round_trip,
            resent: self.resent,
            ..Self::default()
        };
    }

    /// The number of the stream.
    pub fn stream(&self) -> u32 {
        self.stream
    }

    /// Bytes of memory that the frames take.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Records that the peer's owner has not taken, as far as this node knows.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Frames sent again.
    pub fn resent(&self) -> u64 {
        self.resent
    }

    /// When the oldest of these records was offered.
    pub fn oldest(&self) -> Option<Timestamp> {
        // One that has arrived behind a gap is not applied yet.
        let frame = self.frames.iter().find(|frame| frame.records > 0);
        frame.map(|frame| frame.since).or(self.open.as_ref().map(|open| open.since))
    }

    /// Since when nothing has arrived at the peer, if something waits here.
    pub fn waits_since(&self) -> Timestamp {
        self.waits_since
    }

    /// Number of the frame behind all that are closed.
    pub fn end(&self) -> u64 {
        self.first + self.frames.len() as u64
    }

    /// True if all frames below this are acknowledged.
    pub fn is_acknowledged(&self, number: u64) -> bool {
        self.first >= number
    }

    /// Something is about to wait here.
    fn begin_to_wait(&mut self, now: Timestamp) {
        if self.bytes == 0 {
            self.waits_since = now;
        }
    }

    /// True if another message than records can wait here.
    pub fn takes_control(&self) -> bool {
        self.control < CONTROL_FRAMES_MAX
    }

    /// Appends a message other than records.
    pub fn push_control(&mut self, now: Timestamp, message: &Message) {
        self.begin_to_wait(now);
        self.close();
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        self.control += 1;
        self.push(Frame { bytes, records: 0, since: now, flight: Flight::Waiting });
    }

    /// Appends a record, in a frame of up to `limit` bytes.
    pub fn push_record(&mut self, now: Timestamp, part: Part, record: &Record<'_>, limit: usize) {
        self.begin_to_wait(now);
        let is_done = |open: &Open| {
            let is_old = now.since(open.since) >= OPEN_LONGEST;
            is_old || open.part != part || open.records == u16::MAX
        };
        if self.open.as_ref().is_some_and(is_done) {
            self.close();
        }
        // A frame with one record may be longer than the limit, and no other is.
        let length = record.encoded_bytes();
        if self.open.as_ref().is_some_and(|open| open.bytes.len() + length > limit) {
            self.close();
        }
        let open = self.open.get_or_insert_with(|| Open::new(now, part, limit));
        if open.records == 0 {
            self.bytes += open.start + FRAME_COST_BYTES;
        }
        record.encode(&mut open.bytes);
        open.records += 1;
        self.bytes += length;
        self.records += 1;
    }

    /// Ends the frame that takes records in.
    fn close(&mut self) {
        let Some(open) = self.open.take() else { return };
        let charged = open.bytes.len() + FRAME_COST_BYTES;
        let frame = open.finish();
        // Charged again by `push`.
        self.bytes -= charged;
        self.push(frame);
    }

    fn push(&mut self, frame: Frame) {
        self.bytes += frame.bytes.len() + FRAME_COST_BYTES;
        self.frames.push_back(frame);
    }

    /// The frame to send next, if one may be sent.
    pub fn next(&mut self, now: Timestamp) -> Option<(Place, &[u8])> {
        if self.flying >= self.allowed {
            return None;
        }
        let at = if self.lost > 0 {
            self.frames.iter().position(|frame| frame.flight == Flight::Lost)?
        } else {
            if self.sent == self.frames.len() {
                self.close();
            }
            self.sent
        };
        if at as u64 >= WINDOW_FRAMES {
            return None;
        }
        let frame = self.frames.get_mut(at)?;
        let is_first = frame.flight == Flight::Waiting;
        match is_first {
            true => self.sent += 1,
            false => (self.lost, self.resent) = (self.lost - 1, self.resent + 1),
        }
        frame.flight = Flight::Flying { at: now, is_first };
        if self.flying == 0 {
            self.progress = now;
        }
        self.flying += 1;
        let place = Place { stream: self.stream, number: self.first + at as u64 };
        Some((place, &frame.bytes))
    }

    /// Refuses an acknowledgment of frames that were never sent.
    pub fn check(&self, ack: &Ack) -> Result<(), Refusal> {
        let spans = ack.spans().ok_or(Refusal::ImpossibleAck)?;
        let end = spans.last().map_or(ack.next, |(_, behind)| *behind);
        let is_sent = end <= self.first + self.sent as u64;
        match ack.stream == self.stream && !is_sent || ack.stream > self.stream {
            true => Err(Refusal::ImpossibleAck),
            false => Ok(()),
        }
    }

    /// Takes in an acknowledgment that has been checked.
    pub fn acknowledge(&mut self, now: Timestamp, ack: &Ack) {
        if ack.stream != self.stream {
            return;
        }
        let mut newest = None;
        let spans = ack.spans().unwrap_or_default();
        let first = self.first;
        for (from, to) in std::iter::once((first, ack.next.max(first))).chain(spans) {
            for number in from.max(first)..to {
                newest = newest.max(self.land(now, (number - first) as usize));
            }
        }
        // Frames that have arrived are kept until the peer's owner is done with them.
        while self.first < ack.next && self.is_front_landed() {
            self.waits_since = now;
            let records = self.frames.pop_front().map_or(0, |frame| frame.records);
            self.records -= records;
            self.control -= usize::from(records == 0);
            self.bytes -= FRAME_COST_BYTES;
            self.first += 1;
            self.sent -= 1;
        }
        if let Some(sent) = newest {
            (self.timeouts, self.progress, self.waits_since) = (0, now, now);
            self.find_losses(now, sent);
        }
    }

    fn is_front_landed(&self) -> bool {
        self.frames.front().is_some_and(|frame| frame.flight == Flight::Landed)
    }

    /// A frame has arrived. Returns when it was sent, if that is news.
    fn land(&mut self, now: Timestamp, at: usize) -> Option<Timestamp> {
        let frame = self.frames.get_mut(at)?;
        let sent = match frame.flight {
            Flight::Landed | Flight::Waiting => return None,
            Flight::Lost => {
                self.lost -= 1;
                Timestamp::ZERO
            }
            Flight::Flying { at, is_first } => {
                self.flying -= 1;
                if is_first {
                    self.round_trip.measure(now.since(at));
                }
                at
            }
        };
        frame.flight = Flight::Landed;
        self.bytes -= std::mem::take(&mut frame.bytes).len();
        self.allowed = (self.allowed + 1).min(WINDOW_FRAMES as usize);
        Some(sent)
    }

    /// Counts frames as lost that others have overtaken. `newest` is when the last of those that
    /// have arrived was sent.
    fn find_losses(&mut self, now: Timestamp, newest: Timestamp) {
        let mut sent = self.frames.range(..self.sent);
        let landed = sent.rposition(|frame| frame.flight == Flight::Landed);
        let Some(last) = landed else { return };
        let patience = self.round_trip.smoothed() + REORDERED_TIME;
        let mut found = 0;
        for (at, frame) in self.frames.iter_mut().enumerate().take(last) {
            let Flight::Flying { at: sent, .. } = frame.flight else { continue };
            let is_overtaken = sent.after(REORDERED_TIME) <= newest;
            let is_behind = (last - at) as u64 >= REORDERED_FRAMES && sent <= newest;
            if is_overtaken || is_behind && now >= sent.after(patience) {
                frame.flight = Flight::Lost;
                found += 1;
            }
        }
        self.flying -= found;
        self.lost += found;
        if found > 0 && now >= self.slowed.after(self.round_trip.smoothed()) {
            self.allowed = (self.allowed / 2).max(FLYING_FEWEST);
            self.slowed = now;
        }
    }

    /// When frames in flight count as lost.
    pub fn deadline(&self) -> Timestamp {
        match self.flying {
            0 => Timestamp::NEVER,
            _ => self.progress.after(self.round_trip.timeout(self.timeouts)),
        }
    }

    /// Counts all frames in flight as lost if their time is over. There is no last try.
    pub fn expire(&mut self, now: Timestamp) {
        if now < self.deadline() {
            return;
        }
        for frame in self.frames.iter_mut().take(self.sent) {
            if let Flight::Flying { .. } = frame.flight {
                frame.flight = Flight::Lost;
            }
        }
        self.lost += self.flying;
        self.flying = 0;
        self.allowed = FLYING_FEWEST;
        self.timeouts = self.timeouts.saturating_add(1);
    }
}

impl Open {
    fn new(now: Timestamp, part: Part, limit: usize) -> Self {
        let mut bytes = Vec::with_capacity(limit);
        begin_records(part, now, &mut bytes);
        let start = bytes.len();
        Self { part, bytes, start, records: 0, since: now }
    }

    fn finish(mut self) -> Frame {
        self.bytes[self.start - 2..self.start].copy_from_slice(&self.records.to_be_bytes());
        // A frame with few records takes about what is charged for it.
        if self.bytes.capacity() > 2 * self.bytes.len() {
            self.bytes.shrink_to_fit();
        }
        let (records, since) = (self.records.into(), self.since);
        Frame { bytes: self.bytes, records, since, flight: Flight::Waiting }
    }
}

#[cfg(test)]
#[path = "outbox_tests.rs"]
mod tests;
