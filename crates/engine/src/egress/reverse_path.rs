//! Checks whether the source of a packet fits the link that it came in by (RFC 3704).

use fib::{Back, Query, RouteCache, RouteResult};
use flow::DropReason;
use netio::PortId;
use wire::{Family, Network};

use crate::egress::martian::is_no_source;
use crate::egress::recent_answers::{RecentAnswers, fold};
use crate::egress::router::query;
use crate::egress::routing::Routing;

/// log2 of the number of sources for which a worker remembers the answer, 24 bytes each.
const SOURCE_BITS: u32 = 12;

/// The check of the sources of packets that come in by an interface: the values of the kernel's
/// `rp_filter`, and one more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReversePath {
    /// As the kernel had it set when the interface appeared. In addition, a source in a network of
    /// the host is refused on other interfaces than that of the network.
    #[default]
    Auto,
    /// No check (0).
    Off,
    /// The best route to the source has to leave by the interface (1).
    Strict,
    /// There has to be a route to the source (2).
    Loose,
}

/// The demands on the route to a source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceCheck {
    /// A route to the source has to exist.
    pub needs_route: bool,
    /// The links that the route may leave by.
    pub link: LinkCheck,
}

/// The links that the route to a source may leave by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkCheck {
    /// Any link.
    Any,
    /// Any link, unless the source is in a network of the host on another link.
    #[default]
    NotAttachedElsewhere,
    /// Only the link that the packet came in by.
    Same,
}

impl ReversePath {
    /// The demands if the kernel has this value of `rp_filter`.
    pub const fn check(self, kernel: u8) -> SourceCheck {
        let (needs_route, link) = match (self, kernel) {
            (Self::Off, _) => (false, LinkCheck::Any),
            (Self::Strict, _) | (Self::Auto, 1) => (true, LinkCheck::Same),
            (Self::Loose, _) => (true, LinkCheck::Any),
            (Self::Auto, kernel) => (kernel > 0, LinkCheck::NotAttachedElsewhere),
        };
        SourceCheck { needs_route, link }
    }
}

/// The kernel's `rp_filter` for an interface: the greater one of its own value and that for all. 0
/// if it can not be read.
pub fn kernels(interface: &str) -> u8 {
    let read = |name: &str| {
        let path = format!("/proc/sys/net/ipv4/conf/{name}/rp_filter");
        std::fs::read_to_string(path).ok()?.trim().parse().ok()
    };
    read("all").into_iter().chain(read(interface)).max().unwrap_or(0)
}

/// The parts of a packet that its answer depends on, as long as no routing rule asks for more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SourceKey {
    source: [u8; 16],
    family: Family,
    traffic_class: u8,
    port: PortId,
}

/// The last sources that a worker has seen, each with the reason to drop its packets if it is wrong.
pub(crate) struct Sources(RecentAnswers<SourceKey, Option<DropReason>>);

impl Default for Sources {
    fn default() -> Self {
        Self(RecentAnswers::new(SOURCE_BITS))
    }
}

impl Sources {
    /// Forgets all answers, because the routes have changed.
    pub fn forget(&mut self) {
        self.0.forget();
    }

    #[inline]
    fn place(&mut self, asked: &SourceKey) -> &mut Option<(SourceKey, Option<DropReason>)> {
        self.0.place(fold(asked.source) ^ u64::from(asked.port.0) << 32)
    }

    /// The reason to drop a packet that came in by `port` because of its source, if there is one.
    #[inline]
    pub fn fault(
        &mut self,
        port: PortId,
        network: &Network,
        routing: &Routing,
        routes: &mut RouteCache,
    ) -> Option<DropReason> {
        let Network { source, family, traffic_class, .. } = *network;
        // The ECN bits choose no route.
        let asked = SourceKey { source, family, traffic_class: traffic_class & !3, port };
        match self.place(&asked) {
            Some((known, fault)) if *known == asked => *fault,
            _ => self.look_back(&asked, network, routing, routes),
        }
    }

    #[inline(never)]
    fn look_back(
        &mut self,
        asked: &SourceKey,
        network: &Network,
        routing: &Routing,
        routes: &mut RouteCache,
    ) -> Option<DropReason> {
        let SourceKey { port, family, .. } = *asked;
        let source = network.source_ip();
        if is_no_source(source) || routing.is_own(source) {
            return Some(DropReason::Martian);
        }
        let known = routing.port(port)?;
        let (link, check) = (known.link, known.check);
        let is_plain = routing.fib.is_back_plain(family == Family::V6);
        let fault = if check == ReversePath::Off.check(0) {
            None
        } else {
            let query = query(network, link, true);
            let out = match is_plain {
                true => None,
                false => match routes.look_up(&routing.fib, &query) {
                    RouteResult::Forward(hop) => Some(hop.link),
                    _ => None,
                },
            };
            let back = routing.fib.back(&query, out);
            check_back(&query, check, back, routing)
        };
        // If routing rules ask for more, the next packet of this source may get another answer.
        *self.place(asked) = is_plain.then_some((*asked, fault));
        fault
    }
}

fn check_back(
    query: &Query,
    check: SourceCheck,
    back: Back,
    routing: &Routing,
) -> Option<DropReason> {
    let is_attached = |link| routing.is_attached(link, query.source);
    let is_wrong = match back {
        Back::Here => false,
        Back::Host => return Some(DropReason::Martian),
        Back::Nowhere => check.needs_route,
        Back::Elsewhere { link, is_direct } => match check.link {
            LinkCheck::Any => false,
            LinkCheck::Same => true,
            LinkCheck::NotAttachedElsewhere => {
                is_direct && is_attached(link) && !is_attached(query.link)
            }
        },
    };
    is_wrong.then_some(DropReason::RpFilter)
}

#[cfg(test)]
#[path = "reverse_path_tests.rs"]
mod tests;
