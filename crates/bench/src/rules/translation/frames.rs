//! The frames of the translated flows, and the network around the gateway.

use std::net::{IpAddr, Ipv4Addr};

use fib::{Action, Hops, LinkId, Neighbour, NextHop, Route, Rule, TableId};
use ipnet::{IpNet, Ipv4Net};
use netlink::{Link, Picture};
use serde_json::{Value, json};
use wire::build::{PacketBuilder, Tcp};
use wire::{Network, TcpFlags, Transport, checksum, dissect};

use super::wrong;
use crate::Error;

/// The shortest frame, without frame check sequence, in bytes.
pub const LENGTH: usize = 60;
/// A frame on its way in.
pub type Frame = [u8; LENGTH];

/// The gateway's two interfaces; it masquerades hosts behind the first.
pub const INTERFACES: [&str; 2] = ["lan0", "wan0"];
/// Its addresses there; it masquerades with the second.
const OWN: [Ipv4Addr; 2] = [Ipv4Addr::new(192, 0, 2, 254), MASQUERADE];
/// Source address of masqueraded flows.
pub const MASQUERADE: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 254);
/// The next routers on each side.
const NEXT: [Ipv4Addr; 2] = [Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(198, 51, 100, 1)];
/// Station addresses of the gateway, and of those routers (RFC 9542).
const STATIONS: [[u8; 6]; 2] = [[0, 0, 0x5e, 0, 0x53, 1], [0, 0, 0x5e, 0, 0x53, 2]];
const PEERS: [[u8; 6]; 2] = [[0, 0, 0x5e, 0, 0x53, 3], [0, 0, 0x5e, 0, 0x53, 4]];

/// The discard service (RFC 863).
const SERVICE: u16 = 9;
/// Payload of a datagram that fills the shortest frame, in bytes.
const PAYLOAD: usize = LENGTH - 42;

/// A flow: 1024 clients, which use one port after the other, and 61 servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow(pub u32);

impl Flow {
    /// Address and port of the client, from the network for benchmarks (RFC 2544).
    pub fn client(self) -> (Ipv4Addr, u16) {
        let Self(number) = self;
        let host = 1 + (number & 0x3ff);
        (Ipv4Addr::new(198, 18, (host >> 8) as u8, host as u8), 1024 + (number >> 10) as u16)
    }

    /// Address and port of the server.
    pub fn server(self) -> (Ipv4Addr, u16) {
        (Ipv4Addr::new(203, 0, 113, 1 + (self.0 % 61) as u8), SERVICE)
    }

    /// A datagram of the client, which carries the number of its flow.
    pub fn request(self) -> Result<Frame, Error> {
        let mut payload = [0; PAYLOAD];
        payload[..4].copy_from_slice(&self.0.to_be_bytes());
        self.written(|builder, out| builder.udp(self.client().1, SERVICE, &payload, out))
    }

    /// The first segment of a connection.
    pub fn open(self) -> Result<Frame, Error> {
        self.segment(TcpFlags::SYN, 0)
    }

    /// The segment by which the client gives up the connection.
    pub fn reset(self) -> Result<Frame, Error> {
        self.segment(TcpFlags::RST, 1)
    }

    fn segment(self, flags: TcpFlags, sequence: u32) -> Result<Frame, Error> {
        let (source_port, destination_port) = (self.client().1, SERVICE);
        let tcp = Tcp {
            source_port,
            destination_port,
            sequence,
            flags,
            window: 0xffff,
            ..Tcp::default()
        };
        self.written(|builder, out| builder.tcp(&tcp, &[], out))
    }

    fn written(self, write: impl FnOnce(&PacketBuilder, &mut Vec<u8>)) -> Result<Frame, Error> {
        let ends = [self.client().0, self.server().0].map(|address| address.octets());
        let builder =
            PacketBuilder::v4(ends[0], ends[1]).macs(PEERS[0], STATIONS[0]).dont_fragment();
        let mut bytes = Vec::new();
        write(&builder, &mut bytes);
        bytes.resize(LENGTH, 0);
        bytes.try_into().map_err(|_| wrong("a frame is longer than the shortest".to_owned()))
    }
}

/// The headers of a frame.
pub fn headers(frame: &[u8]) -> Result<Network, Error> {
    let dissected = dissect(frame).ok().and_then(|found| found.network);
    dissected.ok_or_else(|| wrong("a frame holds no whole packet".to_owned()))
}

/// The server's answer to a request that it has received.
pub fn answer(request: &[u8]) -> Result<Frame, Error> {
    let mut frame: Frame =
        request.try_into().map_err(|_| wrong("a frame has another length".to_owned()))?;
    frame[..6].copy_from_slice(&STATIONS[1]);
    frame[6..12].copy_from_slice(&PEERS[1]);
    // A checksum does not depend on the order of its words.
    for (a, b, length) in [(26, 30, 4), (34, 36, 2)] {
        for at in 0..length {
            frame.swap(a + at, b + at);
        }
    }
    Ok(frame)
}

/// The flow of a datagram that has left the gateway. Fails unless its addresses, ports and
/// checksums are right.
pub fn checked(frame: &[u8], is_answer: bool, source: Option<Ipv4Addr>) -> Result<Flow, Error> {
    let network = headers(frame)?;
    let number = frame.get(42..46).and_then(|bytes| bytes.try_into().ok());
    let flow = Flow(u32::from_be_bytes(number.unwrap_or_default()));
    let ends =
        |ports: (u16, u16)| [(network.source_ip(), ports.0), (network.destination_ip(), ports.1)];
    let ports = match network.transport {
        Transport::Udp { source_port, destination_port, .. } => (source_port, destination_port),
        _ => (0, 0),
    };
    let named = |(address, port): (Ipv4Addr, u16)| (IpAddr::V4(address), port);
    let (client, server) = (flow.client(), flow.server());
    // The masquerade is free to choose the port.
    let left = source.map_or(client, |source| (source, ports.0));
    let expected =
        if is_answer { [named(server), named(client)] } else { [named(left), named(server)] };
    if ends(ports) == expected && checksum::verify_transport(frame, &network) {
        Ok(flow)
    } else {
        Err(wrong(format!("{flow:?} came out as {:?}", ends(ports))))
    }
}

/// The kernel's routes and neighbours: a router on each side, behind which the clients and the
/// servers are.
pub fn kernel() -> Result<Picture, Error> {
    let network = |address: Ipv4Addr, length| {
        let network = Ipv4Net::new(address, length);
        network.map(IpNet::V4).map_err(|error| wrong(error.to_string()))
    };
    let mut picture = Picture::default();
    picture.fib.set_rules(false, vec![Rule::ask(0, TableId::LOCAL), Rule::ask(1, TableId::MAIN)]);
    let behind = [Ipv4Addr::new(198, 18, 0, 0), Ipv4Addr::UNSPECIFIED];
    for (side, id) in (10..).map(LinkId).take(INTERFACES.len()).enumerate() {
        let own = network(OWN[side], 24)?;
        let link = Link {
            name: INTERFACES[side].to_owned(),
            station: Some(STATIONS[side]),
            mtu: 1500,
            is_up: true,
            addresses: vec![own],
        };
        picture.links.insert(id, link);
        picture.fib.insert(TableId::LOCAL, Route::new(network(OWN[side], 32)?, Action::Local));
        let near = Action::Forward(Hops::one(NextHop::new(id, None)));
        picture.fib.insert(TableId::MAIN, Route::new(own.trunc(), near));
        let far = Action::Forward(Hops::one(NextHop::new(id, Some(NEXT[side].into()))));
        let length = if behind[side].is_unspecified() { 0 } else { 15 };
        picture.fib.insert(TableId::MAIN, Route::new(network(behind[side], length)?, far));
        let known = Neighbour::Known { station: PEERS[side], is_fresh: true };
        picture.neighbours.insert(id, NEXT[side].into(), known);
    }
    Ok(picture)
}

/// A usual ruleset of such a gateway, as `nft -j list ruleset` prints it. Packets of a connection
/// pass, invalid ones do not, and only clients may open connections.
pub fn ruleset(masquerades: bool) -> Value {
    let state = |states: Value, verdict: &str| {
        rule(
            "filter",
            "forward",
            vec![
                json!({"match": {"op": "in", "left": {"ct": {"key": "state"}}, "right": states}}),
                json!({ verdict: null }),
            ],
        )
    };
    let interface = |key: &str, name: &str| json!({"match": {"op": "==", "left": {"meta": {"key": key}}, "right": name}});
    let mut objects = vec![
        table("filter"),
        chain("filter", "forward", "filter", 0, "drop"),
        state(json!(["established", "related"]), "accept"),
        state(json!("invalid"), "drop"),
        rule(
            "filter",
            "forward",
            vec![
                interface("iifname", INTERFACES[0]),
                interface("oifname", INTERFACES[1]),
                json!({"accept": null}),
            ],
        ),
    ];
    if masquerades {
        objects.extend([
            table("nat"),
            chain("nat", "postrouting", "nat", 100, "accept"),
            rule(
                "nat",
                "postrouting",
                vec![interface("oifname", INTERFACES[1]), json!({"masquerade": null})],
            ),
        ]);
    }
    json!({ "nftables": objects })
}

fn table(name: &str) -> Value {
    json!({"table": {"family": "ip", "name": name, "handle": 1}})
}

fn chain(table: &str, hook: &str, kind: &str, priority: i32, policy: &str) -> Value {
    json!({"chain": {"family": "ip", "table": table, "name": hook, "handle": 1, "type": kind,
        "hook": hook, "prio": priority, "policy": policy}})
}

fn rule(table: &str, chain: &str, statements: Vec<Value>) -> Value {
    json!({"rule": {"family": "ip", "table": table, "chain": chain, "handle": 2,
        "expr": statements}})
}
