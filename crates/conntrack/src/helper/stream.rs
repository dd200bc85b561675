//! Messages out of TCP segments, however the sender cuts them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Watched;

/// The longest message that is looked at when it comes in several segments, bytes.
const LONGEST: usize = 8192;

/// What the beginning of a message says about its end.
pub(crate) enum Framing {
    /// It is so many bytes long, at least 1.
    Length(usize),
    /// More bytes have to come.
    Unknown,
    /// No message begins like this.
    Garbage,
}

/// One direction of a TCP connection as a row of messages.
///
/// It keeps what has come of a message that is not complete, at most [`LONGEST`] bytes and
/// as [`Memory`] allows. A longer message is passed over if its length is known. After a
/// gap, and after what is no message, the next segment is taken to begin with a message, as
/// most senders do. A segment that came before, or fills a gap late, is read by itself.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    /// The sequence number after the last byte that was seen.
    next: Option<u32>,
    /// The beginning of a message.
    kept: Option<Kept>,
    /// Bytes to come of a message that is passed over.
    skip: usize,
    /// A message has come.
    heard: bool,
    /// The first bytes were no message: another protocol is spoken, and what looks like a
    /// message where a segment begins may be its data.
    foreign: bool,
}

impl Stream {
    /// Takes in a segment and calls `each` with every message that it completes, and where
    /// in the payload that message begins unless it began in an earlier one.
    pub fn feed(
        &mut self,
        packet: &Watched<'_>,
        framing: impl Fn(&[u8]) -> Framing,
        mut each: impl FnMut(&[u8], Option<usize>),
    ) {
        let Watched { payload, memory, .. } = *packet;
        let is_read = !self.foreign && !payload.is_empty();
        let Some(sequence) = packet.sequence.filter(|_| is_read) else { return };
        let seen = self.next.map_or(0, |next| next.wrapping_sub(sequence) as i32);
        if seen < 0 {
            *self = Self { heard: self.heard, ..Self::default() };
        } else if seen as usize >= payload.len() {
            return Self::default().feed(packet, framing, each);
        }
        self.next = Some(sequence.wrapping_add(payload.len() as u32));
        let fresh = &payload[seen.max(0) as usize..];
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
            match framing(rest) {
                Framing::Length(length) if length <= rest.len() => {
                    self.heard = true;
                    let (message, behind) = rest.split_at(length.max(1));
                    // What came before counts, whatever else stands in its place now.
                    let is_here = |at: &usize| *at >= old || payload[*at..].starts_with(message);
                    each(message, payload.len().checked_sub(rest.len()).filter(is_here));
                    rest = behind;
                }
                Framing::Length(length) if length > LONGEST => {
                    self.skip = length - rest.len();
                    return;
                }
                Framing::Length(_) | Framing::Unknown if rest.len() < LONGEST => {
                    self.kept = memory.keep(rest);
                    return;
                }
                Framing::Garbage => {
                    self.foreign = !self.heard;
                    return;
                }
                _ => return,
            }
        }
    }

    /// How many of the next bytes belong to a message that is passed over.
    fn passed_over(&mut self, fresh: usize) -> usize {
        let bytes = self.skip.min(fresh);
        self.skip -= bytes;
        bytes
    }
}

/// What all helpers of a gateway keep of messages that have not come whole. Only segments
/// that cut a message touch it. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memory(Arc<AtomicUsize>);

impl Memory {
    /// The most that is kept, bytes. What would go beyond passes unread.
    const MOST: usize = 16 << 20;
    /// What a kept beginning costs beside its bytes, about.
    const EACH: usize = 64;

    fn keep(&self, bytes: &[u8]) -> Option<Kept> {
        let cost = Self::EACH + bytes.len();
        let before = self.0.fetch_add(cost, Ordering::Relaxed);
        // Returns the cost when it goes.
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
