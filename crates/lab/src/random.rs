//! Numbers that look random and are the same in every run.

/// A generator with 64 bits of state (splitmix64: Steele, Lea and Flood, "Fast
/// Splittable Pseudorandom Number Generators", OOPSLA 2014).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence that belongs to `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// A number from `low` to `high`, both included.
    ///
    /// # Panics
    /// If `low` is above `high`.
    pub fn between(&mut self, low: usize, high: usize) -> usize {
        assert!(low <= high, "{low} to {high}");
        low + (self.bits() % (high - low + 1) as u64) as usize
    }

    /// True with a probability of 1 in `n`.
    pub fn once_in(&mut self, n: usize) -> bool {
        self.between(1, n) == 1
    }

    /// One of `items`, which must not be empty.
    pub fn one_of<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.between(0, items.len() - 1)]
    }

    /// Puts `items` into a random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.between(0, last));
        }
    }

    /// `count` bytes.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        std::iter::repeat_with(|| self.bits() as u8).take(count).collect()
    }
}
