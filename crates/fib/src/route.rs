//! Routes.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::LinkId;
use crate::fib::Query;

/// A route: the action for packets to a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The prefix that the packets' destinations are in.
    pub destination: IpNet,
    /// The prefix that the packets' sources are in; `None`: any source. IPv6 only.
    pub source: Option<IpNet>,
    /// The type of service (IPv4) that the packets have, as octet; 0: any.
    pub tos: u8,
    /// The route with the lowest metric wins among routes to one prefix.
    pub metric: u32,
    /// The action for the packets.
    pub action: Action,
}

impl Route {
    /// A route for packets from anywhere, with metric 0.
    pub fn new(destination: IpNet, action: Action) -> Self {
        Self { destination: destination.trunc(), source: None, tos: 0, metric: 0, action }
    }

    /// True if both have the same destination, source, type of service and metric; then
    /// [`Place::Instead`](crate::table::Place::Instead) lets one replace the other.
    pub(crate) fn is_for_the_same(&self, other: &Self) -> bool {
        (self.destination, self.source, self.tos, self.metric)
            == (other.destination, other.source, other.tos, other.metric)
    }

    /// True if both are one route, also if the hops of one are alive and those of the other are not.
    pub(crate) fn is_the_same(&self, other: &Self) -> bool {
        self.is_for_the_same(other)
            && match (&self.action, &other.action) {
                (Action::Forward(hops), Action::Forward(others)) => hops.are_the_same(others),
                (action, other) => action == other,
            }
    }

    /// True if the route takes a packet to its destination.
    #[inline]
    pub(crate) fn is_for(&self, query: &Query) -> bool {
        (self.tos == 0 || self.tos == query.tos())
            && self.source.is_none_or(|source| source.contains(&query.source))
    }

    /// The order in which routes to one destination are asked.
    pub(crate) fn rank(&self) -> impl Ord + use<> {
        let source = self.source.map_or(0, |source| source.prefix_len());
        (std::cmp::Reverse(source), std::cmp::Reverse(self.tos), self.metric)
    }
}

/// The action of a route (rtnetlink(7), `rtm_type`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// The packet goes on.
    Forward(Hops),
    /// The packet is for the host itself, anycast included.
    Local,
    /// The packet is for every station on a link.
    Broadcast,
    /// The packet is for a group.
    Multicast,
    /// The packet ends here.
    Blackhole,
    /// The packet ends here, and its sender learns that the destination is unreachable.
    Unreachable,
    /// The packet ends here, and its sender learns that this is forbidden.
    Prohibit,
    /// The table has no answer: the next rule decides.
    Throw,
    /// The kernel would do something that this gateway can not do, such as encapsulate the
    /// packet.
    Unsupported,
}

/// The hops that a route may take, at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hops {
    hops: Box<[NextHop]>,
}

impl Hops {
    /// The same hops, of a route with this MTU, in bytes.
    #[must_use]
    pub fn with_mtu(mut self, mtu: u32) -> Self {
        self.hops.iter_mut().for_each(|hop| hop.mtu = Some(mtu));
        self
    }

    /// A single hop.
    pub fn one(hop: NextHop) -> Self {
        Self { hops: Box::new([hop]) }
    }

    /// Hops that share the flows by their weights; `None` if there are none.
    pub fn several(hops: Vec<NextHop>) -> Option<Self> {
        (!hops.is_empty()).then(|| Self { hops: hops.into() })
    }

    fn are_the_same(&self, other: &Self) -> bool {
        let name = |hop: &NextHop| NextHop { alive: true, ..*hop };
        self.hops.iter().map(name).eq(other.hops.iter().map(name))
    }

    /// All hops.
    pub fn all(&self) -> &[NextHop] {
        &self.hops
    }

    /// The hop of a flow among the hops that are alive. Flows are shared in proportion to the
    /// weights, and a flow keeps its hop as long as these stay the same.
    pub fn choose(&self, flow_hash: u32) -> Option<&NextHop> {
        if let [hop] = &*self.hops {
            return hop.alive.then_some(hop);
        }
        let alive = || self.hops.iter().filter(|hop| hop.alive);
        let total: u64 = alive().map(|hop| u64::from(hop.weight)).sum();
        let mut at = (u64::from(flow_hash) * total) >> 32;
        alive().find(|hop| {
            let weight = u64::from(hop.weight);
            let found = at < weight;
            at = at.saturating_sub(weight);
            found
        })
    }
}

/// A next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextHop {
    /// The interface.
    pub link: LinkId,
    /// The router, whose address may be of the other family; `None`: the destination itself is
    /// on the link.
    pub gateway: Option<IpAddr>,
    /// Its share of the flows, 1 to 65536 (kernel: 1 to 256).
    pub weight: u32,
    /// False while the kernel says that the link can carry no packets.
    pub alive: bool,
    /// The MTU of the route in bytes, if it has one; that of the link may be smaller.
    pub mtu: Option<u32>,
}

impl NextHop {
    /// A hop that is alive, with weight 1.
    pub const fn new(link: LinkId, gateway: Option<IpAddr>) -> Self {
        Self { link, gateway, weight: 1, alive: true, mtu: None }
    }
}
