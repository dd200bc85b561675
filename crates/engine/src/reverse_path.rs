//! Whether a packet can be from where it says, by the link that it came in by (RFC 3704).

use fib::{Back, Query, Way};
use flow::DropReason;
use netio::PortId;
use wire::{Family, Network};

use crate::router::{Router, query};

/// Sources that a worker remembers the answer for, 24 bytes each.
const SOURCES: usize = 1 << SOURCE_BITS;
const SOURCE_BITS: u32 = 12;

/// How the sources of what comes in by an interface are checked: what the kernel's `rp_filter`
/// says, and a word more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReversePath {
    /// As the kernel has it set for the interface when that appears. And a source in a network that
    /// the host has an address in is refused on other interfaces than that of the network.
    #[default]
    Auto,
    /// Not at all (0).
    Off,
    /// The best route to the source goes out by the interface (1).
    Strict,
    /// There is a route to the source (2).
    Loose,
}

/// What is asked of the route to a source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceCheck {
    /// There is one.
    pub needs_route: bool,
    /// Which link it may go out by.
    pub link: LinkCheck,
}

/// Which link the route to a source may go out by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkCheck {
    /// Any.
    Any,
    /// Any, unless the source is attached to another link: in a network of the host's there.
    #[default]
    NotAttachedElsewhere,
    /// That which the packet came in by.
    Same,
}

impl ReversePath {
    /// What is asked where the kernel has this `rp_filter`.
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

/// What the kernel has set for an interface: the greater of its own value and of that for all. 0
/// where it can not be read.
pub fn kernels(interface: &str) -> u8 {
    let read = |name: &str| {
        let path = format!("/proc/sys/net/ipv4/conf/{name}/rp_filter");
        std::fs::read_to_string(path).ok()?.trim().parse().ok()
    };
    read("all").into_iter().chain(read(interface)).max().unwrap_or(0)
}

/// What the answer for a source depends on, where rules ask for nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Asked {
    source: [u8; 16],
    family: Family,
    traffic_class: u8,
    port: PortId,
}

/// What was asked, and why the source is not believed, if it is not.
type Known = (Asked, Option<DropReason>);

/// The sources that a worker has seen last. Each has one place, which the one that came last holds.
pub(crate) struct Sources {
    places: Box<[Option<Known>]>,
}

impl Default for Sources {
    fn default() -> Self {
        Self { places: vec![None; SOURCES].into() }
    }
}

impl Sources {
    /// Forgets everything: the routes are others.
    pub fn forget(&mut self) {
        self.places.fill(None);
    }

    #[inline]
    fn place(&mut self, asked: &Asked) -> &mut Option<Known> {
        let bits = u128::from_be_bytes(asked.source);
        let folded = (bits >> 64) as u64 ^ bits as u64 ^ u64::from(asked.port.0) << 32;
        // Fibonacci hashing: by the highest bits of the product, addresses that follow one another
        // lie far apart (Knuth, The Art of Computer Programming 6.4).
        let spread = folded.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - SOURCE_BITS);
        &mut self.places[spread as usize & (SOURCES - 1)]
    }
}

impl Router {
    /// Why the source of a packet that came in by `port` is not believed, if it is not.
    #[inline]
    pub(crate) fn source_fault(&mut self, port: PortId, network: &Network) -> Option<DropReason> {
        let Network { source, family, traffic_class, .. } = *network;
        // The marks of congestion choose no route.
        let asked = Asked { source, family, traffic_class: traffic_class & !3, port };
        match self.sources.place(&asked) {
            Some((known, fault)) if *known == asked => *fault,
            _ => self.look_back(&asked, network),
        }
    }

    #[inline(never)]
    fn look_back(&mut self, asked: &Asked, network: &Network) -> Option<DropReason> {
        let Asked { port, family, .. } = *asked;
        let known = self.routing.port(port)?;
        let (link, check) = (known.link, known.check);
        let is_plain = self.routing.fib.is_back_plain(family == Family::V6);
        let fault = if check == ReversePath::Off.check(0) {
            None
        } else {
            let query = query(network, link, true);
            let out = match is_plain {
                true => None,
                false => match self.ways.way(&self.routing.fib, &query) {
                    Way::Forward(hop) => Some(hop.link),
                    _ => None,
                },
            };
            let back = self.routing.fib.back(&query, out);
            self.judge_back(&query, check, back)
        };
        // Where rules ask for more, the next packet of this source may have another answer.
        *self.sources.place(asked) = is_plain.then_some((*asked, fault));
        fault
    }

    fn judge_back(&self, query: &Query, check: SourceCheck, back: Back) -> Option<DropReason> {
        let is_attached = |link| self.routing.is_attached(link, query.source);
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
}

#[cfg(test)]
#[path = "reverse_path_tests.rs"]
mod tests;
