//! The world around the gateway: on each side a router, behind which are the clients and the
//! servers; and the rules that the gateway has.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use fib::{Action, Hops, LinkId, Neighbour, NextHop, Route, Rule, TableId};
use ipnet::IpNet;
use netlink::{Link, Picture};
use serde_json::{Value, json};

use super::frames::SERVICE;
use super::wrong;
use crate::Error;

/// The gateway's two interfaces: clients are behind the first.
pub const INTERFACES: [&str; 2] = ["lan0", "wan0"];
/// Its addresses there; it masquerades with the second.
pub const OWN: [Ipv4Addr; 2] = [Ipv4Addr::new(192, 0, 2, 254), Ipv4Addr::new(198, 51, 100, 254)];
const OWN_V6: [Ipv6Addr; 2] = [
    Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 0x254),
    Ipv6Addr::new(0x2001, 0xdb8, 2, 0, 0, 0, 0, 0x254),
];
/// The source of flows behind a masquerade.
pub const MASQUERADE: Ipv4Addr = OWN[1];
/// Where a forwarded port leads.
pub const FORWARDED: SocketAddr =
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(203, 0, 113, 1)), 1024 + SERVICE);
/// The first and the last address of the clients (RFC 2544).
pub const CLIENTS: [Ipv4Addr; 2] = [Ipv4Addr::new(198, 18, 0, 0), Ipv4Addr::new(198, 19, 255, 255)];
/// The routers that are next on each side.
const NEXT: [Ipv4Addr; 2] = [Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(198, 51, 100, 1)];
const NEXT_V6: [Ipv6Addr; 2] = [
    Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 1),
    Ipv6Addr::new(0x2001, 0xdb8, 2, 0, 0, 0, 0, 1),
];
/// Station addresses of the gateway, and of those routers (RFC 9542).
pub const STATIONS: [[u8; 6]; 2] = [[0, 0, 0x5e, 0, 0x53, 1], [0, 0, 0x5e, 0, 0x53, 2]];
pub const PEERS: [[u8; 6]; 2] = [[0, 0, 0x5e, 0, 0x53, 3], [0, 0, 0x5e, 0, 0x53, 4]];

/// Routes and neighbours as a kernel would tell them.
pub fn kernel() -> Result<Picture, Error> {
    let network = |address: IpAddr, length| {
        IpNet::new(address, length).map_err(|error| wrong(error.to_string()))
    };
    let behind: [[(IpAddr, u8); 2]; 2] = [
        [(CLIENTS[0].into(), 15), (Ipv6Addr::new(0x2001, 0xdb8, 0x18, 0, 0, 0, 0, 0).into(), 48)],
        [(Ipv4Addr::UNSPECIFIED.into(), 0), (Ipv6Addr::UNSPECIFIED.into(), 0)],
    ];
    let mut picture = Picture::default();
    for v6 in [false, true] {
        let rules = vec![Rule::ask(0, TableId::LOCAL), Rule::ask(1, TableId::MAIN)];
        picture.fib.set_rules(v6, rules);
    }
    for (side, id) in (10..).map(LinkId).take(INTERFACES.len()).enumerate() {
        let own = [(OWN[side].into(), 24, 32), (OWN_V6[side].into(), 64, 128)];
        let next: [IpAddr; 2] = [NEXT[side].into(), NEXT_V6[side].into()];
        let mut addresses = Vec::new();
        for (((own, length, all), next), behind) in own.into_iter().zip(next).zip(behind[side]) {
            let local = Route::new(network(own, all)?, Action::Local);
            picture.fib.insert(TableId::LOCAL, local);
            let own = network(own, length)?;
            let near = Action::Forward(Hops::one(NextHop::new(id, None)));
            picture.fib.insert(TableId::MAIN, Route::new(own.trunc(), near));
            let far = Action::Forward(Hops::one(NextHop::new(id, Some(next))));
            picture.fib.insert(TableId::MAIN, Route::new(network(behind.0, behind.1)?, far));
            let known = Neighbour::Known { station: PEERS[side], is_fresh: true };
            picture.neighbours.insert(id, next, known);
            addresses.push(own);
        }
        let link = Link {
            name: INTERFACES[side].to_owned(),
            station: Some(STATIONS[side]),
            mtu: 1500,
            is_up: true,
            addresses,
        };
        picture.links.insert(id, link);
    }
    Ok(picture)
}

/// The addresses that a ruleset translates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Translates {
    /// Nothing.
    Nothing,
    /// Sources become [`MASQUERADE`].
    Sources,
    /// The gateway's own address and [`SERVICE`] become [`FORWARDED`].
    Destinations,
}

/// A ruleset as it is common on a gateway, as `nft -j list ruleset` prints it. Packets of
/// connections may pass, invalid ones may not, and only clients may open connections:
/// `to_clients` is `accept`, or `drop` where not even they may.
pub fn ruleset(to_clients: &str, translates: Translates) -> Value {
    let state = |states: Value, verdict: &str| {
        let is_in = json!({"match": {"op": "in", "left": {"ct": {"key": "state"}},
            "right": states}});
        rule("filter", "forward", vec![is_in, json!({ verdict: null })])
    };
    let meta = |key: &str, op: &str, right: Value| json!({"match": {"op": op, "left": {"meta": {"key": key}}, "right": right}});
    let payload = |protocol: &str, field: &str, right: Value| {
        json!({"match": {"op": "==", "right": right,
            "left": {"payload": {"protocol": protocol, "field": field}}}})
    };
    let input = meta("iifname", "==", json!(INTERFACES[0]));
    let output = meta("oifname", "==", json!(INTERFACES[1]));
    let mut objects = vec![
        table("filter"),
        chain("filter", "forward", "filter", 0, "drop"),
        state(json!(["established", "related"]), "accept"),
        state(json!("invalid"), "drop"),
        rule("filter", "forward", vec![input, output.clone(), json!({ to_clients: null })]),
    ];
    match translates {
        Translates::Nothing => {}
        Translates::Sources => objects.extend([
            table("nat"),
            chain("nat", "postrouting", "nat", 100, "accept"),
            rule("nat", "postrouting", vec![output, json!({"masquerade": null})]),
        ]),
        Translates::Destinations => objects.extend([
            table("nat"),
            chain("nat", "prerouting", "nat", -100, "accept"),
            rule(
                "nat",
                "prerouting",
                vec![
                    payload("ip", "daddr", json!(OWN[0])),
                    meta("l4proto", "==", json!({"set": ["tcp", "udp"]})),
                    payload("th", "dport", json!(SERVICE)),
                    json!({"dnat": {"addr": FORWARDED.ip(), "port": FORWARDED.port()}}),
                ],
            ),
        ]),
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
