//! The way out of the gateway, for questions about a packet.

use fib::LinkId;
use netio::PortId;
use ruleset::OutputInterface;
use wire::Network;

use crate::control::gateway::Gateway;
use crate::egress::route_decision::RouteDecision;
use crate::egress::router::query;

impl Gateway {
    /// The way out for a packet with these headers and this mark that came in by `input`. A bridge
    /// of more than two interfaces does not know it: each worker has its own stations.
    pub fn output_interface(
        &self,
        network: &Network,
        input: Option<&str>,
        mark: u32,
    ) -> OutputInterface {
        let (routing, names) = {
            let coordinator = self.shared.lock();
            (coordinator.routing.clone(), coordinator.ports.names())
        };
        let input = input.and_then(|input| names.iter().position(|name| name == input));
        let Some(routing) = routing else {
            return match (&*names, input) {
                ([first, second], Some(port)) => {
                    OutputInterface::By(if port == 0 { second } else { first }.clone())
                }
                _ => OutputInterface::Unknown,
            };
        };
        // Without the input interface the packet is one that no routing rule knows by it.
        let link = input.and_then(|port| Some(routing.port(PortId(port as u16))?.link));
        let query = fib::Query { mark, ..query(network, link.unwrap_or(LinkId(0)), true) };
        let route = RouteDecision::of(routing.fib.look_up(&query), query.destination);
        match route.with_hops(network.ttl) {
            RouteDecision::Host => OutputInterface::Host,
            RouteDecision::Refuse { reason, .. } => OutputInterface::Refused(reason),
            RouteDecision::Forward { next: (link, _), .. } => {
                let port = routing.port_of(link);
                let name = port.and_then(|port| names.get(usize::from(port.0)));
                name.map_or(OutputInterface::Elsewhere, |name| OutputInterface::By(name.clone()))
            }
        }
    }
}
