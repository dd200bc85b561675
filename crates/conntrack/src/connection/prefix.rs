//! Networks: an address with the number of leading bits that count.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use flow::codec::{DecodeError, Reader, Write};

/// An address with the number of leading bits that count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    address: IpAddr,
    length: u8,
}

/// Text that is not an address or prefix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is not an address or prefix such as 192.0.2.7, 192.0.2.0/24 or 2001:db8::/32")]
pub struct PrefixError {
    /// The text.
    pub given: String,
}

impl Prefix {
    /// An address with the number of its leading bits that count, at most its width.
    pub(crate) const fn new(address: IpAddr, length: u8) -> Self {
        Self { address, length }
    }

    /// Appends its bytes.
    pub(crate) fn write(&self, to: &mut Vec<u8>) {
        to.address(self.address);
        to.u8(self.length);
    }

    /// Reads what [`Prefix::write`] has written.
    pub(crate) fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (address, length) = (from.address()?, from.u8()?);
        let prefix = Self { address, length };
        let is_one = length <= Self::from(address).length && prefix.canonical() == prefix;
        if is_one { Ok(prefix) } else { Err(DecodeError::Impossible("a network")) }
    }

    /// The address, if it is the only one inside.
    pub(crate) fn single(&self) -> Option<IpAddr> {
        let width = if self.address.is_ipv4() { 32 } else { 128 };
        (self.length == width).then_some(self.address)
    }

    /// The prefix as IPv4 if all its addresses are IPv4-mapped ones (RFC 4291 section 2.5.5.2),
    /// which IPv6 packets do not carry.
    fn canonical(self) -> Self {
        const MAPPED_LENGTH: u8 = 96;
        match self.address {
            IpAddr::V6(address) if self.length >= MAPPED_LENGTH => match address.to_ipv4_mapped() {
                Some(v4) => Self { address: v4.into(), length: self.length - MAPPED_LENGTH },
                None => self,
            },
            _ => self,
        }
    }

    /// The prefix with all bits behind its length cleared: the network of the address.
    pub fn network(&self) -> Self {
        let width = if self.address.is_ipv4() { 32 } else { 128 };
        let host_bits = u32::from(width - self.length);
        let cleared = |bits: u128| bits.checked_shr(host_bits).unwrap_or(0) << (host_bits % 128);
        let address = match self.address {
            IpAddr::V4(address) => {
                Ipv4Addr::from_bits(cleared(address.to_bits().into()) as u32).into()
            }
            IpAddr::V6(address) => Ipv6Addr::from_bits(cleared(address.to_bits())).into(),
        };
        Self { address, ..*self }
    }

    /// The address alone.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// The number of leading bits that count.
    pub fn length(&self) -> u8 {
        self.length
    }

    /// True when the address lies inside.
    pub fn contains(&self, address: IpAddr) -> bool {
        let (own, other, width) = match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                (u128::from(own.to_bits()), u128::from(other.to_bits()), 32)
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => (own.to_bits(), other.to_bits(), 128),
            _ => return false,
        };
        (own ^ other).checked_shr(width - u32::from(self.length)).unwrap_or(0) == 0
    }
}

impl std::fmt::Display for Prefix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

/// A prefix with one address.
impl From<IpAddr> for Prefix {
    fn from(address: IpAddr) -> Self {
        let length = if address.is_ipv4() { 32 } else { 128 };
        Self { address, length }
    }
}

impl std::str::FromStr for Prefix {
    type Err = PrefixError;

    fn from_str(text: &str) -> Result<Self, PrefixError> {
        let error = || PrefixError { given: text.to_owned() };
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| error())?;
        let width = if address.is_ipv4() { 32 } else { 128 };
        let length = match length {
            Some(length) => length.parse().ok().filter(|length| *length <= width),
            None => Some(width),
        };
        Ok(Self { address, length: length.ok_or_else(error)? }.canonical())
    }
}

#[cfg(test)]
#[path = "prefix_tests.rs"]
mod tests;
