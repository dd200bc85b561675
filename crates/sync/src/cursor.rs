//! Reading and writing of fields in network byte order.

use flow::codec::{self, Write};

/// Reads fields from the front of some bytes. Each method is `None` if too few are left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (field, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(field)
    }

    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*field)
    }

    pub fn u8(&mut self) -> Option<u8> {
        self.array().map(|[byte]| byte)
    }

    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// A number in groups of seven bits, the lowest first. Only the shortest form is taken, so
    /// each number has one.
    pub fn varint(&mut self) -> Option<u64> {
        let mut from = codec::Reader::new(self.0);
        let value = from.varint().ok()?;
        self.0 = from.rest();
        Some(value)
    }

    /// `Some` if nothing is left.
    pub fn end(self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}

/// Appends a number in the form of [`Reader::varint`].
pub(crate) fn put_varint(value: u64, bytes: &mut Vec<u8>) {
    bytes.varint(value);
}

/// Bytes of a number in the form of [`Reader::varint`].
pub(crate) const fn varint_bytes(value: u64) -> usize {
    let bits = u64::BITS - (value | 1).leading_zeros();
    bits.div_ceil(7) as usize
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_varint_comes_back(value: u64, shift in 0u32..64) {
            let value = value >> shift;
            let mut bytes = Vec::new();
            put_varint(value, &mut bytes);
            let mut reader = Reader(&bytes);
            prop_assert_eq!(reader.varint(), Some(value));
            prop_assert!(reader.end().is_some());
            for length in 0..bytes.len() {
                prop_assert_eq!(Reader(&bytes[..length]).varint(), None);
            }
        }

        #[test]
        fn a_varint_has_one_form(bytes in prop::collection::vec(any::<u8>(), 0..12)) {
            let mut reader = Reader(&bytes);
            if let Some(value) = reader.varint() {
                let mut again = Vec::new();
                put_varint(value, &mut again);
                prop_assert_eq!(&again[..], &bytes[..bytes.len() - reader.0.len()]);
            }
        }
    }
}
