//! The next hops that a router sends to without a question to the kernel.

use std::net::IpAddr;

use fib::{HardwareAddress, Neighbour};
use netio::PortId;

use crate::egress::recent_answers::{RecentAnswers, fold};
use crate::egress::router::NextStation;
use crate::egress::routing::Routing;

/// log2 of the number of next hops that a worker remembers, about 50 bytes each.
const ADJACENCY_BITS: u32 = 11;

/// The way to a next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Adjacency {
    /// The port that leads there.
    pub port: PortId,
    /// The station of this router there.
    pub from: HardwareAddress,
    /// The station of the next hop.
    pub to: HardwareAddress,
}

/// The next hops of the last packets, if the kernel is sure of their stations.
pub(crate) struct Adjacencies(RecentAnswers<NextStation, Adjacency>);

impl Default for Adjacencies {
    fn default() -> Self {
        Self(RecentAnswers::new(ADJACENCY_BITS))
    }
}

impl Adjacencies {
    /// Forgets all next hops, because neighbours or links have changed.
    pub fn forget(&mut self) {
        self.0.forget();
    }

    /// The way to a next hop. `None` if there is none, or if the kernel has to be asked.
    #[inline]
    pub fn to(&mut self, next: NextStation, routing: &Routing) -> Option<Adjacency> {
        let place = self.0.place(folded(next));
        match place {
            Some((known, adjacency)) if *known == next => Some(*adjacency),
            _ => {
                let found = find(next, routing)?;
                *place = Some((next, found));
                Some(found)
            }
        }
    }
}

#[inline]
fn folded((link, address): NextStation) -> u64 {
    let address = match address {
        IpAddr::V4(address) => u64::from(address.to_bits()),
        IpAddr::V6(address) => fold(address.octets()),
    };
    address ^ u64::from(link.0) << 32
}

#[cold]
#[inline(never)]
fn find((link, address): NextStation, routing: &Routing) -> Option<Adjacency> {
    let Some(Neighbour::Known { station: to, is_fresh: true }) = routing.neighbour(link, address)
    else {
        return None;
    };
    let port = routing.port_of(link)?;
    Some(Adjacency { port, from: routing.port(port)?.station, to })
}
