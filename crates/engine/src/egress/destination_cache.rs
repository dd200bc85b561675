//! The facts about a destination that a router knows by its address alone.

use std::net::{IpAddr, Ipv4Addr};

use fib::{LinkId, Query};
use flow::DropReason;
use wire::{Family, Network};

use crate::egress::martian::{is_no_destination, stays_on_link};
use crate::egress::recent_answers::{RecentAnswers, fold};
use crate::egress::route_decision::RouteDecision;
use crate::egress::router::Arrival;
use crate::egress::routing::Routing;

/// log2 of the number of destinations that a worker remembers, about 80 bytes each.
const DESTINATION_BITS: u32 = 11;

/// Facts about a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DestinationFacts {
    /// It is an address of the host, and no broadcast address.
    pub is_host: bool,
    /// The decision about packets for it that can belong to no translated connection.
    pub arrival: Arrival,
    /// The route of packets with hops left. `None` if rules or routes look at more than the
    /// destination.
    pub route: Option<RouteDecision>,
}

impl DestinationFacts {
    #[cold]
    #[inline(never)]
    fn find(address: IpAddr, routing: &Routing) -> Self {
        let route = routing.fib.goes_by_destination(address.is_ipv6()).then(|| {
            // Nothing looks at the source and the link.
            let query = Query::new(address, address, LinkId(0));
            RouteDecision::of(routing.fib.look_up(&query), address)
        });
        Self { is_host: routing.is_host(address), arrival: arrival(address, routing), route }
    }
}

/// The decision about packets for this address, before they are translated or routed.
pub(crate) fn arrival(address: IpAddr, routing: &Routing) -> Arrival {
    let is_local = routing.is_own(address)
        || address.is_multicast()
        || address == IpAddr::V4(Ipv4Addr::BROADCAST)
        || stays_on_link(address);
    match is_local {
        _ if is_no_destination(address) => Arrival::Drop(DropReason::Martian, None),
        true => Arrival::Host,
        false => Arrival::Forward,
    }
}

/// The facts about the destinations of the last packets.
pub(crate) struct DestinationCache(RecentAnswers<(Family, [u8; 16]), DestinationFacts>);

impl Default for DestinationCache {
    fn default() -> Self {
        Self(RecentAnswers::new(DESTINATION_BITS))
    }
}

impl DestinationCache {
    /// Forgets all facts, because the routes have changed.
    pub fn forget(&mut self) {
        self.0.forget();
    }

    /// The facts about the destination of a packet.
    #[inline]
    pub fn of(&mut self, network: &Network, routing: &Routing) -> &DestinationFacts {
        let asked = (network.family, network.destination);
        let place = self.0.place(fold(network.destination));
        if place.is_none_or(|(known, _)| known != asked) {
            *place = None;
        }
        let find = || (asked, DestinationFacts::find(network.destination_ip(), routing));
        &place.get_or_insert_with(find).1
    }
}
