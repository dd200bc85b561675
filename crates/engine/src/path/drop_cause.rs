//! The reason of a drop with the numbers that decided, from any stage.

use std::fmt;

use flow::DropReason;
use wire::ClaimedFragment;

/// The cause of a drop: the reason that is counted, and the facts that an operator needs to check
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropCause {
    /// Tracking refused it, or the reason needs no further facts.
    Tracking(conntrack::TrackingCause),
    /// Reassembly refused it.
    Fragment(defrag::DiscardCause),
    /// A rule refused the packet.
    Rule {
        /// Its number in the ruleset.
        rule: u32,
        /// The revision of the ruleset: its number among those loaded so far.
        revision: u32,
        /// The check of tracking that it failed, if it is INVALID.
        invalid: Option<conntrack::TrackingCause>,
    },
    /// No rule of a chain decided, and its policy refused the packet.
    Policy {
        /// The number of the chain in the ruleset.
        chain: u32,
        /// The revision of the ruleset.
        revision: u32,
        /// The check of tracking that it failed, if it is INVALID.
        invalid: Option<conntrack::TrackingCause>,
    },
    /// A rule refused the packet inside this packet of a tunnel.
    InsideRule {
        /// Its number in the ruleset.
        rule: u32,
        /// The revision of the ruleset.
        revision: u32,
    },
    /// The policy of a chain refused the packet inside this packet of a tunnel.
    InsidePolicy {
        /// The number of the chain in the ruleset.
        chain: u32,
        /// The revision of the ruleset.
        revision: u32,
    },
}

impl DropCause {
    /// The check of tracking that a packet failed which rules refused, if it is INVALID.
    pub const fn invalid(&self) -> Option<&conntrack::TrackingCause> {
        match self {
            Self::Rule { invalid, .. } | Self::Policy { invalid, .. } => invalid.as_ref(),
            _ => None,
        }
    }

    /// The reason under which it is counted.
    pub const fn reason(self) -> DropReason {
        match self {
            Self::Tracking(why) => why.reason(),
            Self::Fragment(why) => why.reason(),
            Self::Rule { .. } => DropReason::RuleRefused,
            Self::Policy { .. } => DropReason::PolicyRefused,
            Self::InsideRule { .. } | Self::InsidePolicy { .. } => DropReason::InsideRefused,
        }
    }

    /// Adds the claims of a fragment that is refused because of them. The dissector reports only
    /// the reason.
    #[must_use]
    pub fn about(self, frame: &[u8]) -> Self {
        let reason = match self {
            Self::Tracking(conntrack::TrackingCause::Reason(
                reason @ (DropReason::FragLength
                | DropReason::FragOversize
                | DropReason::FragEmpty
                | DropReason::FragHeaderChain),
            )) => reason,
            _ => return self,
        };
        ClaimedFragment::of(frame).map_or(self, |claimed| {
            let ClaimedFragment { offset, length, header, .. } = claimed;
            Self::Fragment(defrag::DiscardCause::Impossible { reason, offset, length, header })
        })
    }
}

impl From<conntrack::TrackingCause> for DropCause {
    fn from(why: conntrack::TrackingCause) -> Self {
        Self::Tracking(why)
    }
}

impl From<defrag::DiscardCause> for DropCause {
    fn from(why: defrag::DiscardCause) -> Self {
        Self::Fragment(why)
    }
}

impl From<DropReason> for DropCause {
    fn from(reason: DropReason) -> Self {
        Self::Tracking(reason.into())
    }
}

impl From<wire::Malformed> for DropCause {
    fn from(malformed: wire::Malformed) -> Self {
        Self::Tracking(malformed.into())
    }
}

impl fmt::Display for DropCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tracking(why) => why.fmt(f),
            Self::Fragment(why) => why.fmt(f),
            Self::Rule { rule, revision, invalid } => {
                write!(f, "rule number {rule} of ruleset {revision} refused it")?;
                tell_invalid(invalid.as_ref(), f)
            }
            Self::Policy { chain, revision, invalid } => {
                write!(f, "the policy of chain number {chain} of ruleset {revision} refused it")?;
                tell_invalid(invalid.as_ref(), f)
            }
            Self::InsideRule { rule, revision } => {
                write!(f, "rule number {rule} of ruleset {revision} refused the packet inside")
            }
            Self::InsidePolicy { chain, revision } => write!(
                f,
                "the policy of chain number {chain} of ruleset {revision} refused the packet inside"
            ),
        }
    }
}

fn tell_invalid(why: Option<&conntrack::TrackingCause>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    why.map_or(Ok(()), |why| write!(f, "; it is INVALID: {why}"))
}
