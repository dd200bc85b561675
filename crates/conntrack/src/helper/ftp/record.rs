//! The state of a control connection in a record.

use super::{Ftp, HEAD, Line, Session, Side};
use flow::codec::{DecodeError, Reader, Write};

/// In the order of their numbers in a record.
const SESSIONS: [Session; 5] =
    [Session::Opening, Session::Greeted, Session::Commands, Session::Securing, Session::Joined];

pub(super) fn write(ftp: &Ftp, to: &mut Vec<u8>) {
    to.u8(SESSIONS.iter().position(|session| *session == ftp.session).unwrap_or(0) as u8);
    to.u8(ftp.asked);
    to.option(ftp.reply, |to, code| to.bytes(&code));
    for Side { next, line, announced, refused } in &ftp.sides {
        to.option(*next, |to, number| to.u32(number));
        let begun = match line {
            Line::Passing => None,
            Line::Begun(bytes, length) => Some((bytes, length)),
        };
        to.option(begun, |to, (bytes, length)| {
            to.bytes(bytes);
            to.u8(*length);
        });
        for range in announced {
            to.option(*range, |to, (start, end)| {
                to.u32(start);
                to.u32(end);
            });
        }
        to.option(*refused, |to, number| to.u32(number));
    }
}

impl Ftp {
    pub fn read_record(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let session = from.one_of(&SESSIONS)?;
        let asked = from.u8()?;
        let reply = from.option(Reader::array)?;
        Ok(Self { session, asked, reply, sides: [side(from)?, side(from)?] })
    }
}

fn side(from: &mut Reader<'_>) -> Result<Side, DecodeError> {
    let next = from.option(Reader::u32)?;
    let line = match from.option(|from| Ok((from.array::<HEAD>()?, from.u8()?)))? {
        None => Line::Passing,
        Some((bytes, length)) if usize::from(length) <= HEAD => Line::Begun(bytes, length),
        Some(_) => return Err(DecodeError::Impossible("the beginning of a line")),
    };
    let mut range = || from.option(|from| Ok((from.u32()?, from.u32()?)));
    let announced = [range()?, range()?];
    Ok(Side { next, line, announced, refused: from.option(Reader::u32)? })
}
