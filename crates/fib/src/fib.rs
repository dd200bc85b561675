//! Rules and tables together.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use crate::route::{Action, NextHop, Route};
use crate::rule::{LinkSelector, Rule, RuleAction, Selector};
use crate::table::{Answer, InsertMode, Table};
use crate::{LinkId, TableId};

/// Most rules that a look-up visits, so that a `goto` can not loop for ever.
const MAX_RULES: usize = 4096;

/// The properties of a packet that rules and routes look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query {
    /// Source address.
    pub source: IpAddr,
    /// Destination address, of the same family.
    pub destination: IpAddr,
    /// The interface by which it came in.
    pub link: LinkId,
    /// Its mark.
    pub mark: u32,
    /// Traffic class octet.
    pub traffic_class: u8,
    /// IP protocol number.
    pub protocol: u8,
    /// Source and destination port, where it has them.
    pub ports: Option<(u16, u16)>,
    /// A number that all packets of its flow share; the values of all flows are spread evenly.
    pub flow_hash: u32,
}

impl Query {
    /// A packet without a mark and without ports.
    pub const fn new(source: IpAddr, destination: IpAddr, link: LinkId) -> Self {
        Self {
            source,
            destination,
            link,
            mark: 0,
            traffic_class: 0,
            protocol: 0,
            ports: None,
            flow_hash: 0,
        }
    }

    /// The type of service as routes and rules see it. IPv4: four bits of the octet of RFC 1349
    /// without the last, as in the kernel. IPv6: the DSCP.
    pub(crate) const fn tos(&self) -> u8 {
        match self.destination {
            IpAddr::V4(_) => self.traffic_class & 0x1c,
            IpAddr::V6(_) => self.traffic_class & 0xfc,
        }
    }
}

/// The answer of the routes for a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteResult {
    /// To the next hop.
    Forward(NextHop),
    /// To the host itself.
    Local,
    /// To every station on a link: a router does not forward it.
    Broadcast,
    /// To a group.
    Multicast,
    /// To nowhere, silently.
    Blackhole,
    /// To nowhere: a route says that the host is unreachable.
    Unreachable,
    /// To nowhere: a route forbids it.
    Prohibited,
    /// To nowhere: there is no route.
    NoRoute,
    /// To where only the kernel can send it, see [`Action::Unsupported`].
    Unsupported,
}

/// The answer of rules and tables for a packet.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Answered<'a> {
    /// It goes to this hop. The slice holds the routes to its destination, from the route of
    /// this hop on.
    Hop(&'a NextHop, &'a [Route]),
    /// It is for the host, or for several.
    Host(RouteResult),
    /// It goes nowhere.
    Nobody(RouteResult),
}

/// Rules and tables.
#[derive(Clone, Debug)]
pub struct Fib {
    v4: Arc<Vec<Rule>>,
    v6: Arc<Vec<Rule>>,
    tables: BTreeMap<TableId, Arc<Table>>,
    /// The fields that the rules of IPv4 and of IPv6 look at, beside the destination.
    pub(crate) asks: [Asks; 2],
    /// True if a route of IPv4 or of IPv6 selects by source. Stays true until all routes of the
    /// family are cleared.
    pub(crate) has_sources: [bool; 2],
    /// True if a route of IPv4 or of IPv6 is for one type of service. Stays true until all
    /// routes of the family are cleared.
    has_types_of_service: [bool; 2],
    /// True if a route of IPv4 or of IPv6 selects by source or shares flows among hops. Stays
    /// true until all routes of the family are cleared.
    tells_sources_apart: [bool; 2],
}

/// The fields of a packet that at least one rule of a family looks at.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Asks {
    pub(crate) source: bool,
    pub(crate) link: bool,
    mark: bool,
    traffic_class: bool,
    pub(crate) protocol: bool,
    pub(crate) ports: bool,
}

impl Asks {
    fn of(rules: &[Rule]) -> Self {
        let any = |asks: fn(&Selector) -> bool| rules.iter().any(|rule| asks(&rule.selector));
        Self {
            source: any(|it| it.source.is_some()),
            link: any(|it| it.link != LinkSelector::Any),
            mark: any(|it| it.mark.is_some()),
            traffic_class: any(|it| it.tos.is_some()),
            protocol: any(|it| it.protocol.is_some()),
            ports: any(|it| it.source_port.is_some() || it.destination_port.is_some()),
        }
    }
}

impl Default for Fib {
    /// The rules with which the kernel begins, and no routes.
    fn default() -> Self {
        let ask = Rule::ask;
        let v6 = vec![ask(0, TableId::LOCAL), ask(32_766, TableId::MAIN)];
        let v4 = [&*v6, &[ask(32_767, TableId::DEFAULT)]].concat();
        Self {
            v4: Arc::new(v4),
            v6: Arc::new(v6),
            tables: BTreeMap::new(),
            asks: Default::default(),
            has_sources: [false; 2],
            has_types_of_service: [false; 2],
            tells_sources_apart: [false; 2],
        }
    }
}

impl Fib {
    /// The query without the fields that no rule or route looks at. Packets with the same
    /// essence go the same way.
    pub(crate) fn route_key(&self, query: &Query) -> Query {
        let family = usize::from(query.destination.is_ipv6());
        let Asks { source, mark, protocol, ports, .. } = self.asks[family];
        let mut asked = Query {
            mark: if mark { query.mark } else { 0 },
            traffic_class: query.tos(),
            protocol: if protocol { query.protocol } else { 0 },
            ports: query.ports.filter(|_| ports),
            ..*query
        };
        if !source && !self.tells_sources_apart[family] {
            asked.source = match query.source {
                IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
                IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            };
            asked.flow_hash = spread(query.destination);
        }
        asked
    }

    /// Finds the route of a packet.
    pub fn look_up(&self, query: &Query) -> RouteResult {
        match self.answer(query) {
            Answered::Hop(hop, _) => RouteResult::Forward(*hop),
            Answered::Host(result) | Answered::Nobody(result) => result,
        }
    }

    /// True if packets of one flow may take different routes because of their traffic class.
    pub fn asks_for_traffic_class(&self) -> bool {
        self.asks.iter().any(|asks| asks.traffic_class)
            || self.has_types_of_service.iter().any(|has| *has)
    }

    /// True if rules and routes look at nothing but the destination of packets of a family.
    pub fn goes_by_destination(&self, v6: bool) -> bool {
        let family = usize::from(v6);
        let Asks { source, link, mark, traffic_class, protocol, ports } = self.asks[family];
        let rules_look_at_more = source || link || mark || traffic_class || protocol || ports;
        let routes_do = self.has_types_of_service[family] || self.tells_sources_apart[family];
        !rules_look_at_more && !routes_do
    }

    pub(crate) fn answer(&self, query: &Query) -> Answered<'_> {
        let rules = if query.destination.is_ipv6() { &self.v6 } else { &self.v4 };
        let mut at = 0;
        for _ in 0..MAX_RULES {
            let Some(rule) = rules.get(at) else { break };
            at += 1;
            if !rule.is_for(query) {
                continue;
            }
            match rule.action {
                RuleAction::Ask { table, suppress } => {
                    if let Some(answer) = self.ask(table, suppress, query) {
                        return answer;
                    }
                }
                RuleAction::Goto(priority) => {
                    let target = rules.partition_point(|rule| rule.priority < priority);
                    let exists = rules.get(target).is_some_and(|rule| rule.priority == priority);
                    // A `goto` leads forward only, as in the kernel.
                    at = if exists { at.max(target) } else { at };
                }
                RuleAction::Nop => {}
                RuleAction::Blackhole => return Answered::Nobody(RouteResult::Blackhole),
                RuleAction::Unreachable => return Answered::Nobody(RouteResult::Unreachable),
                RuleAction::Prohibit => return Answered::Nobody(RouteResult::Prohibited),
            }
        }
        Answered::Nobody(RouteResult::NoRoute)
    }

    #[inline]
    pub(crate) fn ask(
        &self,
        table: TableId,
        suppress: Option<u8>,
        query: &Query,
    ) -> Option<Answered<'_>> {
        let (length, answer) = self.tables.get(&table)?.ask(query)?;
        let answer = match answer {
            Answer::Forward(hop, routes) => Answered::Hop(hop, routes),
            Answer::Ends(action) => match action {
                Action::Local => Answered::Host(RouteResult::Local),
                Action::Broadcast => Answered::Host(RouteResult::Broadcast),
                Action::Multicast => Answered::Host(RouteResult::Multicast),
                Action::Blackhole => return Some(Answered::Nobody(RouteResult::Blackhole)),
                Action::Unreachable => return Some(Answered::Nobody(RouteResult::Unreachable)),
                Action::Prohibit => return Some(Answered::Nobody(RouteResult::Prohibited)),
                Action::Unsupported => Answered::Nobody(RouteResult::Unsupported),
                Action::Throw | Action::Forward(_) => return None,
            },
        };
        suppress.is_none_or(|suppress| length > suppress).then_some(answer)
    }

    /// Replaces all rules of a family.
    pub fn set_rules(&mut self, v6: bool, mut rules: Vec<Rule>) {
        rules.sort_by_key(|rule| rule.priority);
        self.asks[usize::from(v6)] = Asks::of(&rules);
        *(if v6 { &mut self.v6 } else { &mut self.v4 }) = Arc::new(rules);
    }

    /// The rules of a family, in the order in which they are asked.
    pub fn rules(&self, v6: bool) -> &[Rule] {
        if v6 { &self.v6 } else { &self.v4 }
    }

    /// Adds a route, behind others of the same rank.
    pub fn insert(&mut self, table: TableId, route: Route) {
        self.insert_route(table, route, InsertMode::Append);
    }

    /// Adds a route, in front of others of the same rank.
    pub fn prepend(&mut self, table: TableId, route: Route) {
        self.insert_route(table, route, InsertMode::Prepend);
    }

    /// Replaces the first route with the same destination, source, type of service and metric;
    /// adds the route if there is none.
    pub fn replace(&mut self, table: TableId, route: Route) {
        self.insert_route(table, route, InsertMode::Replace);
    }

    fn insert_route(&mut self, table: TableId, route: Route, mode: InsertMode) {
        let family = usize::from(route.destination.addr().is_ipv6());
        let has_choice = matches!(&route.action, Action::Forward(hops) if hops.all().len() > 1);
        self.has_sources[family] |= route.source.is_some();
        self.has_types_of_service[family] |= route.tos != 0;
        self.tells_sources_apart[family] |= has_choice || route.source.is_some();
        self.table_mut(table).insert(route, mode);
    }

    /// Takes a route out; false if there is no such route.
    pub fn remove(&mut self, table: TableId, route: &Route) -> bool {
        self.tables.contains_key(&table) && self.table_mut(table).remove(route)
    }

    /// Takes all routes of a family out.
    pub fn clear(&mut self, v6: bool) {
        self.tells_sources_apart[usize::from(v6)] = false;
        self.has_sources[usize::from(v6)] = false;
        self.has_types_of_service[usize::from(v6)] = false;
        for table in self.tables.values_mut() {
            Arc::make_mut(table).clear(v6);
        }
        self.tables.retain(|_, table| !table.is_empty());
    }

    /// All tables that have routes.
    pub fn tables(&self) -> impl Iterator<Item = (TableId, &Table)> {
        self.tables.iter().map(|(id, table)| (*id, &**table))
    }

    fn table_mut(&mut self, id: TableId) -> &mut Table {
        Arc::make_mut(self.tables.entry(id).or_default())
    }
}

/// A number for an address, spread over all values.
fn spread(address: IpAddr) -> u32 {
    let bits = match address {
        IpAddr::V4(address) => u64::from(address.to_bits()),
        IpAddr::V6(address) => (address.to_bits() >> 64) as u64 ^ address.to_bits() as u64,
    };
    // Fibonacci hashing: the high bits of the product depend on all of the address.
    (bits.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
}

#[cfg(test)]
#[path = "fib_tests.rs"]
mod tests;
