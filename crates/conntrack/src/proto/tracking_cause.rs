//! The check that a packet failed, with the numbers that decided.

use std::fmt;

use flow::DropReason;

use crate::Direction;
use crate::proto::tcp;

/// Why a packet was refused: the reason that is counted, with the numbers that prove it to an
/// operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrackingCause {
    /// The reason needs no numbers.
    Reason(DropReason),
    /// A TCP segment failed a check.
    Tcp {
        /// The check and its numbers.
        check: tcp::Invalid,
        /// State of its connection, and the direction of the segment; `None` if it has no
        /// connection.
        connection: Option<(tcp::TcpState, Direction)>,
    },
    /// The state of an SCTP association or DCCP connection does not allow the packet.
    State {
        /// The state, `None` before the first packet.
        state: Option<&'static str>,
        /// The chunk or packet type.
        what: &'static str,
        /// Its direction.
        direction: Direction,
    },
    /// The verification tag of an SCTP packet is not one of those of its direction.
    Tag {
        /// The tag.
        found: u32,
        /// The tags that would be accepted, 0 for an empty place: the tag of the association,
        /// and two that INITs offered.
        expected: [u32; 3],
    },
}

impl TrackingCause {
    /// The reason under which it is counted.
    pub const fn reason(self) -> DropReason {
        match self {
            Self::Reason(reason) => reason,
            Self::Tcp { check, .. } => check.reason(),
            Self::State { .. } => DropReason::ProtocolState,
            Self::Tag { .. } => DropReason::VerificationTag,
        }
    }
}

impl From<DropReason> for TrackingCause {
    fn from(reason: DropReason) -> Self {
        Self::Reason(reason)
    }
}

impl From<wire::Malformed> for TrackingCause {
    fn from(malformed: wire::Malformed) -> Self {
        Self::Reason(malformed.into())
    }
}

impl From<tcp::Invalid> for TrackingCause {
    fn from(check: tcp::Invalid) -> Self {
        Self::Tcp { check, connection: None }
    }
}

impl fmt::Display for TrackingCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reason(reason) => f.write_str(reason.meaning()),
            Self::Tcp { check, connection: None } => write!(f, "{check}"),
            Self::Tcp { check: check @ tcp::Invalid::State { .. }, .. } => write!(f, "{check}"),
            Self::Tcp { check, connection: Some((state, direction)) } => {
                write!(f, "{check} ({direction} direction, {})", state.name())
            }
            Self::State { state: Some(state), what, direction } => {
                write!(f, "{what} in {direction} direction is not possible in {state}")
            }
            Self::State { state: None, what, .. } => write!(f, "{what} does not open a connection"),
            Self::Tag { found, expected } => {
                write!(f, "verification tag {found:#010x} is not ")?;
                let mut known = expected.iter().filter(|&&tag| tag != 0);
                match known.next() {
                    None => f.write_str("known: no INIT was seen"),
                    Some(first) => {
                        write!(f, "{first:#010x}")?;
                        known.try_for_each(|tag| write!(f, " or {tag:#010x}"))
                    }
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "tracking_cause_tests.rs"]
mod tests;
