use std::net::IpAddr;

use proptest::prelude::*;

use super::*;

fn octets(ip: &str) -> Vec<u8> {
    match ip.parse().unwrap() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

/// The definition, bit by bit.
fn by_definition(key: &ToeplitzKey, input: &[u8]) -> u32 {
    let key_bit = |at: usize| u32::from(key.0[at / 8] >> (7 - at % 8) & 1);
    let mut hash = 0;
    for at in 0..input.len() * 8 {
        if input[at / 8] >> (7 - at % 8) & 1 == 1 {
            hash ^= (0..32).fold(0, |window, bit| window << 1 | key_bit(at + bit));
        }
    }
    hash
}

/// The exclusive or of the 16-bit words of a tuple.
fn fold(input: &[u8]) -> u16 {
    input.chunks(2).fold(0, |sum, word| sum ^ u16::from_be_bytes([word[0], word[1]]))
}

/// All vectors of "Verifying the RSS Hash Calculation": source, port,
/// destination, port, hash of the addresses, hash with the ports.
const VECTORS: [(&str, u16, &str, u16, u32, u32); 8] = [
    ("66.9.149.187", 2794, "161.142.100.80", 1766, 0x323e_8fc2, 0x51cc_c178),
    ("199.92.111.2", 14230, "65.69.140.83", 4739, 0xd718_262a, 0xc626_b0ea),
    ("24.19.198.95", 12898, "12.22.207.184", 38024, 0xd2d0_a5de, 0x5c2b_394a),
    ("38.27.205.30", 48228, "209.142.163.6", 2217, 0x8298_9176, 0xafc7_327f),
    ("153.39.163.191", 44251, "202.188.127.2", 1303, 0x5d18_09c5, 0x10e8_28a2),
    ("3ffe:2501:200:1fff::7", 2794, "3ffe:2501:200:3::1", 1766, 0x2cc1_8cd5, 0x4020_7d3d),
    ("3ffe:501:8::260:97ff:fe40:efab", 14230, "ff02::1", 4739, 0x0f0c_461c, 0xdde5_1bbf),
    (
        "3ffe:1900:4545:3:200:f8ff:fe21:67cf",
        44251,
        "fe80::200:f8ff:fe21:67cf",
        38024,
        0x4b61_e985,
        0x02d1_feef,
    ),
];

#[test]
fn the_verification_suite_passes() {
    let toeplitz = Toeplitz::new(&ToeplitzKey::VERIFICATION);
    for (source, source_port, destination, destination_port, addresses, with_ports) in VECTORS {
        let (source, destination) = (octets(source), octets(destination));
        let input = [source.clone(), destination.clone()].concat();
        assert_eq!(toeplitz.hash(&input), addresses);
        assert_eq!(by_definition(&ToeplitzKey::VERIFICATION, &input), addresses);
        assert_eq!(
            toeplitz.hash_tuple(&source, &destination, source_port, destination_port),
            with_ports
        );
    }
}

#[test]
fn the_symmetric_hash_reaches_all_it_can() {
    let mut seen = std::collections::HashSet::new();
    for folded in 0..=u16::MAX {
        let hash = symmetric_toeplitz(folded);
        assert_eq!(hash >> 16, hash & 0xffff, "the halves repeat");
        seen.insert(hash);
    }
    assert_eq!(seen.len(), 65536, "no two folded words share a hash");
    assert_eq!(symmetric_toeplitz(0), 0);
}

proptest! {
    #[test]
    fn tables_agree_with_the_definition(
        key in any::<[u8; 20]>(),
        input in prop::collection::vec(any::<u8>(), 0..=36),
    ) {
        let key = ToeplitzKey([key, key].concat().try_into().unwrap());
        prop_assert_eq!(Toeplitz::new(&key).hash(&input), by_definition(&key, &input));
    }

    #[test]
    fn folding_agrees_with_the_symmetric_key(words in prop::collection::vec(any::<[u8; 2]>(), 0..=18)) {
        let input = words.as_flattened();
        let expected = by_definition(&ToeplitzKey::SYMMETRIC, input);
        prop_assert_eq!(symmetric_toeplitz(fold(input)), expected);
    }
}
