//! Where a datagram is looked for first.

use std::hash::Hasher;

use flow::HashKey;
use siphasher::sip::SipHasher13;
use wire::Family;

use crate::piece::{DatagramKey, last_word};

/// 32-bit words of an IPv6 key; one of IPv4 has fewer.
const WORDS: usize = 10;

/// A keyed hash for the places where a meeting costs little: the nursery and the
/// datagrams seen lately. It takes two multiplications for IPv4, where SipHash takes a
/// hundred instructions.
///
/// Pair-multiply-shift (Thorup, "High speed hashing for integers and strings", 2015,
/// section 3.5): two given keys of a family meet in the high half with a probability of
/// 2^-32, whichever they are. But somebody who finds two that do learns more than from
/// SipHash, so what must hold in that case too is found by [`DatagramKey::hash`].
#[derive(Debug)]
pub(crate) struct Places {
    secrets: [u64; WORDS],
}

impl Places {
    pub fn new(secret: HashKey) -> Self {
        let secrets = std::array::from_fn(|word| {
            let mut hasher = SipHasher13::new_with_keys(secret.0, secret.1);
            hasher.write(b"places of datagrams");
            hasher.write_usize(word);
            hasher.finish()
        });
        Self { secrets }
    }

    #[inline]
    pub fn of(&self, key: &DatagramKey) -> u32 {
        let rest = u32::from(key.zone.0) << 8 | u32::from(key.protocol);
        let sum = match key.family {
            Family::V4 => {
                self.pairs([[last_word(key.source), last_word(key.destination)], [key.id, rest]])
            }
            Family::V6 => {
                let [a, b] = words(key.source);
                let [c, d] = words(key.destination);
                self.pairs([a, b, c, d, [key.id, rest]])
            }
        };
        (sum >> 32) as u32
    }

    #[inline]
    fn pairs<const PAIRS: usize>(&self, pairs: [[u32; 2]; PAIRS]) -> u64 {
        let (secrets, _) = self.secrets.as_chunks::<2>();
        pairs.iter().zip(secrets).fold(0, |sum, (&[a, b], &[x, y])| {
            let (a, b) = (y.wrapping_add(a.into()), x.wrapping_add(b.into()));
            sum.wrapping_add(a.wrapping_mul(b))
        })
    }
}

fn words(address: [u8; 16]) -> [[u32; 2]; 2] {
    let word = |shift: u32| (u128::from_be_bytes(address) >> shift) as u32;
    [[word(96), word(64)], [word(32), word(0)]]
}

#[cfg(test)]
#[path = "places_tests.rs"]
mod tests;
