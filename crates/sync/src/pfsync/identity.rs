//! Names: of states, of gateways that have created them, and of interfaces.

use std::fmt;
use std::num::NonZeroU32;

/// The gateway that has created a state: any number but zero. It is opaque.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CreatorId(pub NonZeroU32);

impl CreatorId {
    /// The creator of a number, `None` for zero.
    pub const fn new(number: u32) -> Option<Self> {
        match NonZeroU32::new(number) {
            Some(number) => Some(Self(number)),
            None => None,
        }
    }

    /// Its number.
    pub const fn get(self) -> u32 {
        self.0.get()
    }
}

/// The name of a state. Both parts are opaque, and a gateway keeps those of other gateways.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StateId {
    /// Unique for its creator.
    pub id: u64,
    /// The gateway that has created the state.
    pub creator: CreatorId,
}

/// The name of an interface: up to 15 bytes of printable ASCII without blanks. It is empty where a
/// field names none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct InterfaceName([u8; Self::FIELD_BYTES]);

impl InterfaceName {
    pub(super) const FIELD_BYTES: usize = 16;
    /// The interface of states that are bound to none.
    pub const ANY: Self = Self(*b"all\0\0\0\0\0\0\0\0\0\0\0\0\0");

    /// A name, `None` if it does not fit.
    pub fn new(name: &str) -> Option<Self> {
        let fits = name.len() < Self::FIELD_BYTES && name.bytes().all(|it| it.is_ascii_graphic());
        let mut field = [0; Self::FIELD_BYTES];
        field.get_mut(..name.len()).filter(|_| fits)?.copy_from_slice(name.as_bytes());
        Some(Self(field))
    }

    /// A name from its field. Bytes behind its end do not count.
    pub(super) fn from_field(field: [u8; Self::FIELD_BYTES]) -> Option<Self> {
        let end = field.iter().position(|byte| *byte == 0)?;
        Self::new(std::str::from_utf8(&field[..end]).ok()?)
    }

    pub(super) const fn field(&self) -> &[u8; Self::FIELD_BYTES] {
        &self.0
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        let end = self.0.iter().position(|byte| *byte == 0).unwrap_or(0);
        std::str::from_utf8(&self.0[..end]).unwrap_or_default()
    }

    /// True if it names no interface.
    pub const fn is_empty(&self) -> bool {
        self.0[0] == 0
    }
}

impl fmt::Debug for InterfaceName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), formatter)
    }
}

/// The tag of a packet that a rule has set: up to 63 bytes, of which none is zero. It is opaque.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TagName([u8; Self::FIELD_BYTES]);

impl TagName {
    pub(super) const FIELD_BYTES: usize = 64;

    /// A tag, `None` if it does not fit.
    pub fn new(name: &[u8]) -> Option<Self> {
        let fits = name.len() < Self::FIELD_BYTES && !name.contains(&0);
        let mut field = [0; Self::FIELD_BYTES];
        field.get_mut(..name.len()).filter(|_| fits)?.copy_from_slice(name);
        Some(Self(field))
    }

    pub(super) fn from_field(field: [u8; Self::FIELD_BYTES]) -> Option<Self> {
        let end = field.iter().position(|byte| *byte == 0)?;
        Self::new(&field[..end])
    }

    pub(super) const fn field(&self) -> &[u8; Self::FIELD_BYTES] {
        &self.0
    }

    /// The bytes of the tag.
    pub fn as_bytes(&self) -> &[u8] {
        let end = self.0.iter().position(|byte| *byte == 0).unwrap_or(0);
        &self.0[..end]
    }
}

impl Default for TagName {
    fn default() -> Self {
        Self([0; Self::FIELD_BYTES])
    }
}

impl fmt::Debug for TagName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "\"{}\"", self.as_bytes().escape_ascii())
    }
}
