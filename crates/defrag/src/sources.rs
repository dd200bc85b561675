//! Protection against identifications that are used again too soon.
//!
//! A sender uses up 16-bit identifications in seconds at today's rates, and fragments of two
//! datagrams with the same one would be put together (RFC 4963). So a datagram ends if its
//! source has sent many other fragments since the last one of it, as with the kernel's
//! `ipfrag_max_dist`.

use std::hash::Hasher;

use flow::HashKey;
use siphasher::sip::SipHasher13;
use wire::Family;

use crate::piece::{Piece, Realm, last_word};

/// log2 of the number of counters: 32 KiB for each worker.
const BITS: u32 = 13;

/// How many fragments each source has sent, modulo 2^32.
///
/// Sources may share a counter. It then runs too fast. At worst that gives up a datagram too
/// early; it never continues a wrong one. The choice of the counter is keyed, so nobody can aim
/// at another's.
#[derive(Debug)]
pub(crate) struct Sources {
    counters: Box<[u32; 1 << BITS]>,
    /// An odd secret.
    multiplier: u64,
}

impl Sources {
    pub fn new(secret: HashKey) -> Self {
        let mut hasher = SipHasher13::new_with_keys(secret.0, secret.1);
        hasher.write(b"fragments by source");
        Self { counters: Box::new([0; 1 << BITS]), multiplier: hasher.finish() | 1 }
    }

    /// Counts a fragment and returns the count of its source; 0 for IPv6, whose
    /// identifications have 32 bits.
    #[inline]
    pub fn count(&mut self, piece: &Piece) -> u32 {
        if piece.key.family() == Family::V6 {
            return 0;
        }
        let counter = &mut self.counters[self.place(piece.key.source, piece.key.realm())];
        *counter = counter.wrapping_add(1);
        *counter
    }

    /// The count of a source.
    pub fn get(&self, source: [u8; 16], realm: Realm) -> u32 {
        self.counters[self.place(source, realm)]
    }

    /// Multiply-shift hashing (Dietzfelbinger et al., 1997): two given sources
    /// share a counter with a probability of 2 in 2^`BITS`.
    #[inline]
    fn place(&self, source: [u8; 16], realm: Realm) -> usize {
        let source = u64::from(realm.number()) << 32 | u64::from(last_word(source));
        (source.wrapping_mul(self.multiplier) >> (64 - BITS)) as usize
    }
}
