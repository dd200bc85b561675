//! Sequence numbers.

/// A TCP sequence number, compared modulo 2^32 (RFC 9293 section 3.4).
///
/// There is no `Ord`: around the circle, "after" is not transitive. Two numbers
/// compare well while they are less than 2^31 apart, which the largest window
/// (2^30, RFC 7323 section 2.3) guarantees for numbers of one connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Seq(pub u32);

impl Seq {
    /// True if this number is past `other`.
    pub const fn is_after(self, other: Self) -> bool {
        other.0.wrapping_sub(self.0) > i32::MAX as u32
    }

    /// True if this number is short of `other`.
    pub const fn is_before(self, other: Self) -> bool {
        other.is_after(self)
    }

    /// The number `count` further on.
    #[must_use]
    pub const fn plus(self, count: u32) -> Self {
        Self(self.0.wrapping_add(count))
    }

    /// The number `count` back.
    #[must_use]
    pub const fn minus(self, count: u32) -> Self {
        Self(self.0.wrapping_sub(count))
    }

    /// The distance from `earlier` to this number, on the circle.
    pub const fn since(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }

    /// The later of two numbers.
    #[must_use]
    pub const fn max(self, other: Self) -> Self {
        if other.is_after(self) { other } else { self }
    }
}

impl std::fmt::Debug for Seq {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl std::fmt::Display for Seq {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comparison_is_modular() {
        let near_wrap = Seq(u32::MAX - 1);
        assert!(near_wrap.plus(3).is_after(near_wrap));
        assert!(near_wrap.is_before(Seq(1)));
        assert_eq!(near_wrap.plus(3), Seq(1));
        assert_eq!(Seq(1).minus(3), near_wrap);
        assert_eq!(Seq(1).since(near_wrap), 3);
        assert_eq!(near_wrap.max(Seq(1)), Seq(1));
        assert_eq!(Seq(1).max(near_wrap), Seq(1));
    }

    #[test]
    fn a_number_is_neither_before_nor_after_itself() {
        assert!(!Seq(7).is_after(Seq(7)));
        assert!(!Seq(7).is_before(Seq(7)));
    }

    #[test]
    fn half_the_circle_away_is_both_sides_and_so_counts_as_after() {
        // The one distance without an order; RFC 9293 never compares across it.
        assert!(Seq(0).is_after(Seq(1 << 31)));
        assert!(Seq(1 << 31).is_after(Seq(0)));
        assert!(!Seq(0).is_after(Seq((1 << 31) - 1)));
        assert!(Seq((1 << 31) - 1).is_after(Seq(0)));
    }
}
