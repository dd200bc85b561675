//! A secret order of all ports.

/// A permutation of the 16-bit ports that a secret chooses. The high bits of a port's place choose
/// its bucket. Unlike a hash it can be inverted, so all ports of a bucket can be listed.
///
/// Clients count their ports up, many by two. So a place is a sum and a product with one of some
/// factors that leave such ports even distances (Weyl's sequence): any run of them fills 16 to
/// 4096 buckets evenly, which random places would not. That is no cipher: a few places give the
/// others away. So each remote endpoint has a secret of its own
/// ([`crate::FlowKey::remote_secret`]). Nobody outside sees places, and nobody can make ports
/// towards several endpoints meet in one bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortPermutation {
    sum: u16,
    factor: u16,
}

/// Odd numbers under which runs of 100 to 8000 ports with steps of 1, 2, 3, 4, 8 and 16 put at
/// most four ports more into one of 16, 256, 1024 or 4096 buckets than its share.
const FACTORS: [u16; 32] = [
    0x0855, 0x0b01, 0x120f, 0x1ea9, 0x212d, 0x2bc7, 0x3221, 0x35ab, 0x39eb, 0x4ddf, 0x58ff, 0x5aff,
    0x64c7, 0x6949, 0x72db, 0x8bcf, 0x8f7d, 0x9701, 0x97cd, 0xa501, 0xaddf, 0xb221, 0xb753, 0xb9eb,
    0xc615, 0xcaff, 0xd221, 0xd439, 0xd907, 0xdb01, 0xf221, 0xf7ab,
];

impl PortPermutation {
    /// The permutation that leaves every port where it is.
    pub const IDENTITY: Self = Self { sum: 0, factor: 1 };

    /// The permutation of a secret.
    #[inline]
    pub const fn new(secret: u64) -> Self {
        Self { sum: secret as u16, factor: FACTORS[(secret >> 16) as usize % FACTORS.len()] }
    }

    /// The place of a port.
    #[inline]
    pub const fn place(self, port: u16) -> u16 {
        port.wrapping_add(self.sum).wrapping_mul(self.factor)
    }

    /// The port at a place: the inverse of [`Self::place`].
    pub const fn port(self, place: u16) -> u16 {
        place.wrapping_mul(inverse(self.factor)).wrapping_sub(self.sum)
    }
}

/// The number whose product with an odd number is 1, modulo 2^16. Each step of Newton's method
/// doubles the bits that are right, and an odd number is its own inverse in three of them.
const fn inverse(odd: u16) -> u16 {
    let mut inverse = odd;
    let mut step = 0;
    while step < 3 {
        inverse = inverse.wrapping_mul(2u16.wrapping_sub(odd.wrapping_mul(inverse)));
        step += 1;
    }
    inverse
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_port_has_a_place_of_its_own(secret: u64) {
            let permutation = PortPermutation::new(secret);
            for port in 0..=u16::MAX {
                prop_assert_eq!(permutation.port(permutation.place(port)), port);
            }
        }
    }

    /// SplitMix64, for secrets that look like those of a keyed hash.
    fn secret(number: u64) -> u64 {
        let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// The largest difference from the mean, in percent of it, of the loads of 256 buckets.
    fn unevenness(places: impl Iterator<Item = u16>) -> u64 {
        let mut loads = [0_u64; 256];
        places.for_each(|place| loads[usize::from(place >> 8)] += 1);
        let mean = loads.iter().sum::<u64>() / 256;
        loads.iter().map(|load| load.abs_diff(mean) * 100 / mean).max().unwrap()
    }

    #[test]
    fn a_run_of_ports_fills_the_buckets_evenly() {
        for factor in FACTORS {
            let permutation = PortPermutation { sum: 77, factor };
            for (bits, step, run) in
                [(8, 1, 100), (8, 2, 1000), (4, 1, 8000), (12, 2, 8000), (10, 16, 1000)]
            {
                let mut loads = vec![0; 1 << bits];
                let ports = (0..run).map(|number: u16| 32_768_u16.wrapping_add(number * step));
                ports.for_each(|port| {
                    loads[usize::from(permutation.place(port) >> (16 - bits))] += 1
                });
                let share = u32::from(run).div_ceil(1 << bits);
                assert!(loads.iter().all(|load| *load <= share + 4), "{factor:#x} {bits} {step}");
            }
        }
    }

    #[test]
    fn one_port_spreads_over_buckets_by_the_endpoint() {
        for port in [0, 53, 443, 8080, u16::MAX] {
            let places =
                (0..256 * 400).map(|server| PortPermutation::new(secret(server)).place(port));
            assert!(unevenness(places) <= 25, "port {port}");
        }
    }
}
