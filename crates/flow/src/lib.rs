//! The vocabulary of the gateway.
//!
//! Every stage describes packets with these types: the flow that a packet belongs to
//! ([`FlowKey`], [`Side`], [`Zone`]), its class after tracking ([`Class`]), why it is
//! dropped ([`DropReason`]), time ([`Timestamp`], [`TimerWheel`]), limits ([`LeasePool`]),
//! an index of slots ([`SlotIndex`]), and text that is safe to print ([`Shown`]). Nothing here
//! reads a clock or a random source: both are arguments.

mod bucket_ports;
pub mod codec;
mod counters;
pub mod declared;
mod drop_reason;
mod index;
mod key;
mod lease;
mod named;
mod planted;
mod port_permutation;
mod prefetch;
pub mod replica;
mod shown;
mod siphash;
mod tally;
mod time;
mod tunable;
mod wheel;

pub use bucket_ports::{BucketPorts, PortPart};
pub use counters::{
    ConntrackCounters, Counters, DeferralCounters, DefragCounters, SoftnetCounters,
    SynProxyCounters,
};
pub use drop_reason::{Class, DropReason};
pub use index::{Crowded, SlotIndex};
pub use key::{Endpoint, FlowKey, HashKey, KeyedPacket, Side, Zone, ZonePair};
pub use lease::{Alarm, Lease, LeasePool};
pub use port_permutation::PortPermutation;
pub use prefetch::{NoPrefetch, Prefetch};
pub use shown::{Shown, is_harmless};
pub use tally::{Tallied, Tally};
pub use time::Timestamp;
pub use tunable::{SetTunableError, Tunable, Unit, out_of_range};
pub use wheel::TimerWheel;
