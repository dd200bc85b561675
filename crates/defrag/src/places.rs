//! Where a datagram is looked for first.

use std::hash::Hasher;

use flow::HashKey;
use siphasher::sip::SipHasher13;
use wire::Family;

use crate::nursery::{PLACES, SEATS};
use crate::piece::{DatagramKey, last_word};

/// 32-bit words of an IPv6 key; one of IPv4 has fewer.
const WORDS: usize = 10;
/// The secrets that the identifications of IPv4 and of IPv6 are multiplied by.
const OF_IDS: [usize; 2] = [2, 8];
/// So many datagrams that a sender numbers one after the other never meet in the nursery.
const FOLLOWING: u64 = SEATS as u64;

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
        let number = |word: usize, attempt: u32| {
            let mut hasher = SipHasher13::new_with_keys(secret.0, secret.1);
            hasher.write(b"places of datagrams");
            hasher.write_usize(word);
            hasher.write_u32(attempt);
            hasher.finish()
        };
        let mut secrets = std::array::from_fn(|word| number(word, 0));
        for word in OF_IDS {
            // Fifteen of sixteen do.
            let mut attempts = 1..;
            while !keeps_followers_apart(secrets[word])
                && let Some(attempt) = attempts.next()
            {
                secrets[word] = number(word, attempt);
            }
        }
        Self { secrets }
    }

    #[inline]
    pub fn of(&self, key: &DatagramKey) -> u32 {
        let sum = match key.family() {
            Family::V4 => {
                self.pairs([[last_word(key.source), last_word(key.destination)], key.rest()])
            }
            Family::V6 => {
                let [a, b] = words(key.source);
                let [c, d] = words(key.destination);
                self.pairs([a, b, c, d, key.rest()])
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

/// Whether identifications that follow each other have places of their own in the nursery if
/// this is what they are multiplied by. What is added to it before, for VLAN and zone, has
/// 24 bits in zones up to 4095; of a higher number some may meet.
///
/// That refuses some secrets, so two given keys meet a little more often with those that are
/// left: by one in fifteen at most.
fn keeps_followers_apart(multiplier: u64) -> bool {
    /// All places, in units of 2^-32 of one.
    const ROUND: u64 = (PLACES as u64) << 32;
    const PLACE: u64 = 1 << 32;
    (1..=FOLLOWING).all(|distance| {
        let way = multiplier.wrapping_mul(distance) % ROUND;
        way >= PLACE && way + (distance << 24) < ROUND - PLACE
    })
}

fn words(address: [u8; 16]) -> [[u32; 2]; 2] {
    let word = |shift: u32| (u128::from_be_bytes(address) >> shift) as u32;
    [[word(96), word(64)], [word(32), word(0)]]
}

#[cfg(test)]
#[path = "places_tests.rs"]
mod tests;
