//! Hashes: the values of the algorithm's definition, and of the kernel.

use super::{jenkins, scaled};

#[test]
fn the_hash_is_lookup3() {
    // `hashlittle` of the definition begins with the same value and adds the seed likewise. These
    // are the results that its author gives for his driver 5.
    assert_eq!(jenkins(b"", 0), 0xdead_beef);
    assert_eq!(jenkins(b"", 0xdead_beef), 0xbd5b_7dde);
    assert_eq!(jenkins(b"Four score and seven years ago", 0), 0x1777_0551);
    assert_eq!(jenkins(b"Four score and seven years ago", 1), 0xcd62_8161);
}

#[test]
fn a_number_is_below_its_modulus() {
    for modulus in [1, 2, 3, 7, 1000, u32::MAX] {
        assert_eq!(scaled(0, modulus), 0);
        assert_eq!(scaled(u32::MAX, modulus), modulus - 1);
    }
}
