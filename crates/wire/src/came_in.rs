//! The sizes of the fragments that a datagram came in, for the fragments that it leaves in.
//!
//! A gateway that changes the payload of a datagram can not send on the fragments that it came
//! in. It makes new ones that are no longer than those were, so that they pass wherever those
//! would have passed: a sender that looks for the path MTU with its fragments learns the same
//! as without the gateway.

use crate::fragment::{Cut, DontFragment};
use crate::{Family, Network};

/// Least MTU of a link with IPv6 (RFC 8200 section 5).
const IPV6_MIN_MTU: u32 = 1280;

/// A summary of the fragments that a datagram came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CameIn {
    family: Family,
    id: u32,
    /// Longest IP packet among the fragments, bytes.
    largest: u32,
    /// Longest IP packet among the fragments that must not be cut, bytes; 0 if there is none.
    largest_forbidden: u32,
}

impl CameIn {
    /// The summary of one fragment; `None` if the packet is no fragment.
    pub fn of(network: &Network) -> Option<Self> {
        let id = network.fragment?.id;
        let largest = network.end - u32::from(network.offset);
        let largest_forbidden = if network.dont_fragment { largest } else { 0 };
        Some(Self { family: network.family, id, largest, largest_forbidden })
    }

    /// The summary of these fragments and `other` ones of the same datagram.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            largest: self.largest.max(other.largest),
            largest_forbidden: self.largest_forbidden.max(other.largest_forbidden),
            ..self
        }
    }

    /// How to cut the datagram: into fragments that are no longer than the largest that came,
    /// under their identification. Fragments of IPv4 have "don't fragment" if the largest that
    /// came had it.
    ///
    /// With IPv6, fragments that came shorter than the minimum MTU of 1280 bytes may leave with
    /// up to that length.
    pub fn cut(&self) -> Cut {
        let Self { family, id, largest, largest_forbidden } = *self;
        let (least, is_final) = match family {
            Family::V4 => (0, largest_forbidden == largest),
            Family::V6 => (IPV6_MIN_MTU, true),
        };
        let dont_fragment = if is_final { DontFragment::Set } else { DontFragment::Clear };
        Cut { mtu: largest.max(least), id, dont_fragment }
    }
}

#[cfg(test)]
#[path = "came_in_tests.rs"]
mod tests;
