//! Draws the numbers of `numgen`, `jhash` and `symhash`.

use std::hash::Hasher;

use siphasher::sip::SipHasher13;
use wire::{Network, Transport};

use super::run::Run;
use super::trace::Trace;
use crate::generator::{Bytes, Source, jenkins, scaled};
use crate::model::GeneratorId;

/// The state of one worker's numbers.
#[derive(Clone, Debug)]
pub(super) struct Numbers {
    /// The next number of each generator that counts.
    next: Vec<u32>,
    /// The state of the random numbers.
    random: u64,
}

/// An odd number whose multiples are spread over all words: 2^64 divided by the golden ratio
/// (Knuth, The Art of Computer Programming 6.4).
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Mixes a word so that each bit depends on all others (Steele, Lea and Flood, "Fast splittable
/// pseudorandom number generators", OOPSLA 2014).
const fn mixed(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

impl Numbers {
    /// `stream` tells the workers of one ruleset apart.
    pub fn new(generators: usize, seed: u64, stream: u64) -> Self {
        Self { next: vec![0; generators], random: mixed(seed ^ mixed(stream.wrapping_add(1))) }
    }

    fn counted(&mut self, at: usize, modulus: u32, uses: bool) -> u32 {
        let Some(next) = self.next.get_mut(at) else { return 0 };
        let number = *next;
        if uses {
            *next = if number + 1 < modulus { number + 1 } else { 0 };
        }
        number
    }

    fn drawn(&mut self) -> u32 {
        self.random = self.random.wrapping_add(STEP);
        (mixed(self.random) >> 32) as u32
    }
}

/// A hash of the ends of a packet that is the same for the packets that answer it.
fn symmetric(network: &Network, seed: u64) -> u32 {
    let (source, destination) = match network.transport {
        Transport::IcmpQuery(query) => (query.id, query.id),
        transport => transport.ports().unwrap_or_default(),
    };
    let mut ends = [(network.source, source), (network.destination, destination)];
    ends.sort_unstable();
    let mut hasher = SipHasher13::new_with_keys(seed, !seed);
    for (address, port) in ends {
        hasher.write(&address);
        hasher.write_u16(port);
    }
    hasher.write_u8(network.protocol);
    hasher.finish() as u32
}

impl<T: Trace> Run<'_, '_, T> {
    /// The number of a generator; `None` if the packet lacks a value that is hashed.
    #[cold]
    #[inline(never)]
    pub(super) fn generated(&mut self, id: GeneratorId) -> Option<u128> {
        let program = self.program;
        let generator = &program.ruleset.generators[id.index()];
        let modulus = generator.modulus;
        let number = match &generator.source {
            Source::Counting => self.state.numbers.counted(id.index(), modulus, T::USES),
            Source::Random => scaled(self.state.numbers.drawn(), modulus),
            Source::Symmetric => scaled(symmetric(self.network(), program.seed), modulus),
            Source::Hash { parts, seed } => {
                let mut bytes = Bytes::EMPTY;
                for part in parts {
                    bytes.push(self.load(&part.load)?, part, parts.len() == 1);
                }
                // Without a seed each statement has a secret one, which stays when rules are
                // loaded anew.
                let secret = || mixed(program.seed ^ u64::from(id.0)) as u32;
                scaled(jenkins(bytes.slice(), seed.unwrap_or_else(secret)), modulus)
            }
        };
        Some(u128::from(number) + u128::from(generator.offset))
    }
}

#[cfg(test)]
#[path = "../generate_tests.rs"]
mod tests;
