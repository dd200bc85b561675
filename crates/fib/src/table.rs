//! Routing tables.

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use prefix_trie::{Prefix, PrefixMap};

use crate::fib::Query;
use crate::route::{Action, NextHop, Route};

/// What a table says of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer<'a> {
    Forward(&'a NextHop),
    Ends(&'a Action),
}

/// A routing table with the routes of both families.
#[derive(Clone, Debug, Default)]
pub struct Table {
    v4: PrefixMap<Ipv4Net, Vec<Route>>,
    v6: PrefixMap<Ipv6Net, Vec<Route>>,
}

impl Table {
    /// Adds a route behind those of the same rank. One for exactly the same gives way to it
    /// if it `replaces`, and so does one with the same hops: the kernel keeps no two.
    pub(crate) fn insert(&mut self, route: Route, replaces: bool) {
        let routes = match route.destination {
            IpNet::V4(prefix) => self.v4.entry(prefix).or_default(),
            IpNet::V6(prefix) => self.v6.entry(prefix).or_default(),
        };
        let is_old = |old: &&mut Route| {
            if replaces { old.is_for_the_same(&route) } else { old.is_the_same(&route) }
        };
        if let Some(old) = routes.iter_mut().find(is_old) {
            *old = route;
            return;
        }
        let at = routes.partition_point(|other| other.rank() <= route.rank());
        routes.insert(at, route);
    }

    /// Takes a route out; false if there is none such.
    pub(crate) fn remove(&mut self, route: &Route) -> bool {
        match route.destination {
            IpNet::V4(prefix) => remove(&mut self.v4, &prefix, route),
            IpNet::V6(prefix) => remove(&mut self.v6, &prefix, route),
        }
    }

    /// Takes all routes of a family out.
    pub(crate) fn clear(&mut self, v6: bool) {
        if v6 {
            self.v6.clear();
        } else {
            self.v4.clear();
        }
    }

    /// How many prefixes there are routes to.
    pub fn len(&self) -> usize {
        self.v4.len() + self.v6.len()
    }

    /// True without a route.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All routes, IPv4 first, in the order of their destinations.
    pub fn routes(&self) -> impl Iterator<Item = &Route> {
        self.v4.values().chain(self.v6.values()).flatten()
    }

    /// What the longest prefix says whose routes have an answer for the packet, and how
    /// long it is.
    #[inline]
    pub(crate) fn ask(&self, query: &Query) -> Option<(u8, Answer<'_>)> {
        match query.destination {
            IpAddr::V4(address) => ask(&self.v4, &Ipv4Net::from(address), query),
            IpAddr::V6(address) => ask(&self.v6, &Ipv6Net::from(address), query),
        }
    }
}

fn remove<P: Prefix>(routes: &mut PrefixMap<P, Vec<Route>>, prefix: &P, route: &Route) -> bool {
    let Some(known) = routes.get_mut(prefix) else { return false };
    let Some(at) = known.iter().position(|other| other.is_the_same(route)) else { return false };
    known.remove(at);
    if known.is_empty() {
        routes.remove(prefix);
    }
    true
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
    // Rare: nothing of the longest prefix is for this packet, or alive.
    let covering =
        routes.cover(address).filter(|(other, _)| other.prefix_len() < prefix.prefix_len());
    let answers =
        covering.filter_map(|(prefix, routes)| Some((prefix.prefix_len(), first(routes, query)?)));
    answers.last()
}

/// What the first route says that is for a packet and alive.
#[inline]
fn first<'a>(routes: &'a [Route], query: &Query) -> Option<Answer<'a>> {
    routes.iter().find_map(|route| {
        let is_for_it = (route.tos == 0 || route.tos == query.tos())
            && route.source.is_none_or(|source| source.contains(&query.source));
        match &route.action {
            _ if !is_for_it => None,
            Action::Forward(hops) => hops.choose(query.flow_hash).map(Answer::Forward),
            action => Some(Answer::Ends(action)),
        }
    })
}
