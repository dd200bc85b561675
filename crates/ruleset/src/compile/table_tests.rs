use std::collections::BTreeSet;

use super::*;

/// The multiplier is odd, so it is never 0, and keys of one word have different hashes.
#[test]
fn no_seed_makes_all_keys_collide() {
    const KEYS: u64 = 1000;
    for seed in [ODD, ODD ^ 1, 0, 1, u64::MAX] {
        let table = Table::new(1, KEYS as usize, seed);
        let hashes: BTreeSet<u64> = (0..KEYS).map(|key| hash(&[key], table.seed)).collect();
        assert_eq!(hashes.len() as u64, KEYS, "seed {seed:#x}");
    }
}
