//! SipHash-1-3 of whole words (Aumasson and Bernstein, 2012: "SipHash: a fast short-input PRF").
//!
//! Every packet has its flow hashed. The number of words is known at compile time, so nothing is
//! buffered, and the state stays in registers. SipHash ends with a word that has room for the last
//! seven bytes beside the length, so a message that is no whole number of words saves a round.

use crate::HashKey;

struct State(u64, u64, u64, u64);

impl State {
    #[inline(always)]
    const fn round(self) -> Self {
        let Self(a, b, c, d) = self;
        let (a, c) = (a.wrapping_add(b), c.wrapping_add(d));
        let (b, d) = (b.rotate_left(13) ^ a, d.rotate_left(16) ^ c);
        let (a, c) = (a.rotate_left(32).wrapping_add(d), c.wrapping_add(b));
        let (b, d) = (b.rotate_left(17) ^ c, d.rotate_left(21) ^ a);
        Self(a, b, c.rotate_left(32), d)
    }

    #[inline(always)]
    const fn absorb(self, word: u64) -> Self {
        let Self(a, b, c, d) = self;
        let Self(a, b, c, d) = Self(a, b, c, d ^ word).round();
        Self(a ^ word, b, c, d)
    }
}

/// Bytes behind the whole words of a message.
pub(crate) struct Tail<const BYTES: usize>(pub(crate) u64);

/// The hash of some words and at most seven bytes, as if they were written one after the other in
/// little-endian order. The bytes of the tail that do not count must be zero.
#[inline(always)]
pub(crate) fn siphash<const N: usize, const BYTES: usize>(
    HashKey(k0, k1): HashKey,
    words: [u64; N],
    Tail(tail): Tail<BYTES>,
) -> u64 {
    const { assert!(BYTES < 8, "a tail is less than a word") }
    debug_assert!(tail >> (8 * BYTES) == 0, "a tail has no more bytes than it says");
    let mut state = State(
        k0 ^ 0x736f_6d65_7073_6575,
        k1 ^ 0x646f_7261_6e64_6f6d,
        k0 ^ 0x6c79_6765_6e65_7261,
        k1 ^ 0x7465_6462_7974_6573,
    );
    for word in words {
        state = state.absorb(word);
    }
    let State(a, b, c, d) = state.absorb(((N * 8 + BYTES) as u64) << 56 | tail);
    let State(a, b, c, d) = State(a, b, c ^ 0xff, d).round().round().round();
    a ^ b ^ c ^ d
}

#[cfg(test)]
mod tests {
    use std::hash::Hasher;

    use proptest::prelude::*;
    use siphasher::sip::SipHasher13;

    use super::*;

    fn other(key: HashKey, words: &[u64], tail: &[u8]) -> u64 {
        let mut hasher = SipHasher13::new_with_keys(key.0, key.1);
        words.iter().for_each(|word| hasher.write(&word.to_le_bytes()));
        hasher.write(tail);
        hasher.finish()
    }

    proptest! {
        #[test]
        fn it_agrees_with_another_implementation(key: (u64, u64), words: [u64; 4], tail: u64) {
            let key = HashKey(key.0, key.1);
            let bytes = tail.to_le_bytes();
            let six = Tail::<6>(tail & 0xffff_ffff_ffff);
            prop_assert_eq!(siphash(key, words, six), other(key, &words, &bytes[..6]));
            let two = Tail::<2>(tail & 0xffff);
            prop_assert_eq!(siphash(key, [words[0]], two), other(key, &words[..1], &bytes[..2]));
            prop_assert_eq!(siphash(key, [], Tail::<0>(0)), other(key, &[], &[]));
        }
    }
}
