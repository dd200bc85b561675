//! ICMP and ICMPv6 queries: a flow is a query and its answers.

use flow::DropReason;
use wire::{Family, IcmpQuery};

use super::Input;
use crate::TrackingCause;

/// Only a query opens a flow.
pub(super) fn open(query: IcmpQuery) -> Result<(), TrackingCause> {
    if query.reply { Err(DropReason::IcmpNotQuery.into()) } else { Ok(()) }
}

/// The timeout for the version of ICMP, seconds.
pub(super) fn timeout(input: &Input<'_>) -> u32 {
    match input.network.family {
        Family::V4 => input.timeouts.icmp,
        Family::V6 => input.timeouts.icmpv6,
    }
}
