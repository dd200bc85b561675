//! Packets that open connections wait for the aliases of these, and routes change meanwhile.

use std::sync::Arc;

use fib::{Action, Hops, LinkId, Neighbour, NextHop, Route, Rule, Selector, TableId};
use flow::{DropReason, HashKey};

use crate::Config;
use crate::egress::routing::Routing;
use crate::testing::many_workers::TestGateway;
use crate::testing::router::*;
use crate::worker::command::Command;

const CLIENT: [u8; 4] = [192, 0, 2, 10];
/// The station of the other next hop on either link.
const OTHER: [u8; 6] = [2, 0, 0, 0, 0, 9];
const SPECIAL: TableId = TableId(100);

/// No port sends anything.
const NOTHING: [Vec<[u8; 6]>; 2] = [Vec::new(), Vec::new()];

/// Where a default route leads.
#[derive(Clone, Copy)]
enum Way {
    /// To this router on this link.
    By(u32, &'static str),
    Nowhere,
}

const USUAL: Way = Way::By(11, "198.51.100.2");

/// The routes of a router: the way of most packets, and that of packets from inside.
fn routing(usual: Way, from_inside: Option<Way>) -> Arc<Routing> {
    let mut picture = picture_with("198.51.100.254");
    let default = "0.0.0.0/0".parse().unwrap();
    for (table, way) in [(TableId::MAIN, Some(usual)), (SPECIAL, from_inside)] {
        let action = match way {
            None => continue,
            Some(Way::Nowhere) => Action::Unreachable,
            Some(Way::By(link, next)) => {
                Action::Forward(Hops::one(NextHop::new(LinkId(link), Some(ip(next)))))
            }
        };
        picture.fib.replace(table, Route::new(default, action));
    }
    let source = Some("192.0.2.0/24".parse().unwrap());
    let special =
        Rule { selector: Selector { source, ..Selector::default() }, ..Rule::ask(2, SPECIAL) };
    let rules = [Rule::ask(1, TableId::LOCAL), special, Rule::ask(3, TableId::MAIN)];
    picture.fib.set_rules(false, rules.to_vec());
    for (link, address, station) in [
        (10, "192.0.2.10", INSIDE),
        (10, "192.0.2.3", OTHER),
        (11, "198.51.100.2", OUTSIDE),
        (11, "198.51.100.3", OTHER),
    ] {
        let known = Neighbour::Known { station, is_fresh: true };
        picture.neighbours.insert(LinkId(link), ip(address), known);
    }
    Arc::new(routing_of(&picture))
}

/// A gateway that masquerades with one port only, so most packets that open connections need an
/// alias. One of them waits for it.
struct Waits {
    gateway: TestGateway,
    question: Vec<u8>,
}

impl Waits {
    fn new(routing: Arc<Routing>) -> Self {
        let udp_only = r#"{"match":{"op":"==","left":{"meta":{"key":"l4proto"}},"right":"udp"}},"#;
        let rules = RULES.replace(
            r#"{"masquerade":null}"#,
            &format!(r#"{udp_only}{{"masquerade":{{"port":2000}}}}"#),
        );
        let config = Config::new(HashKey(3, 4));
        let mut gateway = gateway_of(2, &rules, routing, OWN.into(), config);
        for host in 1..100 {
            let question = udp(&from_inside(CLIENT, [203, 0, 113, host]), (5000, 53), b"ask");
            gateway.arrive(0, &question);
            for turn in 0..12 {
                gateway.turn(turn % 2);
                if waiting(&gateway) {
                    gateway.sent(1);
                    return Self { gateway, question };
                }
            }
            gateway.run_until_idle();
            assert_eq!(gateway.sent(1).len(), 1, "{:?}", gateway.reasons());
        }
        panic!("no packet has to wait")
    }

    /// All workers learn of other routes, and then the packet may go. Returns the frames that leave
    /// by each port.
    fn change(&mut self, routing: &Arc<Routing>) -> [Vec<[u8; 6]>; 2] {
        let waits = |gateway: &TestGateway, at: usize| {
            gateway.workers[at].path.owned().any(|(_, bucket)| !bucket.openings.is_empty())
        };
        let at = (0..2).find(|at| waits(&self.gateway, *at)).unwrap();
        for handle in &mut self.gateway.handles {
            handle.tell(Command::Routing(routing.clone())).unwrap();
        }
        self.gateway.turn(at);
        assert!(waits(&self.gateway, at), "it has learned of the change while the packet waits");
        self.go()
    }

    fn go(&mut self) -> [Vec<[u8; 6]>; 2] {
        self.gateway.run_until_idle();
        assert!(!waiting(&self.gateway));
        let stations = |port| {
            let sent = self.gateway.sent(port);
            sent.iter().map(|frame| *frame.bytes().first_chunk().unwrap()).collect()
        };
        [0, 1].map(stations)
    }
}

fn waiting(gateway: &TestGateway) -> bool {
    let mut buckets = gateway.workers.iter().flat_map(|worker| worker.path.owned());
    buckets.any(|(_, bucket)| !bucket.openings.is_empty())
}

#[test]
fn a_packet_that_has_waited_leaves_by_the_next_hop_of_today() {
    let mut waits = Waits::new(routing(USUAL, None));
    let now = routing(Way::By(11, "198.51.100.3"), None);
    assert_eq!(waits.change(&now), [vec![], vec![OTHER]]);
    assert_eq!(waits.gateway.reasons(), []);
}

#[test]
fn it_is_routed_by_the_source_that_it_came_with() {
    let special = Some(Way::By(11, "198.51.100.3"));
    let mut waits = Waits::new(routing(USUAL, special));
    assert_eq!(waits.change(&routing(USUAL, special)), [vec![], vec![OTHER]]);
    let mut waits = Waits::new(routing(Way::By(11, "198.51.100.3"), Some(USUAL)));
    assert_eq!(waits.change(&routing(Way::Nowhere, Some(USUAL))), [vec![], vec![OUTSIDE]]);
}

/// Rules have accepted it for the other link, and its source is an address of that.
#[test]
fn it_is_dropped_if_it_would_leave_by_another_link_and_opens_anew_when_it_comes_again() {
    let mut waits = Waits::new(routing(USUAL, None));
    let others = waits.gateway.connections();
    assert_eq!(waits.change(&routing(Way::By(10, "192.0.2.3"), None)), NOTHING);
    assert_eq!(waits.gateway.reasons(), [DropReason::RouteChanged]);
    assert_eq!(waits.gateway.connections(), others - 1, "its connection has ended");
    let aliases = waits.gateway.aliases();
    waits.gateway.arrive(0, &waits.question.clone());
    assert_eq!(waits.go(), [vec![OTHER], vec![]]);
    assert_eq!((waits.gateway.connections(), waits.gateway.aliases()), (others, aliases));
}

#[test]
fn it_is_dropped_for_the_reason_of_a_route_that_leads_nowhere() {
    let mut waits = Waits::new(routing(USUAL, None));
    let others = waits.gateway.connections();
    let [_, outside] = waits.change(&routing(Way::Nowhere, None));
    assert_eq!((outside, waits.gateway.reasons()), (vec![], vec![DropReason::NoRoute]));
    assert_eq!(waits.gateway.connections(), others - 1);
}

#[test]
fn a_burst_behind_a_packet_that_waits_leaves_whole_and_in_order() {
    const BURST: u8 = 128;
    let mut waits = Waits::new(routing(USUAL, None));
    let payload = waits.question.len() - 3;
    for number in 0..BURST {
        let mut frame = waits.question.clone();
        // The checksum of UDP is that of the question.
        frame[payload] = number;
        waits.gateway.arrive(0, &frame);
    }
    waits.gateway.run_until_idle();
    let sent: Vec<u8> = waits.gateway.sent(1).iter().map(|it| it.bytes()[payload]).collect();
    assert_eq!(waits.gateway.reasons(), []);
    assert_eq!(sent[1..], (0..BURST).collect::<Vec<_>>());
}
