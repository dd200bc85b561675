//! The translation of one connection, as its table keeps it.

use std::time::Duration;

use flow::{KeyedPacket, Timestamp};

use super::Pool;

/// The translation of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Translation {
    /// Key and direction of the originator's packets as they leave, with the originator as
    /// sender. Replies have the same key and the other sender.
    pub leaves_as: KeyedPacket,
    /// Low half of the hash of that key.
    pub hash: u32,
    /// The interface whose address it uses, for a masquerade.
    pub interface: Option<u32>,
    /// The pool of its port, if the port is counted.
    pub pool: Option<Pool>,
    /// Its source port has changed, and is filed with the [`ChangedPorts`](super::ChangedPorts).
    pub is_port_filed: bool,
    /// An alias may lead its replies here, so its end has to be reported.
    pub may_have_alias: bool,
    /// The time at which it was chosen, in units of 2^24 ns, which wrap round after years.
    since: u32,
}

/// log2 of the unit of [`Translation::since`] in nanoseconds, about 17 ms.
const SINCE_SHIFT: u32 = 24;

impl Translation {
    /// A translation that is chosen now and is not counted.
    pub const fn new(
        leaves_as: KeyedPacket,
        hash: u32,
        interface: Option<u32>,
        now: Timestamp,
    ) -> Self {
        let since = (now.as_nanos() >> SINCE_SHIFT) as u32;
        Self {
            leaves_as,
            hash,
            interface,
            pool: None,
            is_port_filed: false,
            may_have_alias: false,
            since,
        }
    }

    /// The time since it was chosen.
    pub const fn age(&self, now: Timestamp) -> Duration {
        let units = ((now.as_nanos() >> SINCE_SHIFT) as u32).wrapping_sub(self.since);
        Duration::from_nanos((units as u64) << SINCE_SHIFT)
    }

    /// The flow of the replies.
    pub const fn reply(&self) -> KeyedPacket {
        let KeyedPacket { key, sender } = self.leaves_as;
        KeyedPacket { key, sender: sender.opposite() }
    }
}
