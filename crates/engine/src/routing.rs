//! What a router has to know, as it is at one moment: made when the kernel's routes,
//! neighbours or links have changed, and looked at by all workers.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::net::IpAddr;

use fib::{Action, Fib, HardwareAddress, LinkId, Neighbours, TableId};
use ipnet::IpNet;
use netio::PortId;
use netlink::{Link, Picture};

use crate::icmp_answers::Names;
use crate::reverse_path::SourceCheck;

/// Routes, neighbours, and which port is which interface.
#[derive(Clone, Debug, Default)]
pub struct Routing {
    /// Rules and routes.
    pub fib: Fib,
    /// Who is who on the links.
    pub neighbours: Neighbours,
    /// By port; `None` while there is no such interface, or it has no station address.
    ports: Vec<Option<RoutedPort>>,
    by_link: BTreeMap<LinkId, PortId>,
    /// The networks that the host has an address in, on all of its links.
    attached: BTreeMap<LinkId, Vec<IpNet>>,
    /// As in [`Picture::overruns`].
    pub overruns: u64,
    /// With broadcast addresses, for which it is false.
    own: HashMap<IpAddr, bool, BuildHasherDefault<AddressHasher>>,
}

/// A port as an interface of the kernel.
#[derive(Clone, Debug)]
pub struct RoutedPort {
    /// The interface.
    pub link: LinkId,
    /// Its station address: only what is for it is routed.
    pub station: HardwareAddress,
    /// The addresses in whose name errors go out of it.
    pub names: Names,
    /// Its addresses with their networks.
    pub addresses: Vec<IpNet>,
    /// What is asked of the sources of what comes in by it.
    pub check: SourceCheck,
}

impl Routing {
    /// What the kernel has, for ports that are these interfaces.
    pub fn new(picture: &Picture, ports: &[Option<LinkId>]) -> Self {
        let find = |id: &Option<LinkId>| picture.links.get_key_value(id.as_ref()?);
        // A link without an address of a family, such as one of IPv6 with link-local ones only,
        // has senders to tell as well. The loopback interface comes first, which is where
        // routers have the address that is theirs on all links.
        let others = names(picture.links.values().flat_map(|link| &link.addresses));
        let port = |id: &Option<LinkId>| find(id).and_then(|link| routed_port(link, others));
        let ports: Vec<Option<RoutedPort>> = ports.iter().map(port).collect();
        let by_link = (0..)
            .zip(&ports)
            .filter_map(|(index, port)| Some((port.as_ref()?.link, PortId(index))))
            .collect();
        Self {
            fib: picture.fib.clone(),
            neighbours: picture.neighbours.clone(),
            ports,
            by_link,
            attached: picture
                .links
                .iter()
                .map(|(id, link)| (*id, link.addresses.clone()))
                .collect(),
            overruns: picture.overruns,
            own: own_addresses(&picture.fib),
        }
    }

    /// Has the sources of what comes in by each port, which is this link, checked so.
    pub fn set_checks(&mut self, mut check: impl FnMut(PortId, LinkId) -> SourceCheck) {
        for (id, port) in (0..).map(PortId).zip(&mut self.ports) {
            if let Some(port) = port {
                port.check = check(id, port.link);
            }
        }
    }

    /// True if an address is in a network that the host has an address in on a link.
    pub fn is_attached(&self, link: LinkId, address: IpAddr) -> bool {
        self.attached.get(&link).into_iter().flatten().any(|network| network.contains(&address))
    }

    /// A port, if there is such an interface.
    pub fn port(&self, port: PortId) -> Option<&RoutedPort> {
        self.ports.get(usize::from(port.0))?.as_ref()
    }

    /// The port that is an interface of the kernel.
    pub fn port_of(&self, link: LinkId) -> Option<PortId> {
        self.by_link.get(&link).copied()
    }

    /// The address that the kernel gives to what it masquerades, if it goes to `destination` by
    /// way of `next_hop` on a link: of those of IPv4 the first in whose network the next hop
    /// is, or else the first; of those of IPv6 the one that has most in common with the
    /// destination (RFC 6724, rule 8).
    pub fn masquerade(
        &self,
        link: LinkId,
        next_hop: IpAddr,
        destination: IpAddr,
    ) -> Option<IpAddr> {
        let addresses = &self.port(self.port_of(link)?)?.addresses;
        let usable = || addresses.iter().filter(|network| is_usable(network.addr(), destination));
        let found = match destination {
            IpAddr::V4(_) => {
                let near = usable().find(|network| network.contains(&next_hop));
                near.or_else(|| usable().next())
            }
            IpAddr::V6(destination) => usable().rev().max_by_key(|network| match network.addr() {
                IpAddr::V6(address) => (address.to_bits() ^ destination.to_bits()).leading_zeros(),
                IpAddr::V4(_) => 0,
            }),
        };
        found.map(IpNet::addr)
    }

    /// Addresses of ports that are not among those of a later picture.
    pub fn lost_addresses(&self, later: &Self) -> Vec<(LinkId, IpAddr)> {
        let ports = self.ports.iter().flatten();
        let all = ports.flat_map(|port| port.addresses.iter().map(|it| (port.link, it.addr())));
        let is_kept = |(link, address): &(LinkId, IpAddr)| {
            let port = later.port_of(*link).and_then(|port| later.port(port));
            port.is_some_and(|port| port.addresses.iter().any(|it| it.addr() == *address))
        };
        all.filter(|lost| !is_kept(lost)).collect()
    }

    /// Every address that [`Routing::masquerade`] may give on one of the ports.
    pub fn masquerade_addresses(&self) -> impl Iterator<Item = IpAddr> {
        let addresses = self.ports.iter().flatten().flat_map(|port| &port.addresses);
        addresses.map(IpNet::addr).filter(|address| is_usable(*address, *address))
    }

    /// The names of all ports.
    pub fn names(&self) -> impl Iterator<Item = Names> {
        self.ports.iter().map(|port| port.as_ref().map_or_else(Names::default, |port| port.names))
    }

    /// True for an address of the host, or a broadcast address on one of its links.
    pub fn is_own(&self, address: IpAddr) -> bool {
        self.own.contains_key(&address)
    }

    /// The addresses of the host, and broadcast addresses on its links.
    pub fn own_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.own.keys().copied()
    }

    /// True for an address of the host alone.
    pub fn is_host(&self, address: IpAddr) -> bool {
        self.own.get(&address) == Some(&true)
    }
}

fn routed_port((id, link): (&LinkId, &Link), others: Names) -> Option<RoutedPort> {
    let own = names(&link.addresses);
    let names = Names { v4: own.v4.or(others.v4), v6: own.v6.or(others.v6) };
    let addresses = link.addresses.clone();
    let check = SourceCheck::default();
    Some(RoutedPort { link: *id, station: link.station?, names, addresses, check })
}

/// True for an address that packets to `destination` could be from, which is on another link.
fn is_usable(address: IpAddr, destination: IpAddr) -> bool {
    match (address, destination) {
        (IpAddr::V4(address), IpAddr::V4(_)) => !address.is_loopback(),
        (IpAddr::V6(address), IpAddr::V6(_)) => {
            !address.is_loopback() && !address.is_unicast_link_local()
        }
        _ => false,
    }
}

/// The first of each family that somebody behind the next router could answer to.
fn names<'a>(addresses: impl IntoIterator<Item = &'a IpNet>) -> Names {
    let mut names = Names::default();
    for address in addresses.into_iter().map(IpNet::addr) {
        match address {
            IpAddr::V4(v4) if !v4.is_loopback() => names.v4 = names.v4.or(Some(address)),
            IpAddr::V6(v6) if !v6.is_loopback() && !v6.is_unicast_link_local() => {
                names.v6 = names.v6.or(Some(address));
            }
            _ => {}
        }
    }
    names
}

/// All addresses that the kernel takes for its own, and those for everybody on a link.
/// Whole prefixes of them are found by the route.
fn own_addresses(fib: &Fib) -> HashMap<IpAddr, bool, BuildHasherDefault<AddressHasher>> {
    let local = fib.tables().filter(|(id, _)| *id == TableId::LOCAL);
    local
        .flat_map(|(_, table)| table.routes())
        .filter(|route| matches!(route.action, Action::Local | Action::Broadcast))
        .filter(|route| route.destination.prefix_len() == route.destination.max_prefix_len())
        .map(|route| (route.destination.addr(), matches!(route.action, Action::Local)))
        .collect()
}

/// Hashes addresses of the host, which are asked for with both ends of every packet. Who sends
/// packets chooses none of those that are in the table, so it needs no secret.
#[derive(Clone, Copy, Default)]
struct AddressHasher(u64);

impl AddressHasher {
    fn mix(&mut self, word: u64) {
        // The constant of Fibonacci hashing (Knuth, The Art of Computer Programming 6.4).
        let product = u128::from(self.0 ^ word) * 0x9e37_79b9_7f4a_7c15;
        self.0 = (product >> 64) as u64 ^ product as u64;
    }
}

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<4>();
        words.iter().for_each(|word| self.mix(u32::from_ne_bytes(*word).into()));
        rest.iter().for_each(|byte| self.mix((*byte).into()));
    }

    fn write_u64(&mut self, number: u64) {
        self.mix(number);
    }

    fn write_usize(&mut self, number: usize) {
        self.mix(number as u64);
    }
}

#[cfg(test)]
#[path = "routing_tests.rs"]
mod tests;
