//! The reason of a drop with the numbers that decided, from any stage.

use std::fmt;

use flow::DropReason;
use wire::ClaimedFragment;

/// Why a packet was dropped: the reason that is counted, and the facts that an operator needs to
/// check it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Tracking refused it, or the reason needs no further facts.
    Tracking(conntrack::DropCause),
    /// Reassembly refused it.
    Fragment(defrag::Why),
}

impl Why {
    /// The reason under which it is counted.
    pub const fn reason(self) -> DropReason {
        match self {
            Self::Tracking(why) => why.reason(),
            Self::Fragment(why) => why.reason(),
        }
    }

    /// Adds the claims of a fragment that is refused because of them. The dissector reports only
    /// the reason.
    #[must_use]
    pub fn about(self, frame: &[u8]) -> Self {
        let reason = match self {
            Self::Tracking(conntrack::DropCause::Reason(
                reason @ (DropReason::FragLength
                | DropReason::FragOversize
                | DropReason::FragEmpty
                | DropReason::FragHeaderChain),
            )) => reason,
            _ => return self,
        };
        ClaimedFragment::of(frame).map_or(self, |claimed| {
            let ClaimedFragment { offset, length, header, .. } = claimed;
            Self::Fragment(defrag::Why::Impossible { reason, offset, length, header })
        })
    }
}

impl From<conntrack::DropCause> for Why {
    fn from(why: conntrack::DropCause) -> Self {
        Self::Tracking(why)
    }
}

impl From<defrag::Why> for Why {
    fn from(why: defrag::Why) -> Self {
        Self::Fragment(why)
    }
}

impl From<DropReason> for Why {
    fn from(reason: DropReason) -> Self {
        Self::Tracking(reason.into())
    }
}

impl From<wire::Malformed> for Why {
    fn from(malformed: wire::Malformed) -> Self {
        Self::Tracking(malformed.into())
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tracking(why) => why.fmt(f),
            Self::Fragment(why) => why.fmt(f),
        }
    }
}
