//! Reusable frame buffers, so that the packet path does not allocate.

use crate::Frame;

/// Largest frame: a 65535-byte IP packet with link header and VLAN tags.
pub const MAX_FRAME: usize = 65_536 + 64;

/// Bytes of a small buffer: an Ethernet frame of a 1500-byte link with tags.
pub const SMALL_BUFFER: usize = 2048;

/// Sizes of the buffers that short frames are moved to when they are kept for long,
/// bytes.
const COMPACT_BUFFERS: [usize; 4] = [128, 256, 512, 1024];

/// The free buffers of one worker. Most frames fit a small buffer; only
/// super-packets and jumbo frames take a large one, and only frames that are kept
/// for long take a compact one.
#[derive(Debug)]
pub struct FramePool {
    /// By size, ascending: the compact ones, small, large.
    shelves: [Shelf; COMPACT_BUFFERS.len() + 2],
}

/// Free buffers of one size.
#[derive(Debug)]
struct Shelf {
    size: usize,
    limit: usize,
    free: Vec<Box<[u8]>>,
}

/// Place of the shelf of small buffers.
const SMALL: usize = COMPACT_BUFFERS.len();
/// Place of the shelf of large buffers.
const LARGE: usize = SMALL + 1;

impl FramePool {
    /// An empty pool that keeps at most so many free small and large buffers, and
    /// of each compact size a quarter of `small_limit`. Buffers are allocated on
    /// first use and reused from then on.
    pub fn new(small_limit: usize, large_limit: usize) -> Self {
        let shelf = |place: usize| {
            let (size, limit) = match place {
                SMALL => (SMALL_BUFFER, small_limit),
                LARGE => (MAX_FRAME, large_limit),
                compact => (COMPACT_BUFFERS[compact], small_limit / 4),
            };
            Shelf { size, limit, free: Vec::with_capacity(limit) }
        };
        Self { shelves: std::array::from_fn(shelf) }
    }

    /// A frame with room for `length` bytes, whose content is whatever was there.
    /// `None` when `length` exceeds [`MAX_FRAME`].
    pub fn take(&mut self, length: usize) -> Option<Frame> {
        let place = SMALL + usize::from(length > SMALL_BUFFER);
        (length <= MAX_FRAME).then(|| self.shelves[place].take(length))
    }

    /// Like [`FramePool::take`], but never allocates: `None` when no buffer of
    /// that size is free.
    pub fn take_free(&mut self, length: usize) -> Option<Frame> {
        let place = SMALL + usize::from(length > SMALL_BUFFER);
        if self.shelves[place].free.is_empty() { None } else { self.take(length) }
    }

    /// Moves a frame that is to be kept into a buffer near its length, if that
    /// frees half of its buffer or more. So many short frames can not pin much
    /// more memory than they have bytes.
    pub fn compact(&mut self, frame: Frame) -> Frame {
        let shelf = self.shelves[..=SMALL].iter_mut().find(|shelf| frame.len() <= shelf.size);
        let Some(shelf) = shelf.filter(|shelf| 2 * shelf.size <= frame.buffer.len()) else {
            return frame;
        };
        let mut compact = shelf.take(frame.len());
        compact.bytes_mut().copy_from_slice(frame.bytes());
        compact.inherit(&frame);
        self.give_back(frame);
        compact
    }

    /// A frame that holds a copy of `bytes`; `None` when they exceed [`MAX_FRAME`].
    pub fn copy_of(&mut self, bytes: &[u8]) -> Option<Frame> {
        let mut frame = self.take(bytes.len())?;
        frame.bytes_mut().copy_from_slice(bytes);
        Some(frame)
    }

    /// A copy of a frame with everything that is known about it.
    pub fn duplicate(&mut self, frame: &Frame) -> Option<Frame> {
        let mut copy = self.copy_of(frame.bytes())?;
        copy.inherit(frame);
        Some(copy)
    }

    /// Returns a frame's buffer. Beyond the limit it is freed.
    pub fn give_back(&mut self, frame: Frame) {
        let size = frame.buffer.len();
        if let Some(shelf) = self.shelves.iter_mut().rev().find(|shelf| shelf.size == size)
            && shelf.free.len() < shelf.limit
        {
            shelf.free.push(frame.buffer);
        }
    }
}

impl Shelf {
    fn take(&mut self, length: usize) -> Frame {
        let buffer = self.free.pop().unwrap_or_else(|| vec![0; self.size].into_boxed_slice());
        Frame { buffer, length: length as u32, ..Frame::default() }
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
            let kept = pool.compact(frame);
            assert_eq!((kept.bytes(), kept.footprint()), (&bytes[..], footprint));
            assert_eq!((kept.port, kept.timestamp, kept.sequence), (PortId(3), 7, 9));
            pool.give_back(kept);
        }
        let jumbo = pool.take(9000).unwrap();
        assert_eq!(pool.compact(jumbo).footprint(), MAX_FRAME, "nothing between small and large");
    }

    #[test]
    fn every_buffer_returns_to_its_shelf() {
        let mut pool = FramePool::new(4, 1);
        for _ in 0..3 {
            let frame = pool.copy_of(&[1; 60]).unwrap();
            let kept = pool.compact(frame);
            assert!(pool.take_free(60).is_some(), "the small buffer came back");
            pool.give_back(kept);
        }
        let free: Vec<_> = pool.shelves.iter().map(|shelf| shelf.free.len()).collect();
        assert_eq!(free, [1, 0, 0, 0, 0, 0]);
        pool.give_back(Frame::default());
    }
}
