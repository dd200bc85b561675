//! The routes and neighbours of the tests of the fast path.

use std::net::IpAddr;
use std::sync::Arc;

use fib::{Action, Hops, LinkId, Neighbour, NextHop, Route, Rule, RuleAction, Selector, TableId};
use netlink::{Link, Picture};

use super::STATIONS;
use crate::egress::reverse_path::ReversePath;
use crate::egress::routing::Routing;

const HOSTS: u8 = 3;

/// The difference of routes and neighbours from the first ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    First,
    OtherStation,
    OtherHosts,
    OtherGateway,
    StaleGateway,
    NoGateway,
    ShortPackets,
    ByMark,
    ByTypeOfService,
    Blackhole,
    NoUplink,
}

pub const NETWORKS: [Network; 11] = [
    Network::First,
    Network::OtherStation,
    Network::OtherHosts,
    Network::OtherGateway,
    Network::StaleGateway,
    Network::NoGateway,
    Network::ShortPackets,
    Network::ByMark,
    Network::ByTypeOfService,
    Network::Blackhole,
    Network::NoUplink,
];

pub fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

impl Network {
    pub fn routing(self) -> Arc<Routing> {
        let mut picture = Picture::default();
        let ask = Rule::ask;
        let mut rules = vec![ask(1, TableId::LOCAL), ask(3, TableId::MAIN)];
        let table = RuleAction::Ask { table: TableId(7), suppress: None };
        let special = |selector| Rule { priority: 2, selector, invert: false, action: table };
        match self {
            Self::ByMark => {
                let mark = Some((1, u32::MAX));
                rules.push(special(Selector { mark, ..Selector::default() }));
            }
            Self::ByTypeOfService => {
                rules.push(special(Selector { tos: Some(0x10), ..Selector::default() }));
            }
            _ => {}
        }
        picture.fib.set_rules(true, rules.clone());
        picture.fib.set_rules(false, rules);
        self.add_links(&mut picture);
        self.add_neighbours(&mut picture);
        let mtu = (self == Self::ShortPackets).then_some(600);
        let number = if self == Self::OtherGateway { 3 } else { 2 };
        for (default, network) in [("0.0.0.0/0", "198.51.100."), ("::/0", "2001:db8:0:2::")] {
            let default: ipnet::IpNet = default.parse().unwrap();
            let hop =
                |number: u8| NextHop::new(LinkId(11), Some(ip(&format!("{network}{number}"))));
            let action = match self {
                Self::Blackhole => Action::Blackhole,
                _ => Action::Forward(Hops::one(NextHop { mtu, ..hop(number) })),
            };
            picture.fib.insert(TableId::MAIN, Route::new(default, action));
            let other = Action::Forward(Hops::one(hop(4)));
            picture.fib.insert(TableId(7), Route::new(default, other));
        }
        let ports = ["lan0", "wan0"].map(|name| picture.link_named(name));
        let mut routing = Routing::new(&picture, &ports);
        routing.set_checks(|_, _| ReversePath::Strict.check(0));
        Arc::new(routing)
    }

    fn add_links(self, picture: &mut Picture) {
        let addresses = [
            (0, "lan0", ["192.0.2.254/24", "2001:db8:0:1::fe/64"]),
            (1, "wan0", ["198.51.100.254/24", "2001:db8:0:2::fe/64"]),
        ];
        for (number, name, addresses) in addresses {
            if self == Self::NoUplink && number == 1 {
                continue;
            }
            let id = LinkId(10 + number as u32);
            let addresses = addresses.map(|it| it.parse::<ipnet::IpNet>().unwrap()).to_vec();
            for address in &addresses {
                let own = Route::new(address.addr().into(), Action::Local);
                picture.fib.insert(TableId::LOCAL, own);
                let hops = Action::Forward(Hops::one(NextHop::new(id, None)));
                picture.fib.insert(TableId::MAIN, Route::new(address.trunc(), hops));
            }
            let (name, station) = (name.to_owned(), Some(STATIONS[number]));
            picture.links.insert(id, Link { name, station, mtu: 1500, is_up: true, addresses });
        }
    }

    fn add_neighbours(self, picture: &mut Picture) {
        for host in 1..=HOSTS {
            let station = [2, 0, 0, 2, u8::from(self == Self::OtherHosts), host];
            let known = Neighbour::Known { station, is_fresh: true };
            for network in ["192.0.2.", "2001:db8:0:1::"] {
                picture.neighbours.insert(LinkId(10), ip(&format!("{network}{host}")), known);
            }
        }
        for gateway in 2..5 {
            let station = [2, 0, 0, 1, u8::from(self == Self::OtherStation), gateway];
            let known = match self {
                Self::NoGateway => continue,
                Self::StaleGateway => Neighbour::Known { station, is_fresh: false },
                _ => Neighbour::Known { station, is_fresh: true },
            };
            for network in ["198.51.100.", "2001:db8:0:2::"] {
                picture.neighbours.insert(LinkId(11), ip(&format!("{network}{gateway}")), known);
            }
        }
    }
}
