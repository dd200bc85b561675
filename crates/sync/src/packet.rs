//! The outside of datagrams: version, kind, and the header of sealed ones.

use crate::cursor::Reader;
use crate::refusal::Refusal;

/// Version of the protocol. 2: frames carry a length and padding, and records may be long.
pub(crate) const VERSION: u8 = 2;
pub(crate) const SEALED_HEADER_BYTES: usize = 14;

/// The second byte of each datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A node wants keys.
    Hello = 1,
    /// The peer has answered.
    Answer = 2,
    /// The first node shows that it has got the answer.
    Confirm = 3,
    /// Everything else, encrypted.
    Sealed = 4,
}

impl Kind {
    /// Reads version and kind of a datagram.
    pub fn of(datagram: &[u8]) -> Result<Self, Refusal> {
        match *datagram {
            [VERSION, 1, ..] => Ok(Self::Hello),
            [VERSION, 2, ..] => Ok(Self::Answer),
            [VERSION, 3, ..] => Ok(Self::Confirm),
            [VERSION, 4, ..] => Ok(Self::Sealed),
            [VERSION, ..] | [] => Err(Refusal::Malformed),
            _ => Err(Refusal::WrongVersion),
        }
    }
}

/// The header of a sealed datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SealedHeader {
    /// Names the keys, as their receiver chose it.
    pub index: u32,
    /// Number of the datagram under its key.
    pub number: u64,
}

impl SealedHeader {
    pub fn encode(self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&[VERSION, Kind::Sealed as u8]);
        bytes.extend_from_slice(&self.index.to_be_bytes());
        bytes.extend_from_slice(&self.number.to_be_bytes());
    }

    /// Reads the header of a datagram of [`Kind::Sealed`].
    pub fn decode(datagram: &[u8]) -> Option<Self> {
        let mut reader = Reader(datagram.get(2..)?);
        Some(Self { index: reader.u32()?, number: reader.u64()? })
    }
}

/// Most ranges in one acknowledgment. Frames beyond them are acknowledged later.
pub(crate) const ACK_RANGES_MAX: usize = 16;

/// The frames of a stream that have arrived.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ack {
    /// The stream.
    pub stream: u32,
    /// All frames below this have arrived, and their owner has taken or applied them.
    pub next: u64,
    /// Frames beyond, in order: how many are missing, and how many are there behind these.
    pub ranges: Vec<(u16, u16)>,
}

impl Ack {
    /// Bytes without ranges.
    pub const BYTES_LEAST: usize = 4 + 8 + 1;

    pub fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.stream.to_be_bytes());
        bytes.extend_from_slice(&self.next.to_be_bytes());
        bytes.push(self.ranges.len() as u8);
        for (missing, there) in &self.ranges {
            bytes.extend_from_slice(&missing.to_be_bytes());
            bytes.extend_from_slice(&there.to_be_bytes());
        }
    }

    pub fn decode(reader: &mut Reader<'_>) -> Option<Self> {
        let (stream, next) = (reader.u32()?, reader.u64()?);
        let count = usize::from(reader.u8()?);
        if count > ACK_RANGES_MAX {
            return None;
        }
        let ranges = (0..count).map(|at| {
            let range = (reader.u16()?, reader.u16()?);
            // The first range may follow at once: frames that the owner has still to take or apply.
            let is_apart = range.0 > 0 || at == 0;
            (is_apart && range.1 > 0).then_some(range)
        });
        Some(Self { stream, next, ranges: ranges.collect::<Option<_>>()? })
    }

    /// The ranges as first number and the number behind the last. `None` if numbers run out.
    pub fn spans(&self) -> Option<Vec<(u64, u64)>> {
        let mut at = self.next;
        let spans = self.ranges.iter().map(|(missing, there)| {
            let first = at.checked_add(u64::from(*missing))?;
            at = first.checked_add(u64::from(*there))?;
            Some((first, at))
        });
        spans.collect()
    }
}

/// Where a frame is in the stream of its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Place {
    /// The stream. A sender that has forgotten frames begins another one with a higher number.
    pub stream: u32,
    /// Number of the frame in it, from 0.
    pub number: u64,
}

impl Place {
    /// Its bytes.
    pub const BYTES: usize = 12;

    pub fn encode(self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.stream.to_be_bytes());
        bytes.extend_from_slice(&self.number.to_be_bytes());
    }

    pub fn decode(reader: &mut Reader<'_>) -> Option<Self> {
        Some(Self { stream: reader.u32()?, number: reader.u64()? })
    }
}

#[cfg(test)]
#[path = "packet_tests.rs"]
mod tests;
