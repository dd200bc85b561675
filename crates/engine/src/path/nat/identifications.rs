//! Identifications of IPv4 datagrams that leave with other addresses than they came with.
//!
//! Datagrams of several hosts leave with one source address. If two of them had the same
//! identification and were cut, a receiver could put them together wrongly. The gateway is their
//! source, so it has to keep identifications apart for each source, destination and protocol (RFC
//! 6864 section 5.3). One count for all destinations would let each receiver guess the
//! identifications that others get (RFC 7739 section 3).

use std::hash::Hasher;

use flow::{HashKey, PortPart};
use siphasher::sip::SipHasher13;
use wire::{Family, Network, Readdress};

use crate::path::nat::translation::mixed;

/// Counters of a worker. Two pairs of addresses may share a counter. Both then have fewer
/// identifications before one repeats.
const COUNTERS: usize = 4096;
/// log2 of the number of blocks. A worker gives its identifications for a pair in blocks, one
/// after the other, and each block has an order of its own.
const BLOCK_BITS: u32 = 3;

/// The identifications that a worker gives.
///
/// For each pair of addresses and protocol, a secret divides the identifications into parts, one
/// for each worker, so no worker has to ask another. A worker goes through its part in an order
/// that changes each time. It repeats none before it has given 7/8 of the part: 57,344
/// identifications with one worker, 28,672 with two.
#[derive(Debug)]
pub struct Identifications {
    secret: HashKey,
    worker: u32,
    workers: u32,
    /// The part of all identifications that the workers share.
    part: PortPart,
    /// Number of the part of this worker, and log2 of the number of parts.
    own_part: u32,
    part_bits: u32,
    /// The number of identifications that were given, from a random start on, by the hash of the
    /// pair.
    given: Vec<u32>,
}

impl Identifications {
    /// Creates the state of a worker that is alone. All workers have the same secret.
    pub fn new(worker: u16, secret: HashKey) -> Self {
        let start = |at: usize| {
            let mut hasher = SipHasher13::new_with_keys(secret.0, secret.1);
            hasher.write_u16(worker);
            hasher.write_u32(at as u32);
            hasher.finish() as u32
        };
        Self {
            secret,
            worker: worker.into(),
            workers: 1,
            part: PortPart::All,
            own_part: worker.into(),
            part_bits: 0,
            given: (0..COUNTERS).map(start).collect(),
        }
    }

    /// Sets the number of workers that share the identifications.
    pub fn set_workers(&mut self, workers: u32) {
        self.workers = workers;
        self.divide();
    }

    /// Sets the part of all identifications that the workers of this gateway give.
    pub fn set_part(&mut self, part: PortPart) {
        self.part = part;
        self.divide();
    }

    fn divide(&mut self) {
        let worker_bits = self.workers.next_power_of_two().trailing_zeros();
        let (half, bits) = match self.part {
            PortPart::All => (0, 0),
            PortPart::First => (0, 1),
            PortPart::Second => (1, 1),
        };
        self.own_part = half << worker_bits | self.worker;
        self.part_bits = (worker_bits + bits).min(u16::BITS);
    }

    /// The identification that a packet, and each of its fragments, gets with its new addresses; those
    /// of IPv4 have 16 bits. `None` if it keeps its own: nobody may cut an IPv4 packet with "don't
    /// fragment" (RFC 6864 section 4.1), and an IPv6 packet that did not come in fragments has none.
    pub fn of_translated(
        &mut self,
        network: &Network,
        came_in_fragments: bool,
        change: &Readdress,
    ) -> Option<u32> {
        let is_final = network.family == Family::V6 || network.dont_fragment;
        if is_final && !came_in_fragments {
            return None;
        }
        let source = change.source.map_or(network.source, |place| place.address);
        let destination = change.destination.map_or(network.destination, |place| place.address);
        let number = self.next(source, destination, network.protocol);
        Some(if network.family == Family::V4 { number & 0xffff } else { number })
    }

    /// The next identification for a protocol between two addresses in the mapped form. The lower half
    /// repeats as described above, and another upper half comes then.
    fn next(&mut self, source: [u8; 16], destination: [u8; 16], protocol: u8) -> u32 {
        let mut hasher = SipHasher13::new_with_keys(self.secret.0, self.secret.1);
        hasher.write(&source);
        hasher.write(&destination);
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
        // Without the pair's secret nobody can tell the block or the worker from the result.
        let lower = (self.own_part << own_bits | own) as u16 ^ (pair >> 48) as u16;
        let pass = u64::from(number.checked_shr(own_bits).unwrap_or(0));
        let upper = mixed(pair ^ pass) as u32 & 0xffff_0000;
        upper | u32::from(lower)
    }

    /// The sum of all counters.
    #[cfg(test)]
    pub fn total(&self) -> u32 {
        self.given.iter().fold(0, |sum, given| sum.wrapping_add(*given))
    }
}

/// The place of a number of `bits` bits in one of their orders. Each step maps the numbers one to
/// one.
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

#[cfg(test)]
#[path = "identification_order_tests.rs"]
mod order_tests;
