//! The bytes of records: how numbers are written and read.
//!
//! Numbers are big-endian. A *varint* has seven bits of a number in each byte, the lowest first, and
//! a set high bit in all bytes but the last. Reading never panics and never allocates more than it
//! was given.

use std::net::IpAddr;
use std::time::Duration;

use crate::Timestamp;

/// Why bytes are no record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// They end within the record.
    #[error("the record is cut off")]
    Cut,
    /// Another program, or a newer one, has written them.
    #[error("the record has version {0}, which is not known here")]
    Version(u8),
    /// The protocol has no tracker here.
    #[error("the record is of a kind of connection, {0}, which is not known here")]
    Kind(u8),
    /// A field that must be understood is not known.
    #[error("the record has a field, {0}, which is not known here and may not be left out")]
    Field(u8),
    /// A field comes twice, or not in order.
    #[error("field {0} of the record is not in its place")]
    Order(u8),
    /// There is no such helper.
    #[error("the record names a helper that is not known here: {0:?}")]
    Helper(String),
    /// A value contradicts another one, or its range.
    #[error("the record is impossible: {0}")]
    Impossible(&'static str),
}

/// Bytes that are being read. After an error, the bytes that were read before stay read.
#[derive(Clone, Debug)]
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Reads these bytes from the first one on.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// True if nothing is left.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next bytes, so many.
    ///
    /// # Errors
    /// There are fewer.
    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8], DecodeError> {
        let (bytes, rest) = self.0.split_at_checked(count).ok_or(DecodeError::Cut)?;
        self.0 = rest;
        Ok(bytes)
    }

    /// All that is left.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    /// The next bytes, as many as the type says.
    ///
    /// # Errors
    /// There are fewer.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(DecodeError::Cut)?;
        self.0 = rest;
        Ok(*bytes)
    }

    /// The bytes that `later`, a reader of the same bytes, has read beyond this one.
    pub fn before(&self, later: &Self) -> &'a [u8] {
        self.0.get(..self.0.len() - later.0.len()).unwrap_or_default()
    }

    /// A number of 8 bits.
    ///
    /// # Errors
    /// The bytes end.
    pub fn u8(&mut self) -> Result<u8, DecodeError> {
        self.array().map(|[byte]| byte)
    }

    /// A number of 16 bits.
    ///
    /// # Errors
    /// The bytes end.
    pub fn u16(&mut self) -> Result<u16, DecodeError> {
        self.array().map(u16::from_be_bytes)
    }

    /// A number of 32 bits.
    ///
    /// # Errors
    /// The bytes end.
    pub fn u32(&mut self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_be_bytes)
    }

    /// A number of 64 bits.
    ///
    /// # Errors
    /// The bytes end.
    pub fn u64(&mut self) -> Result<u64, DecodeError> {
        self.array().map(u64::from_be_bytes)
    }

    /// A number of 128 bits.
    ///
    /// # Errors
    /// The bytes end.
    pub fn u128(&mut self) -> Result<u128, DecodeError> {
        self.array().map(u128::from_be_bytes)
    }

    /// A number in the shortest form that it has.
    ///
    /// # Errors
    /// The bytes end, the number has a longer form, or it does not fit into 64 bits.
    pub fn varint(&mut self) -> Result<u64, DecodeError> {
        let mut number = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits || byte == 0 && shift > 0 {
                break;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(DecodeError::Impossible("a number of variable length"))
    }

    /// A varint that fits into 32 bits.
    ///
    /// # Errors
    /// As [`Reader::varint`], or it does not fit.
    pub fn varint32(&mut self) -> Result<u32, DecodeError> {
        u32::try_from(self.varint()?).map_err(|_| DecodeError::Impossible("a number above 2^32"))
    }

    /// Bytes with their length, a varint, in front.
    ///
    /// # Errors
    /// The bytes end.
    pub fn prefixed(&mut self) -> Result<&'a [u8], DecodeError> {
        let length = usize::try_from(self.varint()?).map_err(|_| DecodeError::Cut)?;
        self.bytes(length)
    }

    /// Bytes with their length, one byte, in front.
    ///
    /// # Errors
    /// The bytes end.
    pub fn short(&mut self) -> Result<&'a [u8], DecodeError> {
        let length = self.u8()?.into();
        self.bytes(length)
    }

    /// The version of a record, which has to be this one.
    ///
    /// # Errors
    /// The bytes end, or it is another one.
    pub fn version(&mut self, known: u8) -> Result<(), DecodeError> {
        let version = self.u8()?;
        if version == known { Ok(()) } else { Err(DecodeError::Version(version)) }
    }

    /// A byte that is 0 or 1.
    ///
    /// # Errors
    /// The bytes end, or it is another one.
    pub fn flag(&mut self) -> Result<bool, DecodeError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(DecodeError::Impossible("a flag")),
        }
    }

    /// A value that may be missing.
    ///
    /// # Errors
    /// As [`Reader::flag`] and `read`.
    pub fn option<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Option<T>, DecodeError> {
        if self.flag()? { read(self).map(Some) } else { Ok(None) }
    }

    /// One of a list of values, by its place.
    ///
    /// # Errors
    /// The bytes end, or the list does.
    pub fn one_of<T: Copy>(&mut self, all: &[T]) -> Result<T, DecodeError> {
        let at = usize::from(self.u8()?);
        all.get(at).copied().ok_or(DecodeError::Impossible("a state"))
    }

    /// An address, with its family.
    ///
    /// # Errors
    /// The bytes end, or there is no such family.
    pub fn address(&mut self) -> Result<IpAddr, DecodeError> {
        match self.u8()? {
            4 => self.array::<4>().map(IpAddr::from),
            6 => self.array::<16>().map(IpAddr::from),
            _ => Err(DecodeError::Impossible("the family of an address")),
        }
    }
}

/// Bytes that are being written. Each function is the reverse of the one of [`Reader`] with its name.
pub trait Write {
    /// Appends bytes as they are.
    fn bytes(&mut self, bytes: &[u8]);

    /// Appends a number of 8 bits.
    fn u8(&mut self, number: u8) {
        self.bytes(&[number]);
    }

    /// Appends a number of 16 bits.
    fn u16(&mut self, number: u16) {
        self.bytes(&number.to_be_bytes());
    }

    /// Appends a number of 32 bits.
    fn u32(&mut self, number: u32) {
        self.bytes(&number.to_be_bytes());
    }

    /// Appends a number of 64 bits.
    fn u64(&mut self, number: u64) {
        self.bytes(&number.to_be_bytes());
    }

    /// Appends a number in the shortest form that it has.
    fn varint(&mut self, mut number: u64) {
        while number > 0x7f {
            self.u8(number as u8 | 0x80);
            number >>= 7;
        }
        self.u8(number as u8);
    }

    /// Appends bytes with their length, one byte, in front: at most 255.
    fn short(&mut self, bytes: &[u8]) {
        self.u8(bytes.len() as u8);
        self.bytes(bytes);
    }

    /// Appends 0 or 1.
    fn flag(&mut self, flag: bool) {
        self.u8(flag.into());
    }

    /// Appends a value that may be missing.
    fn option<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        self.flag(value.is_some());
        if let Some(value) = value {
            write(self, value);
        }
    }

    /// Appends an address, with its family.
    fn address(&mut self, address: IpAddr) {
        match address {
            IpAddr::V4(address) => {
                self.u8(4);
                self.bytes(&address.octets());
            }
            IpAddr::V6(address) => {
                self.u8(6);
                self.bytes(&address.octets());
            }
        }
    }
}

impl Write for Vec<u8> {
    fn bytes(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Refuses a record for the first of its faults, if it has one.
///
/// # Errors
/// [`DecodeError::Impossible`].
pub fn refuse_faults<const N: usize>(faults: [(bool, &'static str); N]) -> Result<(), DecodeError> {
    match faults.into_iter().find(|(is_fault, _)| *is_fault) {
        Some((_, what)) => Err(DecodeError::Impossible(what)),
        None => Ok(()),
    }
}

/// Appends bytes with their length, a varint, in front. Most are short, so the length takes one byte.
/// Longer ones move up.
pub fn prefixed(to: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let start = to.len();
    to.u8(0);
    write(to);
    let length = to.len() - start - 1;
    match u8::try_from(length) {
        Ok(length @ ..0x80) => to[start] = length,
        _ => {
            let bytes = to.split_off(start + 1);
            to.truncate(start);
            to.varint(length as u64);
            to.bytes(&bytes);
        }
    }
}

/// A span of time in a record, milliseconds.
///
/// A record has no point in time, because the clocks of two gateways have nothing in common. It
/// tells how much time is left or has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Millis(u64);

impl Millis {
    /// The longest span, about 136 years: the longest timeout that there is.
    pub const LONGEST: Self = Self(u32::MAX as u64 * 1000);

    /// A number of milliseconds, at most [`Millis::LONGEST`].
    pub fn new(millis: u64) -> Self {
        Self(millis.min(Self::LONGEST.0))
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The time from `now` until `then`, rounded up: nothing ends early by being recorded.
    pub fn until(then: Timestamp, now: Timestamp) -> Self {
        Self::new(then.as_nanos().saturating_sub(now.as_nanos()).div_ceil(1_000_000))
    }

    /// A duration, rounded down.
    pub fn of(duration: Duration) -> Self {
        Self::new(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
    }

    /// The duration.
    pub const fn duration(self) -> Duration {
        Duration::from_millis(self.0)
    }

    /// Reads a span, a varint.
    ///
    /// # Errors
    /// As [`Reader::varint`], or it is longer than [`Millis::LONGEST`].
    pub fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let millis = from.varint()?;
        if millis > Self::LONGEST.0 {
            return Err(DecodeError::Impossible("a span of more than 136 years"));
        }
        Ok(Self(millis))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_number_is_read_as_it_was_written(number: u64, shift in 0u32..64, behind: u8) {
            let number = number >> shift;
            let mut bytes = Vec::new();
            bytes.varint(number);
            prop_assert!(bytes.len() <= 10);
            bytes.u8(behind);
            let mut reader = Reader::new(&bytes);
            prop_assert_eq!(reader.varint(), Ok(number));
            prop_assert_eq!(reader.u8(), Ok(behind));
            prop_assert!(reader.is_empty());
        }

        #[test]
        fn each_number_has_one_form(bytes in prop::collection::vec(any::<u8>(), 0..12)) {
            let mut reader = Reader::new(&bytes);
            if let Ok(number) = reader.varint() {
                let mut again = Vec::new();
                again.varint(number);
                prop_assert_eq!(&again[..], &bytes[..again.len()]);
            }
        }
    }
}
