//! The DCCP header beyond its ports (RFC 4340 section 5.1).

use crate::{Malformed, Network, tail};

/// Packet types (RFC 4340 section 5.1); 10 to 15 are reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PacketType {
    /// Asks for a connection.
    Request,
    /// Answers a request.
    Response,
    /// Payload.
    Data,
    /// Acknowledges packets.
    Ack,
    /// Payload and an acknowledgment.
    DataAck,
    /// The server asks the client to close.
    CloseReq,
    /// Ends the connection.
    Close,
    /// The connection is gone.
    Reset,
    /// Asks the other end to synchronise sequence numbers.
    Sync,
    /// Answers a Sync.
    SyncAck,
}

impl PacketType {
    /// The name in RFC 4340 section 5.1.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Request => "DCCP-Request",
            Self::Response => "DCCP-Response",
            Self::Data => "DCCP-Data",
            Self::Ack => "DCCP-Ack",
            Self::DataAck => "DCCP-DataAck",
            Self::CloseReq => "DCCP-CloseReq",
            Self::Close => "DCCP-Close",
            Self::Reset => "DCCP-Reset",
            Self::Sync => "DCCP-Sync",
            Self::SyncAck => "DCCP-SyncAck",
        }
    }

    /// All types, by number.
    pub const ALL: [Self; 10] = [
        Self::Request,
        Self::Response,
        Self::Data,
        Self::Ack,
        Self::DataAck,
        Self::CloseReq,
        Self::Close,
        Self::Reset,
        Self::Sync,
        Self::SyncAck,
    ];
}

/// A DCCP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Packet type.
    pub kind: PacketType,
    /// Sequence number: 48 bits, or the low 24 of them.
    pub sequence: u64,
    /// Acknowledgment number, as long as the sequence number; `None` for types that have none.
    pub acknowledgment: Option<u64>,
    /// True for numbers of 48 bits.
    pub extended: bool,
}

impl Header {
    /// True if this header acknowledges the packet with the (48-bit) `sequence` number.
    pub fn acknowledges(&self, sequence: u64) -> bool {
        let mask = if self.extended { (1 << 48) - 1 } else { (1 << 24) - 1 };
        self.acknowledgment == Some(sequence & mask)
    }
}

/// The header of the DCCP packet that [`crate::dissect`] found in `frame`.
///
/// # Errors
/// [`Malformed::Dccp`] for a reserved type, short sequence numbers in a type that must
/// not have them, and a data offset within the fields of the type.
pub fn header(frame: &[u8], network: &Network) -> Result<Header, Malformed> {
    let packet = frame.get(..network.end as usize).unwrap_or(frame);
    read(tail(packet, network.transport_offset)).ok_or(Malformed::Dccp)
}

fn read(bytes: &[u8]) -> Option<Header> {
    use PacketType::{Ack, Data, DataAck, Request, Reset, Response};
    let generic: &[u8; 12] = bytes.first_chunk()?;
    let fields = bytes.get(..usize::from(generic[4]) * 4)?;
    let kind = *PacketType::ALL.get(usize::from((generic[8] >> 1) & 0x0f))?;
    let extended = generic[8] & 1 != 0;
    if !extended && !matches!(kind, Data | Ack | DataAck) {
        return None;
    }
    // The ends of the two numbers; padding up to a whole word precedes each.
    let (sequence_end, acknowledgment_end) = if extended { (16, 24) } else { (12, 16) };
    let number = |end: usize| {
        let length = if extended { 6 } else { 3 };
        let bytes = fields.get(end - length..end)?;
        Some(bytes.iter().fold(0, |number, byte| (number << 8) | u64::from(*byte)))
    };
    let sequence = number(sequence_end)?;
    let (acknowledgment, end) = match kind {
        Request | Data => (None, sequence_end),
        _ => (Some(number(acknowledgment_end)?), acknowledgment_end),
    };
    // The service code, or the reset code with its data.
    let more = if matches!(kind, Request | Response | Reset) { 4 } else { 0 };
    (fields.len() >= end + more).then_some(Header { kind, sequence, acknowledgment, extended })
}

#[cfg(test)]
#[path = "dccp_tests.rs"]
mod tests;
