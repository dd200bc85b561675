//! Routes.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::LinkId;
use crate::fib::Query;

/// A route: what becomes of packets to a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Where packets go that it is for.
    pub destination: IpNet,
    /// Where packets come from that it is for; `None`: anywhere. IPv6 only.
    pub source: Option<IpNet>,
    /// The type of service (IPv4) that it is for, as octet; 0: any.
    pub tos: u8,
    /// Among routes to one prefix the one with the lowest is taken.
    pub metric: u32,
    /// What becomes of the packets.
    pub action: Action,
}

impl Route {
    /// A route for packets from anywhere, with metric 0.
    pub fn new(destination: IpNet, action: Action) -> Self {
        Self { destination: destination.trunc(), source: None, tos: 0, metric: 0, action }
    }

    /// True if `other` takes the place of this: the kernel keeps one of both.
    pub(crate) fn is_for_the_same(&self, other: &Self) -> bool {
        (self.destination, self.source, self.tos, self.metric)
            == (other.destination, other.source, other.tos, other.metric)
    }

    /// True if both are one route, whether its hops are alive or not.
    pub(crate) fn is_the_same(&self, other: &Self) -> bool {
        self.is_for_the_same(other)
            && match (&self.action, &other.action) {
                (Action::Forward(hops), Action::Forward(others)) => hops.are_the_same(others),
                (action, other) => action == other,
            }
    }

    /// True if it is for a packet to its destination.
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

/// What becomes of a packet (rtnetlink(7), `rtm_type`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// It goes on.
    Forward(Hops),
    /// It is for the host itself, anycast included.
    Local,
    /// It is for everybody on a link.
    Broadcast,
    /// It is for a group.
    Multicast,
    /// It ends here.
    Blackhole,
    /// It ends here, and its sender is told that the destination is not reachable.
    Unreachable,
    /// It ends here, and its sender is told that this is forbidden.
    Prohibit,
    /// The table has no answer: the next rule is asked.
    Throw,
    /// The kernel would do what can not be done here, such as encapsulate it.
    Unsupported,
}

/// The hops that a route may take, at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hops {
    hops: Box<[NextHop]>,
}

impl Hops {
    /// The same hops, of a route that lets no longer packets by than this; bytes.
    #[must_use]
    pub fn with_mtu(mut self, mtu: u32) -> Self {
        self.hops.iter_mut().for_each(|hop| hop.mtu = Some(mtu));
        self
    }

    /// The only hop.
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

    /// All of them.
    pub fn all(&self) -> &[NextHop] {
        &self.hops
    }

    /// The hop of a flow, of those that are alive: in proportion to their weights, and the
    /// same for one flow as long as these stay.
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

/// A hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextHop {
    /// The interface.
    pub link: LinkId,
    /// The router; `None`: the destination itself is on the link. It may be of the other
    /// address family.
    pub gateway: Option<IpAddr>,
    /// Its share of the flows, 1 to 65536 (kernel: 1 to 256).
    pub weight: u32,
    /// False while the kernel says that nothing can go this way.
    pub alive: bool,
    /// Bytes of the longest packet that the route lets by, if it says so; the link may take
    /// fewer.
    pub mtu: Option<u32>,
}

impl NextHop {
    /// A hop that is alive, with weight 1.
    pub const fn new(link: LinkId, gateway: Option<IpAddr>) -> Self {
        Self { link, gateway, weight: 1, alive: true, mtu: None }
    }
}
