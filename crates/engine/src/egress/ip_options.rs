//! Options of the IP header. A router refuses some, and enters itself into others.

use std::net::IpAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use fib::LinkId;
use flow::DropReason;
use netio::Frame;
use wire::icmp_error::Message;
use wire::{ETHERNET_LEN, RefusedOption, Waypoint};

use crate::egress::router::{Arrival, NextStation};
use crate::egress::routing::Routing;

/// The places of source and destination in an IPv4 header.
const SOURCE: std::ops::Range<usize> = 12..16;
const DESTINATION: std::ops::Range<usize> = 16..20;
const DAY_MS: u128 = 86_400_000;

/// The refusal of a packet because of its IP options; `None` if it may go on. If the packet
/// `may_be_own`, the host gets a copy and tells the sender itself.
#[inline]
pub(crate) fn refusal(frame: &Frame, may_be_own: bool) -> Option<Arrival> {
    let refused = wire::check_options(packet(frame)).err()?;
    Some(match refused {
        RefusedOption::SourceRoute => Arrival::Drop(DropReason::SourceRoute, None),
        RefusedOption::Malformed { pointer } if !may_be_own => {
            Arrival::Drop(DropReason::IpOptions, Some(Message::ParameterProblem { pointer }))
        }
        // The kernel looks at these options before its rules, and has answered already.
        RefusedOption::HopByHop | RefusedOption::Malformed { .. } => {
            Arrival::Drop(DropReason::IpOptions, None)
        }
    })
}

fn packet(frame: &Frame) -> &[u8] {
    frame.bytes().get(usize::from(ETHERNET_LEN)..).unwrap_or_default()
}

/// Enters this router into the options of a packet that goes on, if they ask for it.
#[inline]
pub(crate) fn enter(frame: &mut Frame, next: NextStation, routing: &Routing) {
    if wire::has_ipv4_options(packet(frame)) {
        enter_waypoint(frame, next, routing);
    }
}

#[cold]
fn enter_waypoint(frame: &mut Frame, (link, next_hop): NextStation, routing: &Routing) {
    let address = |range| packet(frame).get(range).and_then(<[u8]>::first_chunk::<4>).copied();
    let Some((source, destination)) = address(SOURCE).zip(address(DESTINATION)) else { return };
    let Some(came_in) = routing.port(frame.port).map(|port| port.link) else { return };
    let waypoint = Waypoint {
        out: address_on(link, next_hop, destination.into(), routing),
        came_in: address_on(came_in, source.into(), source.into(), routing),
        time_ms: time_of_day(),
    };
    if let Some(packet) = frame.bytes_mut().get_mut(usize::from(ETHERNET_LEN)..) {
        wire::record_waypoint(packet, &waypoint, |named| routing.is_own(named.into()));
    }
}

/// The IPv4 address of the kernel on a link towards a host behind a next hop.
fn address_on(link: LinkId, next_hop: IpAddr, host: IpAddr, routing: &Routing) -> [u8; 4] {
    let on_link = routing.masquerade(link, next_hop, host);
    let any = || routing.port(routing.port_of(link)?)?.names.v4;
    match on_link.or_else(any) {
        Some(IpAddr::V4(address)) => address.octets(),
        _ => [0; 4],
    }
}

/// Milliseconds since midnight UTC (RFC 791 section 3.1).
#[expect(clippy::disallowed_methods, reason = "it is written into a packet and decides nothing")]
fn time_of_day() -> u32 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (since.as_millis() % DAY_MS) as u32
}
