//! Limits how often a worker does something of its own accord: a rate, and a burst after a pause.

/// A rate limit, kept as the time up to which the allowance is used up.
#[derive(Debug)]
pub struct Allowance {
    /// The time at which the allowance is full again, nanoseconds.
    full_at_ns: u64,
    nanos_each: u64,
    burst: u64,
}

impl Allowance {
    /// Allows `per_second` (1 to 1,000,000,000) a second, and `burst` at once after a pause.
    pub const fn new(per_second: u64, burst: u64) -> Self {
        Self { full_at_ns: 0, nanos_each: 1_000_000_000 / per_second, burst }
    }

    /// Takes one from the allowance. False if nothing is left.
    pub fn take(&mut self, now_ns: u64) -> bool {
        let full_at_ns = self.full_at_ns.max(now_ns) + self.nanos_each;
        let allowed = full_at_ns - now_ns <= self.burst * self.nanos_each;
        if allowed {
            self.full_at_ns = full_at_ns;
        }
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allowance_bounds_the_burst_and_the_rate() {
        const PER_SECOND: u64 = 1000;
        const BURST: u64 = 50;
        let mut allowance = Allowance::new(PER_SECOND, BURST);
        let second = 1_000_000_000;
        let mut taken = |from: u64, step: u64, asked: u64| {
            (0..asked).filter(|n| allowance.take(from + n * step)).count() as u64
        };
        assert_eq!(taken(5 * second, 0, 1000), BURST);
        assert_eq!(taken(6 * second, 0, 1000), BURST, "and not a second's worth");
        // A flood of 100,000 packets within the next second.
        assert_eq!(taken(6 * second, second / 100_000, 100_000), PER_SECOND - 1);
        assert_eq!(taken(60 * second, second / PER_SECOND, 3000), 3000, "as many as it may");
    }
}
