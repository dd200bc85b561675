//! A frame and its buffer.

use wire::{Place, Readdress};

use crate::{Checksum, Offload, PortId};

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
    /// True if the places of [`Frame::before`] lie behind the frame's bytes. Stored here, they
    /// would cost every frame a second cache line, even if it was not translated.
    pub(crate) has_before: bool,
}

/// Bytes of the stored places of [`Frame::before`]: for each end a flag, address and port.
pub(crate) const BEFORE_LEN: usize = 2 * PLACE_LEN;
const PLACE_LEN: usize = 1 + 16 + 2;

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
        self.supplied_hash = other.supplied_hash;
        self.offload = other.offload;
        self.timestamp = other.timestamp;
        self.sequence = other.sequence;
    }

    /// The ends of the frame's packet before they were changed. With it, an ICMP error can show the
    /// sender its packet as it sent it. [`FramePool::keep_before`](crate::FramePool::keep_before)
    /// stores it.
    pub fn before(&self) -> Readdress {
        if !self.has_before {
            return Readdress::default();
        }
        let (source, destination) =
            self.buffer[(self.start + self.length) as usize..][..BEFORE_LEN].split_at(PLACE_LEN);
        Readdress { source: read_place(source), destination: read_place(destination) }
    }

    /// The packet has its original addresses again.
    pub const fn forget_before(&mut self) {
        self.has_before = false;
    }

    /// Writes the earlier ends behind the bytes. False if there is no room.
    pub(crate) fn write_before(&mut self, before: &Readdress) -> bool {
        let behind = self.buffer.get_mut((self.start + self.length) as usize..);
        let Some(bytes) = behind.and_then(|behind| behind.first_chunk_mut::<BEFORE_LEN>()) else {
            return false;
        };
        let (source, destination) = bytes.split_at_mut(PLACE_LEN);
        write_place(before.source, source);
        write_place(before.destination, destination);
        self.has_before = true;
        true
    }
}

fn read_place(bytes: &[u8]) -> Option<Place> {
    let (&is_there, bytes) = bytes.split_first()?;
    let (&address, port) = bytes.split_first_chunk()?;
    (is_there != 0).then_some(Place { address, port: u16::from_ne_bytes(*port.first_chunk()?) })
}

fn write_place(place: Option<Place>, bytes: &mut [u8]) {
    bytes[0] = place.is_some().into();
    if let Some(Place { address, port }) = place {
        bytes[1..17].copy_from_slice(&address);
        bytes[17..].copy_from_slice(&port.to_ne_bytes());
    }
}

#[cfg(test)]
#[path = "frame_tests.rs"]
mod tests;
