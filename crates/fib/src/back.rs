//! The way back to the sender of a packet. It reveals packets with a forged source (RFC 3704).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::fib::{Answered, Fib, Query, RouteResult};
use crate::route::{Action, Route};
use crate::{LinkId, TableId};

/// The direction of the best route to the source of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Back {
    /// Out of the link by which the packet came in, or out of several with this among them.
    Here,
    /// Out of other links.
    Elsewhere {
        /// The first of them.
        link: LinkId,
        /// The source itself is on that link, not behind a router.
        is_direct: bool,
    },
    /// To the host itself, or to no single host.
    Host,
    /// Nowhere: there is no route, or none that packets can take.
    Nowhere,
}

impl Fib {
    /// Looks for the way back to the source of a packet as the kernel does: by the rules and
    /// routes for a packet in the opposite direction, without a mark, that has come in by
    /// `out`. `out` is the link on which `packet` goes on, or `None` if it is for the host.
    pub fn back(&self, packet: &Query, out: Option<LinkId>) -> Back {
        let reverse = Query {
            source: packet.destination,
            destination: packet.source,
            link: out.unwrap_or(LinkId::LOOPBACK),
            mark: 0,
            ports: packet.ports.map(|(source, destination)| (destination, source)),
            ..*packet
        };
        let (hop, routes) = match self.answer(&reverse) {
            Answered::Hop(hop, routes) => (hop, routes),
            Answered::Host(_) => return Back::Host,
            Answered::Nobody(_) => return Back::Nowhere,
        };
        if lead_by(routes, &reverse, packet.link) {
            return Back::Here;
        }
        Back::Elsewhere { link: hop.link, is_direct: hop.gateway.is_none() }
    }

    /// The link by which a packet leaves; `None` if it goes nowhere or to the host. With `by` it is
    /// this link, if it is among those that the packet may leave by, and none otherwise.
    pub fn way_out(&self, packet: &Query, by: Option<LinkId>) -> Option<LinkId> {
        let Answered::Hop(hop, routes) = self.answer(packet) else { return None };
        match by {
            None => Some(hop.link),
            by => by.filter(|link| lead_by(routes, packet, *link)),
        }
    }

    /// The answer of the routes to the host's own addresses for an address; `None` if there is none.
    pub fn own(&self, address: IpAddr) -> Option<RouteResult> {
        let source = match address {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let query = Query::new(source, address, LinkId::LOOPBACK);
        match self.ask(TableId::LOCAL, None, &query)? {
            Answered::Host(result) => Some(result),
            Answered::Hop(..) | Answered::Nobody(_) => None,
        }
    }

    /// True if the answer of [`Fib::back`] for packets of a family depends only on the source,
    /// the traffic class and the link.
    pub fn is_back_plain(&self, v6: bool) -> bool {
        let family = usize::from(v6);
        let asks = self.asks[family];
        !(asks.source || asks.link || asks.protocol || asks.ports || self.has_sources[family])
    }
}

/// True if one of the best of these routes leads a packet to `link`.
fn lead_by(routes: &[Route], query: &Query, link: LinkId) -> bool {
    // Among IPv6 routes that differ only in their hop each one counts: two links may have one
    // prefix. Among IPv4 routes the kernel looks at the first alone.
    let rank = routes.first().map(Route::rank);
    let is_as_good = |route: &&Route| query.destination.is_ipv6() && Some(route.rank()) == rank;
    let others = routes.iter().skip(1).take_while(is_as_good);
    let alike = routes.iter().take(1).chain(others);
    alike.filter(|route| route.is_for(query)).any(|route| {
        let Action::Forward(hops) = &route.action else { return false };
        hops.all().iter().any(|hop| hop.link == link)
    })
}

#[cfg(test)]
#[path = "back_tests.rs"]
mod tests;
