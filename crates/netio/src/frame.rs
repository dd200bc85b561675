//! A frame and its buffer.

use crate::{Checksum, Offload, PortId, Service};

/// One frame on its way through the gateway.
///
/// The frame owns its buffer; giving the frame away gives the buffer away. The place of the buffer
/// (heap today, a registered region for AF_XDP) is private to this crate. The stages above see only
/// bytes.
///
/// The default is a frame without bytes and without a buffer, which stays behind where a frame was
/// taken out.
#[derive(Debug, Default)]
pub struct Frame {
    pub(crate) buffer: Box<[u8]>,
    /// Offset of the frame in `buffer`; the bytes before it are headroom.
    pub(crate) start: u32,
    pub(crate) length: u32,
    /// The port it came from.
    pub port: PortId,
    /// Hash supplied by the interface, 0 where there is none.
    pub supplied_hash: u32,
    /// Work that the kernel left undone: partial checksum, segmentation.
    pub offload: Offload,
    /// Capture time in nanoseconds since the Unix epoch, 0 where not recorded.
    pub timestamp: u64,
    /// Position in the input, counted by the source. Order-sensitive tests and replays restore the
    /// order of the input from it.
    pub sequence: u64,
    /// The service that it gets.
    pub service: Service,
    /// True if a [note](Frame::note) lies behind the frame's bytes. Stored here, it would cost
    /// every frame a second cache line, even if it has none.
    pub(crate) has_note: bool,
}

/// Length of a [note](Frame::note), bytes.
pub const NOTE_LEN: usize = 38;

impl Frame {
    /// The bytes of the frame, link header first.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[self.start as usize..][..self.length as usize]
    }

    /// The bytes, for editing in place.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[self.start as usize..][..self.length as usize]
    }

    /// Length, in bytes.
    pub fn len(&self) -> usize {
        self.length as usize
    }

    /// True for a frame without bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Removes VLAN tags that only carry a priority from the front of an IP packet.
    pub fn take_priority_tags(&mut self) {
        /// Length of the two link addresses, in front of the tags.
        const ADDRESSES: usize = 12;
        let Some(length) = wire::priority_tags(self.bytes()) else { return };
        self.bytes_mut().copy_within(..ADDRESSES, length.into());
        self.start += u32::from(length);
        self.length -= u32::from(length);
        if let Checksum::Partial { start, .. } = &mut self.offload.checksum {
            *start = start.saturating_sub(length);
        }
        if let Some(segmentation) = &mut self.offload.segmentation {
            segmentation.header_length = segmentation.header_length.saturating_sub(length);
        }
    }

    /// Bytes of its whole buffer.
    pub fn footprint(&self) -> usize {
        self.buffer.len()
    }

    /// Copies everything but the bytes from a frame with the same bytes.
    pub(crate) fn inherit(&mut self, other: &Self) {
        self.port = other.port;
        self.service = other.service;
        self.supplied_hash = other.supplied_hash;
        self.offload = other.offload;
        self.timestamp = other.timestamp;
        self.sequence = other.sequence;
    }

    /// A note that travels with the frame, if it has one. Its meaning is that of the stage that has
    /// stored it by [`FramePool::keep_note`](crate::FramePool::keep_note).
    pub fn note(&self) -> Option<&[u8; NOTE_LEN]> {
        let behind = self.buffer.get((self.start + self.length) as usize..);
        behind.filter(|_| self.has_note)?.first_chunk()
    }

    /// Takes the note away.
    pub const fn forget_note(&mut self) {
        self.has_note = false;
    }

    /// Writes a note behind the bytes. False if there is no room.
    pub(crate) fn write_note(&mut self, note: &[u8; NOTE_LEN]) -> bool {
        let behind = self.buffer.get_mut((self.start + self.length) as usize..);
        let Some(place) = behind.and_then(|behind| behind.first_chunk_mut()) else {
            return false;
        };
        *place = *note;
        self.has_note = true;
        true
    }
}

#[cfg(test)]
#[path = "frame_tests.rs"]
mod tests;
