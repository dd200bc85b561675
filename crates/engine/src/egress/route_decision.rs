//! The decision of a router about a packet.

use std::net::IpAddr;

use fib::RouteResult;
use flow::DropReason;
use wire::icmp_error::Message;

use crate::egress::router::NextStation;

/// Codes of "destination unreachable" (RFC 792, RFC 1812 section 5.2.7.1, RFC 4443 section
/// 3.1).
const NET: u8 = 0;
pub(super) const HOST: u8 = 1;
const PROHIBITED_V4: u8 = 13;
const NO_ROUTE: u8 = 0;
const PROHIBITED_V6: u8 = 1;

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

impl RouteDecision {
    /// The decision about a packet with this destination and route that has hops left.
    pub fn of(result: RouteResult, destination: IpAddr) -> Self {
        let refuse = |reason, v4, v6| {
            let code = if destination.is_ipv4() { v4 } else { v6 };
            Self::Refuse { reason, icmp: Some(Message::Unreachable { code }) }
        };
        match result {
            RouteResult::Forward(hop) => {
                Self::Forward { next: (hop.link, hop.gateway.unwrap_or(destination)), mtu: hop.mtu }
            }
            RouteResult::Local | RouteResult::Broadcast | RouteResult::Multicast => Self::Host,
            RouteResult::NoRoute => refuse(DropReason::NoRoute, NET, NO_ROUTE),
            RouteResult::Unreachable => refuse(DropReason::NoRoute, HOST, NO_ROUTE),
            RouteResult::Prohibited => {
                refuse(DropReason::RouteProhibited, PROHIBITED_V4, PROHIBITED_V6)
            }
            RouteResult::Blackhole => {
                Self::Refuse { reason: DropReason::RouteBlackhole, icmp: None }
            }
            RouteResult::Unsupported => {
                Self::Refuse { reason: DropReason::RouteUnsupported, icmp: None }
            }
        }
    }

    /// The same decision about a packet with so many hops left.
    #[inline]
    pub const fn with_hops(self, hops: u8) -> Self {
        match self {
            Self::Forward { .. } if hops <= 1 => OUT_OF_TIME,
            decision => decision,
        }
    }
}
