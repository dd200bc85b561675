use flow::Zone;
use proptest::prelude::*;

use super::*;

fn key() -> impl Strategy<Value = DatagramKey> {
    let v4 = (any::<[u8; 4]>(), any::<[u8; 4]>(), any::<u16>(), any::<u8>()).prop_map(
        |(source, destination, id, protocol)| {
            let mapped = |address: [u8; 4]| u128::from(u32::from_be_bytes(address)).to_be_bytes();
            let (source, destination) = (mapped(source), mapped(destination));
            (source, destination, u32::from(id), protocol, Family::V4)
        },
    );
    let v6 = (any::<[u8; 16]>(), any::<[u8; 16]>(), any::<u32>())
        .prop_map(|(source, destination, id)| (source, destination, id, 0, Family::V6));
    (prop_oneof![v4, v6], any::<u16>()).prop_map(
        |((source, destination, id, protocol, family), zone)| DatagramKey {
            source,
            destination,
            id,
            zone: Zone(zone),
            protocol,
            family,
        },
    )
}

proptest! {
    /// That two given keys meet takes one secret in 2^32.
    #[test]
    fn every_bit_of_a_key_matters(key in key(), bit in 0usize..300, secret in any::<(u64, u64)>()) {
        let places = Places::new(HashKey(secret.0, secret.1));
        let mut other = key;
        let is_v6 = key.family == Family::V6;
        match bit {
            0..128 if is_v6 => other.source[bit / 8] ^= 1 << (bit % 8),
            128..256 if is_v6 => other.destination[bit / 8 - 16] ^= 1 << (bit % 8),
            0..128 => other.source[12 + bit / 8 % 4] ^= 1 << (bit % 8),
            128..256 => other.destination[12 + bit / 8 % 4] ^= 1 << (bit % 8),
            256..272 => other.zone.0 ^= 1 << (bit % 16),
            272..280 if !is_v6 => other.protocol ^= 1 << (bit % 8),
            _ => other.id ^= 1 << (bit % 16),
        }
        prop_assert_ne!(places.of(&key), places.of(&other));
        prop_assert_eq!(places.of(&key), Places::new(HashKey(secret.0, secret.1)).of(&key));
        prop_assert_ne!(places.of(&key), Places::new(HashKey(!secret.0, secret.1)).of(&key));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Otherwise, with one secret in 250, all datagrams of all senders that number them in turn
    /// would put each other out of the nursery.
    #[test]
    fn datagrams_that_follow_each_other_never_meet(
        mut key in key(),
        secret in any::<(u64, u64)>(),
    ) {
        let places = Places::new(HashKey(secret.0, secret.1));
        let first = key.id & 0xff00;
        let mut taken = [false; PLACES];
        for id in first..first + SEATS as u32 {
            key.id = id;
            let place = &mut taken[places.of(&key) as usize % PLACES];
            prop_assert!(!std::mem::replace(place, true), "{id:#x} meets another");
        }
    }
}

#[test]
fn datagrams_of_one_sender_spread() {
    const IDS: u32 = 65_536;
    const CELLS: usize = 4096;
    let places = Places::new(HashKey(1, 2));
    let mut cells = [0u32; CELLS];
    for id in 0..IDS {
        let key =
            DatagramKey { source: [7; 16], destination: [9; 16], id, ..DatagramKey::UNSPECIFIED };
        cells[places.of(&key) as usize % CELLS] += 1;
    }
    // 16 each on average; at random the fullest would have about 34.
    let fullest = cells.iter().max().unwrap();
    assert!(*fullest <= 64, "{fullest} of {IDS} in one of {CELLS} places");
}
