//! The tracker in a record.

use super::{Dccp, DccpState};
use crate::Direction;
use flow::codec::{DecodeError, Reader, Write};

/// Sequence numbers have 48 bits (RFC 4340 section 7.1).
const LAST_SEQUENCE: u64 = (1 << 48) - 1;
/// In the order of their numbers in a record.
const ENDS: [Option<Direction>; 3] = [None, Some(Direction::Original), Some(Direction::Reply)];

impl Dccp {
    pub fn write(&self, to: &mut Vec<u8>) {
        to.u64(self.response);
        for end in [self.client, self.requested] {
            to.u8(end.map_or(0, |direction| 1 + direction as u8));
        }
        to.u8(self.state as u8);
    }

    pub fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let response = from.u64()?;
        if response > LAST_SEQUENCE {
            return Err(DecodeError::Impossible("a sequence number of DCCP"));
        }
        let (client, requested) = (from.one_of(&ENDS)?, from.one_of(&ENDS)?);
        Ok(Self { response, client, requested, state: from.one_of(&DccpState::ALL)? })
    }
}
