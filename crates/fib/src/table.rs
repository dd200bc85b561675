//! Routing tables.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use prefix_trie::{Prefix, PrefixMap};

use crate::fib::Query;
use crate::route::{Action, NextHop, Route};

/// The answer of a table for a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer<'a> {
    /// The packet goes to this hop. The slice holds the routes of the prefix, from the route of
    /// this hop on.
    Forward(&'a NextHop, &'a [Route]),
    Ends(&'a Action),
}

/// A routing table with the routes of both families.
#[derive(Clone, Debug, Default)]
pub struct Table {
    v4: Sheaf<Ipv4Net>,
    v6: Sheaf<Ipv6Net>,
}

/// Number of parts for the routes of a family.
const PARTS: usize = 256;

/// Routes by destination, divided into parts. Clones share a part until one of them changes it:
/// so a change of one route copies one part of 256 and not a million routes.
#[derive(Clone, Debug)]
struct Sheaf<P: Prefix> {
    /// Prefixes that are too short to lie in one part.
    short: Arc<Part<P>>,
    /// The others, by their first bits.
    parts: Box<[Arc<Part<P>>]>,
    /// Number of prefixes in all parts together.
    len: usize,
}

type Part<P> = PrefixMap<P, Vec<Route>>;

/// A prefix whose first bits name its part.
trait Divided: Prefix + Clone {
    /// The number of the part it lies in, below [`PARTS`]; `None` if the prefix is too short to
    /// lie in one.
    fn part(&self) -> Option<usize>;
}

impl Divided for Ipv4Net {
    fn part(&self) -> Option<usize> {
        (self.prefix_len() >= 8).then(|| usize::from(self.addr().octets()[0]))
    }
}

/// The first 24 bits decide the part: registries hand out IPv6 addresses from few blocks of 12
/// to 23 bits.
impl Divided for Ipv6Net {
    fn part(&self) -> Option<usize> {
        let [a, b, c, ..] = self.addr().octets();
        // This folding gives adjacent blocks different parts.
        let folded = b.wrapping_mul(31).wrapping_add(a.wrapping_mul(97)) ^ c;
        (self.prefix_len() >= 24).then_some(usize::from(folded))
    }
}

impl<P: Divided> Default for Sheaf<P> {
    fn default() -> Self {
        let empty = Arc::default();
        Self { parts: vec![Arc::clone(&empty); PARTS].into(), short: empty, len: 0 }
    }
}

impl<P: Divided> Sheaf<P> {
    /// All parts, the one of the short prefixes first.
    fn parts(&self) -> impl Iterator<Item = &Part<P>> {
        std::iter::once(&self.short).chain(&self.parts).map(|part| &**part)
    }

    fn part_mut(&mut self, prefix: &P) -> &mut Part<P> {
        let part = match prefix.part() {
            Some(part) => &mut self.parts[part],
            None => &mut self.short,
        };
        Arc::make_mut(part)
    }

    fn insert(&mut self, prefix: P, route: Route, mode: InsertMode) {
        let routes = self.part_mut(&prefix).entry(prefix).or_default();
        let is_first = routes.is_empty();
        let is_old = |old: &&mut Route| match mode {
            InsertMode::Replace => old.is_for_the_same(&route),
            InsertMode::Prepend | InsertMode::Append => old.is_the_same(&route),
        };
        if let Some(old) = routes.iter_mut().find(is_old) {
            *old = route;
            return;
        }
        let at = match mode {
            InsertMode::Prepend => routes.partition_point(|other| other.rank() < route.rank()),
            InsertMode::Append | InsertMode::Replace => {
                routes.partition_point(|other| other.rank() <= route.rank())
            }
        };
        routes.insert(at, route);
        self.len += usize::from(is_first);
    }

    fn remove(&mut self, prefix: &P, route: &Route) -> bool {
        let part = self.part_mut(prefix);
        let Some(known) = part.get_mut(prefix) else { return false };
        let at = known.iter().position(|other| other.is_the_same(route));
        let Some(at) = at else { return false };
        known.remove(at);
        if known.is_empty() {
            part.remove(prefix);
            self.len -= 1;
        }
        true
    }

    #[inline]
    fn ask<'a>(&'a self, address: &P, query: &Query) -> Option<(u8, Answer<'a>)> {
        // An address is the longest possible prefix, so it lies in a part.
        let part = address.part().map(|part| &self.parts[part]);
        part.and_then(|part| ask(part, address, query)).or_else(|| ask(&self.short, address, query))
    }
}

/// How a route is added to those of its rank (`NLM_F_APPEND`, none of the flags, `NLM_F_REPLACE`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InsertMode {
    /// In front of them.
    Prepend,
    /// Behind them.
    Append,
    /// In the place of the first route that [`Route::is_for_the_same`], or behind the others if
    /// there is none.
    Replace,
}

impl Table {
    /// Adds a route. It replaces one with the same hops, because the kernel keeps no two such
    /// routes.
    pub(crate) fn insert(&mut self, route: Route, mode: InsertMode) {
        match route.destination {
            IpNet::V4(prefix) => self.v4.insert(prefix, route, mode),
            IpNet::V6(prefix) => self.v6.insert(prefix, route, mode),
        }
    }

    /// Takes a route out; false if there is no such route.
    pub(crate) fn remove(&mut self, route: &Route) -> bool {
        match route.destination {
            IpNet::V4(prefix) => self.v4.remove(&prefix, route),
            IpNet::V6(prefix) => self.v6.remove(&prefix, route),
        }
    }

    /// Takes all routes of a family out.
    pub(crate) fn clear(&mut self, v6: bool) {
        if v6 {
            self.v6 = Sheaf::default();
        } else {
            self.v4 = Sheaf::default();
        }
    }

    /// Number of prefixes with routes.
    pub fn len(&self) -> usize {
        self.v4.len + self.v6.len
    }

    /// True if there are no routes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All routes, IPv4 first, in no order to rely on.
    pub fn routes(&self) -> impl Iterator<Item = &Route> {
        let v4 = self.v4.parts().flat_map(PrefixMap::values);
        v4.chain(self.v6.parts().flat_map(PrefixMap::values)).flatten()
    }

    /// The answer of the longest prefix that has one for the packet, with its length.
    #[inline]
    pub(crate) fn ask(&self, query: &Query) -> Option<(u8, Answer<'_>)> {
        match query.destination {
            IpAddr::V4(address) => self.v4.ask(&Ipv4Net::from(address), query),
            IpAddr::V6(address) => self.v6.ask(&Ipv6Net::from(address), query),
        }
    }
}

fn ask<'a, P: Prefix>(
    routes: &'a PrefixMap<P, Vec<Route>>,
    address: &P,
    query: &Query,
) -> Option<(u8, Answer<'a>)> {
    let (prefix, longest) = routes.get_lpm(address)?;
    if let Some(answer) = first(longest, query) {
        return Some((prefix.prefix_len(), answer));
    }
    // Rare: no route of the longest prefix is for this packet and alive.
    let covering =
        routes.cover(address).filter(|(other, _)| other.prefix_len() < prefix.prefix_len());
    let answers =
        covering.filter_map(|(prefix, routes)| Some((prefix.prefix_len(), first(routes, query)?)));
    answers.last()
}

/// The answer of the first route that is for the packet and alive.
#[inline]
fn first<'a>(routes: &'a [Route], query: &Query) -> Option<Answer<'a>> {
    routes.iter().enumerate().find_map(|(at, route)| match &route.action {
        _ if !route.is_for(query) => None,
        Action::Forward(hops) => {
            hops.choose(query.flow_hash).map(|hop| Answer::Forward(hop, &routes[at..]))
        }
        action => Some(Answer::Ends(action)),
    })
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
