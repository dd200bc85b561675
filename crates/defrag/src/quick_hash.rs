//! A fast hash by which the reassembler looks for a datagram first.

use std::hash::Hasher;

use flow::HashKey;
use siphasher::sip::SipHasher13;
use wire::Family;

use crate::nursery::{PLACES, SEATS};
use crate::piece::{DatagramKey, last_word};

/// 32-bit words of an IPv6 key; an IPv4 key has fewer.
const WORDS: usize = 10;
/// The indices of the secrets that multiply the identifications of IPv4 and of IPv6.
const OF_IDS: [usize; 2] = [2, 8];
/// This many datagrams with consecutive identifications never share a place in the nursery.
const FOLLOWING: u64 = SEATS as u64;

/// A keyed hash for tables where a collision costs little: the nursery and the cache of recent
/// datagrams. It takes two multiplications for IPv4, where SipHash takes a hundred
/// instructions.
///
/// Pair-multiply-shift (Thorup, "High speed hashing for integers and strings", 2015, section
/// 3.5): two given keys of a family have the same high half with a probability of 2^-32,
/// whichever they are. But an attacker who finds a collision learns more about the secrets than
/// from SipHash. So every structure that must withstand that uses [`DatagramKey::hash`].
#[derive(Debug)]
pub(crate) struct QuickHash {
    secrets: [u64; WORDS],
}

impl QuickHash {
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
            // Fifteen of sixteen secrets pass.
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

/// True if consecutive identifications have different places in the nursery with this
/// multiplier. VLAN and zone are added before the multiplication; up to zone 4095 that sum has
/// 24 bits. With a higher zone some identifications may share a place.
///
/// This check refuses some secrets, so two given keys collide a little more often with the
/// remaining ones: by one in fifteen at most.
fn keeps_followers_apart(multiplier: u64) -> bool {
    /// The size of the whole table, in units of 2^-32 of a place.
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
#[path = "quick_hash_tests.rs"]
mod tests;
