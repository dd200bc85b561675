use std::net::IpAddr;

use super::*;
use crate::{Hops, LinkSelector, NextHop, Route, Rule, RuleAction, Selector, TableId};

const LAN: LinkId = LinkId(10);
const WAN: LinkId = LinkId(11);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn route(to: &str, action: Action) -> Route {
    Route::new(to.parse().unwrap(), action)
}

fn by(link: LinkId, gateway: Option<&str>) -> NextHop {
    NextHop::new(link, gateway.map(ip))
}

/// 192.0.2.0/24 on one link, all other addresses behind a router on the other.
fn fib() -> Fib {
    let mut fib = Fib::default();
    for (to, hop) in [("192.0.2.0/24", by(LAN, None)), ("0.0.0.0/0", by(WAN, Some("198.51.100.1")))]
    {
        fib.insert(TableId::MAIN, route(to, Action::Forward(Hops::one(hop))));
    }
    fib.insert(TableId::LOCAL, route("192.0.2.254/32", Action::Local));
    fib
}

fn back(fib: &Fib, source: &str, link: LinkId) -> Back {
    let packet = Query::new(ip(source), ip("203.0.113.9"), link);
    fib.back(&packet, Some(WAN))
}

#[test]
fn the_best_route_says_where_a_source_is() {
    let mut fib = fib();
    assert_eq!(back(&fib, "192.0.2.1", LAN), Back::Here);
    assert_eq!(back(&fib, "192.0.2.1", WAN), Back::Elsewhere { link: LAN, is_direct: true });
    assert_eq!(back(&fib, "203.0.113.1", WAN), Back::Here);
    assert_eq!(back(&fib, "203.0.113.1", LAN), Back::Elsewhere { link: WAN, is_direct: false });
    assert_eq!(back(&fib, "192.0.2.254", LAN), Back::Host);
    fib.insert(TableId::MAIN, route("198.18.0.0/15", Action::Blackhole));
    assert_eq!(back(&fib, "198.18.0.1", WAN), Back::Nowhere);
    assert_eq!(back(&Fib::default(), "198.18.0.1", WAN), Back::Nowhere);
}

#[test]
fn each_of_several_hops_is_a_way_back_and_so_is_a_route_as_good() {
    let mut fib = fib();
    let hops = Hops::several(vec![by(WAN, Some("198.51.100.1")), by(LAN, Some("192.0.2.2"))]);
    fib.insert(TableId::MAIN, route("203.0.113.0/24", Action::Forward(hops.unwrap())));
    for link in [LAN, WAN] {
        assert_eq!(back(&fib, "203.0.113.1", link), Back::Here);
    }
    for (metric, is_as_good) in [(0, true), (1, false)] {
        let mut fib = Fib::default();
        let hop = |hop| Action::Forward(Hops::one(hop));
        fib.insert(TableId::MAIN, route("2001:db8::/64", hop(by(LAN, None))));
        let other = Route { metric, ..route("2001:db8::/64", hop(by(WAN, None))) };
        fib.insert(TableId::MAIN, other);
        let packet = Query::new(ip("2001:db8::1"), ip("2001:db8:9::1"), WAN);
        assert_eq!(fib.back(&packet, Some(LAN)) == Back::Here, is_as_good);
    }
}

/// Rules see a packet in the opposite direction.
#[test]
fn rules_are_asked_for_an_answer_to_the_packet() {
    let mut fib = fib();
    let all = TableId(100);
    let everywhere = route("0.0.0.0/0", Action::Forward(Hops::one(by(LAN, Some("192.0.2.2")))));
    fib.insert(all, everywhere);
    let packet = Query {
        protocol: 17,
        ports: Some((5000, 53)),
        mark: 7,
        ..Query::new(ip("203.0.113.1"), ip("198.51.100.7"), LAN)
    };
    assert!(fib.is_back_plain(false));
    let mut answers = |selector: Selector, is_plain: bool| {
        let rule = Rule {
            selector,
            action: RuleAction::Ask { table: all, suppress: None },
            ..Rule::ask(1, all)
        };
        fib.set_rules(false, vec![rule, Rule::ask(2, TableId::MAIN)]);
        assert_eq!(fib.is_back_plain(false), is_plain);
        fib.back(&packet, Some(WAN)) == Back::Here
    };
    let any = Selector::default;
    let from = |prefix: &str| Some(prefix.parse().unwrap());
    assert!(answers(Selector { source: from("198.51.100.0/24"), ..any() }, false));
    assert!(!answers(Selector { source: from("203.0.113.0/24"), ..any() }, false));
    assert!(answers(Selector { destination: from("203.0.113.0/24"), ..any() }, true));
    assert!(answers(Selector { link: LinkSelector::Is(WAN), ..any() }, false));
    assert!(!answers(Selector { link: LinkSelector::Is(LAN), ..any() }, false));
    assert!(answers(Selector { source_port: Some(53..=53), ..any() }, false));
    assert!(!answers(Selector { destination_port: Some(53..=53), ..any() }, false));
    assert!(!answers(Selector { mark: Some((7, 7)), ..any() }, true), "it has no mark yet");
    let sourced = Route { source: from("192.0.2.0/24"), ..route("0.0.0.0/0", Action::Blackhole) };
    fib.set_rules(false, vec![Rule::ask(2, TableId::MAIN)]);
    fib.insert(TableId::MAIN, sourced);
    assert!(!fib.is_back_plain(false) && fib.is_back_plain(true));
}

#[test]
fn a_way_out_may_be_restricted_to_a_link_and_own_addresses_are_known() {
    let mut fib = fib();
    let hops = Hops::several(vec![by(WAN, Some("198.51.100.1")), by(LAN, Some("192.0.2.2"))]);
    fib.insert(TableId::MAIN, route("203.0.113.0/24", Action::Forward(hops.unwrap())));
    let query = |to: &str| Query::new(ip("0.0.0.0"), ip(to), LinkId::LOOPBACK);
    assert_eq!(fib.way_out(&query("192.0.2.1"), None), Some(LAN));
    assert_eq!(fib.way_out(&query("192.0.2.1"), Some(LAN)), Some(LAN));
    assert_eq!(fib.way_out(&query("192.0.2.1"), Some(WAN)), None);
    for link in [LAN, WAN] {
        assert_eq!(fib.way_out(&query("203.0.113.1"), Some(link)), Some(link));
    }
    assert_eq!(fib.way_out(&query("192.0.2.254"), None), None, "the host");
    assert_eq!(fib.own(ip("192.0.2.254")), Some(RouteResult::Local));
    assert_eq!(fib.own(ip("192.0.2.1")), None);
    assert_eq!(fib.own(ip("2001:db8::1")), None);
}
