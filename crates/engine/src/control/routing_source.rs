//! Where a gateway has its routes and neighbours from.

use std::sync::Arc;

use crate::control::route_keeper::{PortLinks, RouteKeeper};
use crate::egress::resolver::Resolver;
use crate::egress::routing::Routing;

/// Where a gateway has its routes and neighbours from.
pub enum RoutingSource<'a> {
    /// A bridge needs none.
    None,
    /// The kernel of the host.
    Kernel(&'a mut RouteKeeper),
    /// The caller, who gives new ones when he likes.
    Given(Arc<Routing>, Resolver),
}

impl RoutingSource<'_> {
    /// Lets workers ask for neighbours.
    pub fn resolver(&self) -> Option<Resolver> {
        match self {
            Self::None => None,
            Self::Kernel(keeper) => Some(keeper.resolver()),
            Self::Given(_, resolver) => Some(resolver.clone()),
        }
    }

    /// Lets the coordinator tell which interfaces the ports are.
    pub fn port_links(&self) -> Option<PortLinks> {
        match self {
            Self::Kernel(keeper) => Some(keeper.port_links()),
            Self::None | Self::Given(..) => None,
        }
    }

    /// The routes now.
    pub fn routing(&mut self) -> Option<Arc<Routing>> {
        match self {
            Self::None => None,
            Self::Kernel(keeper) => Some(keeper.routing()),
            Self::Given(routing, _) => Some(routing.clone()),
        }
    }
}
