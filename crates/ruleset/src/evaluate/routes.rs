//! Look-ups of addresses in the routes of the gateway (`fib`).

use std::net::IpAddr;

use wire::{Family, Network};

use super::outcome::Outcome;
use super::view::PacketView;
use crate::field::{Looked, RouteLookup};
use crate::hook::Hook;
use crate::kind::address_bits;

/// The routes of a gateway, which are looked up only where a rule asks.
pub trait Routes {
    /// False where nobody knows routes, so that rules which ask for them do not match.
    fn are_known(&self) -> bool {
        true
    }
    /// The kind of an address, as rtnetlink numbers it (`RTN_UNICAST` and so on). If `on` names a
    /// link, an address of the host is one only on that link.
    fn address_type(&self, asked: &RouteQuestion) -> u8;
    /// The name of the interface by which packets go to an address, as
    /// [`name_bits`](crate::name_bits) encodes it; 0 for none. If `on` names a link, only that one
    /// counts.
    fn way_out(&self, asked: &RouteQuestion) -> u128;
    /// The next hop of the packet; `None` before its route is known, and if it goes to no other
    /// host.
    fn next_hop(&self) -> Option<IpAddr>;
    /// The longest packet that fits the route of the packet, and the route to its source, bytes;
    /// `None` before its route is known, and if it goes to no other host.
    fn path_mtu(&self, network: &Network) -> Option<u32>;
}

/// The routes, if anybody knows them.
fn known<'a>(view: &PacketView<'a>) -> Option<&'a dyn Routes> {
    view.routes.filter(|routes| routes.are_known())
}

/// The next hop of a packet of a family.
#[cold]
pub(super) fn next_hop(family: Family, view: &PacketView<'_>) -> Option<u128> {
    if view.network.family != family {
        return None;
    }
    let destination = view.network.destination_ip();
    // A packet of IPv4 may go to a hop with an IPv6 address (RFC 8950), which the kernel does not
    // tell.
    let next = known(view)?.next_hop()?;
    let next = if next.is_ipv4() == destination.is_ipv4() { next } else { destination };
    Some(address_bits(next))
}

/// The longest TCP segment without options that fits the routes to the destination of a packet and
/// back, as the kernel computes it.
#[cold]
pub(super) fn route_segment_size(view: &PacketView<'_>) -> Option<u128> {
    /// Of routes that say nothing of use (RFC 9293 section 3.7.1).
    const DEFAULT: u32 = 536;
    let mtu = known(view)?.path_mtu(view.network)?;
    let headers = if view.network.family == Family::V4 { 40 } else { 60 };
    let fits = headers < mtu && mtu <= u16::MAX.into();
    Some(if fits { mtu - headers } else { DEFAULT }.into())
}

/// A link of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// The one by which it came in.
    Input,
    /// The one by which it goes out.
    Output,
}

/// A question about an address of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteQuestion {
    /// The address.
    pub to: IpAddr,
    /// The other address of the packet.
    pub from: IpAddr,
    /// The mark to look up with.
    pub mark: u32,
    /// The packet's traffic class octet.
    pub traffic_class: u8,
    /// The link to which the answer is restricted.
    pub on: Option<Side>,
    /// The link by which a packet to this address would come in; `None`: the host sends it.
    pub arrives_by: Option<Side>,
}

/// The value of a look-up; `None` where nobody knows the routes.
pub(super) fn looked_up(
    lookup: RouteLookup,
    hook: Hook,
    view: &PacketView<'_>,
    changed: &Outcome,
) -> Option<u128> {
    let RouteLookup { of_source, on, by_mark, looked } = lookup;
    let (source, destination) = (view.network.source_ip(), view.network.destination_ip());
    let (to, from) = if of_source { (source, destination) } else { (destination, source) };
    // The kernel looks the way back up as for a packet that comes in where this one goes out.
    let is_back = of_source && on == Some(Side::Input) && hook == Hook::Forward;
    let asked = RouteQuestion {
        to,
        from,
        mark: if by_mark { changed.mark.unwrap_or(view.mark) } else { 0 },
        traffic_class: view.network.traffic_class,
        on,
        arrives_by: is_back.then_some(Side::Output),
    };
    let routes = known(view)?;
    Some(match looked {
        Looked::AddressType => routes.address_type(&asked).into(),
        Looked::WayOut => routes.way_out(&asked),
    })
}

#[cfg(test)]
#[path = "../routes_tests.rs"]
mod tests;
