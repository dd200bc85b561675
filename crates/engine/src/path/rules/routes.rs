//! The routes, as rules look them up.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use fib::{LinkId, Query, RouteResult};
use netio::PortId;
use ruleset::{RouteQuestion, Routes, Side};
use wire::Network;

use crate::egress::outputs::Outputs;
use crate::egress::route_decision::RouteDecision;
use crate::egress::routing::Routing;

/// Kinds of addresses (`linux/rtnetlink.h`).
const UNICAST: u8 = 1;
const LOCAL: u8 = 2;
const BROADCAST: u8 = 3;
const MULTICAST: u8 = 5;
const BLACKHOLE: u8 = 6;
const UNREACHABLE: u8 = 7;
const PROHIBIT: u8 = 8;

/// The longest packets that ports take.
pub trait PortMtus {
    /// Bytes behind the link header, if that is known.
    fn mtu(&self, port: PortId) -> Option<u32>;
}

impl PortMtus for Outputs {
    fn mtu(&self, port: PortId) -> Option<u32> {
        self.mtu(port)
    }
}

/// In the order of ports.
impl PortMtus for Vec<Option<u32>> {
    fn mtu(&self, port: PortId) -> Option<u32> {
        *self.get(usize::from(port.0))?
    }
}

/// The routes for the rules about one packet.
pub struct RuleRoutes<'a> {
    /// The routes.
    pub routing: &'a Routing,
    /// The port by which the packet came in, if it is known.
    pub input: Option<PortId>,
    /// The port by which it goes out, if the route is known.
    pub output: Option<PortId>,
    /// The route of the packet, if it is known.
    pub route: Option<&'a RouteDecision>,
    /// The MTUs of the ports.
    pub mtus: &'a dyn PortMtus,
}

impl RuleRoutes<'_> {
    fn link(&self, side: Side) -> Option<LinkId> {
        let port = match side {
            Side::Input => self.input,
            Side::Output => self.output,
        };
        Some(self.routing.port(port?)?.link)
    }

    fn query(&self, asked: &RouteQuestion) -> Query {
        let &RouteQuestion { to, from, mark, traffic_class, arrives_by, .. } = asked;
        let arrives_by = arrives_by.and_then(|side| self.link(side));
        let link = arrives_by.unwrap_or(LinkId::LOOPBACK);
        Query { mark, traffic_class, ..Query::new(from, to, link) }
    }

    /// IPv4: by the routes to the host's own addresses alone, as in the kernel.
    fn type_v4(&self, asked: &RouteQuestion, on: Option<LinkId>) -> u8 {
        let IpAddr::V4(to) = asked.to else { return UNICAST };
        if to.octets()[0] == 0 || to.is_broadcast() {
            return BROADCAST;
        }
        if to.is_multicast() {
            return MULTICAST;
        }
        let is_there = |attached: fn(&Routing, LinkId, IpAddr) -> bool| {
            on.is_none_or(|link| attached(self.routing, link, asked.to))
        };
        match self.routing.fib.own(asked.to) {
            Some(RouteResult::Local) if is_there(Routing::is_address_on) => LOCAL,
            Some(RouteResult::Broadcast) if is_there(Routing::is_attached) => BROADCAST,
            _ => UNICAST,
        }
    }

    /// IPv6: by the route that a packet to the address takes.
    fn type_v6(&self, asked: &RouteQuestion, on: Option<LinkId>) -> u8 {
        if on.is_some_and(|link| self.routing.is_address_on(link, asked.to)) {
            return LOCAL;
        }
        match self.routing.fib.look_up(&self.query(asked)) {
            RouteResult::Local if on.is_none() => LOCAL,
            RouteResult::Blackhole => BLACKHOLE,
            RouteResult::Prohibited => PROHIBIT,
            RouteResult::Unreachable | RouteResult::NoRoute => UNREACHABLE,
            _ if asked.to.is_multicast() => MULTICAST,
            _ => UNICAST,
        }
    }
}

impl Routes for RuleRoutes<'_> {
    fn address_type(&self, asked: &RouteQuestion) -> u8 {
        let on = asked.on.and_then(|side| self.link(side));
        if asked.to.is_ipv4() { self.type_v4(asked, on) } else { self.type_v6(asked, on) }
    }

    fn way_out(&self, asked: &RouteQuestion) -> u128 {
        let by = asked.on.and_then(|side| self.link(side));
        let link = self.routing.fib.way_out(&self.query(asked), by);
        link.map_or(0, |link| self.routing.name(link))
    }

    fn next_hop(&self) -> Option<IpAddr> {
        match self.route? {
            RouteDecision::Forward { next: (_, address), .. } => Some(*address),
            RouteDecision::Host | RouteDecision::Refuse { .. } => None,
        }
    }

    /// The kernel knows the way back by the address alone.
    fn path_mtu(&self, network: &Network) -> Option<u32> {
        let RouteDecision::Forward { next: (link, _), mtu } = *self.route? else { return None };
        let of_link = |link| self.mtus.mtu(self.routing.port_of(link)?);
        let unspecified = match network.source_ip() {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let back = Query::new(unspecified, network.source_ip(), LinkId::LOOPBACK);
        let back = match self.routing.fib.look_up(&back) {
            RouteResult::Forward(hop) => [of_link(hop.link), hop.mtu],
            _ => [None; 2],
        };
        [of_link(link), mtu].into_iter().chain(back).flatten().min()
    }
}

#[cfg(test)]
#[path = "routes_tests.rs"]
mod tests;
