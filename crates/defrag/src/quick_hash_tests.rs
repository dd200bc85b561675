use flow::Zone;
use proptest::prelude::*;

use super::*;
use crate::Realm;

fn key() -> impl Strategy<Value = DatagramKey> {
    let realm = || (any::<u16>(), 0u16..4096).prop_map(|(zone, vlan)| Realm::new(Zone(zone), vlan));
    let mapped = |address: [u8; 4]| u128::from(u32::from_be_bytes(address)).to_be_bytes();
    let v4 = (realm(), any::<[u8; 4]>(), any::<[u8; 4]>(), any::<u8>(), any::<u16>()).prop_map(
        move |(realm, source, destination, protocol, id)| {
            DatagramKey::v4(realm, mapped(source), mapped(destination), protocol, id.into())
        },
    );
    let v6 = (realm(), any::<[u8; 16]>(), any::<[u8; 16]>(), any::<u32>()).prop_map(
        |(realm, source, destination, id)| DatagramKey::v6(realm, source, destination, id),
    );
    prop_oneof![v4, v6]
}

proptest! {
    /// Two given keys collide with one secret in 2^32.
    #[test]
    fn every_bit_of_a_key_matters(key in key(), bit in 0usize..308, secret in any::<(u64, u64)>()) {
        let hash = QuickHash::new(HashKey(secret.0, secret.1));
        let mut other = key;
        let is_v6 = key.family() == Family::V6;
        let changed = |number: u16, bit: usize| number ^ 1 << bit;
        let (zone, vlan) = (key.realm().zone().0, key.realm().vlan());
        let realm = match bit {
            256..272 => Realm::new(Zone(changed(zone, bit - 256)), vlan),
            272..284 => Realm::new(Zone(zone), changed(vlan, bit - 272)),
            _ => key.realm(),
        };
        match bit {
            0..128 if is_v6 => other.source[bit / 8] ^= 1 << (bit % 8),
            128..256 if is_v6 => other.destination[bit / 8 - 16] ^= 1 << (bit % 8),
            0..128 => other.source[12 + bit / 8 % 4] ^= 1 << (bit % 8),
            128..256 => other.destination[12 + bit / 8 % 4] ^= 1 << (bit % 8),
            _ => {}
        }
        let (id, protocol) = match bit {
            284..292 if !is_v6 => (key.id(), key.protocol() ^ 1 << (bit - 284)),
            284.. => (key.id() ^ 1 << (bit % 16), key.protocol()),
            _ => (key.id(), key.protocol()),
        };
        let other = if is_v6 {
            DatagramKey::v6(realm, other.source, other.destination, id)
        } else {
            DatagramKey::v4(realm, other.source, other.destination, protocol, id)
        };
        // The fields come out as they were put in.
        prop_assert_eq!((other.realm(), other.id(), other.family()), (realm, id, key.family()));
        prop_assert_ne!(hash.of(&key), hash.of(&other));
        prop_assert_eq!(hash.of(&key), QuickHash::new(HashKey(secret.0, secret.1)).of(&key));
        prop_assert_ne!(hash.of(&key), QuickHash::new(HashKey(!secret.0, secret.1)).of(&key));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Without this, with one secret in 250, all datagrams of all senders that number them
    /// consecutively would push each other out of the nursery.
    #[test]
    fn datagrams_that_follow_each_other_never_meet(
        key in key(),
        secret in any::<(u64, u64)>(),
    ) {
        let hash = QuickHash::new(HashKey(secret.0, secret.1));
        let realm = key.realm();
        let low = Realm::new(Zone(realm.zone().0 % 4096), realm.vlan());
        let (source, destination) = (key.source, key.destination);
        let key = match key.family() {
            Family::V4 => DatagramKey::v4(low, source, destination, key.protocol(), key.id()),
            Family::V6 => DatagramKey::v6(low, source, destination, key.id()),
        };
        let first = key.id() & 0xff00;
        let mut taken = [false; PLACES];
        for id in first..first + SEATS as u32 {
            let place = &mut taken[hash.of(&key.with_id(id)) as usize % PLACES];
            prop_assert!(!std::mem::replace(place, true), "{id:#x} meets another");
        }
    }
}

#[test]
fn datagrams_of_one_sender_spread() {
    const IDS: u32 = 65_536;
    const CELLS: usize = 4096;
    let hash = QuickHash::new(HashKey(1, 2));
    let mut cells = [0u32; CELLS];
    for id in 0..IDS {
        let key = DatagramKey::v4(Realm::default(), [7; 16], [9; 16], 17, id);
        cells[hash.of(&key) as usize % CELLS] += 1;
    }
    // 16 each on average; at random the fullest would have about 34.
    let fullest = cells.iter().max().unwrap();
    assert!(*fullest <= 64, "{fullest} of {IDS} in one of {CELLS} places");
}
