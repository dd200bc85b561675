use std::sync::Arc;

use fib::{Action, Hops, LinkId, NextHop, Route, Rule, Selector, TableId};
use flow::HashKey;
use netio::FramePool;
use netlink::Picture;

use wire::build::PacketBuilder;

use super::*;
use crate::egress::outputs::Outputs;
use crate::egress::resolver::Resolver;
use crate::egress::router::{Arrival, OutputParts, Router};
use crate::egress::stations::StationLimits;
use crate::testing::router::{ip, picture_with, routing_of};

/// A router between 192.0.2.0/24 on one port and all other networks on the other.
struct Bench {
    router: Router,
    picture: Picture,
    check: SourceCheck,
}

const LAN: PortId = PortId(0);
const WAN: PortId = PortId(1);

impl Bench {
    fn new(check: SourceCheck) -> Self {
        let (resolver, _) = Resolver::for_test();
        let picture = picture_with("198.51.100.254");
        let mut bench = Self { router: Router::new(resolver), picture, check };
        bench.learn(|_| {});
        bench
    }

    fn learn(&mut self, change: impl FnOnce(&mut Picture)) {
        change(&mut self.picture);
        let mut routing = routing_of(&self.picture);
        routing.set_checks(|_, _| self.check);
        let mut outputs = Outputs::new(2, StationLimits::default(), HashKey(1, 2));
        let (mut pool, mut counters) = (FramePool::new(4, 1), flow::Counters::default());
        let parts =
            &mut OutputParts { outputs: &mut outputs, pool: &mut pool, counters: &mut counters };
        self.router.take(Arc::new(routing), 0, parts);
    }

    fn fault(&mut self, port: PortId, source: [u8; 4]) -> Option<DropReason> {
        self.fault_towards([203, 0, 113, 9], port, source)
    }

    /// Asks twice, so that the remembered answer is compared with the first one.
    fn fault_towards(&mut self, to: [u8; 4], port: PortId, from: [u8; 4]) -> Option<DropReason> {
        let mut bytes = Vec::new();
        PacketBuilder::v4(from, to).udp(7, 9, &[], &mut bytes);
        let mut frame = FramePool::new(0, 0).copy_of(&bytes).unwrap();
        frame.port = port;
        let network = wire::dissect(frame.bytes()).unwrap().network.unwrap();
        let found = self.router.packet_arrival(&frame, &network);
        assert_eq!(self.router.packet_arrival(&frame, &network), found);
        match found {
            Arrival::Forward => None,
            Arrival::Drop(reason, _) => Some(reason),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn each_word_of_rp_filter_refuses_what_it_says() {
    const FORGED: Option<DropReason> = Some(DropReason::RpFilter);
    // A host of the LAN on either port, a host behind the other router on either port, and a host
    // without a route.
    let (neighbour, far, nobody) = ([192, 0, 2, 7], [203, 0, 113, 1], [198, 18, 0, 1]);
    for (wanted, kernel, expected) in [
        (ReversePath::Off, 1, [None; 5]),
        (ReversePath::Strict, 0, [None, FORGED, FORGED, None, FORGED]),
        (ReversePath::Loose, 1, [None, None, None, None, FORGED]),
        (ReversePath::Auto, 0, [None, FORGED, None, None, None]),
        (ReversePath::Auto, 1, [None, FORGED, FORGED, None, FORGED]),
        (ReversePath::Auto, 2, [None, FORGED, None, None, FORGED]),
    ] {
        let mut bench = Bench::new(wanted.check(kernel));
        bench.learn(|picture| {
            let route = Route::new("198.18.0.0/15".parse().unwrap(), Action::Unreachable);
            picture.fib.insert(TableId::MAIN, route);
        });
        let said = [(LAN, neighbour), (WAN, neighbour), (LAN, far), (WAN, far), (WAN, nobody)]
            .map(|(port, source)| bench.fault(port, source));
        assert_eq!(said, expected, "{wanted:?} where the kernel has {kernel}");
    }
}

#[test]
fn routes_that_change_are_followed() {
    let mut bench = Bench::new(ReversePath::Strict.check(0));
    let source = [203, 0, 113, 1];
    assert_eq!(bench.fault(LAN, source), Some(DropReason::RpFilter));
    let hops = || Hops::one(NextHop::new(LinkId(10), Some(ip("192.0.2.7"))));
    let route = Route::new("203.0.113.0/24".parse().unwrap(), Action::Forward(hops()));
    bench.learn(|picture| picture.fib.insert(TableId::MAIN, route.clone()));
    assert_eq!(
        (bench.fault(LAN, source), bench.fault(WAN, source)),
        (None, Some(DropReason::RpFilter))
    );
    bench.learn(|picture| assert!(picture.fib.remove(TableId::MAIN, &route)));
    assert_eq!(
        (bench.fault(LAN, source), bench.fault(WAN, source)),
        (Some(DropReason::RpFilter), None)
    );
}

/// A rule asks for the destination, so the source has no single answer.
#[test]
fn a_check_that_depends_on_the_destination_is_not_remembered() {
    let mut bench = Bench::new(ReversePath::Strict.check(0));
    let hops = Hops::one(NextHop::new(LinkId(10), Some(ip("192.0.2.7"))));
    bench.learn(|picture| {
        let everywhere = Route::new("0.0.0.0/0".parse().unwrap(), Action::Forward(hops));
        picture.fib.insert(TableId(100), everywhere);
        let selector =
            Selector { source: Some("203.0.113.9/32".parse().unwrap()), ..Selector::default() };
        let rule = Rule { selector, ..Rule::ask(1, TableId(100)) };
        picture.fib.set_rules(false, vec![rule, Rule::ask(2, TableId::MAIN)]);
    });
    let source = [203, 0, 113, 1];
    assert_eq!(bench.fault(LAN, source), None, "an answer to 203.0.113.9 comes from it");
    let fault = bench.fault_towards([203, 0, 113, 10], LAN, source);
    assert_eq!(fault, Some(DropReason::RpFilter));
}

/// A host that has moved to another link keeps its address if a route leads to its new place.
#[test]
fn a_neighbour_that_a_route_leads_elsewhere_is_believed_there_alone() {
    let mut bench = Bench::new(ReversePath::Auto.check(0));
    bench.learn(|picture| {
        let hops = Hops::one(NextHop::new(LinkId(11), None));
        let route = Route::new("192.0.2.7/32".parse().unwrap(), Action::Forward(hops));
        picture.fib.insert(TableId::MAIN, route);
    });
    assert_eq!(bench.fault(WAN, [192, 0, 2, 7]), None);
    assert_eq!(bench.fault(WAN, [192, 0, 2, 8]), Some(DropReason::RpFilter));
    // Both links have the same network.
    bench.learn(|picture| {
        let both = vec!["192.0.2.253/24".parse().unwrap(), "198.51.100.254/24".parse().unwrap()];
        picture.links.get_mut(&LinkId(11)).unwrap().addresses = both;
    });
    assert_eq!(bench.fault(WAN, [192, 0, 2, 8]), None);
}
