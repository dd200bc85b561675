//! Numbered datagrams. Any two differ in every place, so a piece of one inside another is noticed
//! whatever the checksum says.

pub mod sink;
pub mod source;

/// "LAB1", then the length as 32 bits and the number as 64 bits, in network order.
const HEADER: usize = 16;
const MAGIC: u32 = u32::from_be_bytes(*b"LAB1");
/// Number of the last datagram, which announces the end.
const LAST: u64 = u64::MAX;

/// Fills `datagram`, of at least [`HEADER`] bytes, as the one with this number.
fn fill(datagram: &mut [u8], number: u64) {
    let length = datagram.len() as u32;
    let (header, body) = datagram.split_at_mut(HEADER);
    header[..4].copy_from_slice(&MAGIC.to_be_bytes());
    header[4..8].copy_from_slice(&length.to_be_bytes());
    header[8..].copy_from_slice(&number.to_be_bytes());
    // Any odd constants will do, as long as neighbours differ.
    let mut word = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for chunk in body.chunks_mut(8) {
        word = word.wrapping_add(0xbf58_476d_1ce4_e5b9).rotate_left(23);
        chunk.copy_from_slice(&word.to_ne_bytes()[..chunk.len()]);
    }
}

/// The number that a datagram of [`HEADER`] bytes or more claims.
fn number(datagram: &[u8]) -> Option<u64> {
    let number = datagram.get(8..HEADER)?;
    Some(u64::from_be_bytes(number.try_into().ok()?))
}

/// Verifies datagrams.
struct Verifier {
    expected: Vec<u8>,
}

impl Verifier {
    fn new() -> Self {
        Self { expected: vec![0; 65536] }
    }

    /// The number of a datagram; `None` unless every byte is right.
    fn check(&mut self, datagram: &[u8]) -> Option<u64> {
        let number = number(datagram)?;
        let expected = &mut self.expected[..datagram.len()];
        fill(expected, number);
        (*expected == *datagram).then_some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_change_is_noticed() {
        let mut datagram = [0; 100];
        fill(&mut datagram, 7);
        let mut verifier = Verifier::new();
        assert_eq!(verifier.check(&datagram), Some(7));
        for at in 0..datagram.len() {
            let mut other = datagram;
            other[at] ^= 1;
            assert_eq!(verifier.check(&other), None, "byte {at}");
        }
        for length in 0..datagram.len() {
            assert_eq!(verifier.check(&datagram[..length]), None, "{length} bytes");
        }
        let mut mixed = datagram;
        fill(&mut mixed, 8);
        mixed[..56].copy_from_slice(&datagram[..56]);
        assert_eq!(verifier.check(&mixed), None);
    }
}
