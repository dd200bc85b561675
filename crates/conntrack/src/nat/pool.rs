//! The ports that the connections of a rule share towards one destination.

use std::num::NonZeroU32;

/// The ports for the connections of a rule towards one destination, identified by a keyed hash
/// of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pool(NonZeroU32);

impl Pool {
    /// The pool for this hash.
    pub fn of(hash: u64) -> Self {
        Self(NonZeroU32::new((hash >> 32) as u32).unwrap_or(NonZeroU32::MIN))
    }

    /// The hash as a number.
    pub const fn number(self) -> u32 {
        self.0.get()
    }
}
