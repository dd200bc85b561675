//! Verification tags (RFC 9260 section 8.5).

use std::num::NonZeroU32;

use crate::{Direction, TrackingCause};

/// A verification tag. It is never zero: only an INIT is sent with zero, which means no tag.
pub(super) type Tag = NonZeroU32;

/// The tags that packets of one direction may carry.
///
/// An INIT amid an association proves nothing, because anybody can send one. Its tag is
/// accepted beside the tag of the association, until a cookie shows which of them is right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tags {
    /// The tag of the association.
    proven: Option<Tag>,
    /// The last two tags of INITs or INIT ACKs since then, the newer first. An end that answers
    /// a repeated INIT chooses another tag, and its peer may use either answer.
    offered: [Option<Tag>; 2],
}

impl Tags {
    /// The proven tag, then those that were offered, the newer first.
    pub const fn all(&self) -> [Option<Tag>; 3] {
        [self.proven, self.offered[0], self.offered[1]]
    }

    /// The reverse of [`Tags::all`].
    pub const fn of([proven, newer, older]: [Option<Tag>; 3]) -> Self {
        Self { proven, offered: [newer, older] }
    }

    pub fn fit(&self, tag: Option<Tag>) -> bool {
        tag.is_some() && (self.proven == tag || self.offered.contains(&tag))
    }

    /// The reason why a packet with this tag is refused.
    pub fn refuse(&self, tag: Option<Tag>) -> TrackingCause {
        let [newer, older] = self.offered;
        let number = |tag: Option<Tag>| tag.map_or(0, Tag::get);
        TrackingCause::Tag { found: number(tag), expected: [self.proven, newer, older].map(number) }
    }

    pub fn are_unknown(&self) -> bool {
        *self == Self::default()
    }

    pub fn offer(&mut self, tag: Tag) {
        if !self.fit(Some(tag)) {
            self.offered = [Some(tag), self.offered[0]];
        }
    }

    pub fn prove(&mut self, tag: Tag) {
        *self = Self { proven: Some(tag), offered: [None; 2] };
    }
}

/// The directions in which INITs wait for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Nobody,
    One(Direction),
    /// INITs have crossed (RFC 9260 section 5.2.1).
    Both,
}

impl Asked {
    /// The state after an INIT. One that follows a collision counts alone: the other end may
    /// have given up, or there was no collision.
    pub fn and(self, direction: Direction) -> Self {
        match self {
            Self::One(other) if other != direction => Self::Both,
            _ => Self::One(direction),
        }
    }
}
