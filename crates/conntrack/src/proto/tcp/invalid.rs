//! The reasons why a segment can not belong to its connection.

use flow::DropReason;
use wire::TcpFlags;

use super::{FlagClass, Seq, TcpState};
use crate::Direction;

/// The check that a segment failed, with the numbers that decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalid {
    /// No TCP sends this combination of control bits.
    Flags {
        /// The combination.
        flags: TcpFlags,
    },
    /// The first segment of a flow can not open one.
    NotOpening {
        /// Its class.
        class: FlagClass,
    },
    /// The state does not allow it.
    State {
        /// State of the connection.
        state: TcpState,
        /// Direction of the segment.
        direction: Direction,
        /// Its class.
        class: FlagClass,
    },
    /// It starts beyond the window of the receiver.
    SequenceOver {
        /// Sequence number of the segment.
        sequence: Seq,
        /// Highest one allowed.
        highest: Seq,
    },
    /// It acknowledges data that was never sent.
    AckOver {
        /// The acknowledgment number, or the highest SACK edge if that is higher.
        acknowledged: Seq,
        /// Highest one allowed.
        highest: Seq,
    },
    /// A RST below what its receiver has acknowledged.
    ResetUnder {
        /// Sequence number of the RST.
        sequence: Seq,
        /// Lowest one allowed.
        lowest: Seq,
    },
}

impl Invalid {
    /// The drop reason for counters and traces.
    pub const fn reason(self) -> DropReason {
        match self {
            Self::Flags { .. } => DropReason::TcpFlags,
            Self::NotOpening { .. } => DropReason::TcpNotSyn,
            Self::State { .. } => DropReason::TcpState,
            Self::SequenceOver { .. } => DropReason::TcpSequence,
            Self::AckOver { .. } => DropReason::TcpAck,
            Self::ResetUnder { .. } => DropReason::TcpReset,
        }
    }
}

impl std::fmt::Display for Invalid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            Self::Flags { flags } => match flags.0.count_ones() {
                0 => f.write_str("no segment is sent without control bits"),
                1 => write!(f, "control bit {flags:?} is never sent alone"),
                _ => write!(f, "control bits {flags:?} are never sent together"),
            },
            Self::NotOpening { class } => write!(f, "{class} does not open a connection"),
            Self::State { state, direction, class } => {
                write!(f, "{class} in {direction} direction is not possible in {}", state.name())
            }
            Self::SequenceOver { sequence, highest } => {
                write!(f, "sequence number {sequence} is over {highest}, the receiver's window")
            }
            Self::AckOver { acknowledged, highest } => {
                write!(f, "acknowledges {acknowledged}, but only {highest} was sent")
            }
            Self::ResetUnder { sequence, lowest } => {
                write!(f, "reset at {sequence} is under {lowest}, which is acknowledged already")
            }
        }
    }
}
