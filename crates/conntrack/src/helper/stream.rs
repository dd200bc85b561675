//! Puts messages together from TCP segments, however the sender cuts them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::record::HelperStore;
use super::{HelperPacket, Holder, Inspected, Shares};
use crate::Direction;
use flow::codec::{DecodeError, Reader, Write};

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
/// It keeps the part of an incomplete message that has come, at most [`LONGEST`] bytes and as
/// long as [`Memory`] has room. A message that is not kept is skipped if its length is known;
/// otherwise it is a gap. A repeated segment is read by itself if it begins where a message was
/// known to begin.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    /// The sequence number after the last byte that was seen.
    next: Option<u32>,
    /// The beginning of a message.
    kept: Option<Kept>,
    /// Remaining bytes of the message that is kept or skipped; 0 if its length is not known.
    skip: usize,
    /// True if a message has come.
    pub heard: bool,
    /// The starts of the last segments that began with a message, latest first.
    starts: [Option<u32>; REMEMBERED],
}

impl Stream {
    /// True if it keeps the beginning of a message whose end has not come.
    pub fn keeps_beginning(&self) -> bool {
        self.kept.is_some()
    }

    /// Takes in a segment and calls `each` with every message that it completes. The second
    /// argument is the offset of that message in the payload, `None` if it began in an earlier
    /// one.
    pub fn feed(
        &mut self,
        packet: &HelperPacket<'_>,
        framing: impl Fn(&[u8]) -> Framing,
        each: impl FnMut(&[u8], Option<usize>),
    ) -> Inspected {
        let payload = packet.payload;
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
                let _ = again.read(packet, 0, framing, each);
            }
            return Inspected::Pass;
        }
        if seen <= 0 && self.kept.is_none() && self.skip == 0 {
            self.remember(sequence);
        }
        self.next = Some(sequence.wrapping_add(payload.len() as u32));
        self.read(packet, seen.max(0) as usize, framing, each)
    }

    /// Reads a segment whose first `seen` bytes were read before.
    fn read(
        &mut self,
        packet: &HelperPacket<'_>,
        seen: usize,
        framing: impl Fn(&[u8]) -> Framing,
        mut each: impl FnMut(&[u8], Option<usize>),
    ) -> Inspected {
        let HelperPacket { payload, memory, opener, .. } = *packet;
        let fresh = &payload[seen..];
        let mut joined = None;
        if let Some(kept) = self.kept.take() {
            joined = kept.bytes();
            match joined {
                Some(_) => self.skip = 0,
                // The rest of a message whose length is not known begins with anything.
                None if self.skip == 0 && !self.heard => return Inspected::Left,
                None => {}
            }
        }
        let fresh = &fresh[self.passed_over(fresh.len())..];
        let old = payload.len() - fresh.len();
        let bytes = match &mut joined {
            None => fresh,
            Some(bytes) => {
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
                    self.kept = (length <= LONGEST).then(|| memory.keep(opener, rest));
                    self.skip = length - rest.len();
                    return Inspected::Pass;
                }
                // If the beginning can not be kept, the end of the message can not be found.
                Framing::Unknown if rest.len() >= LONGEST => return Inspected::Left,
                Framing::Unknown => {
                    self.kept = Some(memory.keep(opener, rest));
                    return Inspected::Pass;
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

/// The forms of a kept beginning of a message, by their numbers in a record.
const NOTHING: u8 = 0;
const BYTES: u8 = 1;
const GAVE_WAY: u8 = 2;

impl Stream {
    /// Writes its state for a record.
    pub fn write(&self, to: &mut Vec<u8>) {
        let Self { next, kept, skip, heard, starts } = self;
        to.option(*next, |to, number| to.u32(number));
        match kept.as_ref().map(Kept::copy) {
            None => to.u8(NOTHING),
            Some(None) => to.u8(GAVE_WAY),
            Some(Some(bytes)) => {
                to.u8(BYTES);
                to.varint(bytes.len() as u64);
                to.bytes(&bytes);
            }
        }
        to.varint(*skip as u64);
        to.flag(*heard);
        starts.iter().for_each(|start| to.option(*start, |to, number| to.u32(number)));
    }

    /// The reverse of [`Stream::write`].
    pub fn read_record(
        from: &mut Reader<'_>,
        store: &HelperStore<'_>,
    ) -> Result<Self, DecodeError> {
        let next = from.option(Reader::u32)?;
        let kept = match from.u8()? {
            NOTHING => None,
            GAVE_WAY => Some(Kept { number: u64::MAX, memory: store.memory.clone() }),
            BYTES => {
                let length = usize::try_from(from.varint()?).unwrap_or(usize::MAX);
                if !(1..=LONGEST).contains(&length) {
                    return Err(DecodeError::Impossible("the beginning of a message"));
                }
                Some(store.memory.keep(store.opener, from.bytes(length)?))
            }
            _ => return Err(DecodeError::Impossible("the beginning of a message")),
        };
        let skip = from.varint32()? as usize;
        let heard = from.flag()?;
        let mut starts = [None; REMEMBERED];
        for start in &mut starts {
            *start = from.option(Reader::u32)?;
        }
        Ok(Self { next, kept, skip, heard, starts })
    }
}

/// Both directions of a TCP connection as sequences of messages, by [`Direction::index`].
#[derive(Debug, Default)]
pub(crate) struct Streams([Stream; 2]);

impl Streams {
    /// As [`Stream::keeps_beginning`], of one of them.
    pub fn keeps_beginning(&self) -> bool {
        self.0.iter().any(Stream::keeps_beginning)
    }

    /// Writes their state for a record.
    pub fn write(&self, to: &mut Vec<u8>) {
        self.0.iter().for_each(|stream| stream.write(to));
    }

    /// The reverse of [`Streams::write`].
    pub fn read_record(
        from: &mut Reader<'_>,
        store: &HelperStore<'_>,
    ) -> Result<Self, DecodeError> {
        Ok(Self([Stream::read_record(from, store)?, Stream::read_record(from, store)?]))
    }

    /// As [`Stream::feed`].
    pub fn feed(
        &mut self,
        packet: &HelperPacket<'_>,
        framing: impl Fn(&[u8]) -> Framing,
        each: impl FnMut(&[u8], Option<usize>),
    ) -> Inspected {
        self.0[packet.direction.index()].feed(packet, framing, each)
    }

    /// The same for protocols in which the opener of the connection speaks first. If the other
    /// end does, the connection speaks another protocol.
    pub fn feed_in_turn(
        &mut self,
        packet: &HelperPacket<'_>,
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
///
/// When it is full, the oldest beginnings of the source that has most give way, so nobody keeps
/// the messages of others from being read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memory(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    room: Mutex<Room>,
    /// Number of beginnings that gave way since [`Memory::forgotten`] was called.
    forgotten: AtomicU64,
}

/// The beginnings by number. Numbers grow.
#[derive(Debug, Default)]
struct Room {
    beginnings: BTreeMap<u64, (Holder, Vec<u8>)>,
    shares: Shares,
    /// The cost of all beginnings.
    used: usize,
    next: u64,
}

impl Memory {
    /// Most bytes that are kept.
    const MOST: usize = 16 << 20;
    /// Approximate cost of a kept beginning beside its bytes.
    const EACH: usize = 64;

    /// Keeps the beginning of a message of a connection that `opener` has opened.
    fn keep(&self, opener: Holder, bytes: &[u8]) -> Kept {
        let bytes = bytes.to_vec();
        let cost = cost(&bytes);
        let mut room = self.room();
        while room.used + cost > Self::MOST {
            let Some((_, oldest)) = room.shares.greatest() else { break };
            room.take(oldest);
            self.0.forgotten.fetch_add(1, Ordering::Relaxed);
        }
        let number = room.next;
        room.next += 1;
        room.used += cost;
        room.shares.add(opener, number, cost as u64);
        room.beginnings.insert(number, (opener, bytes));
        Kept { number, memory: self.clone() }
    }

    /// Number of beginnings that gave way since the last call, whoever made that.
    pub fn forgotten(&self) -> u64 {
        let forgotten = &self.0.forgotten;
        // Nobody writes what is not there.
        if forgotten.load(Ordering::Relaxed) == 0 {
            0
        } else {
            forgotten.swap(0, Ordering::Relaxed)
        }
    }

    fn room(&self) -> MutexGuard<'_, Room> {
        // No code panics half-way through a change under the lock.
        self.0.room.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Room {
    fn take(&mut self, number: u64) -> Option<Vec<u8>> {
        let (holder, bytes) = self.beginnings.remove(&number)?;
        self.shares.remove(holder, number);
        self.used -= cost(&bytes);
        Some(bytes)
    }
}

fn cost(bytes: &[u8]) -> usize {
    Memory::EACH + bytes.len()
}

/// The beginning of a message, which may have given way.
#[derive(Debug)]
struct Kept {
    number: u64,
    memory: Memory,
}

impl Kept {
    /// A copy of the bytes, `None` if they have given way.
    fn copy(&self) -> Option<Vec<u8>> {
        self.memory.room().beginnings.get(&self.number).map(|(_, bytes)| bytes.clone())
    }

    /// The bytes, `None` if they have given way.
    fn bytes(self) -> Option<Vec<u8>> {
        self.memory.room().take(self.number)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let _ = self.memory.room().take(self.number);
    }
}

#[cfg(test)]
#[path = "stream_tests.rs"]
mod tests;
