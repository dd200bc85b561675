//! ICMP and ICMPv6 queries: a flow is a question and its answers.

use flow::DropReason;
use wire::{Family, IcmpQuery};

use super::Input;
use crate::Why;

/// Only a question opens a flow.
pub(super) fn open(query: IcmpQuery) -> Result<(), Why> {
    if query.reply { Err(DropReason::IcmpNotQuery.into()) } else { Ok(()) }
}

/// The two versions have a timeout each, seconds.
pub(super) fn timeout(input: &Input<'_>) -> u32 {
    match input.network.family {
        Family::V4 => input.settings.timeouts.icmp,
        Family::V6 => input.settings.timeouts.icmpv6,
    }
}
