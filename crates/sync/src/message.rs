//! The content of frames.

use flow::Timestamp;

use crate::cursor::{Reader, put_varint};
use crate::keys::HashSecret;
use crate::likeness::Proof;
use crate::record::{Batch, Part};

/// Number of a bulk transfer. The receiver chooses it: the first of a session at random, so that
/// marks of an earlier session mean nothing, and then one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct BulkId(pub u32);

/// The content of a frame. The frames of a stream are delivered in order and each once, so a
/// message means the same whenever it arrives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// How the sender steers and decides. It is the first message of each stream.
    Likeness(Box<Proof>),
    /// The sender wants the connections of the receiver, beginning with a bulk transfer; or no
    /// longer wants them.
    Follow(Option<BulkId>),
    /// The sender asks for the hash secret.
    AskSecret,
    /// The hash secret.
    Secret(HashSecret),
    /// A bulk transfer begins, of about so many connections.
    BeginBulk(BulkId, u64),
    /// All connections have been sent: so many records.
    EndBulk(BulkId, u64),
    /// Records of connections.
    Records(Batch),
    /// Words of the sender's owner: from 1 to [`WORDS_BYTES_MAX`] bytes.
    Words(Vec<u8>),
}

/// Most bytes that an owner says at once.
pub const WORDS_BYTES_MAX: usize = 64;

const LIKENESS: u8 = 1;
const FOLLOW: u8 = 2;
const ASK_SECRET: u8 = 3;
const SECRET: u8 = 4;
const BEGIN_BULK: u8 = 5;
const END_BULK: u8 = 6;
const LIVE_RECORDS: u8 = 7;
const BULK_RECORDS: u8 = 8;
const WORDS: u8 = 9;

/// Bytes of a message in front of its records, with the number of a bulk transfer.
pub(crate) const RECORDS_HEADER_BYTES_MAX: usize = 1 + 4 + 8 + 2;

impl Message {
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Likeness(proof) => {
                bytes.push(LIKENESS);
                proof.encode(bytes);
            }
            Self::Follow(bulk) => {
                bytes.push(FOLLOW);
                bytes.push(bulk.is_some().into());
                bytes.extend_from_slice(&bulk.unwrap_or_default().0.to_be_bytes());
            }
            Self::AskSecret => bytes.push(ASK_SECRET),
            Self::Secret(secret) => {
                bytes.push(SECRET);
                bytes.extend_from_slice(secret.bytes());
            }
            Self::BeginBulk(bulk, count) => put_bulk(BEGIN_BULK, *bulk, *count, bytes),
            Self::EndBulk(bulk, count) => put_bulk(END_BULK, *bulk, *count, bytes),
            Self::Records(batch) => {
                begin_records(batch.part(), batch.time(), bytes);
                let at = bytes.len() - 2;
                bytes[at..].copy_from_slice(&batch.count().to_be_bytes());
                batch.records().for_each(|record| record.encode(bytes));
            }
            Self::Words(words) => {
                bytes.push(WORDS);
                bytes.push(words.len() as u8);
                bytes.extend_from_slice(words);
            }
        }
    }

    /// Reads a message, which takes all of the bytes.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let message = match reader.u8()? {
            LIKENESS => Self::Likeness(Box::new(Proof::decode(&mut reader)?)),
            FOLLOW => {
                let (is_wanted, bulk) = (reader.u8()?, reader.u32()?);
                match (is_wanted, bulk) {
                    (0, 0) => Self::Follow(None),
                    (1, bulk) => Self::Follow(Some(BulkId(bulk))),
                    _ => return None,
                }
            }
            ASK_SECRET => Self::AskSecret,
            SECRET => Self::Secret(HashSecret::new(reader.array()?)),
            BEGIN_BULK => Self::BeginBulk(BulkId(reader.u32()?), reader.varint()?),
            END_BULK => Self::EndBulk(BulkId(reader.u32()?), reader.varint()?),
            LIVE_RECORDS => return Batch::decode(Part::Live, &mut reader).map(Self::Records),
            BULK_RECORDS => {
                let part = Part::Bulk(BulkId(reader.u32()?));
                return Batch::decode(part, &mut reader).map(Self::Records);
            }
            WORDS => {
                let length = usize::from(reader.u8()?);
                if !(1..=WORDS_BYTES_MAX).contains(&length) {
                    return None;
                }
                Self::Words(reader.bytes(length)?.to_vec())
            }
            _ => return None,
        };
        reader.end()?;
        Some(message)
    }
}

fn put_bulk(kind: u8, BulkId(bulk): BulkId, count: u64, bytes: &mut Vec<u8>) {
    bytes.push(kind);
    bytes.extend_from_slice(&bulk.to_be_bytes());
    put_varint(count, bytes);
}

/// The beginning of a message with records: all but the records. Its last two bytes are for
/// their number.
pub(crate) fn begin_records(part: Part, time: Timestamp, bytes: &mut Vec<u8>) {
    match part {
        Part::Live => bytes.push(LIVE_RECORDS),
        Part::Bulk(BulkId(bulk)) => {
            bytes.push(BULK_RECORDS);
            bytes.extend_from_slice(&bulk.to_be_bytes());
        }
    }
    bytes.extend_from_slice(&time.as_nanos().to_be_bytes());
    bytes.extend_from_slice(&[0, 0]);
}

#[cfg(test)]
#[path = "message_tests.rs"]
mod tests;
