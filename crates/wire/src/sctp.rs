//! The chunks of an SCTP packet (RFC 9260 section 3.2).

use std::num::NonZeroU32;

use crate::{Malformed, Network, tail};

/// Chunk types (RFC 9260 section 3.2).
pub mod chunk_type {
    /// Payload.
    pub const DATA: u8 = 0;
    /// Asks for an association.
    pub const INIT: u8 = 1;
    /// Answers an INIT.
    pub const INIT_ACK: u8 = 2;
    /// Acknowledges payload.
    pub const SACK: u8 = 3;
    /// Asks whether a path works.
    pub const HEARTBEAT: u8 = 4;
    /// Answers a heartbeat.
    pub const HEARTBEAT_ACK: u8 = 5;
    /// Ends an association at once.
    pub const ABORT: u8 = 6;
    /// Begins to end an association.
    pub const SHUTDOWN: u8 = 7;
    /// Answers a SHUTDOWN.
    pub const SHUTDOWN_ACK: u8 = 8;
    /// Reports an error.
    pub const ERROR: u8 = 9;
    /// Returns the cookie of an INIT ACK.
    pub const COOKIE_ECHO: u8 = 10;
    /// The association is up.
    pub const COOKIE_ACK: u8 = 11;
    /// The association is gone.
    pub const SHUTDOWN_COMPLETE: u8 = 14;
}

/// A chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk<'a> {
    /// Type, as in [`chunk_type`].
    pub kind: u8,
    /// Flags, whose meaning depends on the type.
    pub flags: u8,
    /// The bytes behind the chunk header, without padding.
    pub value: &'a [u8],
}

impl Chunk<'_> {
    /// The T bit of ABORT and SHUTDOWN COMPLETE: the sender has no association, and
    /// returns the verification tag of the packet that it answers (RFC 9260 section
    /// 8.5.1).
    pub const fn is_tag_reflected(&self) -> bool {
        self.flags & 1 != 0
    }

    /// The tag that the sender of this INIT or INIT ACK expects in each packet to it.
    ///
    /// # Errors
    /// [`Malformed::Sctp`] for a chunk that is too short, or a tag of zero, which RFC
    /// 9260 sections 3.3.2 and 3.3.3 forbid.
    pub fn initiate_tag(&self) -> Result<NonZeroU32, Malformed> {
        // The fixed fields behind the chunk header.
        let fields: &[u8; 16] = self.value.first_chunk().ok_or(Malformed::Sctp)?;
        let &[t0, t1, t2, t3, ..] = fields;
        NonZeroU32::new(u32::from_be_bytes([t0, t1, t2, t3])).ok_or(Malformed::Sctp)
    }
}

/// The chunks of a packet in their order; ends after the first that is malformed.
#[derive(Clone, Debug)]
pub struct Chunks<'a> {
    rest: &'a [u8],
}

/// The chunks of the SCTP packet that [`crate::dissect`] found in `frame`.
pub fn chunks<'a>(frame: &'a [u8], network: &Network) -> Chunks<'a> {
    const COMMON_HEADER: u16 = 12;
    let packet = frame.get(..network.end as usize).unwrap_or(frame);
    Chunks { rest: tail(packet, network.transport_offset.saturating_add(COMMON_HEADER)) }
}

impl<'a> Iterator for Chunks<'a> {
    type Item = Result<Chunk<'a>, Malformed>;

    /// Bytes that are too few for a chunk header are padding. The padding of the last chunk may
    /// be missing.
    fn next(&mut self) -> Option<Self::Item> {
        const CHUNK_HEADER: usize = 4;
        let &[kind, flags, l0, l1] = self.rest.first_chunk()?;
        let length = usize::from(u16::from_be_bytes([l0, l1]));
        let chunk = self.rest.get(CHUNK_HEADER..length).map(|value| Chunk { kind, flags, value });
        let next = chunk.and_then(|_| self.rest.get(length.next_multiple_of(4)..));
        self.rest = next.unwrap_or_default();
        Some(chunk.ok_or(Malformed::Sctp))
    }
}

#[cfg(test)]
#[path = "sctp_tests.rs"]
mod tests;
