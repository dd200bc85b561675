use std::net::IpAddr;

use flow::Timestamp;
use serde_json::{Value, json};
use wire::build::PacketBuilder;
use wire::{Network, dissect};

use super::{RouteQuestion, Routes};
use crate::evaluate::{Decision, PacketView, RuleState, SharedState, evaluate};
use crate::hook::Hook;
use crate::import::import_value;
use crate::{CompileOptions, Options, Program};

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

/// True if a packet to 198.51.100.2 with this route, judged on this CPU, meets the condition.
fn is_met(left: &Value, operator: &str, right: &Value, route: &Route, cpu: Option<u32>) -> bool {
    let condition = json!({"match": {"op": operator, "left": left, "right": right}});
    let document = json!({"nftables": [
        {"table": {"family": "inet", "name": "t"}},
        {"chain": {"family": "inet", "table": "t", "name": "c", "type": "filter",
            "hook": "forward", "prio": 0, "policy": "accept"}},
        {"rule": {"family": "inet", "table": "t", "chain": "c", "handle": 4,
            "expr": [condition, {"drop": null}]}},
    ]});
    let imported = import_value(&document, Options::default()).expect("it is right");
    let options = CompileOptions { index: false, seed: 3 };
    let program = Program::compile(imported.ruleset, options).expect("it is small");
    let shared = SharedState::new(&program, Timestamp::ZERO);
    let mut state = RuleState::new(&program, &shared, Timestamp::ZERO);
    if let Some(cpu) = cpu {
        state.set_cpu(cpu);
    }
    let mut bytes = Vec::new();
    PacketBuilder::v4([192, 0, 2, 1], [198, 51, 100, 2]).udp(1000, 53, b"x", &mut bytes);
    let network = dissect(&bytes).expect("it is right").network.expect("it is IP");
    let view = PacketView { routes: Some(route), ..PacketView::untracked(&bytes, &network) };
    let outcome = evaluate(&program, Hook::Forward, &view, &mut state, Timestamp::ZERO);
    outcome.decision == Decision::Drop
}

#[test]
fn a_next_hop_is_of_the_packets_family() {
    let hop = |family: &str| json!({"rt": {"key": "nexthop", "family": family}});
    let by = |next: Option<&str>| Route { next: next.map(|it| it.parse().unwrap()), mtu: None };
    let is_hop = |family, operator, address: &str, next| {
        is_met(&hop(family), operator, &json!(address), &by(next), None)
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
        is_met(&json!({"rt": {"key": "mtu"}}), "==", &json!(expected), &route, None)
    };
    assert!(size(1500, 1460) && size(41, 1) && size(65535, 65495));
    assert!(size(40, 536) && size(0, 536) && size(65536, 536));
    let unknown = Route { next: None, mtu: None };
    assert!(!is_met(&json!({"rt": {"key": "mtu"}}), "!=", &json!(7), &unknown, None));
}

#[test]
fn a_packet_is_judged_on_a_cpu_or_on_none() {
    let route = Route { next: None, mtu: None };
    let cpu = json!({"meta": {"key": "cpu"}});
    assert!(is_met(&cpu, "==", &json!(3), &route, Some(3)));
    assert!(is_met(&cpu, ">", &json!(2), &route, Some(3)));
    assert!(!is_met(&cpu, "!=", &json!(3), &route, Some(3)));
    for operator in ["==", "!="] {
        assert!(!is_met(&cpu, operator, &json!(0), &route, None));
    }
}
