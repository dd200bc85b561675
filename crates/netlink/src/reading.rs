//! Reads messages of the kernel.

use std::collections::BTreeSet;
use std::net::IpAddr;

use fib::{
    Action, Hops, LinkSelector, Neighbour, NextHop, Route, Rule, RuleAction, Selector, TableId,
};
use ipnet::IpNet;
use netlink_packet_core::{DefaultNla, Nla};
use netlink_packet_route::AddressFamily;
use netlink_packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkLayerType, LinkMessage, Prop};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteMetric, RouteNextHop,
    RouteNextHopFlags, RouteType, RouteVia,
};
use netlink_packet_route::rule::{
    RuleAction as KernelAction, RuleAttribute, RuleFlags, RuleMessage,
};

use crate::{Link, LinkId};

/// Value of a rule that accepts routes with any length of prefix.
const SUPPRESS_NOTHING: u32 = u32::MAX;

/// A route and its table; `None` for a route that no forwarded packet takes, such as a multicast
/// route or one that the kernel made for itself.
pub(crate) fn route(
    message: &RouteMessage,
    unsupported: &mut BTreeSet<String>,
) -> Option<(TableId, Route)> {
    let header = &message.header;
    let any: IpAddr = match header.address_family {
        AddressFamily::Inet => IpAddr::from([0; 4]),
        AddressFamily::Inet6 => IpAddr::from([0; 16]),
        _ => return None,
    };
    if header.flags.contains(RouteFlags::Cloned) {
        return None;
    }
    let mut table = TableId(header.table.into());
    let mut destination = any;
    let mut source = any;
    let mut metric = 0;
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Table(number) => table = TableId(*number),
            RouteAttribute::Destination(address) => destination = ip(address)?,
            RouteAttribute::Source(address) => source = ip(address)?,
            RouteAttribute::Priority(priority) => metric = *priority,
            _ => {}
        }
    }
    let destination = IpNet::new(destination, header.destination_prefix_length).ok()?.trunc();
    let source = IpNet::new(source, header.source_prefix_length).ok()?.trunc();
    let action = action(message).unwrap_or_else(|why| {
        unsupported.insert(format!("route to {destination} in table {}: {why}", table.0));
        Action::Unsupported
    });
    let route = Route {
        source: (header.source_prefix_length > 0).then_some(source),
        tos: header.tos,
        metric,
        ..Route::new(destination, action)
    };
    Some((table, route))
}

fn action(message: &RouteMessage) -> Result<Action, String> {
    Ok(match message.header.kind {
        RouteType::Unicast => {
            let hops = hops(message)?;
            Action::Forward(match mtu(message) {
                Some(mtu) => hops.with_mtu(mtu),
                None => hops,
            })
        }
        RouteType::Local | RouteType::Anycast => Action::Local,
        RouteType::Broadcast => Action::Broadcast,
        RouteType::Multicast => Action::Multicast,
        RouteType::BlackHole => Action::Blackhole,
        RouteType::Unreachable => Action::Unreachable,
        RouteType::Prohibit => Action::Prohibit,
        RouteType::Throw => Action::Throw,
        kind => return Err(format!("its type {kind:?} is not known")),
    })
}

/// The MTU of a route; 0 is none.
fn mtu(message: &RouteMessage) -> Option<u32> {
    let metrics = message.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Metrics(metrics) => Some(metrics),
        _ => None,
    })?;
    metrics.iter().find_map(|metric| match metric {
        RouteMetric::Mtu(mtu) => (*mtu > 0).then_some(*mtu),
        _ => None,
    })
}

fn hops(message: &RouteMessage) -> Result<Hops, String> {
    let several = message.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::MultiPath(hops) => Some(hops),
        _ => None,
    });
    if let Some(hops) = several {
        let hops = hops.iter().map(one_of_several).collect::<Result<Vec<_>, _>>()?;
        return Hops::several(hops).ok_or_else(|| "it has no next hop".to_owned());
    }
    let mut hop = hop(&message.attributes)?;
    hop.alive = !is_dead(&message.header);
    Ok(Hops::one(hop))
}

fn one_of_several(message: &RouteNextHop) -> Result<NextHop, String> {
    let mut hop = hop(&message.attributes)?;
    hop.link = LinkId(message.interface_index);
    hop.weight = u32::from(message.hops) + 1;
    hop.alive = !message.flags.intersects(RouteNextHopFlags::Dead | RouteNextHopFlags::Unresolved);
    Ok(hop)
}

fn is_dead(header: &RouteHeader) -> bool {
    header.flags.intersects(RouteFlags::Dead | RouteFlags::Unresolved)
}

fn hop(attributes: &[RouteAttribute]) -> Result<NextHop, String> {
    let mut hop = NextHop::new(LinkId(0), None);
    for attribute in attributes {
        match attribute {
            RouteAttribute::Oif(link) => hop.link = LinkId(*link),
            RouteAttribute::Gateway(address) => {
                hop.gateway = Some(ip(address).ok_or("its gateway is no IP address")?);
            }
            RouteAttribute::Via(RouteVia::Inet(address)) => hop.gateway = Some((*address).into()),
            RouteAttribute::Via(RouteVia::Inet6(address)) => hop.gateway = Some((*address).into()),
            RouteAttribute::Via(_) => return Err("its gateway is no IP address".to_owned()),
            RouteAttribute::EncapType(_) | RouteAttribute::Encap(_) => {
                return Err("it encapsulates packets".to_owned());
            }
            _ => {}
        }
    }
    Ok(hop)
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(address) => Some((*address).into()),
        RouteAddress::Inet6(address) => Some((*address).into()),
        _ => None,
    }
}

/// A rule; `None` if the rule can not match a forwarded packet, or is unsupported.
pub(crate) fn rule(
    message: &RuleMessage,
    link_named: impl Fn(&str) -> Option<LinkId>,
    unsupported: &mut BTreeSet<String>,
) -> Option<Rule> {
    let header = &message.header;
    let mut rule = Rule {
        priority: 0,
        selector: Selector { tos: (header.tos != 0).then_some(header.tos), ..Selector::default() },
        invert: header.flags.contains(RuleFlags::Invert),
        action: RuleAction::Nop,
    };
    let mut table = TableId(header.table.into());
    let (mut goto, mut suppress) = (None, SUPPRESS_NOTHING);
    // The kernel does not send a mark of 0.
    let (mut mark, mut mask) = (0, 0);
    let mut missing = None;
    let selector = &mut rule.selector;
    for attribute in &message.attributes {
        match attribute {
            RuleAttribute::Priority(priority) => rule.priority = *priority,
            RuleAttribute::Table(number) => table = TableId(*number),
            RuleAttribute::Goto(priority) => goto = Some(*priority),
            RuleAttribute::SuppressPrefixLen(length) => suppress = *length,
            RuleAttribute::FwMark(bits) => mark = *bits,
            RuleAttribute::FwMask(bits) => mask = *bits,
            RuleAttribute::Source(address) => {
                selector.source = Some(IpNet::new(*address, header.src_len).ok()?.trunc());
            }
            RuleAttribute::Destination(address) => {
                selector.destination = Some(IpNet::new(*address, header.dst_len).ok()?.trunc());
            }
            RuleAttribute::Iifname(name) => {
                // The kernel detaches a rule from an interface that was renamed, even if the
                // interface still has that name as an alternative one.
                let is_meant = !header.flags.contains(RuleFlags::IifDetached);
                let link = is_meant.then(|| link_named(name)).flatten();
                selector.link = link.map_or(LinkSelector::Absent, LinkSelector::Is);
            }
            // Such a rule is only for sockets that are bound to an interface.
            RuleAttribute::Oifname(_) => selector.link = LinkSelector::Absent,
            RuleAttribute::IpProtocol(protocol) => {
                selector.protocol = Some(i32::from(*protocol) as u8)
            }
            RuleAttribute::SourcePortRange(range) => {
                selector.source_port = Some(range.start..=range.end);
            }
            RuleAttribute::DestinationPortRange(range) => {
                selector.destination_port = Some(range.start..=range.end);
            }
            RuleAttribute::L3MDev(true) => missing = Some("l3mdev"),
            RuleAttribute::TunId(_) => missing = Some("tun_id"),
            RuleAttribute::UidRange(_) => missing = Some("uidrange"),
            RuleAttribute::SuppressIfGroup(group) if *group != u32::MAX => {
                missing = Some("suppress_ifgroup");
            }
            RuleAttribute::Other(other) => missing = missing.or(newer_selector(other)),
            _ => {}
        }
    }
    selector.mark = (mask != 0).then_some((mark, mask));
    if let Some(what) = missing {
        let family = if header.family == AddressFamily::Inet6 { "IPv6" } else { "IPv4" };
        unsupported.insert(format!("rule {} of {family} is left out: {what}", rule.priority));
        return None;
    }
    rule.action = match header.action {
        KernelAction::ToTable => RuleAction::Ask { table, suppress: u8::try_from(suppress).ok() },
        KernelAction::Goto => goto.map_or(RuleAction::Nop, RuleAction::Goto),
        KernelAction::Blackhole => RuleAction::Blackhole,
        KernelAction::Unreachable => RuleAction::Unreachable,
        KernelAction::Prohibit => RuleAction::Prohibit,
        _ => RuleAction::Nop,
    };
    Some(rule)
}

/// The name of a selector that is not supported (fib_rules.h); `None` if it selects everything.
fn newer_selector(attribute: &DefaultNla) -> Option<&'static str> {
    let mut value = vec![0; attribute.value_len()];
    attribute.emit_value(&mut value);
    match attribute.kind() {
        25 | 30 => Some("dscp"),
        26 | 27 => Some("flowlabel"),
        // The kernel adds this full mask to a single port.
        28 | 29 if value == [0xff, 0xff] => None,
        28 | 29 => Some("a mask of ports"),
        _ => Some("a selector that is not known"),
    }
}

/// News of a neighbour.
pub(crate) enum NeighbourNews {
    Is(LinkId, IpAddr, Neighbour),
    IsNot(LinkId, IpAddr),
}

/// A neighbour; `None` for an entry that is not an IP neighbour on a link, such as a bridge entry
/// or a proxy.
pub(crate) fn neighbour(message: &NeighbourMessage) -> Option<NeighbourNews> {
    let (link, address) = neighbour_key(message)?;
    let station = message.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::LinkLayerAddress(bytes) => bytes.as_slice().try_into().ok(),
        _ => None,
    });
    let known = |is_fresh| station.map(|station| Neighbour::Known { station, is_fresh });
    let neighbour = match message.header.state {
        NeighbourState::Reachable
        | NeighbourState::Permanent
        | NeighbourState::Noarp
        | NeighbourState::Delay
        | NeighbourState::Probe => known(true),
        NeighbourState::Stale => known(false),
        NeighbourState::Incomplete => Some(Neighbour::Incomplete),
        NeighbourState::Failed => Some(Neighbour::Failed),
        _ => None,
    };
    Some(match neighbour {
        Some(neighbour) => NeighbourNews::Is(link, address, neighbour),
        None => NeighbourNews::IsNot(link, address),
    })
}

pub(crate) fn neighbour_key(message: &NeighbourMessage) -> Option<(LinkId, IpAddr)> {
    if message.header.flags.contains(NeighbourFlags::Proxy) {
        return None;
    }
    let address = message.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::Destination(NeighbourAddress::Inet(address)) => Some((*address).into()),
        NeighbourAttribute::Destination(NeighbourAddress::Inet6(address)) => {
            Some((*address).into())
        }
        _ => None,
    })?;
    Some((LinkId(message.header.ifindex), address))
}

/// An interface.
pub(crate) fn link(message: &LinkMessage) -> Link {
    let is_ethernet = message.header.link_layer_type == LinkLayerType::Ether;
    let mut link = Link {
        name: String::new(),
        station: None,
        mtu: 0,
        is_up: message.header.flags.contains(LinkFlags::Up | LinkFlags::LowerUp),
        addresses: Vec::new(),
    };
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name.clone_from(name),
            LinkAttribute::Address(bytes) if is_ethernet => {
                link.station = bytes.as_slice().try_into().ok();
            }
            LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
            _ => {}
        }
    }
    link
}

/// Properties of a link that are not in [`Link`] but decide about its routes and rules.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LinkExtras {
    flags: LinkFlags,
    /// Its alternative names.
    names: Vec<String>,
}

impl LinkExtras {
    /// True if the link has this alternative name.
    pub(crate) fn has_name(&self, name: &str) -> bool {
        self.names.iter().any(|other| other == name)
    }
}

pub(crate) fn link_extras(message: &LinkMessage) -> LinkExtras {
    let flags = LinkFlags::Up | LinkFlags::LowerUp | LinkFlags::Running;
    let mut names = Vec::new();
    for attribute in &message.attributes {
        let LinkAttribute::PropList(properties) = attribute else { continue };
        names.extend(properties.iter().filter_map(|property| match property {
            Prop::AltIfName(name) => Some(name.clone()),
            _ => None,
        }));
    }
    LinkExtras { flags: message.header.flags & flags, names }
}

/// An address of the host with its network and link; `None` if it can not be used, or not yet.
pub(crate) fn address(message: &AddressMessage) -> Option<(LinkId, IpNet)> {
    let unusable = AddressHeaderFlags::Tentative | AddressHeaderFlags::Deprecated;
    if message.header.flags.intersects(unusable) {
        return None;
    }
    let find = |wanted: fn(&AddressAttribute) -> Option<IpAddr>| {
        message.attributes.iter().find_map(wanted)
    };
    // On a point-to-point link the other attribute holds the peer's address.
    let local = find(|attribute| match attribute {
        AddressAttribute::Local(address) => Some(*address),
        _ => None,
    });
    let only = || {
        find(|attribute| match attribute {
            AddressAttribute::Address(address) => Some(*address),
            _ => None,
        })
    };
    let network = IpNet::new(local.or_else(only)?, message.header.prefix_len).ok()?;
    Some((LinkId(message.header.index), network))
}
