//! A packet is on its way to the worker that owns its flow, and that worker has recorded how
//! packets of the flow leave. Then the worker learns of a change. The packet must follow it.

use std::sync::Arc;

use conntrack::{Cursor, Filter};
use fib::{Action, Hops, LinkId, Neighbour, NextHop, Route, TableId};
use flow::{HashKey, Zone};
use netio::{Frame, PortId};
use ruleset::{Options, import};

use crate::egress::Mode;
use crate::egress::routing::Routing;
use crate::path::rules::ruleset::Rules;
use crate::path::selection::{Operation, Part, Selection};
use crate::path::stages::observer::take;
use crate::path::step::{End, Stage};
use crate::path::zones::Zones;
use crate::testing::many_workers::TestGateway;
use crate::testing::router::*;
use crate::worker::command::Command;
use crate::{Config, ZoneConfig};

const CLIENT: [u8; 4] = [192, 0, 2, 1];
/// The worker that owns the flow. Worker 0 polls the queue that its packets come in by.
const OWNER: usize = 1;

/// A router whose way to the server goes by this router, which has moved or not.
fn routing_by(next: u8, has_moved: bool) -> Arc<Routing> {
    let mut picture = picture_with("198.51.100.254");
    let hop = NextHop::new(LinkId(11), Some(ip(&format!("198.51.100.{next}"))));
    let way = Route::new("203.0.113.0/24".parse().unwrap(), Action::Forward(Hops::one(hop)));
    picture.fib.insert(TableId::MAIN, way);
    for next in [2, 3] {
        let known = Neighbour::Known { station: station(next, has_moved), is_fresh: true };
        picture.neighbours.insert(LinkId(11), ip(&format!("198.51.100.{next}")), known);
    }
    let host = Neighbour::Known { station: INSIDE, is_fresh: true };
    picture.neighbours.insert(LinkId(10), ip("192.0.2.1"), host);
    Arc::new(routing_of(&picture))
}

const fn station(next: u8, has_moved: bool) -> [u8; 6] {
    [2, 0, 0, 1, has_moved as u8, next]
}

/// A zone that takes packets of these VLANs, or all.
fn zone(vlans: Option<Vec<u16>>) -> Vec<ZoneConfig> {
    let mut zone = ZoneConfig::new(Zone(5));
    vlans.into_iter().for_each(|vlans| zone.set_vlans(vlans).unwrap());
    vec![zone]
}

/// A flow with a recorded decision, and one of its packets in flight.
struct InFlight {
    gateway: TestGateway,
    question: Vec<u8>,
}

impl InFlight {
    fn new() -> Self {
        let mut config = Config::new(HashKey(3, 4));
        config.zones = zone(Some(vec![9]));
        let mut gateway = gateway_of(2, RULES, routing_by(2, false), OWN.into(), config);
        let question = gateway.question(CLIENT, OWNER);
        let [(_, port), _] = ends(&gateway.pass(0, &question));
        gateway.pass(1, &udp(&from_outside(SERVER, OWN), (53, port), b"answer"));
        gateway.pass(0, &question);
        let mut flow = Self { gateway, question };
        flow.send();
        let (sent, is_fast) = flow.arrive();
        assert!(is_fast, "the decision is recorded");
        assert_eq!(to(&sent), [station(2, false)]);
        flow.send();
        flow
    }

    /// Worker 0 takes a packet from its queue and hands it over.
    fn send(&mut self) {
        self.gateway.arrive(0, &self.question);
        self.gateway.turn(0);
    }

    fn tell(&mut self, command: Command) {
        self.gateway.handles[OWNER].tell(command).unwrap();
    }

    /// Lets the packet arrive. Returns the frames that leave, and whether one took the fast path.
    fn arrive(&mut self) -> (Vec<Frame>, bool) {
        take();
        self.gateway.run_until_idle();
        let is_fast = take().contains(&(Stage::FastPath, Some(End::Forward)));
        (self.gateway.sent(1), is_fast)
    }
}

/// The stations that frames go to.
fn to(frames: &[Frame]) -> Vec<[u8; 6]> {
    frames.iter().map(|frame| *frame.bytes().first_chunk().unwrap()).collect()
}

#[test]
fn a_packet_in_flight_is_judged_by_exchanged_rules() {
    let mut flow = InFlight::new();
    let refuses = r#"{"nftables":[{"table":{"family":"ip","name":"t","handle":1}},
        {"chain":{"family":"ip","table":"t","name":"f","handle":2,"type":"filter",
            "hook":"forward","prio":0,"policy":"drop"}}]}"#;
    let ruleset = import(refuses.as_bytes(), Options::default()).unwrap().ruleset;
    let names = ["lan0", "wan0"].map(str::to_owned);
    let rules = Rules::prepare(ruleset, Mode::Routed, 7, &names).unwrap();
    let rules = rules.load(2, flow.gateway.now);
    flow.tell(Command::Rules(Some(rules.for_worker())));
    let (sent, is_fast) = flow.arrive();
    assert_eq!((sent.len(), is_fast, flow.gateway.dropped()), (0, false, 1));
}

#[test]
fn a_packet_in_flight_takes_a_route_that_has_changed() {
    let mut flow = InFlight::new();
    flow.tell(Command::Routing(routing_by(3, false)));
    let (sent, is_fast) = flow.arrive();
    assert_eq!((to(&sent), is_fast), (vec![station(3, false)], false));
}

#[test]
fn a_packet_in_flight_goes_to_a_neighbour_that_has_moved() {
    let mut flow = InFlight::new();
    flow.tell(Command::Routing(routing_by(2, true)));
    let (sent, is_fast) = flow.arrive();
    assert_eq!((to(&sent), is_fast), (vec![station(2, true)], false));
}

#[test]
fn a_packet_in_flight_does_not_leave_by_an_interface_that_has_gone() {
    let mut flow = InFlight::new();
    flow.tell(Command::SetOutput(PortId(1), None));
    let (sent, is_fast) = flow.arrive();
    assert_eq!((sent.len(), is_fast, flow.gateway.dropped()), (0, false, 1));
}

/// The packet keeps the zone that it came in with. The next one is in the new zone, where it
/// belongs to no connection.
#[test]
fn a_packet_in_flight_and_the_next_one_are_in_their_zones_when_a_zone_is_set() {
    let mut flow = InFlight::new();
    let zones = Zones::new(&zone(Some(vec![9])), 2).unwrap().changed(&zone(None), 2).unwrap();
    flow.tell(Command::Zones(Box::new(zones.clone())));
    let (sent, is_fast) = flow.arrive();
    assert_eq!((to(&sent), is_fast), (vec![station(2, false)], false));
    assert_eq!(flow.gateway.connections(), 1);
    flow.gateway.handles[0].tell(Command::Zones(Box::new(zones))).unwrap();
    flow.send();
    let (sent, is_fast) = flow.arrive();
    assert_eq!((sent.len(), is_fast), (1, false));
    assert_eq!(flow.gateway.connections(), 2);
}

/// It takes the slot of the connection before, and finds no record there.
#[test]
fn a_packet_in_flight_opens_a_deleted_connection_anew() {
    let mut flow = InFlight::new();
    let bucket = flow.gateway.bucket_of(&flow.question);
    let (filter, what) = (Arc::new(Filter::default()), Operation::Delete);
    let selection = Selection { filter, what, place: Part::Piece(Cursor::default()) };
    let now = flow.gateway.now;
    let path = &mut flow.gateway.workers[OWNER].path;
    assert_eq!(path.select(bucket, &selection, now).affected, 1);
    assert_eq!(flow.gateway.connections(), 0);
    let (sent, is_fast) = flow.arrive();
    assert_eq!((to(&sent), is_fast), (vec![station(2, false)], false));
    assert_eq!(flow.gateway.connections(), 1);
    let [(_, port), _] = ends(&seen(&sent[0]));
    flow.gateway.pass(1, &udp(&from_outside(SERVER, OWN), (53, port), b"answer"));
    flow.send();
    assert!(!flow.arrive().1, "the record was that of the deleted connection");
}
