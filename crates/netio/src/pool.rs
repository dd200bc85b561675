//! Reusable frame buffers, so that the packet path does not allocate.

use crate::{Frame, Offload, PortId};

/// Largest frame: a 65535-byte IP packet with link header and VLAN tags.
pub const MAX_FRAME: usize = 65_536 + 64;

/// Bytes of a small buffer: an Ethernet frame of a 1500-byte link with tags.
pub const SMALL_BUFFER: usize = 2048;

/// The free buffers of one worker, in two sizes. Most frames fit a small buffer;
/// only super-packets and jumbo frames take a large one.
#[derive(Debug)]
pub struct FramePool {
    small: Vec<Box<[u8]>>,
    large: Vec<Box<[u8]>>,
    small_limit: usize,
    large_limit: usize,
}

impl FramePool {
    /// An empty pool that keeps at most so many free buffers of each size.
    /// Buffers are allocated on first use and reused from then on.
    pub fn new(small_limit: usize, large_limit: usize) -> Self {
        Self {
            small: Vec::with_capacity(small_limit),
            large: Vec::with_capacity(large_limit),
            small_limit,
            large_limit,
        }
    }

    /// A frame with room for `length` bytes, whose content is whatever was there.
    /// `None` when `length` exceeds [`MAX_FRAME`].
    pub fn take(&mut self, length: usize) -> Option<Frame> {
        let buffer = if length <= SMALL_BUFFER {
            self.small.pop().unwrap_or_else(|| vec![0; SMALL_BUFFER].into_boxed_slice())
        } else if length <= MAX_FRAME {
            self.large.pop().unwrap_or_else(|| vec![0; MAX_FRAME].into_boxed_slice())
        } else {
            return None;
        };
        Some(Frame {
            buffer,
            start: 0,
            length: length as u32,
            port: PortId::default(),
            supplied_hash: 0,
            offload: Offload::default(),
            timestamp: 0,
            sequence: 0,
        })
    }

    /// Like [`FramePool::take`], but never allocates: `None` when no buffer of
    /// that size is free.
    pub fn take_free(&mut self, length: usize) -> Option<Frame> {
        let free = if length <= SMALL_BUFFER { &self.small } else { &self.large };
        if free.is_empty() { None } else { self.take(length) }
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
        copy.port = frame.port;
        copy.supplied_hash = frame.supplied_hash;
        copy.offload = frame.offload;
        copy.timestamp = frame.timestamp;
        copy.sequence = frame.sequence;
        Some(copy)
    }

    /// Returns a frame's buffer. Beyond the limit it is freed.
    pub fn give_back(&mut self, frame: Frame) {
        let buffer = frame.buffer;
        let (free, limit) = if buffer.len() <= SMALL_BUFFER {
            (&mut self.small, self.small_limit)
        } else {
            (&mut self.large, self.large_limit)
        };
        if free.len() < limit {
            free.push(buffer);
        }
    }
}
