//! The part of a connection that gateways of other makes know too.

use std::time::Duration;

use flow::codec::{DecodeError, Millis};
use flow::{KeyedPacket, Zone};

use super::{ConnectionRecord, Facts, RecordedTranslation};
use crate::Counts;
use crate::proto::RecordedState;
use crate::proto::tcp::{TcpOutline, TcpTracker};
use crate::seqadj::Shift;

/// A connection, as gateways of other makes know it too. It lacks what only this one knows: marks,
/// labels, helpers, own timeouts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outline {
    /// Key and sender of the originator's packets.
    pub original: KeyedPacket,
    /// The same as they leave: equal to `original` unless the connection is translated.
    pub leaves_as: KeyedPacket,
    /// How far it has come.
    pub state: OutlineState,
    /// The time until it ends unless a packet comes.
    pub left: Duration,
    /// The time since it was opened; 0 if it does not keep that.
    pub age: Duration,
    /// Packets and bytes by direction; zeros if it does not count them.
    pub counts: [Counts; 2],
}

/// How far a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutlineState {
    /// Of TCP.
    Tcp {
        /// The tracker.
        tracker: TcpOutline,
        /// A reply was seen.
        seen_reply: bool,
    },
    /// Of a protocol whose tracker knows no more than which ends have sent packets.
    Flow {
        /// A reply was seen.
        seen_reply: bool,
        /// Both ends have sent packets for a while.
        is_stream: bool,
    },
}

/// Why gateways of other makes do not hear of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Untold {
    /// It is in a zone.
    Zone,
    /// Its protocol has more states than they tell: SCTP, DCCP, GRE and tunnels.
    Protocol,
    /// Its sequence numbers, timestamps or windows are changed on their way, by a helper or by the
    /// SYN proxy.
    Adjusted,
}

impl Untold {
    /// The name for programs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Zone => "zone",
            Self::Protocol => "protocol",
            Self::Adjusted => "adjusted",
        }
    }
}

impl ConnectionRecord {
    /// The part that others know too.
    ///
    /// # Errors
    /// [`Untold`]: they would take it for another connection.
    pub fn outline(&self) -> Result<Outline, Untold> {
        let leaves_as = self.translation.as_ref().map_or(self.original, |it| it.leaves_as);
        if (self.original.key.zone, leaves_as.key.zone) != (Zone(0), Zone(0)) {
            return Err(Untold::Zone);
        }
        if self.shifts.is_some_and(|it| it != [Shift::default(); 2]) || self.proxied.is_some() {
            return Err(Untold::Adjusted);
        }
        let Facts { seen_reply, assured, .. } = self.facts;
        let state = match &self.state {
            RecordedState::Tcp(tracker) => {
                OutlineState::Tcp { tracker: tracker.outline(), seen_reply }
            }
            RecordedState::Udp { .. } | RecordedState::UdpLite | RecordedState::Generic => {
                OutlineState::Flow { seen_reply, is_stream: seen_reply && assured }
            }
            RecordedState::Icmp => OutlineState::Flow { seen_reply, is_stream: false },
            RecordedState::Sctp(_)
            | RecordedState::Dccp(_)
            | RecordedState::Gre
            | RecordedState::Tunnel
            | RecordedState::Call => return Err(Untold::Protocol),
        };
        Ok(Outline {
            original: self.original,
            leaves_as,
            state,
            left: self.left.duration(),
            age: self.age.unwrap_or_default().duration(),
            counts: self.counts.unwrap_or_default(),
        })
    }

    /// The connection of which others know this.
    ///
    /// # Errors
    /// [`DecodeError`]: no table makes such a connection.
    pub fn of_outline(outline: &Outline) -> Result<Self, DecodeError> {
        let Outline { original, leaves_as, state, left, age, counts } = outline;
        let (state, facts) = recorded(original, state)?;
        let changes_source = |it: &KeyedPacket| {
            let end = |packet: &KeyedPacket| packet.key.end(packet.sender);
            original.key.is_identified() && end(it) != end(original)
        };
        let translation = (leaves_as != original).then(|| RecordedTranslation {
            leaves_as: *leaves_as,
            interface: None,
            is_counted: changes_source(leaves_as),
        });
        Self {
            translation,
            counts: Some(*counts).filter(|it| *it != [Counts::default(); 2]),
            age: Some(Millis::of(*age)).filter(|it| *it != Millis::default()),
            is_outline: true,
            ..Self::bare(*original, (state, facts), Millis::of(*left))
        }
        .checked()
    }
}

/// State and facts of a record with this key.
fn recorded(
    original: &KeyedPacket,
    state: &OutlineState,
) -> Result<(RecordedState, Facts), DecodeError> {
    let is_tcp = original.key.protocol == wire::protocol::TCP;
    match *state {
        OutlineState::Tcp { tracker, seen_reply } => {
            let assured = seen_reply && !tracker.state.is_opening();
            let tracker = TcpTracker::of_outline(&tracker);
            Ok((RecordedState::Tcp(tracker), Facts { seen_reply, assured, ..Facts::default() }))
        }
        OutlineState::Flow { .. } if is_tcp => {
            Err(DecodeError::Impossible("a state that its protocol does not have"))
        }
        OutlineState::Flow { seen_reply, is_stream } => {
            let is_stream = seen_reply && is_stream;
            let state = RecordedState::of_flow(original.key.protocol, is_stream)
                .ok_or(DecodeError::Impossible("a state that its protocol does not have"))?;
            let assured = is_stream && !original.key.is_query();
            Ok((state, Facts { seen_reply, assured, ..Facts::default() }))
        }
    }
}

#[cfg(test)]
#[path = "outline_tests.rs"]
mod tests;
