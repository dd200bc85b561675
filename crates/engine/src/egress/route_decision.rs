//! The decision of a router about a packet.

use flow::DropReason;
use wire::icmp_error::Message;

use crate::egress::router::NextStation;

/// The route of a packet, which is looked up once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteDecision {
    /// It leaves by a link to a neighbour.
    Forward {
        /// The link and the neighbour.
        next: NextStation,
        /// The longest packet that the route allows, bytes; `None`: the route has no limit.
        mtu: Option<u32>,
    },
    /// To the host, which has its own copy.
    Host,
    /// It is dropped.
    Refuse {
        /// The reason.
        reason: DropReason,
        /// The ICMP error for its sender, if one is due.
        icmp: Option<Message>,
    },
}

/// The decision about a packet that has no hop left.
pub(super) const OUT_OF_TIME: RouteDecision =
    RouteDecision::Refuse { reason: DropReason::TtlExceeded, icmp: Some(Message::TimeExceeded) };
