//! The ways out of the gateway, for questions about a packet.

use std::net::IpAddr;
use std::sync::Arc;

use fib::{LinkId, RouteCache};
use netio::PortId;
use ruleset::{OutputInterface, RouteQuestion, Routes, Ways};
use wire::Network;

use crate::control::gateway::Gateway;
use crate::egress::destination_cache::arrival;
use crate::egress::reverse_path::Sources;
use crate::egress::route_decision::RouteDecision;
use crate::egress::router::{Arrival, query};
use crate::egress::routing::Routing;
use crate::path::rules::routes::RuleRoutes;

/// The ways as they are now, for packets that come in by one interface.
pub struct WaysNow {
    /// `None` for a bridge.
    routing: Option<Arc<Routing>>,
    /// Of the ports, in their order.
    names: Vec<String>,
    /// Of the ports, in their order.
    mtus: Vec<Option<u32>>,
    input: Option<PortId>,
}

impl Gateway {
    /// The ways for packets that come in by `input`.
    pub fn ways(&self, input: Option<&str>) -> WaysNow {
        let coordinator = self.shared.lock();
        let (routing, ports) = (coordinator.routing.clone(), &coordinator.ports);
        let (names, mtus) = (ports.names(), ports.mtus());
        let input = input.and_then(|input| port_named(&names, input));
        WaysNow { routing, names, mtus, input }
    }
}

fn port_named(names: &[String], name: &str) -> Option<PortId> {
    let at = names.iter().position(|it| it == name)?;
    u16::try_from(at).ok().map(PortId)
}

impl WaysNow {
    fn route(&self, routing: &Routing, network: &Network, mark: u32) -> RouteDecision {
        // Without the input interface the packet is one that no routing rule knows by it.
        let link = self.input.and_then(|port| Some(routing.port(port)?.link));
        let query = fib::Query { mark, ..query(network, link.unwrap_or(LinkId(0)), true) };
        RouteDecision::of(routing.fib.look_up(&query), query.destination)
    }
}

impl Ways for WaysNow {
    /// A bridge of more than two interfaces does not know it: each worker has its own stations.
    fn output(&self, network: &Network, mark: u32) -> OutputInterface {
        let Some(routing) = &self.routing else {
            return match (&*self.names, self.input) {
                ([first, second], Some(port)) => {
                    OutputInterface::By(if port == PortId(0) { second } else { first }.clone())
                }
                _ => OutputInterface::Unknown,
            };
        };
        if let Some(port) = self.input
            && let Some(reason) =
                Sources::default().fault(port, network, routing, &mut RouteCache::new(1))
        {
            return OutputInterface::Refused(reason);
        }
        match arrival(network.destination_ip(), routing) {
            Arrival::Drop(reason, _) => return OutputInterface::Refused(reason),
            Arrival::Host => return OutputInterface::Host,
            Arrival::Forward => {}
        }
        match self.route(routing, network, mark).with_hops(network.ttl) {
            RouteDecision::Host => OutputInterface::Host,
            RouteDecision::Refuse { reason, .. } => OutputInterface::Refused(reason),
            RouteDecision::Forward { next: (link, _), .. } => {
                let port = routing.port_of(link);
                let name = port.and_then(|port| self.names.get(usize::from(port.0)));
                name.map_or(OutputInterface::Elsewhere, |name| OutputInterface::By(name.clone()))
            }
        }
    }

    fn routes<'r>(
        &'r self,
        network: &Network,
        mark: u32,
        output: Option<&str>,
    ) -> Option<Box<dyn Routes + 'r>> {
        let routing = self.routing.as_deref()?;
        let output = output.and_then(|name| port_named(&self.names, name));
        // Rules do not see the route before the packet has one.
        let route = output.map(|_| self.route(routing, network, mark));
        Some(Box::new(RoutesNow { ways: self, routing, output, route }))
    }
}

/// The routes for the rules about one packet.
struct RoutesNow<'a> {
    ways: &'a WaysNow,
    routing: &'a Routing,
    output: Option<PortId>,
    route: Option<RouteDecision>,
}

impl RoutesNow<'_> {
    fn as_rules_see_them(&self) -> RuleRoutes<'_> {
        let Self { ways, routing, output, ref route } = *self;
        RuleRoutes { routing, input: ways.input, output, route: route.as_ref(), mtus: &ways.mtus }
    }
}

impl Routes for RoutesNow<'_> {
    fn address_type(&self, asked: &RouteQuestion) -> u8 {
        self.as_rules_see_them().address_type(asked)
    }

    fn way_out(&self, asked: &RouteQuestion) -> u128 {
        self.as_rules_see_them().way_out(asked)
    }

    fn next_hop(&self) -> Option<IpAddr> {
        self.as_rules_see_them().next_hop()
    }

    fn path_mtu(&self, network: &Network) -> Option<u32> {
        self.as_rules_see_them().path_mtu(network)
    }
}
