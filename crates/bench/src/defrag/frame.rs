//! Frames that a reassembler holds, in buffers of the gateway's pool.

use ::defrag::Buffer;
use netio::FramePool;

/// A frame that a reassembler may hold.
#[derive(Debug, Default)]
pub struct Frame(netio::Frame);

impl Buffer for Frame {
    fn footprint(&self) -> usize {
        self.0.footprint()
    }
}

impl Frame {
    /// The bytes, link header first.
    pub fn bytes(&self) -> &[u8] {
        self.0.bytes()
    }

    /// The bytes, for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.0.bytes_mut()
    }
}

/// Free buffers of one worker.
#[derive(Debug)]
pub struct Pool(FramePool);

impl Pool {
    /// A pool that keeps at most `limit` free buffers.
    pub fn new(limit: usize) -> Self {
        Self(FramePool::new(limit, 0))
    }

    /// A frame as it is received, at most as long as one of a 1500-byte link. Its content is not
    /// defined.
    #[inline]
    pub fn take(&mut self, length: usize) -> Frame {
        Frame(self.0.take(length).unwrap_or_default())
    }

    /// Moves a short frame to a buffer of its size, as a worker does before the reassembler holds
    /// it.
    #[inline]
    pub fn compact(&mut self, frame: &mut Frame) {
        self.0.compact(&mut frame.0);
    }

    /// Takes a buffer back.
    pub fn give_back(&mut self, frame: Frame) {
        self.0.give_back(frame.0);
    }
}
