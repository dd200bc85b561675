//! Records of connections, and batches of them.

use flow::Timestamp;

use crate::cursor::{Reader, put_varint, varint_bytes};
use crate::greeting::Bond;
use crate::message::BulkId;
use crate::packet::Place;

/// Longest record of a connection, bytes, without its identity. Two beginnings of messages that a
/// helper keeps fit, one for each direction.
pub const RECORD_BYTES_MAX: usize = 32 << 10;
/// Most bytes that the identity, kind and length of a record take.
pub(crate) const RECORD_HEADER_BYTES_MAX: usize = 8 + 2 + 10 + 5;

/// The name of one state of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    /// Keyed hash of the connection's flow key.
    pub key: u64,
    /// A connection that is opened later with the same key has a higher number, also if another
    /// node opens it, or the same one after a restart: the high bits hold a term of the cluster.
    pub incarnation: u64,
    /// A later state of the connection has a higher number.
    pub version: u32,
}

/// The fate of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecordKind {
    /// It is there: new, or in a bulk transfer.
    Insert = 0,
    /// Its state is another one.
    Change = 1,
    /// It has ended.
    End = 2,
    /// News for its owner, which is the receiver: packets of it have come to the sender, and this is
    /// what they have made of it.
    News = 3,
    /// News for its owner, which is the receiver: a packet or an operator has ended it.
    EndNews = 4,
}

impl RecordKind {
    pub(crate) const ALL: [Self; 5] =
        [Self::Insert, Self::Change, Self::End, Self::News, Self::EndNews];
    /// Bits of a kind.
    const BITS: u32 = 3;
}

/// One state of a connection. The record of an insert or of a change holds all of the state, so a
/// receiver that has not seen the connection before makes it from either.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Name of the state and its connection.
    pub identity: Identity,
    /// Its fate.
    pub kind: RecordKind,
    /// The state, in a form that the owners agree about; up to [`RECORD_BYTES_MAX`].
    pub body: &'a [u8],
}

impl<'a> Record<'a> {
    /// Bytes of its encoding.
    pub(crate) fn encoded_bytes(&self) -> usize {
        let Identity { incarnation, version, .. } = self.identity;
        let head = self.head();
        let numbers = [head, incarnation, version.into()];
        size_of::<u64>() + numbers.map(varint_bytes).iter().sum::<usize>() + self.body.len()
    }

    /// The length of the body, and the kind.
    fn head(&self) -> u64 {
        (self.body.len() as u64) << RecordKind::BITS | self.kind as u64
    }

    pub(crate) fn encode(&self, bytes: &mut Vec<u8>) {
        let Identity { key, incarnation, version } = self.identity;
        bytes.extend_from_slice(&key.to_be_bytes());
        put_varint(self.head(), bytes);
        put_varint(incarnation, bytes);
        put_varint(version.into(), bytes);
        bytes.extend_from_slice(self.body);
    }

    fn decode(reader: &mut Reader<'a>) -> Option<Self> {
        let key = reader.u64()?;
        let head = reader.varint()?;
        let kind = *RecordKind::ALL.get((head & ((1 << RecordKind::BITS) - 1)) as usize)?;
        let length =
            usize::try_from(head >> RecordKind::BITS).ok().filter(|it| *it <= RECORD_BYTES_MAX)?;
        let incarnation = reader.varint()?;
        let version = reader.varint()?.try_into().ok()?;
        let identity = Identity { key, incarnation, version };
        Some(Self { identity, kind, body: reader.bytes(length)? })
    }
}

/// Why a batch was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// Connections have changed.
    Live,
    /// They are part of a bulk transfer.
    Bulk(BulkId),
}

/// Names a batch that a session has given out, for [`Session::applied`](crate::Session::applied).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Mark {
    /// The bond whose stream it is from. Streams have numbers only within a bond.
    pub(crate) bond: Option<Bond>,
    pub(crate) place: Place,
}

/// Records that arrived in one frame. It is made only of bytes in which all records are right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    part: Part,
    time: Timestamp,
    count: u16,
    bytes: Vec<u8>,
    pub(crate) mark: Mark,
}

impl Batch {
    pub(crate) fn decode(part: Part, reader: &mut Reader<'_>) -> Option<Self> {
        let time = Timestamp::from_nanos(reader.u64()?);
        let count = reader.u16().filter(|count| *count > 0)?;
        let bytes = reader.0.to_vec();
        for _ in 0..count {
            Record::decode(reader)?;
        }
        reader.end()?;
        Some(Self { part, time, count, bytes, mark: Mark::default() })
    }

    /// Names this batch.
    pub fn mark(&self) -> Mark {
        self.mark
    }

    /// Why they were sent.
    pub fn part(&self) -> Part {
        self.part
    }

    /// When the first of them was offered, by the sender's clock.
    pub fn time(&self) -> Timestamp {
        self.time
    }

    /// How many there are: at least 1.
    pub fn count(&self) -> u16 {
        self.count
    }

    /// The records, in the order in which the peer took them in.
    pub fn records(&self) -> impl Iterator<Item = Record<'_>> {
        let mut reader = Reader(&self.bytes);
        std::iter::from_fn(move || Record::decode(&mut reader))
    }
}
