//! SipHash-1-3 of whole words (Aumasson and Bernstein, 2012: "SipHash: a fast short-input PRF").
//!
//! Every packet has its flow hashed. The number of words is known at compile time, so nothing is
//! buffered, and the state stays in registers.

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

/// The hash of some words, as if they were written one after the other in little-endian order.
#[inline(always)]
pub(crate) fn siphash<const N: usize>(HashKey(k0, k1): HashKey, words: [u64; N]) -> u64 {
    let mut state = State(
        k0 ^ 0x736f_6d65_7073_6575,
        k1 ^ 0x646f_7261_6e64_6f6d,
        k0 ^ 0x6c79_6765_6e65_7261,
        k1 ^ 0x7465_6462_7974_6573,
    );
    for word in words {
        state = state.absorb(word);
    }
    let State(a, b, c, d) = state.absorb((N as u64 * 8) << 56);
    let State(a, b, c, d) = State(a, b, c ^ 0xff, d).round().round().round();
    a ^ b ^ c ^ d
}

#[cfg(test)]
mod tests {
    use std::hash::Hasher;

    use proptest::prelude::*;
    use siphasher::sip::SipHasher13;

    use super::*;

    fn other<const N: usize>(key: HashKey, words: [u64; N]) -> u64 {
        let mut hasher = SipHasher13::new_with_keys(key.0, key.1);
        words.into_iter().for_each(|word| hasher.write(&word.to_le_bytes()));
        hasher.finish()
    }

    proptest! {
        #[test]
        fn it_agrees_with_another_implementation(key: (u64, u64), words: [u64; 5]) {
            let key = HashKey(key.0, key.1);
            prop_assert_eq!(siphash(key, words), other(key, words));
            prop_assert_eq!(siphash(key, [words[0], words[1]]), other(key, [words[0], words[1]]));
            prop_assert_eq!(siphash(key, []), other(key, []));
        }
    }
}
