//! The bytes of what a new process takes over: a sequence of items, each with its kind and length.

use conntrack::{Change, ConnectionRecord, DecodeError, decode_flow, encode_flow};
use flow::KeyedPacket;
use flow::codec::{Reader, Write, prefixed};
use flow::replica::Told;

use crate::control::record::SharedRecord;

/// Kinds of items.
const STATE: u8 = 0;
const END: u8 = 1;
const SHARED_STATE: u8 = 2;
const SHARED_END: u8 = 3;

/// Something that a new process has to know.
#[derive(Debug)]
pub enum Item {
    /// A connection has this state.
    State(Box<ConnectionRecord>),
    /// The connection whose originator sends such packets has ended.
    End(KeyedPacket),
    /// Something that workers share has this state.
    SharedState(SharedRecord),
    /// The thing that the record names has ended.
    SharedEnd(SharedRecord),
}

/// Appends a change of a connection.
pub fn write_change(change: &Change, to: &mut Vec<u8>) {
    match change {
        Change::State { record, .. } => {
            to.u8(STATE);
            prefixed(to, |to| record.encode(to));
        }
        Change::End { original, .. } => {
            to.u8(END);
            prefixed(to, |to| encode_flow(original, to));
        }
    }
}

/// Appends a change of something that workers share.
pub fn write_shared(told: &Told<SharedRecord>, to: &mut Vec<u8>) {
    let (kind, record) = match told {
        Told::State { record, .. } => (SHARED_STATE, record),
        Told::End { name, .. } => (SHARED_END, name),
    };
    to.u8(kind);
    prefixed(to, |to| record.encode(to));
}

/// Reads all items.
///
/// # Errors
/// [`DecodeError`]: no gateway writes such bytes, or this program does not know what they contain.
pub fn read_all(bytes: &[u8]) -> Result<Vec<Item>, DecodeError> {
    let (mut from, mut items) = (Reader::new(bytes), Vec::new());
    while !from.is_empty() {
        let kind = from.u8()?;
        let body = from.prefixed()?;
        items.push(match kind {
            STATE => Item::State(Box::new(ConnectionRecord::decode(body)?)),
            END => Item::End(decode_flow(body)?),
            SHARED_STATE => Item::SharedState(SharedRecord::decode(body)?),
            SHARED_END => Item::SharedEnd(SharedRecord::decode(body)?),
            other => return Err(DecodeError::Kind(other)),
        });
    }
    Ok(items)
}
