//! The routes, neighbours and links of the kernel at one moment. The route keeper makes this anew
//! when one of them changes, and all workers share it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::net::{IpAddr, Ipv6Addr};

use fib::{Action, Fib, HardwareAddress, LinkId, Neighbour, Neighbours, TableId};
use ipnet::{IpNet, Ipv6Net};
use netio::PortId;
use netio::afpacket::BARE_STATION;
use netlink::{Link, Picture};

use crate::egress::icmp_errors::Names;
use crate::egress::reverse_path::SourceCheck;

/// Routes, neighbours, and which port is which interface.
#[derive(Clone, Debug, Default)]
pub struct Routing {
    /// The routing rules and the routes.
    pub fib: Fib,
    /// The stations of the neighbours on the links.
    pub neighbours: Neighbours,
    /// The interfaces of the ports, by port; `None` while the interface is missing.
    ports: Vec<Option<RoutedPort>>,
    /// The ports by link, in the order of the links.
    by_link: Vec<(LinkId, PortId)>,
    /// The networks of the host's addresses, by link.
    attached: BTreeMap<LinkId, Vec<IpNet>>,
    /// The names of the links, as rules compare them.
    names: BTreeMap<LinkId, u128>,
    by_name: BTreeMap<u128, LinkId>,
    /// See [`Picture::overruns`].
    pub overruns: u64,
    /// The host's addresses (true), and the broadcast addresses of its links (false).
    own: HashMap<IpAddr, bool, BuildHasherDefault<AddressHasher>>,
}

/// A port as an interface of the kernel.
#[derive(Clone, Debug)]
pub struct RoutedPort {
    /// The interface.
    pub link: LinkId,
    /// Its station address. The gateway routes only frames for it.
    pub station: HardwareAddress,
    /// True for a link without stations ([`netio::LinkState::is_bare`]), where every packet goes to
    /// the other end.
    pub is_bare: bool,
    /// The source addresses of ICMP errors that leave by it.
    pub names: Names,
    /// Its addresses, with their networks.
    pub addresses: Vec<IpNet>,
    /// The check of the sources of packets that come in by it.
    pub check: SourceCheck,
}

impl Routing {
    /// Takes over the kernel's state. `ports` are the interfaces of the ports.
    pub fn new(picture: &Picture, ports: &[Option<LinkId>]) -> Self {
        let find = |id: &Option<LinkId>| picture.links.get_key_value(id.as_ref()?);
        // A link without an address of a family, such as one with link-local addresses only, needs
        // an address for errors too. The loopback interface comes first, because it has the
        // address that a router uses on all links.
        let others = names(picture.links.values().flat_map(|link| &link.addresses));
        let port = |id: &Option<LinkId>| find(id).and_then(|link| routed_port(link, others));
        let ports: Vec<Option<RoutedPort>> = ports.iter().map(port).collect();
        let with_link = (0..).zip(&ports);
        let mut by_link: Vec<_> = with_link
            .filter_map(|(index, port)| Some((port.as_ref()?.link, PortId(index))))
            .collect();
        by_link.sort_unstable_by_key(|&(link, PortId(index))| (link, Reverse(index)));
        by_link.dedup_by_key(|&mut (link, _)| link);
        let names: BTreeMap<LinkId, u128> = picture
            .links
            .iter()
            .map(|(id, link)| (*id, ruleset::name_bits(&link.name).unwrap_or(0)))
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
            by_name: names.iter().rev().map(|(id, name)| (*name, *id)).collect(),
            names,
            overruns: picture.overruns,
            own: own_addresses(&picture.fib),
        }
    }

    /// Sets the source check of each port that has an interface.
    pub fn set_checks(&mut self, mut check: impl FnMut(PortId, LinkId) -> SourceCheck) {
        for (id, port) in (0..).map(PortId).zip(&mut self.ports) {
            if let Some(port) = port {
                port.check = check(id, port.link);
            }
        }
    }

    /// True if the host has an address on this link in whose network `address` is.
    pub fn is_attached(&self, link: LinkId, address: IpAddr) -> bool {
        self.attached.get(&link).into_iter().flatten().any(|network| network.contains(&address))
    }

    /// The networks of the host's addresses, each with its link.
    pub fn attached_networks(&self) -> impl Iterator<Item = (IpNet, LinkId)> {
        let all = self.attached.iter().flat_map(|(link, all)| all.iter().map(move |it| (it, link)));
        all.map(|(network, link)| (network.trunc(), *link))
    }

    /// True if the host has this address on this link.
    pub fn is_address_on(&self, link: LinkId, address: IpAddr) -> bool {
        self.attached.get(&link).into_iter().flatten().any(|network| network.addr() == address)
    }

    /// The name of a link, as rules compare it; 0 for one that is not there.
    pub fn name(&self, link: LinkId) -> u128 {
        self.names.get(&link).copied().unwrap_or(0)
    }

    /// The link with a name in that form.
    pub fn link_named(&self, bits: u128) -> Option<LinkId> {
        self.by_name.get(&bits).copied()
    }

    /// The interface of a port; `None` while there is none.
    pub fn port(&self, port: PortId) -> Option<&RoutedPort> {
        self.ports.get(usize::from(port.0))?.as_ref()
    }

    /// The state of an address on a link.
    pub fn neighbour(&self, link: LinkId, address: IpAddr) -> Option<Neighbour> {
        let other_end = || {
            let port = self.port(self.port_of(link)?)?;
            port.is_bare.then_some(Neighbour::Known { station: port.station, is_fresh: true })
        };
        self.neighbours.get(link, address).copied().or_else(other_end)
    }

    /// The port of an interface.
    pub fn port_of(&self, link: LinkId) -> Option<PortId> {
        let at = self.by_link.binary_search_by_key(&link, |&(link, _)| link).ok()?;
        Some(self.by_link[at].1)
    }

    /// The address that the kernel's masquerade gives to packets that go to `destination` by way
    /// of `next_hop` on a link. For IPv4 it is the first address in whose network the next hop is,
    /// or else the first address. For IPv6 it is the one that [`suits`] the destination best, the
    /// first of several.
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
            IpAddr::V6(destination) => usable().rev().max_by_key(|network| match network {
                IpNet::V6(source) => suits(source, destination),
                IpNet::V4(_) => (false, 0),
            }),
        };
        found.map(IpNet::addr)
    }

    /// The addresses of ports that are gone in a later state.
    pub fn lost_addresses(&self, later: &Self) -> Vec<(LinkId, IpAddr)> {
        let ports = self.ports.iter().flatten();
        let all = ports.flat_map(|port| port.addresses.iter().map(|it| (port.link, it.addr())));
        let is_kept = |(link, address): &(LinkId, IpAddr)| {
            let port = later.port_of(*link).and_then(|port| later.port(port));
            port.is_some_and(|port| port.addresses.iter().any(|it| it.addr() == *address))
        };
        all.filter(|lost| !is_kept(lost)).collect()
    }

    /// All addresses that [`Routing::masquerade`] may return for packets that leave by one of these
    /// ports.
    pub fn masquerade_addresses(
        &self,
        leaves_by: impl Fn(PortId) -> bool,
    ) -> impl Iterator<Item = IpAddr> {
        let ports = (0..).map(PortId).zip(&self.ports).filter(move |(id, _)| leaves_by(*id));
        let addresses = ports.filter_map(|(_, port)| port.as_ref()).flat_map(|it| &it.addresses);
        addresses.map(IpNet::addr).filter(|address| is_usable(*address, *address))
    }

    /// The source addresses of ICMP errors, by port.
    pub fn names(&self) -> impl Iterator<Item = Names> {
        self.ports.iter().map(|port| port.as_ref().map_or_else(Names::default, |port| port.names))
    }

    /// True for an address of the host or a broadcast address of one of its links.
    pub fn is_own(&self, address: IpAddr) -> bool {
        self.own.contains_key(&address)
    }

    /// The host's addresses and the broadcast addresses of its links.
    pub fn own_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.own.keys().copied()
    }

    /// True for an address of the host, and not for a broadcast address.
    pub fn is_host(&self, address: IpAddr) -> bool {
        self.own.get(&address) == Some(&true)
    }
}

fn routed_port((id, link): (&LinkId, &Link), others: Names) -> Option<RoutedPort> {
    let own = names(&link.addresses);
    let names = Names { v4: own.v4.or(others.v4), v6: own.v6.or(others.v6) };
    let addresses = link.addresses.clone();
    let check = SourceCheck::default();
    // An interface that was opened as a port carries Ethernet frames or is bare.
    let (station, is_bare) = (link.station.unwrap_or(BARE_STATION), link.station.is_none());
    Some(RoutedPort { link: *id, station, is_bare, names, addresses, check })
}

/// Prefixes whose addresses suit each other, as the kernel has them by default (`ip addrlabel`). They
/// do not overlap. All other addresses suit each other, too.
const LABELLED: [(Ipv6Addr, u8); 8] = [
    (Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0), 96),
    (Ipv6Addr::UNSPECIFIED, 96),
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 32),
    (Ipv6Addr::new(0x2001, 0x10, 0, 0, 0, 0, 0, 0), 28),
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16),
    (Ipv6Addr::new(0x3ffe, 0, 0, 0, 0, 0, 0, 0), 16),
    (Ipv6Addr::new(0xfec0, 0, 0, 0, 0, 0, 0, 0), 10),
    (Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0), 7),
];

/// How well a source suits a destination: whether they have the same label, and the bits of the
/// source's prefix that they have in common (RFC 6724 section 5, rules 6 and 8).
fn suits(source: &Ipv6Net, destination: Ipv6Addr) -> (bool, u8) {
    let label = |address: Ipv6Addr| {
        LABELLED.iter().position(|(prefix, length)| common_bits(address, *prefix) >= *length)
    };
    let common = common_bits(source.addr(), destination).min(source.prefix_len());
    (label(source.addr()) == label(destination), common)
}

/// The number of leading bits that two addresses have in common, 128 at most.
fn common_bits(one: Ipv6Addr, other: Ipv6Addr) -> u8 {
    (one.to_bits() ^ other.to_bits()).leading_zeros() as u8
}

/// True for an address of the family of `destination` that is valid beyond its link.
fn is_usable(address: IpAddr, destination: IpAddr) -> bool {
    match (address, destination) {
        (IpAddr::V4(address), IpAddr::V4(_)) => !address.is_loopback(),
        (IpAddr::V6(address), IpAddr::V6(_)) => {
            !address.is_loopback() && !address.is_unicast_link_local()
        }
        _ => false,
    }
}

/// The first address of each family that is valid beyond its link.
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

/// All addresses that the kernel takes for its own, and the broadcast addresses. Prefixes that are
/// shorter than an address are left to the route look-up.
fn own_addresses(fib: &Fib) -> HashMap<IpAddr, bool, BuildHasherDefault<AddressHasher>> {
    let local = fib.tables().filter(|(id, _)| *id == TableId::LOCAL);
    local
        .flat_map(|(_, table)| table.routes())
        .filter(|route| matches!(route.action, Action::Local | Action::Broadcast))
        .filter(|route| route.destination.prefix_len() == route.destination.max_prefix_len())
        .map(|route| (route.destination.addr(), matches!(route.action, Action::Local)))
        .collect()
}

/// Hashes the addresses of the host. Both ends of every packet are looked up. It needs no secret,
/// because no sender of packets chooses an address of the table.
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
