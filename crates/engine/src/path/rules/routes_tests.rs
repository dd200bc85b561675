use std::net::IpAddr;

use fib::{Action, Hops, NextHop, Route, TableId};
use flow::HashKey;
use netlink::{Link, Picture};
use wire::build::PacketBuilder;
use wire::{dissect, mapped};

use super::*;
use crate::egress::Mode;
use crate::egress::stations::StationLimits;
use crate::path::rules::ruleset::check_rules;
use crate::testing::rules::one_chain;

const LAN: LinkId = LinkId(7);
const WAN: LinkId = LinkId(8);

fn link(name: &str, addresses: &[&str]) -> Link {
    Link {
        name: name.to_owned(),
        station: Some([2, 0, 0, 0, 0, 1]),
        mtu: 1500,
        is_up: true,
        addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
    }
}

/// A host on two links, with the routes that the kernel makes for its addresses.
fn routing() -> Routing {
    let mut picture = Picture::default();
    picture.links.insert(LAN, link("lan0", &["192.0.2.254/24", "2001:db8:1::fe/64"]));
    picture.links.insert(WAN, link("wan0", &["198.51.100.254/24"]));
    let mut add = |table, to: &str, action| {
        picture.fib.insert(table, Route::new(to.parse().unwrap(), action));
    };
    for own in ["192.0.2.254/32", "198.51.100.254/32", "2001:db8:1::fe/128"] {
        add(TableId::LOCAL, own, Action::Local);
    }
    add(TableId::LOCAL, "192.0.2.255/32", Action::Broadcast);
    let to = |link| Action::Forward(Hops::one(NextHop::new(link, None)));
    add(TableId::MAIN, "192.0.2.0/24", to(LAN));
    add(TableId::MAIN, "2001:db8:1::/64", to(LAN));
    add(TableId::MAIN, "0.0.0.0/0", to(WAN));
    add(TableId::MAIN, "203.0.113.0/24", Action::Unreachable);
    add(TableId::MAIN, "2001:db8:2::/64", Action::Prohibit);
    Routing::new(&picture, &[Some(LAN), Some(WAN)])
}

fn asked(to: &str, on: Option<Side>) -> RouteQuestion {
    let to: IpAddr = to.parse().unwrap();
    let from = if to.is_ipv4() { "192.0.2.9" } else { "2001:db8:1::9" }.parse().unwrap();
    RouteQuestion { to, from, mark: 0, traffic_class: 0, on, arrives_by: None }
}

#[test]
fn an_address_is_of_the_host_on_its_link_and_of_no_other() {
    let routing = routing();
    let outputs = Outputs::default();
    let of_port = |input| RuleRoutes {
        routing: &routing,
        input: Some(PortId(input)),
        output: None,
        route: None,
        mtus: &outputs,
    };
    let tests = [
        ("192.0.2.254", [LOCAL, LOCAL, UNICAST]),
        ("192.0.2.255", [BROADCAST, BROADCAST, UNICAST]),
        ("255.255.255.255", [BROADCAST; 3]),
        ("192.0.2.1", [UNICAST; 3]),
        // The kernel looks at the host's own addresses only.
        ("203.0.113.1", [UNICAST; 3]),
        ("224.0.0.5", [MULTICAST; 3]),
        ("2001:db8:1::fe", [LOCAL, LOCAL, UNICAST]),
        ("2001:db8:1::1", [UNICAST; 3]),
        ("2001:db8:2::1", [PROHIBIT; 3]),
        ("2001:db8:3::1", [UNREACHABLE; 3]),
    ];
    for (address, expected) in tests {
        let input = Some(Side::Input);
        let found = [
            of_port(0).address_type(&asked(address, None)),
            of_port(0).address_type(&asked(address, input)),
            of_port(1).address_type(&asked(address, input)),
        ];
        assert_eq!(found, expected, "{address}");
    }
}

#[test]
fn a_way_out_is_the_name_of_an_interface() {
    let routing = routing();
    let routes = RuleRoutes {
        routing: &routing,
        input: Some(PortId(0)),
        output: Some(PortId(1)),
        route: None,
        mtus: &Outputs::default(),
    };
    let name = |name| ruleset::name_bits(name).unwrap();
    let way = |to, on| routes.way_out(&asked(to, on));
    assert_eq!(way("192.0.2.1", None), name("lan0"));
    assert_eq!(way("192.0.2.1", Some(Side::Input)), name("lan0"));
    assert_eq!(way("192.0.2.1", Some(Side::Output)), 0);
    assert_eq!(way("198.51.100.1", Some(Side::Output)), name("wan0"));
    assert_eq!(way("192.0.2.254", None), 0, "it is the host's");
    assert_eq!(way("203.0.113.1", None), 0);
}

#[test]
fn a_path_takes_what_the_routes_there_and_back_take() {
    let routing = routing();
    let mut outputs = Outputs::new(2, StationLimits::default(), HashKey(1, 2));
    outputs.set_mtus(&[Some(1400), Some(1500)]);
    let mut frame = Vec::new();
    PacketBuilder::v4([192, 0, 2, 9], [198, 51, 100, 9]).udp(1000, 53, b"x", &mut frame);
    let to_wan = dissect(&frame).unwrap().network.unwrap();
    let gateway: IpAddr = "198.51.100.7".parse().unwrap();
    let forward = |mtu| RouteDecision::Forward { next: (WAN, gateway), mtu };
    let ask = |route: Option<&RouteDecision>, network: &Network| {
        let (input, output) = (Some(PortId(0)), Some(PortId(1)));
        let routes = RuleRoutes { routing: &routing, input, output, route, mtus: &outputs };
        (routes.next_hop(), routes.path_mtu(network))
    };
    assert_eq!(ask(Some(&forward(None)), &to_wan), (Some(gateway), Some(1400)));
    assert_eq!(ask(Some(&forward(Some(1300))), &to_wan), (Some(gateway), Some(1300)));
    // The way back is by wan0 too.
    let mut away = to_wan;
    away.source = mapped("203.0.114.1".parse().unwrap());
    assert_eq!(ask(Some(&forward(None)), &away), (Some(gateway), Some(1500)));
    for ends_here in [None, Some(&RouteDecision::Host)] {
        assert_eq!(ask(ends_here, &to_wan), (None, None));
    }
}

#[test]
fn a_bridge_refuses_rules_that_look_routes_up() {
    for rule in [
        r#"{"match":{"op":"==","left":{"rt":{"key":"nexthop","family":"ip"}},"right":"192.0.2.1"}}"#,
        r#"{"mangle":{"key":{"meta":{"key":"mark"}},"value":{"rt":{"key":"mtu"}}}}"#,
    ] {
        let ruleset = one_chain("forward", 0, "accept", &[rule]);
        assert_eq!(check_rules(&ruleset, Mode::Routed), []);
        assert_eq!(check_rules(&ruleset, Mode::Bridge).len(), 1, "{rule}");
    }
    let fib = r#"{"match":{"op":"==","left":{"fib":{"flags":["saddr","iif"],"result":"oif"}},
        "right":false}},{"drop":null}"#;
    let ruleset = one_chain("prerouting", 0, "accept", &[fib]);
    assert_eq!(check_rules(&ruleset, Mode::Routed), []);
    let problems = check_rules(&ruleset, Mode::Bridge);
    let text = problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    assert!(text.contains("a bridge has no routes"), "{text}");
}
