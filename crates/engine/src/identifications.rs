//! Identifications of IPv4 datagrams that leave with other addresses than they came with.
//!
//! Datagrams of several hosts become those of one, so two that are cut could be put together
//! wrongly: the gateway is their source, and has to keep their identifications apart for each
//! source, destination and protocol (RFC 6864 section 5.3). It must not count them for all
//! destinations together either, because then everybody who gets some knows those of others
//! (RFC 7739 section 3).

use std::hash::Hasher;

use flow::HashKey;
use siphasher::sip::SipHasher13;
use wire::{Family, Network, Readdress};

use crate::translating::mixed;

/// Counters of a worker. Those of two pairs of addresses may share one; both then have fewer
/// identifications until one comes again.
const COUNTERS: usize = 4096;
/// The identifications of a worker for a pair are given in blocks, one after the other, each in
/// an order of its own: log2 of how many there are.
const BLOCK_BITS: u32 = 3;

/// Identifications that a worker gives.
///
/// For each pair of addresses and protocol a secret says which identifications are whose: each
/// worker has a part, so none asks another. Of its part it gives one after the other, in an
/// order that changes each time, and none again before it has given 7/8 of the part: 57,344
/// identifications where there is one worker, 28,672 where there are two.
#[derive(Debug)]
pub struct Identifications {
    secret: HashKey,
    worker: u32,
    /// log2 of how many parts there are.
    part_bits: u32,
    /// How many were given, from anywhere on, by the hash of the pair.
    given: Vec<u32>,
}

impl Identifications {
    /// Those of a worker that is alone; all have the secret.
    pub fn new(worker: u16, secret: HashKey) -> Self {
        let start = |at: usize| mixed(secret.1 ^ u64::from(worker) << 32 ^ at as u64) as u32;
        Self {
            secret,
            worker: worker.into(),
            part_bits: 0,
            given: (0..COUNTERS).map(start).collect(),
        }
    }

    /// Sets how many workers share all there are.
    pub fn set_workers(&mut self, workers: u32) {
        self.part_bits = workers.next_power_of_two().trailing_zeros().min(u16::BITS);
    }

    /// The identification that a packet has to get with its new addresses, and each of its
    /// fragments; `None` if it keeps that of its sender, because nobody may cut it (RFC 6864
    /// section 4.1) or because it is of IPv6, where routers cut nothing.
    pub fn of_translated(
        &mut self,
        network: &Network,
        came_in_fragments: bool,
        change: &Readdress,
    ) -> Option<u16> {
        if network.family == Family::V6 || network.dont_fragment && !came_in_fragments {
            return None;
        }
        let source = change.source.map_or(network.source, |place| place.address);
        let destination = change.destination.map_or(network.destination, |place| place.address);
        Some(self.next(source, destination, network.protocol))
    }

    /// The next for datagrams of a protocol between two addresses, in the mapped form.
    fn next(&mut self, source: [u8; 16], destination: [u8; 16], protocol: u8) -> u16 {
        let mut hasher = SipHasher13::new_with_keys(self.secret.0, self.secret.1);
        hasher.write(&source[12..]);
        hasher.write(&destination[12..]);
        hasher.write_u8(protocol);
        let pair = hasher.finish();
        let given = &mut self.given[pair as usize % COUNTERS];
        let number = *given;
        *given = given.wrapping_add(1);
        let own_bits = u16::BITS - self.part_bits;
        let place_bits = own_bits.saturating_sub(BLOCK_BITS);
        let round = number >> place_bits;
        let order = mixed(pair.wrapping_add(u64::from(round) << 32));
        let place = shuffled(number & ((1 << place_bits) - 1), place_bits, order);
        let block = round & ((1 << (own_bits - place_bits)) - 1);
        let own = block << place_bits | place;
        // Whoever does not know the pair's secret can not tell the block from it, nor the worker.
        (self.worker << own_bits | own) as u16 ^ (pair >> 48) as u16
    }

    /// The sum of all counters.
    #[cfg(test)]
    pub fn total(&self) -> u32 {
        self.given.iter().fold(0, |sum, given| sum.wrapping_add(*given))
    }
}

/// The place of a number of `bits` bits in an order of all of them: each step of the way is one
/// to one.
fn shuffled(number: u32, bits: u32, order: u64) -> u32 {
    let mut place = number;
    for round in 0..4 {
        let key = (order >> (16 * round)) as u32 & 0xffff;
        place = (place + key).wrapping_mul(key | 1) & ((1 << bits) - 1);
        place ^= place >> bits.div_ceil(2);
    }
    place
}

#[cfg(test)]
#[path = "identifications_tests.rs"]
mod tests;
