//! The owner of a connection among two nodes.
//!
//! A node owns the connections that it has opened, until it gives them away or is silent. Each node
//! has a *term*, which rises above the terms of both when it takes connections from a silent owner.
//! If both own a connection afterwards, or two that can not be beside each other, that of the node
//! with the higher term remains, or else that of the node with the higher number. Both nodes decide
//! alike, because each knows the term of the other before it hears of its connections.

use std::time::Duration;

use conntrack::Cursor;
use flow::{KeyedPacket, Timestamp};
use steer::BucketId;
use sync::StreamId;

use crate::control::record::SharedRecord;
use crate::control::shared_copies::SharedCursor;
use crate::control::worker_handle::Unresponsive;

use super::{Connections, Role};

/// Pieces of buckets whose connections get another owner in one turn, so that datagrams are answered
/// meanwhile.
const PIECES_A_TURN: usize = 64;

const ROLE: u8 = 1;
const YIELD: u8 = 2;

/// A message between the owners of two sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Words {
    /// The part of the sender and its term.
    Role(Role, u32),
    /// All connections that the sender has told of belong to the receiver from now on.
    Yield,
}

impl Words {
    pub fn encode(self) -> Vec<u8> {
        match self {
            Self::Role(role, term) => {
                let mut bytes = vec![ROLE, u8::from(role == Role::Active)];
                bytes.extend_from_slice(&term.to_be_bytes());
                bytes
            }
            Self::Yield => vec![YIELD],
        }
    }

    /// `None` for words that no owner says.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        match *bytes {
            [ROLE, is_active @ 0..=1, a, b, c, d] => {
                let role = if is_active == 1 { Role::Active } else { Role::Standby };
                Some(Self::Role(role, u32::from_be_bytes([a, b, c, d])))
            }
            [YIELD] => Some(Self::Yield),
            _ => None,
        }
    }
}

/// The right of a node to a connection: the higher one prevails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Claim {
    pub term: u32,
    pub node: u16,
}

/// The way in which all connections of a node get another owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passing {
    /// This node owns those of the peer from now on.
    Adopting,
    /// The peer owns those of this node from now on.
    GivingAway,
}

/// Time after which a node on standby gives away what it owns again. It looks at all connections for
/// that, and asks for all of the peer's.
pub(super) const GIVES_AGAIN_AFTER: Duration = Duration::from_secs(10);

/// A time at which a node has given away all that it owned.
#[derive(Clone, Copy, Debug)]
pub(super) struct Yielded {
    /// Words that said so in another stream may be lost.
    stream: StreamId,
    at: Timestamp,
    /// It has heard news of what it owns since.
    pub owns_again: bool,
}

impl Yielded {
    pub const fn new(stream: StreamId, at: Timestamp) -> Self {
        Self { stream, at, owns_again: false }
    }

    /// True if the node has to give all away once more.
    pub fn is_out_of_date(self, stream: Option<StreamId>, now: Timestamp) -> bool {
        stream != Some(self.stream) || self.owns_again && now >= self.at.after(GIVES_AGAIN_AFTER)
    }
}

/// Something that was given away.
#[derive(Debug)]
pub enum Given {
    /// Key and sender of the packets of a connection's originator.
    Connection(KeyedPacket),
    /// Something that workers share.
    Shared(SharedRecord),
}

/// How far connections have got another owner, and then what workers share.
#[derive(Debug)]
pub struct Sweep {
    pub passing: Passing,
    bucket: u16,
    from: Cursor,
    /// The next piece of what is shared; `None` at the end.
    shared: Option<SharedCursor>,
}

impl Sweep {
    pub fn new(passing: Passing) -> Self {
        let shared = Some(SharedCursor::default());
        Self { passing, bucket: 0, from: Cursor::default(), shared }
    }

    /// For peers that know of connections alone.
    pub fn of_connections(passing: Passing) -> Self {
        Self { shared: None, ..Self::new(passing) }
    }

    /// Goes on. Shows those that are given away to `each`. True at the end.
    pub fn go_on(
        &mut self,
        gateway: &dyn Connections,
        mut each: impl FnMut(Given),
    ) -> Result<bool, Unresponsive> {
        for _ in 0..PIECES_A_TURN {
            let (bucket, from) = (BucketId(self.bucket), self.from);
            let passed = match self.passing {
                Passing::Adopting => gateway.adopt_connections(bucket, from)?,
                Passing::GivingAway => gateway.give_connections_away(bucket, from)?,
            };
            let Some(passed) = passed else { return self.pass_shared(gateway, &mut each) };
            passed.flows.into_iter().map(Given::Connection).for_each(&mut each);
            match passed.rest {
                Some(rest) => self.from = rest,
                None => (self.bucket, self.from) = (self.bucket + 1, Cursor::default()),
            }
        }
        Ok(false)
    }

    /// Goes on with what workers share. True at the end.
    fn pass_shared(
        &mut self,
        gateway: &dyn Connections,
        each: &mut dyn FnMut(Given),
    ) -> Result<bool, Unresponsive> {
        let Some((things, from)) = gateway.shared_things().zip(self.shared) else {
            return Ok(true);
        };
        match self.passing {
            Passing::Adopting => {
                things.adopt_shared();
                self.shared = None;
            }
            Passing::GivingAway => {
                let piece = things.give_shared_away(from)?;
                piece.things.into_iter().map(Given::Shared).for_each(each);
                self.shared = piece.rest;
            }
        }
        Ok(self.shared.is_none())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn words_have_one_form(bytes in prop::collection::vec(0_u8..4, 0..8)) {
            if let Some(words) = Words::decode(&bytes) {
                prop_assert_eq!(words.encode(), bytes);
            }
        }
    }

    #[test]
    fn words_come_back() {
        for words in
            [Words::Role(Role::Active, 7), Words::Role(Role::Standby, u32::MAX), Words::Yield]
        {
            assert_eq!(Words::decode(&words.encode()), Some(words));
        }
        assert_eq!(Words::decode(&[ROLE, 2, 0, 0, 0, 0]), None);
    }
}
