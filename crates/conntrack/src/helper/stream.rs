//! Puts messages together from TCP segments, however the sender cuts them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{Inspected, Watched};
use crate::Direction;

/// Longest message that is kept until its last segment comes, bytes.
const LONGEST: usize = 8192;

/// Most segments whose start is remembered, because the sender may repeat them.
const REMEMBERED: usize = 4;

/// The result of reading the beginning of a message.
pub(crate) enum Framing {
    /// The message has this many bytes, at least 1.
    Length(usize),
    /// This many bytes have no meaning; a message may follow.
    Filler(usize),
    /// More bytes have to come.
    Unknown,
    /// No message begins like this.
    Garbage,
}

/// One direction of a TCP connection as a sequence of messages.
///
/// It begins with the first byte, or with the first segment that is seen if
/// `stateway_expect_picked_up` lets helpers follow such connections. Until a message has come,
/// bytes that are no message end it for good: the connection speaks another protocol, and bytes
/// at the start of a segment that look like a message may be its data. Afterwards, behind a gap
/// or behind garbage, the next segment is taken to begin with a message, as with most senders.
///
/// It keeps the part of an incomplete message that has come, at most [`LONGEST`] bytes and if
/// [`Memory`] allows it. A longer message is skipped if its length is known. A repeated segment
/// is read by itself if it begins where a message was known to begin.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    /// The sequence number after the last byte that was seen.
    next: Option<u32>,
    /// The beginning of a message.
    kept: Option<Kept>,
    /// Remaining bytes of a message that is skipped.
    skip: usize,
    /// True if a message has come.
    pub heard: bool,
    /// The starts of the last segments that began with a message, latest first.
    starts: [Option<u32>; REMEMBERED],
}

impl Stream {
    /// Takes in a segment and calls `each` with every message that it completes. The second
    /// argument is the offset of that message in the payload, `None` if it began in an earlier
    /// one.
    pub fn feed(
        &mut self,
        packet: &Watched<'_>,
        framing: impl Fn(&[u8]) -> Framing,
        each: impl FnMut(&[u8], Option<usize>),
    ) -> Inspected {
        let Watched { payload, memory, .. } = *packet;
        let Some(sequence) = packet.sequence.filter(|_| !payload.is_empty()) else {
            return Inspected::Pass;
        };
        let seen = match packet.seen(sequence, self.next) {
            Ok(seen) => seen,
            Err(inspected) => return inspected,
        };
        if seen < 0 && !self.heard {
            // The beginning has to come first.
            return Inspected::Pass;
        }
        if seen < 0 {
            let is_between = self.kept.is_none() && self.skip == 0;
            let starts = self.starts;
            *self = Self { heard: true, starts, ..Self::default() };
            // The bytes that fill the gap begin with a message too.
            is_between.then(|| self.remember(sequence.wrapping_add_signed(seen)));
        } else if seen as usize >= payload.len() {
            if self.heard && self.starts.contains(&Some(sequence)) {
                let mut again = Self { heard: true, ..Self::default() };
                let _ = again.read(payload, 0, memory, framing, each);
            }
            return Inspected::Pass;
        }
        if seen <= 0 && self.kept.is_none() && self.skip == 0 {
            self.remember(sequence);
        }
        self.next = Some(sequence.wrapping_add(payload.len() as u32));
        self.read(payload, seen.max(0) as usize, memory, framing, each)
    }

    /// Reads a segment whose first `seen` bytes were read before.
    fn read(
        &mut self,
        payload: &[u8],
        seen: usize,
        memory: &Memory,
        framing: impl Fn(&[u8]) -> Framing,
        mut each: impl FnMut(&[u8], Option<usize>),
    ) -> Inspected {
        let fresh = &payload[seen..];
        let fresh = &fresh[self.passed_over(fresh.len())..];
        let old = payload.len() - fresh.len();
        let mut joined = self.kept.take();
        let bytes = match &mut joined {
            None => fresh,
            Some(Kept { bytes, .. }) => {
                bytes.extend_from_slice(fresh);
                &bytes[..]
            }
        };
        let mut rest = bytes;
        while !rest.is_empty() {
            let framed = framing(rest);
            match framed {
                Framing::Length(length) | Framing::Filler(length) if length <= rest.len() => {
                    let (message, behind) = rest.split_at(length.max(1));
                    if matches!(framed, Framing::Length(_)) {
                        self.heard = true;
                        // The bytes that came first count, so the message is here only if the
                        // same bytes are.
                        let is_here =
                            |at: &usize| *at >= old || payload[*at..].starts_with(message);
                        each(message, payload.len().checked_sub(rest.len()).filter(is_here));
                    }
                    rest = behind;
                }
                Framing::Length(length) | Framing::Filler(length) => {
                    self.heard |= matches!(framed, Framing::Length(_));
                    self.kept = if length > LONGEST { None } else { memory.keep(rest) };
                    if self.kept.is_none() {
                        self.skip = length - rest.len();
                    }
                    return Inspected::Pass;
                }
                // If the beginning can not be kept, the end of the message can not be found.
                Framing::Unknown => {
                    self.kept = if rest.len() < LONGEST { memory.keep(rest) } else { None };
                    return self.kept.as_ref().map_or(Inspected::Left, |_| Inspected::Pass);
                }
                Framing::Garbage if self.heard => return Inspected::Pass,
                Framing::Garbage => return Inspected::Left,
            }
        }
        Inspected::Pass
    }

    fn remember(&mut self, start: u32) {
        if !self.starts.contains(&Some(start)) {
            self.starts.rotate_right(1);
            self.starts[0] = Some(start);
        }
    }

    /// How many of the next bytes belong to a message that is skipped.
    fn passed_over(&mut self, fresh: usize) -> usize {
        let bytes = self.skip.min(fresh);
        self.skip -= bytes;
        bytes
    }
}

/// Both directions of a TCP connection as sequences of messages, by [`Direction::index`].
#[derive(Debug, Default)]
pub(crate) struct Streams([Stream; 2]);

impl Streams {
    /// As [`Stream::feed`].
    pub fn feed(
        &mut self,
        packet: &Watched<'_>,
        framing: impl Fn(&[u8]) -> Framing,
        each: impl FnMut(&[u8], Option<usize>),
    ) -> Inspected {
        self.0[packet.direction.index()].feed(packet, framing, each)
    }

    /// The same for protocols in which the opener of the connection speaks first. If the other
    /// end does, the connection speaks another protocol.
    pub fn feed_in_turn(
        &mut self,
        packet: &Watched<'_>,
        framing: impl Fn(&[u8]) -> Framing,
        each: impl FnMut(&[u8], Option<usize>),
    ) -> Inspected {
        let is_first = packet.start.is_some() && !self.0[Direction::Original.index()].heard;
        match packet.direction {
            Direction::Reply if is_first => Inspected::Left,
            _ => self.feed(packet, framing, each),
        }
    }
}

/// The memory for incomplete messages of all helpers of a gateway. Only segments that cut a
/// message use it. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memory(Arc<AtomicUsize>);

impl Memory {
    /// Most bytes that are kept; messages beyond that pass unread.
    const MOST: usize = 16 << 20;
    /// Approximate cost of a kept beginning beside its bytes.
    const EACH: usize = 64;

    fn keep(&self, bytes: &[u8]) -> Option<Kept> {
        let cost = Self::EACH + bytes.len();
        let before = self.0.fetch_add(cost, Ordering::Relaxed);
        // Dropping it returns the cost.
        let mut kept = Kept { bytes: Vec::new(), cost, memory: self.clone() };
        (before + cost <= Self::MOST).then(|| {
            kept.bytes = bytes.to_vec();
            kept
        })
    }
}

/// The beginning of a message.
#[derive(Debug)]
struct Kept {
    bytes: Vec<u8>,
    cost: usize,
    memory: Memory,
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.memory.0.fetch_sub(self.cost, Ordering::Relaxed);
    }
}

#[cfg(test)]
#[path = "stream_tests.rs"]
mod tests;
