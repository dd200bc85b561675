//! Packets of a capture in a buffer of the reader's owner.

use std::ops::Range;

use super::CapturedPacket;
use super::link::{ETHERNET, Link};
use crate::capture::{Captured, Record};
use crate::pool::MAX_FRAME;
use crate::{Checksum, FramePool, PortId};

/// A packet whose bytes are in a buffer, so that many packets can be handed on together.
#[derive(Clone, Debug)]
pub struct StoredPacket {
    /// The place of the bytes that were captured, the link header included.
    pub captured: Range<usize>,
    /// Its frame.
    pub frame: Stored,
    /// The number of its link type.
    pub link_type: u16,
    /// Its interface, see [`CaptureReader::interface_name`](super::CaptureReader::interface_name).
    pub interface: usize,
    /// Nanoseconds since the Unix epoch.
    pub timestamp: u64,
    /// Bytes that it had before the capture cut it off.
    pub original_length: u32,
    /// True if headers of the frame were mended.
    pub is_mended: bool,
}

/// The frame of a packet in a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stored {
    /// A frame of Ethernet.
    Frame {
        /// The place of its bytes, which is that of the captured ones if they are the same.
        bytes: Range<usize>,
        /// The port that it came in by.
        port: PortId,
        /// Bytes of it are missing, as [`Checksum::Cut`] says.
        is_cut: bool,
    },
    /// As [`Captured::TooLong`].
    TooLong(u64),
    /// As [`Captured::Foreign`].
    Foreign,
}

impl StoredPacket {
    /// True if the capturing program has cut it off.
    pub fn is_truncated(&self) -> bool {
        self.original_length as usize > self.captured.len()
    }

    /// The packet in a frame of its own. `buffer` holds its bytes.
    #[inline]
    pub fn take(&self, buffer: &[u8], pool: &mut FramePool) -> Captured {
        let (bytes, port, is_cut) = match &self.frame {
            Stored::Frame { bytes, port, is_cut } => (bytes, *port, *is_cut),
            Stored::TooLong(length) => return Captured::TooLong(*length),
            Stored::Foreign => return Captured::Foreign,
        };
        let Some(mut frame) = pool.copy_of(&buffer[bytes.clone()]) else {
            return Captured::TooLong(bytes.len() as u64);
        };
        if is_cut {
            frame.offload.checksum = Checksum::Cut;
        }
        (frame.port, frame.timestamp) = (port, self.timestamp);
        Captured::Frame(frame)
    }

    /// The packet as it was captured. `buffer` holds its bytes.
    pub fn captured<'a>(&self, buffer: &'a [u8], interface: &'a str) -> CapturedPacket<'a> {
        let &Self { link_type, timestamp, original_length, .. } = self;
        let bytes = &buffer[self.captured.clone()];
        CapturedPacket { bytes, link_type, interface, timestamp, original_length }
    }

    /// Stores the frame of a packet whose bytes are in `buffer`, behind them if it is not the same.
    /// `port` is that of packets whose port the capture does not tell. `frame` is there for its
    /// memory.
    pub(super) fn store(
        record: Record,
        buffer: &mut Vec<u8>,
        frame: &mut Vec<u8>,
        port: PortId,
        mends: bool,
    ) -> Self {
        let Record { range, link_type, order, interface, timestamp, original_length, .. } = record;
        let mut packet = Self {
            frame: Stored::Foreign,
            captured: range.clone(),
            link_type,
            interface,
            timestamp,
            original_length,
            is_mended: false,
        };
        let Some(link) = Link::from_number(link_type) else { return packet };
        let port = record.port.unwrap_or(port);
        let captured = &buffer[range.clone()];
        let is_plain = link_type == ETHERNET && !packet.is_truncated() && range.len() <= MAX_FRAME;
        if is_plain && !(mends && wire::needs_mending(captured)) {
            packet.frame = Stored::Frame { bytes: range, port, is_cut: false };
            return packet;
        }
        let cut = (original_length as usize).saturating_sub(range.len());
        // A packet that ends within its link header has no header that anybody could read.
        let (header, payload) = link.split(captured, order).unwrap_or_default();
        let known = header.map_or(0, |header| header.len()) + payload.len();
        if known + cut > MAX_FRAME {
            packet.frame = Stored::TooLong((known + cut) as u64);
            return packet;
        }
        frame.clear();
        frame.extend(header.iter().flatten());
        frame.extend(payload);
        frame.resize(known + cut, 0);
        packet.is_mended = mends && wire::mend_headers(frame);
        let is_cut = cut > 0 && cover_cut(frame, known);
        let start = buffer.len();
        buffer.extend_from_slice(frame);
        packet.frame = Stored::Frame { bytes: start..buffer.len(), port, is_cut };
        packet
    }
}

/// Makes the best of a frame of which only the first `known` bytes are known, and zeros stand for
/// the rest. If its headers can not be read without the rest, the frame ends there, and the result
/// is false.
fn cover_cut(frame: &mut Vec<u8>, known: usize) -> bool {
    let dissected = wire::dissect(frame).ok();
    let network = dissected.and_then(|dissected| dissected.network);
    match network.filter(|network| wire::headers_end(frame, network) <= known) {
        Some(network) => {
            wire::cover_missing(frame, &network, known);
            true
        }
        None => {
            frame.truncate(known);
            false
        }
    }
}
