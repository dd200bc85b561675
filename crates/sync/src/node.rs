//! Nodes and their names.

use std::fmt;
use std::num::NonZeroU16;

use crate::cursor::Reader;

/// Bytes of a name in a greeting: its length, and the name with zeros behind it.
pub(crate) const NAME_FIELD_BYTES: usize = 1 + NodeName::BYTES_MAX;

/// The number of a node, which no two nodes of a cluster share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub NonZeroU16);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The name of a node for people: letters, digits, `-`, `_` and `.`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeName(String);

/// A name that no node can have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{name:?} can not name a node: use 1 to {max} letters, digits, '-', '_' and '.'",
    max = NodeName::BYTES_MAX
)]
pub struct NameNotFit {
    /// The name as given.
    pub name: String,
}

impl NodeName {
    /// Longest name, bytes.
    pub const BYTES_MAX: usize = 31;

    /// Checks a name.
    ///
    /// # Errors
    /// [`NameNotFit`] for an empty name, a long one, or other characters.
    pub fn new(name: &str) -> Result<Self, NameNotFit> {
        let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if (1..=Self::BYTES_MAX).contains(&name.len()) && name.bytes().all(is_fit) {
            Ok(Self(name.to_owned()))
        } else {
            Err(NameNotFit { name: name.to_owned() })
        }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn encode(&self, bytes: &mut Vec<u8>) {
        let end = bytes.len() + NAME_FIELD_BYTES;
        bytes.push(self.0.len() as u8);
        bytes.extend_from_slice(self.0.as_bytes());
        bytes.resize(end, 0);
    }

    pub(crate) fn decode(reader: &mut Reader<'_>) -> Option<Self> {
        let length = usize::from(reader.u8()?);
        let (name, padding) = reader.bytes(Self::BYTES_MAX)?.split_at_checked(length)?;
        let is_padded = padding.iter().all(|byte| *byte == 0);
        is_padded.then(|| Self::new(std::str::from_utf8(name).ok()?).ok()).flatten()
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
