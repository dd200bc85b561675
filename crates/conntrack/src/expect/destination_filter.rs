//! A filter, read without a lock, for the new connections that may be expected.

use std::hash::Hasher;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};

use flow::{Endpoint, HashKey, Zone};
use siphasher::sip::SipHasher13;

use super::Destination;

/// Number of counters, a power of two; 32 KiB. With 4096 expectations, the default maximum, it
/// still excludes four of five other destinations.
const WORDS: usize = 1 << 14;

/// How many connections are expected, in all and by a hash of their destination.
///
/// A destination is zone, protocol, address and port. So an announcement makes packets to its
/// destination take the lock, and hardly any others, whatever the zone. Only the holder of the
/// expectations' lock writes; anybody may read.
#[derive(Debug)]
pub(super) struct DestinationFilter {
    total: AtomicU32,
    /// A counter that has overflowed stays at its maximum, so packets to its destinations take
    /// the lock in vain.
    words: Box<[AtomicU16; WORDS]>,
    key: HashKey,
}

impl DestinationFilter {
    /// No expectations. `secret` keys the hash.
    pub fn new(secret: HashKey) -> Self {
        let derive = |name: &[u8]| {
            let mut hasher = SipHasher13::new_with_keys(secret.0, secret.1);
            hasher.write(name);
            hasher.finish()
        };
        Self {
            total: AtomicU32::new(0),
            words: Box::new([const { AtomicU16::new(0) }; WORDS]),
            key: HashKey(derive(b"filter, first half"), derive(b"filter, second half")),
        }
    }

    /// False if nothing is expected anywhere.
    #[inline]
    pub fn any(&self) -> bool {
        // Pairs with the release in `count`.
        self.total.load(Ordering::Acquire) != 0
    }

    /// False if nothing is expected at a destination.
    #[inline]
    pub fn any_at(&self, zone: Zone, protocol: u8, to: &Endpoint) -> bool {
        self.words[self.place(zone, protocol, to)].load(Ordering::Acquire) != 0
    }

    /// Counts an expectation.
    pub fn add(&self, place: &Destination) {
        let word = self.word(place);
        word.store(word.load(Ordering::Relaxed).saturating_add(1), Ordering::Release);
        self.total.fetch_add(1, Ordering::Release);
    }

    /// Counts an expectation less.
    pub fn subtract(&self, place: &Destination) {
        self.total.fetch_sub(1, Ordering::Release);
        let word = self.word(place);
        match word.load(Ordering::Relaxed) {
            u16::MAX => {}
            count => word.store(count - 1, Ordering::Release),
        }
    }

    /// A multiplication and not a whole hash: an attacker who finds two destinations with one
    /// counter only makes packets take the lock, and the key can not be observed from outside.
    #[inline]
    fn place(&self, zone: Zone, protocol: u8, to: &Endpoint) -> usize {
        let address = u128::from_be_bytes(to.address);
        let rest = u64::from(zone.0) << 32 | u64::from(protocol) << 16 | u64::from(to.port);
        let low = address as u64 ^ self.key.0;
        let high = ((address >> 64) as u64 ^ self.key.1).rotate_left(21) ^ rest;
        let product = u128::from(low) * u128::from(high);
        let mixed = (product >> 64) as u64 ^ product as u64;
        mixed as usize % WORDS
    }

    fn word(&self, place: &Destination) -> &AtomicU16 {
        &self.words[self.place(place.zone, place.protocol, &place.endpoint)]
    }

    /// True if all counters are zero.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        !self.any() && self.words.iter().all(|word| word.load(Ordering::Relaxed) == 0)
    }
}

#[cfg(test)]
mod tests {
    use wire::{Family, protocol};

    use super::*;

    fn place(zone: u16, last: u8, port: u16) -> Destination {
        let mut address = [0; 16];
        (address[10], address[11], address[15]) = (0xff, 0xff, last);
        let endpoint = Endpoint { address, port };
        let (zone, family, protocol) = (Zone(zone), Family::V4, protocol::TCP);
        Destination { zone, family, protocol, kind: 0, endpoint }
    }

    fn any_at(filter: &DestinationFilter, place: &Destination) -> bool {
        filter.any_at(place.zone, place.protocol, &place.endpoint)
    }

    /// How many of 10000 destinations look expected while `expected` are.
    fn warm(expected: impl Iterator<Item = Destination>, others: fn(u32) -> Destination) -> usize {
        let filter = DestinationFilter::new(HashKey(1, 2));
        let expected: Vec<_> = expected.collect();
        expected.iter().for_each(|place| filter.add(place));
        assert!(expected.iter().all(|place| any_at(&filter, place)));
        let found = (0..10_000).filter(|&number| any_at(&filter, &others(number))).count();
        expected.iter().for_each(|place| filter.subtract(place));
        assert!(filter.is_empty());
        found
    }

    #[test]
    fn expectations_in_a_zone_leave_other_zones_cold() {
        // A client has as many ports of its address expected as it may.
        let expected = || (0..1024).map(|port| place(7, 1, 1024 + port));
        let elsewhere = |number: u32| place(8, 1, 1024 + number as u16);
        let share = 10_000 * 1024 / WORDS;
        assert!(warm(expected(), elsewhere) < 2 * share, "another zone, the same address");
        let other_hosts = |number: u32| place(7, 2 + (number % 200) as u8, 443);
        assert!(warm(expected(), other_hosts) < 3 * share, "other hosts of the zone");
    }

    #[test]
    fn with_as_many_as_there_may_be_most_places_are_cold() {
        let expected = (0..4096).map(|n| place(n >> 6, (n & 63) as u8, 2000 + n * 7));
        let others = |number: u32| place(9, (number % 250) as u8, (number / 3) as u16);
        assert!(warm(expected, others) < 2_700, "about 22 % share a word with one of them");
    }

    #[test]
    fn a_counter_does_not_wrap() {
        let filter = DestinationFilter::new(HashKey(1, 2));
        for _ in 0..70_000 {
            filter.add(&place(0, 1, 21));
        }
        assert!(any_at(&filter, &place(0, 1, 21)));
        for _ in 0..69_999 {
            filter.subtract(&place(0, 1, 21));
        }
        assert!(filter.any() && any_at(&filter, &place(0, 1, 21)), "one is left");
    }
}
