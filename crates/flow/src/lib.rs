//! The vocabulary of the gateway.
//!
//! Every stage speaks of packets in these words: which flow a packet belongs to
//! ([`FlowKey`], [`Side`], [`Zone`]), what tracking made of it ([`Class`]), what
//! is to happen to it ([`Verdict`], [`DropReason`]), what time it is
//! ([`Timestamp`], [`TimerWheel`]) how much may be held ([`LeasePool`]),
//! where it lies ([`SlotIndex`]), and what of it people are shown ([`Shown`]).
//! Nothing here reads a clock or a random source: both are arguments.

mod counters;
pub mod declared;
mod index;
mod key;
mod lease;
mod named;
mod prefetch;
mod shown;
mod time;
mod tunable;
mod verdict;
mod wheel;

pub use counters::{
    ConntrackCounters, Counters, DefragCounters, SoftnetCounters, SynProxyCounters,
};
pub use index::{Crowded, SlotIndex};
pub use key::{Endpoint, FlowKey, HashKey, KeyedPacket, Side, Zone, ZonePair};
pub use lease::{Alarm, Lease, LeasePool};
pub use prefetch::{NoPrefetch, Prefetch};
pub use shown::{Shown, is_harmless};
pub use time::Timestamp;
pub use tunable::{SetTunableError, Tunable, Unit, out_of_range};
pub use verdict::{Class, DropReason, Verdict};
pub use wheel::TimerWheel;
