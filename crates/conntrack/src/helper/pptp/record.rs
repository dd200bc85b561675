//! The state of a control connection in a record.

use super::{CALLS, Call, Control, Ids, Session, Stage};
use crate::Direction;
use flow::codec::{DecodeError, Reader, Write};

/// In the order of their numbers in a record.
const SESSIONS: [Session; 5] =
    [Session::None, Session::Requested, Session::Confirmed, Session::Stopping, Session::Failed];
const DIRECTIONS: [Direction; 2] = [Direction::Original, Direction::Reply];

pub(super) fn write(Control { session, calls }: &Control, to: &mut Vec<u8>) {
    to.u8(SESSIONS.iter().position(|it| it == session).unwrap_or(0) as u8);
    to.varint(calls.len() as u64);
    for Call { pns, stage } in calls {
        to.u8(*pns as u8);
        let (number, ids) = match *stage {
            Stage::Outgoing { pns } => (0, Ids { pns, pac: 0 }),
            Stage::Incoming { pac } => (1, Ids { pns: 0, pac }),
            Stage::Accepted(ids) => (2, ids),
            Stage::Up { ids, incoming: false } => (3, ids),
            Stage::Up { ids, incoming: true } => (4, ids),
            Stage::Clearing(ids) => (5, ids),
        };
        to.u8(number);
        to.u16(ids.pns);
        to.u16(ids.pac);
    }
}

pub(super) fn read(from: &mut Reader<'_>) -> Result<Control, DecodeError> {
    let session = from.one_of(&SESSIONS)?;
    let count = from.varint()?;
    if count > CALLS as u64 {
        return Err(DecodeError::Impossible("the number of calls"));
    }
    let calls = (0..count).map(|_| call(from)).collect::<Result<_, _>>()?;
    Ok(Control { session, calls })
}

fn call(from: &mut Reader<'_>) -> Result<Call, DecodeError> {
    let (pns, number) = (from.one_of(&DIRECTIONS)?, from.u8()?);
    let ids = Ids { pns: from.u16()?, pac: from.u16()? };
    let stage = match number {
        0 => Stage::Outgoing { pns: ids.pns },
        1 => Stage::Incoming { pac: ids.pac },
        2 => Stage::Accepted(ids),
        3 => Stage::Up { ids, incoming: false },
        4 => Stage::Up { ids, incoming: true },
        5 => Stage::Clearing(ids),
        _ => return Err(DecodeError::Impossible("the stage of a call")),
    };
    Ok(Call { pns, stage })
}
