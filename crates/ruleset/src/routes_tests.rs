use std::net::IpAddr;

use serde_json::{Value, json};
use wire::Network;

use super::{RouteQuestion, Routes};
use crate::testing::{Surroundings, matches};

/// The route of every packet.
struct Route {
    next: Option<IpAddr>,
    mtu: Option<u32>,
}

impl Routes for Route {
    fn address_type(&self, _: &RouteQuestion) -> u8 {
        0
    }

    fn way_out(&self, _: &RouteQuestion) -> u128 {
        0
    }

    fn next_hop(&self) -> Option<IpAddr> {
        self.next
    }

    fn path_mtu(&self, _: &Network) -> Option<u32> {
        self.mtu
    }
}

/// True if a packet to 198.51.100.2 with this route, on this CPU, matches the condition.
fn matches_on(
    left: &Value,
    operator: &str,
    right: &Value,
    route: &Route,
    cpu: Option<u32>,
) -> bool {
    let condition = json!({"match": {"op": operator, "left": left, "right": right}});
    matches(&condition, &Surroundings { routes: Some(route), cpu, ..Surroundings::default() })
}

#[test]
fn a_next_hop_is_of_the_packets_family() {
    let hop = |family: &str| json!({"rt": {"key": "nexthop", "family": family}});
    let by = |next: Option<&str>| Route { next: next.map(|it| it.parse().unwrap()), mtu: None };
    let is_hop = |family, operator, address: &str, next| {
        matches_on(&hop(family), operator, &json!(address), &by(next), None)
    };
    let gateway = Some("203.0.113.1");
    assert!(is_hop("ip", "==", "203.0.113.1", gateway));
    assert!(!is_hop("ip", "!=", "203.0.113.1", gateway));
    // The kernel tells the destination in place of a hop of the other family.
    assert!(is_hop("ip", "==", "198.51.100.2", Some("2001:db8::1")));
    for operator in ["==", "!="] {
        assert!(!is_hop("ip6", operator, "2001:db8::1", Some("2001:db8::1")), "it is IPv4");
        assert!(!is_hop("ip", operator, "203.0.113.1", None), "it has no route yet");
    }
}

#[test]
fn a_segment_fits_the_routes_or_is_the_least_that_all_take() {
    let size = |mtu, expected: u16| {
        let route = Route { next: None, mtu: Some(mtu) };
        matches_on(&json!({"rt": {"key": "mtu"}}), "==", &json!(expected), &route, None)
    };
    assert!(size(1500, 1460) && size(41, 1) && size(65535, 65495));
    assert!(size(40, 536) && size(0, 536) && size(65536, 536));
    let unknown = Route { next: None, mtu: None };
    assert!(!matches_on(&json!({"rt": {"key": "mtu"}}), "!=", &json!(7), &unknown, None));
}

#[test]
fn a_packet_is_judged_on_a_cpu_or_on_none() {
    let route = Route { next: None, mtu: None };
    let cpu = json!({"meta": {"key": "cpu"}});
    assert!(matches_on(&cpu, "==", &json!(3), &route, Some(3)));
    assert!(matches_on(&cpu, ">", &json!(2), &route, Some(3)));
    assert!(!matches_on(&cpu, "!=", &json!(3), &route, Some(3)));
    for operator in ["==", "!="] {
        assert!(!matches_on(&cpu, operator, &json!(0), &route, None));
    }
}
