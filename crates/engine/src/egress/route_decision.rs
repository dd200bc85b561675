//! The decision of a router about a packet.

use fib::RouteResult;
use flow::DropReason;
use wire::icmp_error::Message;
use wire::{Family, Network};

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
    /// The decision about a packet with this route.
    #[inline]
    pub fn of(result: RouteResult, network: &Network) -> Self {
        let refuse = |reason, v4, v6| {
            let code = if network.family == Family::V4 { v4 } else { v6 };
            Self::Refuse { reason, icmp: Some(Message::Unreachable { code }) }
        };
        let hop = match result {
            RouteResult::Forward(hop) => hop,
            RouteResult::Local | RouteResult::Broadcast | RouteResult::Multicast => {
                return Self::Host;
            }
            RouteResult::NoRoute => return refuse(DropReason::NoRoute, NET, NO_ROUTE),
            RouteResult::Unreachable => return refuse(DropReason::NoRoute, HOST, NO_ROUTE),
            RouteResult::Prohibited => {
                return refuse(DropReason::RouteProhibited, PROHIBITED_V4, PROHIBITED_V6);
            }
            RouteResult::Blackhole => {
                return Self::Refuse { reason: DropReason::RouteBlackhole, icmp: None };
            }
            RouteResult::Unsupported => {
                return Self::Refuse { reason: DropReason::RouteUnsupported, icmp: None };
            }
        };
        if network.ttl <= 1 {
            return OUT_OF_TIME;
        }
        let address = hop.gateway.unwrap_or_else(|| network.destination_ip());
        Self::Forward { next: (hop.link, address), mtu: hop.mtu }
    }
}
