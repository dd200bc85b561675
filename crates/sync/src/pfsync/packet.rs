//! Packets: a header, and groups of messages of one kind.

use super::dialect::Dialect;
use super::message::{END_OF_PACKET, Kind, Message};
use super::refusal::Refusal;
use super::state_codec::Inexpressible;
use crate::cursor::Reader;

/// Length of the header, bytes.
pub const HEADER_BYTES: usize = 20;
/// Length of the header of a group, bytes.
pub const GROUP_BYTES: usize = 4;
/// Length of a checksum of a ruleset, bytes.
const CHECKSUM_BYTES: usize = 16;
/// Where the length is in the header.
const LENGTH_AT: usize = 2;
/// Longest packet, bytes: its length has 16 bits.
const PACKET_BYTES_MAX: usize = u16::MAX as usize;

/// A packet in which everything is right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// MD5 of the sender's ruleset; zeros tell nothing. A difference concerns only the numbers of
    /// rules.
    pub ruleset: [u8; CHECKSUM_BYTES],
    /// The messages, in their order.
    pub messages: Vec<Message>,
    /// Messages that were skipped: of kinds that are not known, or about IPsec.
    pub skipped: u32,
    /// True if a group of an unknown kind had no length, so that the rest could not be read.
    pub is_abandoned: bool,
}

impl Packet {
    /// Reads a packet without its IP header. Bytes behind the length that it tells do not count.
    ///
    /// # Errors
    /// The first reason why the packet is not right; nothing of it may be applied then.
    pub fn decode(dialect: Dialect, bytes: &[u8]) -> Result<Self, Refusal> {
        let mut reader = Reader(bytes);
        let [version, _] = reader.array().ok_or(Refusal::Truncated)?;
        if version != dialect.header_version() {
            return Err(Refusal::WrongVersion);
        }
        let length = reader.u16().ok_or(Refusal::Truncated)?;
        let ruleset = reader.array().ok_or(Refusal::Truncated)?;
        let rest = usize::from(length).checked_sub(HEADER_BYTES).ok_or(Refusal::Truncated)?;
        let mut groups = Reader(reader.bytes(rest).ok_or(Refusal::Truncated)?);
        let mut packet = Self { ruleset, messages: Vec::new(), skipped: 0, is_abandoned: false };
        while !groups.0.is_empty() && !packet.is_abandoned {
            packet.read_group(dialect, &mut groups)?;
        }
        Ok(packet)
    }

    fn read_group(&mut self, dialect: Dialect, groups: &mut Reader<'_>) -> Result<(), Refusal> {
        let [number, second] = groups.array().ok_or(Refusal::Truncated)?;
        let count = groups.u16().ok_or(Refusal::Truncated)?;
        let kind = Kind::of_number(dialect, number);
        let length = dialect.tells_lengths().then_some(usize::from(second) * 4);
        let stride = match (length, kind.bytes()) {
            (Some(length), Some(bytes)) if length < bytes => return Err(Refusal::WrongLength),
            (Some(length), _) => length,
            (None, Some(bytes)) => bytes,
            (None, None) if kind == Kind::NoDelete => return Err(Refusal::FullDelete),
            (None, None) => {
                self.is_abandoned = true;
                return Ok(());
            }
        };
        let bytes = stride * usize::from(count);
        let group = groups.bytes(bytes).ok_or(Refusal::CountBeyondLength)?;
        match kind {
            Kind::EndOfPacket if !groups.0.is_empty() => return Err(Refusal::BehindEnd),
            Kind::EndOfPacket => {}
            Kind::Unknown | Kind::Tdb => self.skipped += u32::from(count),
            _ => {
                for message in group.chunks_exact(stride) {
                    self.messages.extend(Message::decode(dialect, kind, &mut Reader(message))?);
                }
            }
        }
        Ok(())
    }
}

/// Collects messages into a packet of a limited length.
#[derive(Clone, Debug)]
pub struct PacketWriter {
    dialect: Dialect,
    /// Most bytes, the end included.
    limit: usize,
    bytes: Vec<u8>,
    /// Where the header of the last group is, and how many messages the group has.
    group: Option<(usize, u16)>,
}

/// Why a message is not in a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotWritten {
    /// The packet has no room for it.
    Full,
    /// The dialect can not carry it.
    Inexpressible,
}

impl PacketWriter {
    /// An empty packet of at most `limit` bytes, without the IP header.
    pub fn new(dialect: Dialect, limit: usize) -> Self {
        let mut bytes = vec![0; HEADER_BYTES];
        bytes[0] = dialect.header_version();
        Self { dialect, limit: limit.min(PACKET_BYTES_MAX), bytes, group: None }
    }

    /// Bytes that end a packet.
    const fn end_bytes(dialect: Dialect) -> usize {
        if dialect.tells_lengths() { 0 } else { GROUP_BYTES }
    }

    /// True if it has no messages.
    pub const fn is_empty(&self) -> bool {
        self.group.is_none()
    }

    /// Appends a message. Messages of one kind that follow each other share a group.
    ///
    /// # Errors
    /// Why it is not in the packet, which is as before then.
    pub fn push(&mut self, message: &Message) -> Result<(), NotWritten> {
        let number = message.number(self.dialect);
        let is_same = |(at, count): &(usize, u16)| self.bytes[*at] == number && *count < u16::MAX;
        let group = self.group.filter(is_same);
        let head = if group.is_some() { 0 } else { GROUP_BYTES };
        let length = message.bytes(self.dialect);
        let total = self.bytes.len() + head + length + Self::end_bytes(self.dialect);
        if total > self.limit {
            return Err(NotWritten::Full);
        }
        let before = self.bytes.len();
        let (at, count) = group.unwrap_or((before, 0));
        if group.is_none() {
            let words = if self.dialect.tells_lengths() { length / 4 } else { 0 };
            self.bytes.extend([number, words as u8, 0, 0]);
        }
        if let Err(Inexpressible) = message.encode(self.dialect, &mut self.bytes) {
            self.bytes.truncate(before);
            return Err(NotWritten::Inexpressible);
        }
        let [high, low] = (count + 1).to_be_bytes();
        (self.bytes[at + 2], self.bytes[at + 3]) = (high, low);
        self.group = Some((at, count + 1));
        Ok(())
    }

    /// The whole packet without its IP header.
    pub fn finish(mut self) -> Vec<u8> {
        if !self.dialect.tells_lengths() {
            self.bytes.extend([END_OF_PACKET, 0, 0, 1]);
        }
        let [high, low] = (self.bytes.len() as u16).to_be_bytes();
        (self.bytes[LENGTH_AT], self.bytes[LENGTH_AT + 1]) = (high, low);
        self.bytes
    }
}

#[cfg(test)]
#[path = "packet_tests.rs"]
mod tests;
