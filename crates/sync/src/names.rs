//! Maps by the names of connections.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map by [`Identity::key`](crate::Identity::key). These are keyed hashes already, so nobody
/// without the key can choose them, and they are not hashed again. The same steps give the same
/// order in each run.
pub type NameMap<V> = HashMap<u64, V, BuildHasherDefault<NameHasher>>;

/// The hasher of a [`NameMap`].
#[derive(Clone, Copy, Debug, Default)]
pub struct NameHasher(u64);

impl Hasher for NameHasher {
    fn finish(&self) -> u64 {
        // The lowest bit of a name says who has opened the connection: it may be the same in all.
        self.0.rotate_right(1)
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, name: u64) {
        self.0 = name;
    }
}
