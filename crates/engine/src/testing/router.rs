//! For tests: the links and routes of a router. Hosts behind it are masqueraded, and others reach
//! one of them by the router's address. Several workers take their turns in any order.

use std::net::IpAddr;
use std::sync::Arc;

use fib::{Action, Hops, LinkId, Neighbour, NextHop, Route, TableId};
use flow::HashKey;
use netio::Frame;
use netlink::{Link, Picture};
use ruleset::{Options, import};
use steer::{AddressSet, BucketCount, BucketId};
use wire::build::{PacketBuilder, Tcp};
use wire::{Network, TcpFlags, Transport, dissect};

use crate::Config;
use crate::control::realms::Realms;
use crate::egress::Mode;
use crate::egress::routing::Routing;
use crate::path::rules::ruleset::Rules;
use crate::testing::many_workers::TestGateway;
use crate::worker::command::Command;

/// The names of the links inside and outside.
const LINKS: [&str; 2] = ["lan0", "wan0"];
/// The addresses of the router on the link inside and on the one outside.
pub const STATIONS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
/// The address of all hosts on the link inside.
pub const INSIDE: [u8; 6] = [2, 0, 0, 0, 0, 3];
/// The same outside.
pub const OUTSIDE: [u8; 6] = [2, 0, 0, 0, 0, 4];
/// The router's address outside.
pub const OWN: [u8; 4] = [198, 51, 100, 254];
/// A host outside, behind the next router.
pub const SERVER: [u8; 4] = [203, 0, 113, 7];

/// Rules that masquerade, and lead port 8080 to a server inside.
pub const RULES: &str = r#"{"nftables":[{"table":{"family":"ip","name":"t","handle":1}},
    {"chain":{"family":"ip","table":"t","name":"in","handle":2,"type":"nat","hook":"prerouting",
        "prio":-100,"policy":"accept"}},
    {"chain":{"family":"ip","table":"t","name":"out","handle":3,"type":"nat",
        "hook":"postrouting","prio":100,"policy":"accept"}},
    {"rule":{"family":"ip","table":"t","chain":"in","handle":4,"expr":[
        {"match":{"op":"==","left":{"meta":{"key":"iifname"}},"right":"wan0"}},
        {"match":{"op":"==","left":{"payload":{"protocol":"tcp","field":"dport"}},"right":8080}},
        {"dnat":{"addr":"192.0.2.10","port":80}}]}},
    {"rule":{"family":"ip","table":"t","chain":"out","handle":5,"expr":[
        {"match":{"op":"==","left":{"meta":{"key":"oifname"}},"right":"wan0"}},
        {"masquerade":null}]}}]}"#;

pub fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Two links, `lan0` and `wan0`, with these addresses. Routes lead to their networks and nowhere else.
pub fn picture(addresses: [&[&str]; 2]) -> Picture {
    let mut picture = Picture::default();
    for (number, name) in LINKS.into_iter().enumerate() {
        let link = Link {
            name: name.to_owned(),
            station: Some(STATIONS[number]),
            mtu: 1500,
            is_up: true,
            addresses: addresses[number].iter().map(|it| it.parse().unwrap()).collect(),
        };
        let id = LinkId(10 + number as u32);
        for network in &link.addresses {
            let own = network.addr().into();
            picture.fib.insert(TableId::LOCAL, Route::new(own, Action::Local));
            let hops = Hops::one(NextHop::new(id, None));
            picture.fib.insert(TableId::MAIN, Route::new(network.trunc(), Action::Forward(hops)));
        }
        picture.links.insert(id, link);
    }
    picture
}

/// 192.0.2.0/24 inside, this address with its /24 outside, and a default route by 198.51.100.2.
pub fn picture_with(outside: &str) -> Picture {
    let mut picture = picture([&["192.0.2.254/24"], &[&format!("{outside}/24")]]);
    let hops = Hops::one(NextHop::new(LinkId(11), Some(ip("198.51.100.2"))));
    let default = Route::new("0.0.0.0/0".parse().unwrap(), Action::Forward(hops));
    picture.fib.insert(TableId::MAIN, default);
    picture
}

/// The routing of a router whose ports are the two links.
pub fn routing_of(picture: &Picture) -> Routing {
    Routing::new(picture, &LINKS.map(|name| picture.link_named(name)))
}

pub fn routing() -> Arc<Routing> {
    routing_with("198.51.100.254")
}

/// The routing with this address outside, and with known neighbours.
pub fn routing_with(outside: &str) -> Arc<Routing> {
    let mut picture = picture_with(outside);
    for (link, network, station) in [(10, "192.0.2", INSIDE), (11, "198.51.100", OUTSIDE)] {
        for host in 1..200 {
            let known = Neighbour::Known { station, is_fresh: true };
            picture.neighbours.insert(LinkId(link), ip(&format!("{network}.{host}")), known);
        }
    }
    Arc::new(routing_of(&picture))
}

/// A router with these rules, this many workers and 16 buckets.
pub fn gateway(workers: u16) -> TestGateway {
    gateway_of(workers, RULES, routing(), OWN.into(), Config::new(HashKey(3, 4)))
}

/// A router with this address outside and settings of its own.
pub fn gateway_of(
    workers: u16,
    rules: &str,
    routing: Arc<Routing>,
    own: IpAddr,
    mut config: Config,
) -> TestGateway {
    config.mode = Mode::Routed;
    config.buckets = BucketCount::new(16).unwrap();
    let mut gateway = TestGateway::new(&config, workers, true);
    let names = LINKS.map(str::to_owned);
    let ruleset = import(rules.as_bytes(), Options::default()).unwrap().ruleset;
    let rules = Rules::prepare(ruleset, Mode::Routed, 7, &names).unwrap();
    let rules = rules.load(1, gateway.now);
    let mapped = match own {
        IpAddr::V4(own) => own.to_ipv6_mapped().octets(),
        IpAddr::V6(own) => own.octets(),
    };
    let own = AddressSet::new([mapped..=mapped]);
    let realms = Realms::of(rules.translations(), &own, Some(&routing), &names);
    gateway.hasher.set_inside(realms.inside.clone());
    for handle in &mut gateway.handles {
        handle.tell(Command::Inside(realms.inside.clone())).unwrap();
        handle.tell(Command::Routing(routing.clone())).unwrap();
        handle.tell(Command::Rules(Some(rules.for_worker()))).unwrap();
    }
    gateway.run_until_idle();
    gateway
}

/// A packet on its way from the link inside to the router.
pub fn from_inside(source: [u8; 4], destination: [u8; 4]) -> PacketBuilder {
    PacketBuilder::v4(source, destination).macs(INSIDE, STATIONS[0])
}

/// The same outside.
pub fn from_outside(source: [u8; 4], destination: [u8; 4]) -> PacketBuilder {
    PacketBuilder::v4(source, destination).macs(OUTSIDE, STATIONS[1])
}

/// A frame with a datagram.
pub fn udp(builder: &PacketBuilder, ports: (u16, u16), payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    builder.udp(ports.0, ports.1, payload, &mut bytes);
    bytes
}

/// A frame with a segment without data.
pub fn tcp(builder: &PacketBuilder, ports: (u16, u16), flags: u8, numbers: (u32, u32)) -> Vec<u8> {
    let header = Tcp {
        source_port: ports.0,
        destination_port: ports.1,
        sequence: numbers.0,
        acknowledgment: numbers.1,
        flags: TcpFlags(flags),
        window: 5000,
        ..Tcp::default()
    };
    let mut bytes = Vec::new();
    builder.tcp(&header, &[], &mut bytes);
    bytes
}

/// A frame that has left. All its checksums have to be right.
pub fn seen(frame: &Frame) -> Network {
    let network = dissect(frame.bytes()).unwrap().network.unwrap();
    assert!(wire::checksum::verify_transport(frame.bytes(), &network), "{network:?}");
    network
}

/// Source and destination of a packet. An echo has its identifier in the place of ports.
pub fn ends(network: &Network) -> [(IpAddr, u16); 2] {
    let ports = match network.transport {
        Transport::Tcp(tcp) => [tcp.source_port, tcp.destination_port],
        Transport::Udp { source_port, destination_port, .. } => [source_port, destination_port],
        Transport::IcmpQuery(query) => [query.id; 2],
        _ => [0; 2],
    };
    [(network.source_ip(), ports[0]), (network.destination_ip(), ports[1])]
}

impl TestGateway {
    /// Sends a packet in by a port. Returns the packet that leaves by the other port.
    pub fn pass(&mut self, port: usize, bytes: &[u8]) -> Network {
        self.arrive(port, bytes);
        self.run_until_idle();
        let sent = self.sent(1 - port);
        assert_eq!(sent.len(), 1, "dropped: {:?}", self.reasons());
        seen(&sent[0])
    }

    /// A question from inside whose bucket this worker owns.
    pub fn question(&self, source: [u8; 4], owner: usize) -> Vec<u8> {
        let builder = from_inside(source, SERVER);
        self.owned_by(owner, (2000..3000).map(|port| udp(&builder, (port, 53), b"ask")))
    }

    pub fn connections(&self) -> usize {
        (0..16).map(|bucket| self.bucket(BucketId(bucket)).connections.len()).sum()
    }

    pub fn aliases(&self) -> usize {
        (0..16).map(|bucket| self.bucket(BucketId(bucket)).aliases.len()).sum()
    }

    pub fn to_host(&self) -> u64 {
        self.workers.iter().map(|worker| worker.path.counters().output.to_host).sum()
    }
}
