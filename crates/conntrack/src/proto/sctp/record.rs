//! The tracker in a record.

use super::tags::{Asked, Tag, Tags};
use super::{Sctp, SctpState};
use crate::Direction;
use flow::codec::{DecodeError, Reader, Write};

/// In the order of their numbers in a record.
const ASKED: [Asked; 4] =
    [Asked::Nobody, Asked::One(Direction::Original), Asked::One(Direction::Reply), Asked::Both];

impl Sctp {
    pub fn write(&self, to: &mut Vec<u8>) {
        for tags in &self.tags {
            tags.all().into_iter().for_each(|tag| to.u32(number(tag)));
        }
        to.u8(self.foreign.map_or(0, |(direction, _)| 1 + direction as u8));
        to.u32(number(self.foreign.map(|(_, tag)| tag)));
        to.u8(ASKED.iter().position(|asked| *asked == self.asked).unwrap_or(0) as u8);
        to.flag(self.learns);
        to.u8(self.state as u8);
    }

    pub fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let mut tag = || from.u32().map(Tag::new);
        let tags = [Tags::of([tag()?, tag()?, tag()?]), Tags::of([tag()?, tag()?, tag()?])];
        let direction = from.u8()?;
        let tag = Tag::new(from.u32()?);
        let foreign = match (direction, tag) {
            (0, None) => None,
            (1, Some(tag)) => Some((Direction::Original, tag)),
            (2, Some(tag)) => Some((Direction::Reply, tag)),
            _ => return Err(DecodeError::Impossible("the tag of a heartbeat")),
        };
        let asked = from.one_of(&ASKED)?;
        let learns = from.flag()?;
        Ok(Self { tags, foreign, asked, learns, state: from.one_of(&SctpState::ALL)? })
    }
}

/// No tag is 0.
fn number(tag: Option<Tag>) -> u32 {
    tag.map_or(0, Tag::get)
}
