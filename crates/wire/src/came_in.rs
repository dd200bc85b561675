//! What the fragments of a datagram were like, for the fragments that it leaves in.
//!
//! A gateway that changes the payload of a datagram can not send on the fragments that it came
//! in. What it makes instead is no longer than they were, so that it passes wherever they
//! would have: a sender that looks for the path MTU with its fragments learns from the
//! gateway what it would learn without.

use crate::fragment::{Cut, DontFragment};
use crate::{Family, Network};

/// Least MTU of a link with IPv6 (RFC 8200 section 5).
const IPV6_MIN_MTU: u32 = 1280;

/// The fragments that a datagram came in, all together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CameIn {
    family: Family,
    id: u32,
    /// Longest IP packet among the fragments, bytes.
    largest: u32,
    /// Longest of those that must not be cut.
    largest_forbidden: u32,
}

/// The link ahead is too short for what must not be shorter than it came: its sender is to
/// be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooBig;

impl CameIn {
    /// The fragment that is described; `None` if it is none.
    pub fn of(network: &Network) -> Option<Self> {
        let id = network.fragment?.id;
        let largest = network.end - u32::from(network.offset);
        let largest_forbidden = if network.dont_fragment { largest } else { 0 };
        Some(Self { family: network.family, id, largest, largest_forbidden })
    }

    /// With those of another part of the same datagram.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            largest: self.largest.max(other.largest),
            largest_forbidden: self.largest_forbidden.max(other.largest_forbidden),
            ..self
        }
    }

    /// Longest IP packet among the fragments, bytes, headers included.
    pub const fn largest(&self) -> u32 {
        self.largest
    }

    /// How the datagram is to be cut for a link of this MTU: into fragments that are no longer
    /// than the largest that came, under their identification. Those of IPv4 must not be cut
    /// further if the largest must not.
    ///
    /// With IPv6, fragments that came shorter than every link allows may leave longer: up to
    /// 1280 bytes.
    ///
    /// # Errors
    /// [`TooBig`] where the largest does not fit and no router may cut it.
    pub fn cut(&self, mtu: u32) -> Result<Cut, TooBig> {
        let Self { family, id, largest, largest_forbidden } = *self;
        let is_final = family == Family::V6 || largest_forbidden == largest;
        if is_final && largest > mtu {
            return Err(TooBig);
        }
        let least = if family == Family::V6 { IPV6_MIN_MTU } else { 0 };
        let dont_fragment = if is_final { DontFragment::Set } else { DontFragment::Clear };
        Ok(Cut { mtu: largest.min(mtu).max(least), id, dont_fragment })
    }
}

#[cfg(test)]
#[path = "came_in_tests.rs"]
mod tests;
