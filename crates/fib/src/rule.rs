//! Routing policy: which table is asked about which packet (ip-rule(8)).

use std::ops::RangeInclusive;

use ipnet::IpNet;

use crate::fib::Query;
use crate::{LinkId, TableId};

/// A rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Rules are asked from the lowest on.
    pub priority: u32,
    /// Which packets it is for.
    pub selector: Selector,
    /// The rule is for all packets but those that the selector names.
    pub invert: bool,
    /// What it does.
    pub action: RuleAction,
}

/// Which packets a rule is for: those for which everything is true. The default is all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    /// From a prefix.
    pub source: Option<IpNet>,
    /// To a prefix.
    pub destination: Option<IpNet>,
    /// That came in by an interface.
    pub link: LinkSelector,
    /// Whose mark has these bits under this mask.
    pub mark: Option<(u32, u32)>,
    /// Of this type of service, or for IPv6 traffic class, as octet.
    pub tos: Option<u8>,
    /// Of an IP protocol.
    pub protocol: Option<u8>,
    /// From a port of TCP, UDP and the like.
    pub source_port: Option<RangeInclusive<u16>>,
    /// To a port.
    pub destination_port: Option<RangeInclusive<u16>>,
}

/// Which interface a packet has to come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkSelector {
    /// Any.
    #[default]
    Any,
    /// This one.
    Is(LinkId),
    /// One that does not exist now, or that packets do not come from: none.
    Absent,
}

/// What a rule does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleAction {
    /// Asks a table; without an answer the next rule is asked.
    Ask {
        /// The table.
        table: TableId,
        /// Answers of prefixes that are no longer than this do not count
        /// (`suppress_prefixlength`).
        suppress: Option<u8>,
    },
    /// Goes on with the first rule of this priority; does nothing if there is none.
    Goto(u32),
    /// Does nothing.
    Nop,
    /// The packet ends here.
    Blackhole,
    /// It ends here, and its sender is told that the destination is not reachable.
    Unreachable,
    /// It ends here, and its sender is told that this is forbidden.
    Prohibit,
}

impl Rule {
    /// A rule for all packets.
    pub fn ask(priority: u32, table: TableId) -> Self {
        let action = RuleAction::Ask { table, suppress: None };
        Self { priority, selector: Selector::default(), invert: false, action }
    }

    pub(crate) fn is_for(&self, query: &Query) -> bool {
        self.selector.matches(query) != self.invert
    }
}

impl Selector {
    fn matches(&self, query: &Query) -> bool {
        let Self { source, destination, link, mark, tos, protocol, .. } = self;
        let port = |range: &Option<RangeInclusive<u16>>, port: Option<u16>| {
            range.as_ref().is_none_or(|range| port.is_some_and(|port| range.contains(&port)))
        };
        let (source_port, destination_port) = query.ports.unzip();
        source.is_none_or(|prefix| prefix.contains(&query.source))
            && destination.is_none_or(|prefix| prefix.contains(&query.destination))
            && match link {
                LinkSelector::Any => true,
                LinkSelector::Is(link) => *link == query.link,
                LinkSelector::Absent => false,
            }
            && mark.is_none_or(|(bits, mask)| (query.mark ^ bits) & mask == 0)
            && tos.is_none_or(|tos| tos == query.tos())
            && protocol.is_none_or(|protocol| protocol == query.protocol)
            && port(&self.source_port, source_port)
            && port(&self.destination_port, destination_port)
    }
}
