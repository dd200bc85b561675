//! Buckets: the pieces into which the flow space is cut.

/// Number of a bucket, below the [`BucketCount`] of its gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct BucketId(pub u16);

impl BucketId {
    /// The number as an index into per-bucket arrays.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl std::fmt::Display for BucketId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "bucket {}", self.0)
    }
}

/// How many buckets there are: a power of two from 1 to [`BucketCount::MAX`], so that a change
/// of the count splits or joins whole buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketCount(u16);

/// A number that can not be a [`BucketCount`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "buckets = {given} is not possible: it must be a power of two from 1 to {max}, for example {suggestion}",
    max = BucketCount::MAX
)]
pub struct BucketCountError {
    /// The number as given.
    pub given: u64,
    /// A number that is possible: the next power of two, at most the largest count.
    pub suggestion: u16,
}

impl BucketCount {
    /// The largest count. The symmetric Toeplitz hash has 16 bits of entropy, which still fill
    /// that many buckets (see [`crate::symmetric_toeplitz`]).
    pub const MAX: u16 = 4096;
    /// The default: fine enough to balance 64 workers, small enough that the
    /// fixed cost of a bucket does not matter.
    pub const DEFAULT: Self = Self(256);

    /// Checks a count.
    ///
    /// # Errors
    /// [`BucketCountError`] unless it is a power of two from 1 to [`BucketCount::MAX`].
    pub fn new(count: u64) -> Result<Self, BucketCountError> {
        if (1..=u64::from(Self::MAX)).contains(&count) && count.is_power_of_two() {
            Ok(Self(count as u16))
        } else {
            let suggestion = count.clamp(1, u64::from(Self::MAX)).next_power_of_two() as u16;
            Err(BucketCountError { given: count, suggestion })
        }
    }

    /// The count.
    pub const fn get(self) -> usize {
        self.0 as usize
    }

    /// The bucket of a 32-bit hash: `(hash * count) >> 32`, as receive packet
    /// steering scales a hash to its map, so the high bits decide.
    #[inline]
    pub const fn bucket_of(self, hash: u32) -> BucketId {
        BucketId(((hash as u64 * self.0 as u64) >> 32) as u16)
    }

    /// All buckets.
    pub fn iter(self) -> impl ExactSizeIterator<Item = BucketId> {
        (0..self.0).map(BucketId)
    }
}

impl Default for BucketCount {
    fn default() -> Self {
        Self::DEFAULT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_powers_of_two_within_the_limit_are_counts() {
        let valid: Vec<u64> = (0..10_000).filter(|&n| BucketCount::new(n).is_ok()).collect();
        assert_eq!(valid, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096]);
        assert_eq!(BucketCount::new(0).unwrap_err().suggestion, 1);
        assert_eq!(
            BucketCount::new(300).unwrap_err().to_string(),
            "buckets = 300 is not possible: it must be a power of two from 1 to 4096, for example 512"
        );
        assert_eq!(BucketCount::new(u64::MAX).unwrap_err().suggestion, 4096);
    }

    #[test]
    fn the_high_bits_choose_the_bucket() {
        let count = BucketCount::DEFAULT;
        assert_eq!(count.bucket_of(0), BucketId(0));
        assert_eq!(count.bucket_of(0x00ff_ffff), BucketId(0));
        assert_eq!(count.bucket_of(0x0100_0000), BucketId(1));
        assert_eq!(count.bucket_of(u32::MAX), BucketId(255));
        let one = BucketCount::new(1).unwrap();
        assert_eq!(one.bucket_of(u32::MAX), BucketId(0));
        assert_eq!(one.iter().count(), 1);
    }
}
