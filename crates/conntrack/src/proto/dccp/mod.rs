//! The DCCP tracker (RFC 4340): a state machine over packet types and roles.
//!
//! States and timers are those of the Linux kernel's tracker up to 6.15; later kernels have
//! none. Like that tracker, it verifies no sequence numbers but one: a connection is assured
//! when the client has acknowledged the Response. It differs in three points: it accepts an
//! acknowledgment with data too, it obeys `nf_conntrack_dccp_loose`, and a Request after the
//! end opens a new connection, with directions of its own.

mod record;
mod state;

use wire::dccp::{Header, PacketType, header};

use super::{Before, Input, Step};
use crate::{Direction, TrackingCause};

pub use state::{DccpState, Role, Transition, opening, transition};

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dccp {
    /// Sequence number of the last Response.
    response: u64,
    /// The direction of the client's packets; `None` if the opening was not seen.
    client: Option<Direction>,
    /// The direction of the last packet if it was a Request.
    requested: Option<Direction>,
    state: DccpState,
}

impl Dccp {
    /// The first packet of a connection.
    pub fn open(input: &Input<'_>) -> Result<Self, TrackingCause> {
        let header = header(input.frame, input.network)?;
        let client = (header.kind == PacketType::Request).then_some(Direction::Original);
        match opening(header.kind) {
            Transition::To(state) if client.is_some() || input.dccp_loose => {
                Ok(Self { response: 0, client, requested: client, state })
            }
            _ => Err(TrackingCause::State {
                state: None,
                what: header.kind.name(),
                direction: Direction::Original,
            }),
        }
    }

    /// One more packet.
    pub fn advance(&mut self, input: &Input<'_>, before: Before) -> Step {
        let header = match header(input.frame, input.network) {
            Ok(header) => header,
            Err(malformed) => return Step::Invalid { why: malformed.into(), cap: None },
        };
        let Header { kind, .. } = header;
        let (direction, from) = (before.direction, self.state);
        // It answers the Request, the only packet so far.
        if kind == PacketType::Reset && !before.seen_reply {
            return Step::End;
        }
        let next = match transition(from, self.role(direction, kind), kind) {
            Transition::Invalid => {
                let why =
                    TrackingCause::State { state: Some(from.name()), what: kind.name(), direction };
                return Step::Invalid { why, cap: None };
            }
            Transition::To(DccpState::Request) if from == DccpState::TimeWait => {
                return Step::Reopen;
            }
            Transition::To(next) => next,
            // The ignored Request is answered: there is a new connection.
            Transition::Ignore if self.answers_request(direction, kind) => DccpState::Respond,
            Transition::Ignore => {
                self.requested = (kind == PacketType::Request).then_some(direction);
                return Step::Pass;
            }
        };
        if kind == PacketType::Response {
            self.response = header.sequence;
        }
        if matches!(kind, PacketType::Response | PacketType::CloseReq) {
            self.client = Some(direction.reversed());
        }
        self.requested = (kind == PacketType::Request).then_some(direction);
        self.state = next;
        let handshake = from == DccpState::Respond && header.acknowledges(self.response);
        let picked_up = self.client.is_none() && before.seen_reply;
        Step::Accept {
            timeout: self.timeout(input),
            assure: handshake || picked_up,
            changed: from != next,
        }
    }

    /// Picks up a connection in its middle, and returns its lifetime in seconds. `None`, with
    /// nothing changed, if this packet can not open one or opens a new one.
    pub fn start_over(&mut self, input: &Input<'_>) -> Option<u32> {
        let amid = Self::open(input).ok().filter(|opened| opened.client.is_none())?;
        *self = amid;
        Some(self.timeout(input))
    }

    pub fn state(&self) -> DccpState {
        self.state
    }

    /// Lifetime in this state, seconds.
    pub fn timeout(&self, input: &Input<'_>) -> u32 {
        input.timeouts.dccp[self.state as usize]
    }

    /// The role of the sender. In a connection that was picked up, either end may be the
    /// client, until one shows that it is the server.
    fn role(&self, direction: Direction, kind: PacketType) -> Role {
        match self.client {
            Some(client) if client != direction => Role::Server,
            None if kind == PacketType::CloseReq => Role::Server,
            _ => Role::Client,
        }
    }

    fn answers_request(&self, direction: Direction, kind: PacketType) -> bool {
        kind == PacketType::Response && self.requested == Some(direction.reversed())
    }
}

#[cfg(test)]
#[path = "tracker_tests.rs"]
mod tests;
