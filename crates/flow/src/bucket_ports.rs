//! The ports whose replies come to a bucket.

use crate::PortPermutation;

/// The part of all ports that one of two gateways gives away. Ports that differ only in their last
/// bit are in the same part, because media take pairs of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PortPart {
    /// All: no other gateway gives ports away.
    #[default]
    All,
    /// One half.
    First,
    /// The other half.
    Second,
}

impl PortPart {
    /// True for a port of this part.
    #[inline]
    pub const fn contains(self, port: u16) -> bool {
        match self {
            Self::All => true,
            Self::First => port & 2 == 0,
            Self::Second => port & 2 != 0,
        }
    }
}

/// The local ports of connections with one remote endpoint whose replies all come to one bucket:
/// those at some places of a permutation. Only the bucket itself knows which of them are free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketPorts {
    permutation: PortPermutation,
    first_place: u16,
    places: u32,
    part: PortPart,
}

impl BucketPorts {
    /// All ports, for a gateway with one bucket.
    pub const ALL: Self = Self::new(PortPermutation::IDENTITY, 0, 1 << 16);

    /// No port: replies are steered by something else.
    pub const NONE: Self = Self::new(PortPermutation::IDENTITY, 0, 0);

    /// The ports at `places` places from `first_place` on, 2^16 at most.
    #[inline]
    pub const fn new(permutation: PortPermutation, first_place: u16, places: u32) -> Self {
        Self { permutation, first_place, places, part: PortPart::All }
    }

    /// The same ports, of which only those of a part may be given away, or others in their place.
    #[inline]
    #[must_use]
    pub const fn in_part(self, part: PortPart) -> Self {
        Self { part, ..self }
    }

    /// None of these ports, and the same part: replies may come to any bucket.
    #[inline]
    #[must_use]
    pub const fn emptied(self) -> Self {
        Self { places: 0, ..self }
    }

    /// True for a port that may be given away, whether or not it is one of these.
    #[inline]
    pub const fn may_give(self, port: u16) -> bool {
        self.part.contains(port)
    }

    /// True for one of these ports.
    #[inline]
    pub const fn contains(self, port: u16) -> bool {
        let ahead = self.permutation.place(port).wrapping_sub(self.first_place);
        (ahead as u32) < self.places
    }

    /// Number of ports, 2^16 at most.
    #[inline]
    pub const fn len(self) -> u32 {
        self.places
    }

    /// True if there are no ports.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.places == 0
    }

    /// The port number `at` in the order of their places, counted round; no port of the set if it
    /// is empty.
    #[inline]
    pub const fn nth_round(self, at: u32) -> u16 {
        let places = if self.places == 0 { 1 } else { self.places };
        self.permutation.port(self.first_place.wrapping_add((at % places) as u16))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_listed_ports_are_those_that_it_contains(
            secret: u64, first_place: u16, places in 0..300_u32,
        ) {
            let ports = BucketPorts::new(PortPermutation::new(secret), first_place, places);
            let mut listed: Vec<u16> = (0..places).map(|at| ports.nth_round(at)).collect();
            listed.sort_unstable();
            let contained: Vec<u16> = (0..=u16::MAX).filter(|port| ports.contains(*port)).collect();
            prop_assert_eq!(listed, contained);
            for port in 0..=u16::MAX {
                let [first, second] =
                    [PortPart::First, PortPart::Second].map(|part| ports.in_part(part).may_give(port));
                prop_assert!(first != second && ports.may_give(port));
                prop_assert_eq!(first, PortPart::First.contains(port ^ 1));
            }
            prop_assert!((0..=u16::MAX).all(|port| BucketPorts::ALL.contains(port)));
            prop_assert!(!(0..=u16::MAX).any(|port| BucketPorts::NONE.contains(port)));
        }
    }
}
