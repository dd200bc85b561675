//! The Toeplitz hash of receive side scaling.
//!
//! The hash is linear over GF(2): bit i of the input, if set, adds the 32-bit
//! window of the key that starts at key bit i. So a table of 256 sums for each
//! input byte replaces eight conditional additions by one look-up.

/// Bytes of a key: 36 bytes of the longest input (two IPv6 addresses and two
/// ports) and 4 more, because every window is 32 bits wide.
const KEY_LEN: usize = 40;
/// Longest input, bytes.
const INPUT_LEN: usize = KEY_LEN - 4;
/// The word that the symmetric key repeats.
const SYMMETRIC_WORD: u16 = 0x6d5a;

/// The key of a Toeplitz hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToeplitzKey(pub [u8; KEY_LEN]);

impl ToeplitzKey {
    /// The key of the RSS verification suite, which many drivers use as default.
    pub const VERIFICATION: Self = Self([
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f,
        0xb0, 0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30,
        0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ]);

    /// 0x6d5a repeated: the hash does not change when source and destination are
    /// exchanged (Woo and Park, "Scalable TCP Session Monitoring with Symmetric
    /// Receive-side Scaling", 2012).
    pub const SYMMETRIC: Self = {
        let mut key = [SYMMETRIC_WORD as u8; KEY_LEN];
        let mut at = 0;
        while at < KEY_LEN {
            key[at] = (SYMMETRIC_WORD >> 8) as u8;
            at += 2;
        }
        Self(key)
    };

    /// The 32 key bits that start at bit `8 * byte + bit`.
    fn window(&self, byte: usize, bit: usize) -> u32 {
        let bits = self.0[byte..byte + 5].iter().fold(0, |sum, &b| (sum << 8) | u64::from(b));
        (bits >> (8 - bit)) as u32
    }
}

/// The Toeplitz hash with precomputed tables, 36 KiB.
#[derive(Clone)]
pub struct Toeplitz {
    tables: Box<[[u32; 256]]>,
}

impl Toeplitz {
    /// Computes the tables of a key.
    pub fn new(key: &ToeplitzKey) -> Self {
        let tables = (0..INPUT_LEN)
            .map(|byte| {
                let mut table = [0; 256];
                for value in 1..256_usize {
                    // The table is filled in order: without its lowest set bit,
                    // the value has been computed before.
                    let lowest = value.trailing_zeros() as usize;
                    table[value] = table[value & (value - 1)] ^ key.window(byte, 7 - lowest);
                }
                table
            })
            .collect();
        Self { tables }
    }

    /// The hash of `input`. Bytes beyond 36, the longest tuple, are ignored.
    pub fn hash(&self, input: &[u8]) -> u32 {
        self.tables.iter().zip(input).fold(0, |sum, (table, &byte)| sum ^ table[usize::from(byte)])
    }

    /// The hash over addresses and ports, all in network order; IPv4 addresses
    /// are 4 bytes long.
    pub fn hash_tuple(
        &self,
        source: &[u8],
        destination: &[u8],
        source_port: u16,
        destination_port: u16,
    ) -> u32 {
        let ports = [source_port.to_be_bytes(), destination_port.to_be_bytes()];
        let input = source.iter().chain(destination).chain(ports.as_flattened());
        self.tables.iter().zip(input).fold(0, |sum, (table, &byte)| sum ^ table[usize::from(byte)])
    }
}

impl std::fmt::Debug for Toeplitz {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Toeplitz")
    }
}

/// The Toeplitz hash under [`ToeplitzKey::SYMMETRIC`], from the exclusive or of
/// all 16-bit words of the tuple.
///
/// The key repeats every 16 bits, so equal bits of all words add the same window: only their
/// sum counts. That makes the hash symmetric and fast. It also leaves only 65536 values, which
/// anyone can aim at. So the hash may choose a bucket, but never a place in a table. IPv4
/// addresses may be folded in their IPv4-mapped form, because the two prefixes cancel out.
#[inline]
pub const fn symmetric_toeplitz(folded: u16) -> u32 {
    FOLDED_HIGH[(folded >> 8) as usize] ^ FOLDED_LOW[(folded & 0xff) as usize]
}

static FOLDED_HIGH: [u32; 256] = folded_table(0);
static FOLDED_LOW: [u32; 256] = folded_table(8);

/// Sums of key windows for one byte of the folded word, whose first bit is bit
/// `first` of the word.
const fn folded_table(first: u32) -> [u32; 256] {
    let repeated = (SYMMETRIC_WORD as u32) << 16 | SYMMETRIC_WORD as u32;
    let mut table = [0; 256];
    let mut value = 1;
    while value < 256_usize {
        let lowest = value.trailing_zeros();
        table[value] = table[value & (value - 1)] ^ repeated.rotate_left(first + 7 - lowest);
        value += 1;
    }
    table
}

#[cfg(test)]
#[path = "toeplitz_tests.rs"]
mod tests;
