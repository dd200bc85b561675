//! Reusable frame buffers, so that the packet path does not allocate.

use crate::Frame;
use crate::frame::NOTE_LEN;

/// The largest frame: a 65535-byte IP packet with link header and VLAN tags.
pub const MAX_FRAME: usize = 65_536 + 64;

/// Bytes of a small buffer: an Ethernet frame of a 1500-byte link with tags.
pub const SMALL_BUFFER: usize = 2048;

/// Sizes of buffers, in bytes. Received frames have small or large buffers. Frames that are kept
/// for long move to the other sizes.
const SIZES: [usize; 10] =
    [128, 256, 512, 1024, SMALL_BUFFER, 4096, 9728, 16_384, 32_768, MAX_FRAME];
/// Place of small buffers in [`SIZES`].
const SMALL: usize = 4;
/// Place of large buffers in [`SIZES`].
const LARGE: usize = SIZES.len() - 1;
/// A trim frees one in this many of the buffers that have not been used since the trim before.
const TRIMMED: usize = 8;

/// The free buffers of one worker. Most frames fit a small buffer. Only super-packets and jumbo
/// frames take a large one, and only frames that are kept for long take one of another size.
#[derive(Debug)]
pub struct FramePool {
    /// By size, as in [`SIZES`].
    shelves: [Shelf; SIZES.len()],
    /// Bytes that this pool has allocated less those that it has freed. Negative if it frees
    /// buffers of another pool.
    balance: i64,
}

/// Free buffers of one size.
#[derive(Debug)]
struct Shelf {
    size: usize,
    limit: usize,
    free: Vec<Box<[u8]>>,
    /// The least number of free buffers since the last trim.
    least: usize,
}

impl FramePool {
    /// An empty pool. It keeps up to `small_limit` free small buffers and `large_limit` large ones,
    /// a quarter of `small_limit` of each smaller size, and `large_limit` of each size between.
    /// Buffers are allocated on first use and reused from then on.
    pub fn new(small_limit: usize, large_limit: usize) -> Self {
        let shelf = |place: usize| {
            let limit = match place {
                ..SMALL => small_limit / 4,
                SMALL => small_limit,
                _ => large_limit,
            };
            Shelf { size: SIZES[place], limit, free: Vec::with_capacity(limit), least: 0 }
        };
        Self { shelves: std::array::from_fn(shelf), balance: 0 }
    }

    /// A frame with room for `length` bytes, whose content is not defined. `None` when `length`
    /// exceeds [`MAX_FRAME`].
    #[inline(always)]
    pub fn take(&mut self, length: usize) -> Option<Frame> {
        if length <= SMALL_BUFFER {
            Some(self.shelves[SMALL].take(length, &mut self.balance))
        } else {
            (length <= MAX_FRAME).then(|| self.shelves[LARGE].take(length, &mut self.balance))
        }
    }

    /// Like [`FramePool::take`], but never allocates: `None` when no buffer of
    /// that size is free.
    pub fn take_free(&mut self, length: usize) -> Option<Frame> {
        let place = if length <= SMALL_BUFFER { SMALL } else { LARGE };
        if self.shelves[place].free.is_empty() { None } else { self.take(length) }
    }

    /// Moves a frame that is to be kept into a buffer near its length, if that frees half of its
    /// buffer or more. So many short frames can not pin much more memory than they have bytes.
    #[inline]
    pub fn compact(&mut self, frame: &mut Frame) {
        // Most frames that are kept fill their buffer, and no other buffer would free half of it.
        if 2 * frame.len() <= frame.buffer.len() {
            self.move_over(frame);
        }
    }

    fn move_over(&mut self, frame: &mut Frame) {
        let shelf = self.shelves.iter_mut().find(|shelf| frame.len() <= shelf.size);
        let Some(shelf) = shelf.filter(|shelf| 2 * shelf.size <= frame.buffer.len()) else {
            return;
        };
        let mut compact = shelf.take(frame.len(), &mut self.balance);
        compact.bytes_mut().copy_from_slice(frame.bytes());
        self.inherit(&mut compact, frame);
        self.give_back(std::mem::replace(frame, compact));
    }

    /// A frame that holds a copy of `bytes`; `None` when they exceed [`MAX_FRAME`].
    pub fn copy_of(&mut self, bytes: &[u8]) -> Option<Frame> {
        let mut frame = self.take(bytes.len())?;
        frame.bytes_mut().copy_from_slice(bytes);
        Some(frame)
    }

    /// A copy of a frame, including its properties.
    pub fn duplicate(&mut self, frame: &Frame) -> Option<Frame> {
        let mut copy = self.copy_of(frame.bytes())?;
        self.inherit(&mut copy, frame);
        Some(copy)
    }

    fn inherit(&mut self, heir: &mut Frame, frame: &Frame) {
        heir.inherit(frame);
        if let Some(note) = frame.note() {
            self.keep_note(heir, note);
        }
    }

    /// Stores a note with a frame, for [`Frame::note`]. It lies behind the frame's bytes: a frame
    /// that fills its buffer moves to a larger one. The largest buffer has room for a note behind
    /// any IP packet.
    pub fn keep_note(&mut self, frame: &mut Frame, note: &[u8; NOTE_LEN]) {
        if !frame.write_note(note) {
            self.make_room(frame);
            frame.write_note(note);
        }
    }

    /// Moves a frame to the next larger buffer, which has room behind the bytes.
    #[cold]
    fn make_room(&mut self, frame: &mut Frame) {
        let room = frame.len() + NOTE_LEN;
        if let Some(shelf) = self.shelves[SMALL..].iter_mut().find(|it| room <= it.size) {
            let mut larger = shelf.take(frame.len(), &mut self.balance);
            larger.bytes_mut().copy_from_slice(frame.bytes());
            larger.inherit(frame);
            self.give_back(std::mem::replace(frame, larger));
        }
    }

    /// Returns a frame's buffer, or frees it if the pool has enough.
    #[inline]
    pub fn give_back(&mut self, frame: Frame) {
        let small = &mut self.shelves[SMALL];
        if frame.buffer.len() == SMALL_BUFFER && small.free.len() < small.limit {
            small.free.push(frame.buffer);
        } else {
            self.give_back_odd(frame.buffer);
        }
    }

    /// Takes back a buffer that is not small, or is beyond the limit.
    #[inline(never)]
    fn give_back_odd(&mut self, buffer: Box<[u8]>) {
        let shelf = self.shelves.iter_mut().find(|shelf| shelf.size == buffer.len());
        match shelf.filter(|shelf| shelf.free.len() < shelf.limit) {
            Some(shelf) => shelf.free.push(buffer),
            None => self.balance -= buffer.len() as i64,
        }
    }

    /// Frees an eighth of the buffers that have not been used since the last call. So the memory of
    /// a burst goes little by little, and steady traffic keeps its buffers. Returns how many more
    /// bytes this pool has allocated than freed since it was made. The number is negative if the
    /// pool frees buffers that others allocated.
    pub fn trim(&mut self) -> i64 {
        for shelf in &mut self.shelves {
            // The buffers at the end of the list were used lately.
            let surplus = shelf.least.div_ceil(TRIMMED);
            shelf.free.drain(..surplus);
            self.balance -= (surplus * shelf.size) as i64;
            shelf.least = shelf.free.len();
        }
        self.balance
    }
}

impl Shelf {
    /// Always inline: the caller writes a returned frame in small pieces and reads it in large
    /// ones, and the processor has to wait for that.
    #[inline(always)]
    fn take(&mut self, length: usize, balance: &mut i64) -> Frame {
        let buffer = self.free.pop().unwrap_or_else(|| self.allocate(balance));
        self.least = self.least.min(self.free.len());
        Frame { buffer, length: length as u32, ..Frame::default() }
    }

    #[cold]
    #[inline(never)]
    fn allocate(&self, balance: &mut i64) -> Box<[u8]> {
        *balance += self.size as i64;
        vec![0; self.size].into_boxed_slice()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PortId;

    #[test]
    fn a_short_frame_that_is_kept_moves_to_a_buffer_of_its_size() {
        let mut pool = FramePool::new(8, 8);
        for (length, footprint) in [
            (0, 128),
            (60, 128),
            (129, 256),
            (1024, 1024),
            (1025, SMALL_BUFFER),
            (1514, SMALL_BUFFER),
        ] {
            let bytes: Vec<u8> = (0..length).map(|n| n as u8).collect();
            let mut frame = pool.copy_of(&bytes).unwrap();
            (frame.port, frame.timestamp, frame.sequence) = (PortId(3), 7, 9);
            let mut kept = frame;
            pool.compact(&mut kept);
            assert_eq!((kept.bytes(), kept.footprint()), (&bytes[..], footprint));
            assert_eq!((kept.port, kept.timestamp, kept.sequence), (PortId(3), 7, 9));
            pool.give_back(kept);
        }
        for (length, footprint) in
            [(2049, 4096), (9018, 9728), (32_768, 32_768), (40_000, MAX_FRAME)]
        {
            let mut long = pool.take(length).unwrap();
            assert_eq!(long.footprint(), MAX_FRAME);
            pool.compact(&mut long);
            assert_eq!(long.footprint(), footprint);
        }
    }

    #[test]
    fn a_note_stays_with_its_frame_in_a_buffer_that_it_fills_too() {
        // An IP packet behind a link header with two tags.
        const LONGEST: usize = 65_535 + 14 + 2 * 4;
        let mut pool = FramePool::new(8, 8);
        for length in [60, 128, 1514, SMALL_BUFFER - 1, SMALL_BUFFER, 9728, LONGEST] {
            let bytes: Vec<u8> = (0..length).map(|n| n as u8).collect();
            for note in [[1; NOTE_LEN], [0; NOTE_LEN]] {
                let mut frame = pool.copy_of(&bytes).unwrap();
                frame.sequence = 7;
                pool.compact(&mut frame);
                assert_eq!(frame.note(), None);
                pool.keep_note(&mut frame, &note);
                let copy = pool.duplicate(&frame).unwrap();
                for mut frame in [frame, copy] {
                    assert_eq!((frame.bytes(), frame.sequence), (&bytes[..], 7));
                    assert_eq!(frame.note(), Some(&note));
                    frame.forget_note();
                    assert_eq!(frame.note(), None);
                    pool.give_back(frame);
                }
            }
        }
        assert_eq!(size_of::<Frame>(), 64, "a line of the cache");
    }

    #[test]
    fn unused_buffers_of_a_burst_go_and_used_buffers_stay() {
        let mut pool = FramePool::new(4096, 8);
        let burst: Vec<_> = (0..5000).map(|_| pool.take(60).unwrap()).collect();
        burst.into_iter().for_each(|frame| pool.give_back(frame));
        let bytes = |buffers: usize| (buffers * SMALL_BUFFER) as i64;
        assert_eq!(pool.trim(), bytes(4096), "the limit, and nothing is known of use yet");
        for second in 0..60 {
            // Steady traffic uses 100 buffers at a time.
            for _ in 0..3 {
                let batch: Vec<_> = (0..100).map(|_| pool.take(60).unwrap()).collect();
                batch.into_iter().for_each(|frame| pool.give_back(frame));
            }
            let left = pool.trim();
            assert!(left >= bytes(100), "used memory stays");
            assert!(second < 10 || left < bytes(4096 / 3), "{left} after {second}");
        }
        assert_eq!(pool.trim(), bytes(87), "an eighth of the unused ones");
    }

    #[test]
    fn every_buffer_returns_to_its_shelf() {
        let mut pool = FramePool::new(4, 1);
        for _ in 0..3 {
            let mut kept = pool.copy_of(&[1; 60]).unwrap();
            pool.compact(&mut kept);
            assert!(pool.take_free(60).is_some(), "the small buffer came back");
            pool.give_back(kept);
        }
        let free: Vec<_> = pool.shelves.iter().map(|shelf| shelf.free.len()).collect();
        assert_eq!(free, [1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        pool.give_back(Frame::default());
    }
}
