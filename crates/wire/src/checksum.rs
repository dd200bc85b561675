//! The Internet checksum (RFC 1071) and its incremental update (RFC 1624).

/// A running one's complement sum of 16-bit words in network order.
///
/// Only the last part added may have an odd length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum(u64);

impl Sum {
    /// The sum of nothing.
    pub const ZERO: Self = Self(0);

    /// Adds `bytes`; an odd last byte counts as the high half of a word.
    #[must_use]
    #[inline]
    pub fn bytes(self, bytes: &[u8]) -> Self {
        // 32-bit words in the machine's order: the sum does not depend on the
        // order but for a swap of its bytes (RFC 1071 section 2 (B)), and a
        // 64-bit accumulator takes 2^32 of them without a carry.
        let (words, rest) = bytes.as_chunks::<4>();
        let mut sum: u64 = words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum();
        let mut last = [0; 4];
        last[..rest.len()].copy_from_slice(rest);
        sum += u64::from(u32::from_ne_bytes(last));
        Self(self.0 + u64::from(u16::from_be(fold(sum))))
    }

    /// Adds one word.
    #[must_use]
    pub const fn word(self, word: u16) -> Self {
        Self(self.0 + word as u64)
    }

    /// The checksum: the complement of the sum.
    pub const fn finish(self) -> u16 {
        !fold(self.0)
    }
}

const fn fold(sum: u64) -> u16 {
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + ((sum >> 16) & 0xffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

/// The checksum of `bytes`.
#[inline]
pub fn checksum(bytes: &[u8]) -> u16 {
    Sum::ZERO.bytes(bytes).finish()
}

/// True if `bytes`, which contain their checksum, sum up to nothing.
#[inline]
pub fn is_intact(bytes: &[u8]) -> bool {
    checksum(bytes) == 0
}
