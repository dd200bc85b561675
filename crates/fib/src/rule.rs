//! Routing policy: the rules that choose a table for a packet (ip-rule(8)).

use std::ops::RangeInclusive;

use ipnet::IpNet;

use crate::fib::Query;
use crate::{LinkId, TableId};

/// A rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Rules are tried in ascending order of their priority.
    pub priority: u32,
    /// The packets that it is for.
    pub selector: Selector,
    /// True: the rule is for all packets except those of the selector.
    pub invert: bool,
    /// The action for these packets.
    pub action: RuleAction,
}

/// The packets of a rule: those that meet every condition. The default is all packets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    /// The source is in this prefix.
    pub source: Option<IpNet>,
    /// The destination is in this prefix.
    pub destination: Option<IpNet>,
    /// The packet came in by this interface.
    pub link: LinkSelector,
    /// The mark has these bits under this mask.
    pub mark: Option<(u32, u32)>,
    /// The type of service, or for IPv6 the traffic class, is this octet.
    pub tos: Option<u8>,
    /// The IP protocol number is this.
    pub protocol: Option<u8>,
    /// The source port (TCP, UDP and the like) is in this range.
    pub source_port: Option<RangeInclusive<u16>>,
    /// The destination port is in this range.
    pub destination_port: Option<RangeInclusive<u16>>,
}

/// The interface by which a packet has to come in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkSelector {
    /// Any.
    #[default]
    Any,
    /// This one.
    Is(LinkId),
    /// An interface that does not exist now, or that packets do not come from: no packet
    /// matches.
    Absent,
}

/// The action of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleAction {
    /// Asks a table; if that has no answer, the next rule is tried.
    Ask {
        /// The table.
        table: TableId,
        /// Answers from prefixes of at most this length do not count (`suppress_prefixlength`).
        suppress: Option<u8>,
    },
    /// Continues with the first rule of this priority; does nothing if there is none.
    Goto(u32),
    /// Does nothing.
    Nop,
    /// The packet ends here.
    Blackhole,
    /// The packet ends here, and its sender learns that the destination is unreachable.
    Unreachable,
    /// The packet ends here, and its sender learns that this is forbidden.
    Prohibit,
}

impl Rule {
    /// A rule for all packets that asks a table.
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
