//! The inside addresses: they and the translation addresses are at the gateway's side of
//! translation ([`steer::SteeringHasher::set_inside`]).
//!
//! They are derived from the rules that translate sources and from the routes, so nobody has to
//! name them. Where this is wrong, a reply comes to another bucket than its connection, and an alias
//! leads it on: it costs time and changes nothing else.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

use fib::{Action, LinkId, TableId};
use ipnet::IpNet;
use ruleset::{Leaving, Translations, name_bits};
use steer::AddressSet;
use wire::{Family, mapped};

use crate::egress::routing::Routing;

/// Most routes that are looked at. A table of more is one of the whole Internet; only the networks
/// of the host's own addresses are looked at then.
const MAX_ROUTES: usize = 4096;

/// A range of addresses in the mapped form.
pub type Range = RangeInclusive<[u8; 16]>;

/// The two sides of translation, as far as rules and routes tell.
#[derive(Debug, Default)]
pub struct Realms {
    /// Addresses that are inside. They include the translation addresses.
    pub inside: AddressSet,
    /// Networks other than that of the default route that are outside.
    pub outside: AddressSet,
}

impl Realms {
    /// The realms for rules that translate sources to these addresses, or none.
    ///
    /// Inside are the translation addresses, the host's addresses, sources that rules name, and
    /// the networks behind interfaces for which no rule translates sources, or from which a rule
    /// takes its packets. If a rule names neither interface nor source, the interfaces of default
    /// routes count as those that it is for.
    ///
    /// `names` are the interfaces of the ports as rules name them.
    pub fn of(
        translations: &Translations,
        translation_addresses: &AddressSet,
        routing: Option<&Routing>,
        names: &[String],
    ) -> Self {
        if translations.leaving.is_empty() {
            return Self::default();
        }
        let sources = translations.leaving.iter().flat_map(|leaving| &leaving.sources);
        let sources = sources.map(|(family, it)| range(*family, it.low, it.high));
        let own = routing.into_iter().flat_map(Routing::own_addresses).map(mapped);
        let named = translation_addresses.with(sources.chain(own.map(|own| own..=own)));
        let Some(routing) = routing else { return Self { inside: named, ..Self::default() } };
        let links = Links::of(&translations.leaving, routing, names);
        let is_translated = |family| {
            let leaving = &translations.leaving;
            leaving.iter().any(|it| it.family.is_none_or(|of| of == family))
        };
        let networks = networks(routing, &links, is_translated);
        let (inside, outside) = divide(networks);
        Self { inside: named.with(inside), outside: AddressSet::new(outside).without(&named) }
    }

    /// These realms, where what was inside before and is no network of its own now stays inside. So
    /// nothing changes sides because an interface is down for a moment.
    #[must_use]
    pub fn after(self, before: &AddressSet) -> Self {
        let stays = before.without(&self.outside);
        let inside = self.inside.with(stays.ranges());
        // An interface whose networks change often must not leave ever more of them.
        if inside.ranges().count() > MAX_ROUTES { self } else { Self { inside, ..self } }
    }
}

/// The interfaces by which networks are known to be inside or outside.
struct Links {
    outside: BTreeSet<LinkId>,
    inside: BTreeSet<LinkId>,
}

impl Links {
    fn of(leaving: &[Leaving], routing: &Routing, names: &[String]) -> Self {
        let ports = (0..)
            .map(netio::PortId)
            .zip(names)
            .filter_map(|(port, name)| Some((routing.port(port)?.link, name_bits(name)?)));
        let ports: Vec<(LinkId, u128)> = ports.collect();
        let matching = |allows: &dyn Fn(&Leaving, u128) -> bool| {
            let some = |name| leaving.iter().any(|rule| allows(rule, name));
            ports.iter().filter(|(_, name)| some(*name)).map(|(link, _)| *link).collect()
        };
        let mut outside: BTreeSet<LinkId> =
            matching(&|rule, name| !rule.outputs.is_empty() && rule.outputs.allow(name));
        if leaving.iter().any(|rule| rule.outputs.is_empty() && rule.sources.is_empty()) {
            outside.extend(routes(routing).filter(|it| is_default(&it.0)).map(|it| it.1));
        }
        let inside = matching(&|rule, name| !rule.inputs.is_empty() && rule.inputs.allow(name));
        Self { outside, inside }
    }
}

/// The destination and a link of each route, the networks of the host's addresses included.
fn routes(routing: &Routing) -> impl Iterator<Item = (IpNet, LinkId)> {
    let count: usize = routing.fib.tables().map(|(_, table)| table.len()).sum();
    let tables =
        routing.fib.tables().filter(move |(id, _)| *id != TableId::LOCAL && count <= MAX_ROUTES);
    let routes = tables.flat_map(|(_, table)| table.routes()).flat_map(|route| {
        let hops = match &route.action {
            Action::Forward(hops) => hops.all(),
            _ => &[],
        };
        hops.iter().map(|hop| (route.destination, hop.link))
    });
    routes.chain(routing.attached_networks())
}

/// Networks with the range of their addresses, and whether they are inside.
fn networks(
    routing: &Routing,
    links: &Links,
    is_translated: impl Fn(Family) -> bool,
) -> Vec<(u128, u128, bool)> {
    let mut all: Vec<_> = routes(routing)
        .filter(|(network, _)| {
            let family = if network.addr().is_ipv4() { Family::V4 } else { Family::V6 };
            !is_default(network) && !links.outside.is_empty() && is_translated(family)
        })
        .map(|(network, link)| {
            let is_outside = links.outside.contains(&link) && !links.inside.contains(&link);
            let [first, last] = ends(&network);
            (first, last, !is_outside)
        })
        .collect();
    // Networks before their parts; and a network that is on both sides counts as outside.
    all.sort_by_key(|&(first, last, is_inside)| (first, u128::MAX - last, is_inside));
    all.dedup_by_key(|&mut (first, last, _)| (first, last));
    all
}

/// The ranges inside and outside, by the smallest network that an address is in. The networks are
/// sorted, and each of two is a part of the other or apart from it.
fn divide(networks: Vec<(u128, u128, bool)>) -> (Vec<Range>, Vec<Range>) {
    let (mut inside, mut outside) = (Vec::new(), Vec::new());
    let mut give = |first: u128, last: u128, is_inside: bool| {
        let side = if is_inside { &mut inside } else { &mut outside };
        side.push(first.to_be_bytes()..=last.to_be_bytes());
    };
    // The networks around the present place, and the first address that no range has yet.
    let mut around: Vec<(u128, bool)> = Vec::new();
    let mut at = 0;
    for (first, last, is_inside) in networks {
        while let Some((end, side)) = around.pop_if(|(end, _)| *end < first) {
            if at <= end {
                give(at, end, side);
                at = end + 1;
            }
        }
        if let Some((_, side)) = around.last().filter(|_| at < first) {
            give(at, first - 1, *side);
        }
        at = first;
        around.push((last, is_inside));
    }
    while let Some((end, side)) = around.pop() {
        if at <= end {
            give(at, end, side);
            at = end.saturating_add(1);
        }
    }
    (inside, outside)
}

/// True for a default route, or a half of one, as tunnels have it. A route of IPv6 in which the
/// mapped addresses of IPv4 are counts too.
fn is_default(network: &IpNet) -> bool {
    match network {
        IpNet::V4(network) => network.prefix_len() <= 1,
        IpNet::V6(network) => network.addr().segments()[0] == 0 || network.prefix_len() <= 1,
    }
}

fn ends(network: &IpNet) -> [u128; 2] {
    [network.network(), network.broadcast()].map(|it| u128::from_be_bytes(mapped(it)))
}

/// A range of addresses that are given as numbers of 32 or 128 bits.
pub fn range(family: Family, low: u128, high: u128) -> Range {
    let address = |number: u128| match family {
        Family::V4 => mapped(IpAddr::V4(Ipv4Addr::from_bits(number as u32))),
        Family::V6 => mapped(IpAddr::V6(Ipv6Addr::from_bits(number))),
    };
    address(low)..=address(high)
}

#[cfg(test)]
#[path = "realms_tests.rs"]
mod tests;
