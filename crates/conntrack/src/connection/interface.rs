//! Interfaces by name, because another machine gives them other numbers.

use std::net::IpAddr;

use flow::codec::DecodeError;

/// The name of an interface, as Linux allows it: 1 to 15 bytes, none of them blank, `/` or `:`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InterfaceName(Box<str>);

impl InterfaceName {
    /// The longest name, bytes (`IFNAMSIZ` less the end).
    pub const LONGEST: usize = 15;

    /// `None` for a text that can not be the name of an interface.
    pub fn new(name: &str) -> Option<Self> {
        let is_odd = |char: char| char.is_whitespace() || char.is_control() || "/:".contains(char);
        let is_name = (1..=Self::LONGEST).contains(&name.len())
            && !matches!(name, "." | "..")
            && !name.contains(is_odd);
        is_name.then(|| Self(name.into()))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name of these bytes.
    pub(crate) fn of_bytes(bytes: &[u8]) -> Result<Self, DecodeError> {
        let name = std::str::from_utf8(bytes).ok().and_then(Self::new);
        name.ok_or(DecodeError::Impossible("the name of an interface"))
    }
}

impl std::fmt::Display for InterfaceName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// The interfaces of a machine, by number and by name.
pub trait Interfaces {
    /// The name of an interface.
    fn name_of(&self, number: u32) -> Option<InterfaceName>;

    /// The number of an interface.
    fn number_of(&self, name: &InterfaceName) -> Option<u32>;

    /// True if an interface has this address now.
    fn has_address(&self, number: u32, address: IpAddr) -> bool;
}

/// A machine without interfaces that records name, such as a bridge.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoInterfaces;

impl Interfaces for NoInterfaces {
    fn name_of(&self, _: u32) -> Option<InterfaceName> {
        None
    }

    fn number_of(&self, _: &InterfaceName) -> Option<u32> {
        None
    }

    fn has_address(&self, _: u32, _: IpAddr) -> bool {
        false
    }
}
