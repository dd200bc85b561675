//! A frame and where its bytes lie.

use wire::{Place, Readdress};

use crate::{Checksum, Offload, PortId};

/// One frame on its way through the gateway.
///
/// The frame owns its buffer; giving the frame away gives the buffer away. Where
/// the buffer lies (heap today, a registered region for AF_XDP) is private to
/// this crate, so that the stages above see bytes and nothing else.
///
/// The default is a frame without bytes and without a buffer: what is left where a
/// frame was taken from.
#[derive(Debug, Default)]
pub struct Frame {
    pub(crate) buffer: Box<[u8]>,
    /// Where the frame begins in `buffer`; what lies before is headroom.
    pub(crate) start: u32,
    pub(crate) length: u32,
    /// The port it came from.
    pub port: PortId,
    /// Hash supplied by the interface, 0 where there is none.
    pub supplied_hash: u32,
    /// What the kernel left undone: partial checksum, segmentation.
    pub offload: Offload,
    /// Capture time in nanoseconds since the Unix epoch, 0 where not recorded.
    pub timestamp: u64,
    /// Position in the input, counted by the source; order-sensitive tests and
    /// replays restore the order of the input from it.
    pub sequence: u64,
    /// What [`Frame::before`] tells lies behind the bytes: here it would take a second line
    /// of the cache from all frames that were not translated.
    pub(crate) has_before: bool,
}

/// Bytes that what [`Frame::before`] tells takes: for each end whether there is one, address
/// and port.
pub(crate) const BEFORE_LEN: usize = 2 * PLACE_LEN;
const PLACE_LEN: usize = 1 + 16 + 2;

impl Frame {
    /// The bytes of the frame, link header first.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[self.start as usize..][..self.length as usize]
    }

    /// The bytes, to be edited in place.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[self.start as usize..][..self.length as usize]
    }

    /// Length, bytes.
    pub fn len(&self) -> usize {
        self.length as usize
    }

    /// True for a frame without bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Takes the tags off that only have a priority, in front of an IP packet.
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

    /// Bytes of memory that its buffer takes, whatever it holds of them.
    pub fn footprint(&self) -> usize {
        self.buffer.len()
    }

    /// Takes over everything that is known about a frame with the same bytes.
    pub(crate) fn inherit(&mut self, other: &Self) {
        self.port = other.port;
        self.supplied_hash = other.supplied_hash;
        self.offload = other.offload;
        self.timestamp = other.timestamp;
        self.sequence = other.sequence;
    }

    /// What the ends of its packet were before they were changed, so that its sender can be
    /// told of it as it knows it. [`FramePool::keep_before`](crate::FramePool::keep_before)
    /// keeps it.
    pub fn before(&self) -> Readdress {
        if !self.has_before {
            return Readdress::default();
        }
        let (source, destination) =
            self.buffer[(self.start + self.length) as usize..][..BEFORE_LEN].split_at(PLACE_LEN);
        Readdress { source: read_place(source), destination: read_place(destination) }
    }

    /// It has again the addresses that it came with.
    pub const fn forget_before(&mut self) {
        self.has_before = false;
    }

    /// Writes that behind the bytes. False if there is no room.
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
