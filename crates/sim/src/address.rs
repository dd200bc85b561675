//! The addresses of the simulated networks.
//!
//! ```text
//! hosts inside -- 192.0.2.0/24 --+-- gateway 1 --+-- 198.51.100.0/24 -- next router -- hosts outside
//!                                +-- gateway 2 --+
//! ```
//!
//! The gateways have the last address of both networks together. The one that has it at the moment
//! gets the frames for it.

use std::net::{IpAddr, Ipv4Addr};

use fib::{Action, Hops, LinkId, Neighbour, NextHop, Route, TableId};
use netlink::{Link, Picture};

/// Names of the interfaces of a gateway: inside, outside.
pub const PORTS: [&str; 2] = ["lan0", "wan0"];
/// The virtual addresses of the gateways inside and outside.
pub const VIRTUAL: [Ipv4Addr; 2] =
    [Ipv4Addr::new(192, 0, 2, 254), Ipv4Addr::new(198, 51, 100, 254)];
/// The router behind which the hosts outside are.
pub const NEXT_ROUTER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
/// Its station.
pub const NEXT_STATION: [u8; 6] = [2, 0, 0, 0, 1, 0];
/// Hosts inside, and as many outside.
pub const HOSTS: usize = 3;

/// A network beside the gateways.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// The network whose hosts are masqueraded.
    Inside,
    /// The other one.
    Outside,
}

impl Side {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::Inside, Self::Outside];

    /// Its place in lists.
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// The address of a host.
pub const fn host(side: Side, number: usize) -> Ipv4Addr {
    match side {
        Side::Inside => Ipv4Addr::new(192, 0, 2, 10 + number as u8),
        Side::Outside => Ipv4Addr::new(203, 0, 113, 10 + number as u8),
    }
}

/// The station to which frames for a host go.
pub const fn station_of_host(side: Side, number: usize) -> [u8; 6] {
    match side {
        Side::Inside => [2, 0, 0, 0, 2, number as u8],
        Side::Outside => NEXT_STATION,
    }
}

/// The station of a gateway.
pub const fn station_of_gateway(side: Side, gateway: usize) -> [u8; 6] {
    [2, 0, 0, 0, 3 + gateway as u8, side as u8]
}

/// Routes, neighbours and links of a gateway. The numbers of its interfaces differ from those of the
/// other one.
pub fn picture(gateway: usize, has_virtual: [bool; 2]) -> Picture {
    let mut picture = Picture::default();
    let number = |side: Side| LinkId(10 + (side.index() ^ gateway) as u32);
    for side in Side::BOTH {
        let id = number(side);
        let own = VIRTUAL[side.index()];
        let network = ipnet::Ipv4Net::new_assert(own, 24);
        let mut addresses = Vec::new();
        if has_virtual[side.index()] {
            addresses.push(network.into());
            picture.fib.insert(TableId::LOCAL, Route::new(IpAddr::V4(own).into(), Action::Local));
        }
        let hops = Hops::one(NextHop::new(id, None));
        picture
            .fib
            .insert(TableId::MAIN, Route::new(network.trunc().into(), Action::Forward(hops)));
        let link = Link {
            name: PORTS[side.index()].to_owned(),
            station: Some(station_of_gateway(side, gateway)),
            mtu: 1500,
            is_up: true,
            addresses,
        };
        picture.links.insert(id, link);
        let known = |station| Neighbour::Known { station, is_fresh: true };
        match side {
            Side::Inside => (0..HOSTS).for_each(|it| {
                let station = known(station_of_host(side, it));
                picture.neighbours.insert(id, host(side, it).into(), station);
            }),
            Side::Outside => {
                let hops = Hops::one(NextHop::new(id, Some(NEXT_ROUTER.into())));
                let default = ipnet::Ipv4Net::new_assert(Ipv4Addr::UNSPECIFIED, 0);
                let route = Route::new(default.into(), Action::Forward(hops));
                picture.fib.insert(TableId::MAIN, route);
                picture.neighbours.insert(id, NEXT_ROUTER.into(), known(NEXT_STATION));
            }
        }
    }
    picture
}
