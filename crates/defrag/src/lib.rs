//! Reassembly of IPv4 and IPv6 datagrams.
//!
//! A [`Reassembler`] holds the incomplete datagrams of one worker, so nothing in it is shared
//! or locked. It keeps the caller's frames ([`Buffer`]) as they came, and hands them out in
//! order when the last fragment has come. It delivers the sender's bytes or nothing: fragments
//! that overlap condemn their datagram, and its later fragments with it (RFC 5722).
//!
//! # Memory
//!
//! Everything held is charged with the memory that it really occupies ([`Buffer::footprint`]
//! and the bookkeeping) to a lease of the worker ([`Memory`]). When the lease is used up, older
//! datagrams make room, so a flood can not stop the datagrams that come after it; a datagram at
//! a normal pace is complete long before it is the oldest. A datagram is at one of three phases
//! ([`Phase`]). Datagrams that were given up are remembered in a small part of the memory.
//! Datagrams in several fragments may hold `low_thresh` of `high_thresh`. If they hold more,
//! the oldest of them goes if it has come to a halt, and otherwise the youngest, which has the
//! longest way to go. If they hold less, the oldest datagram with one fragment goes. So a flood
//! of single fragments pushes out its own kind, and so does a flood of datagrams that never
//! become complete.
//!
//! # Cost
//!
//! Nearly every datagram is complete within microseconds. It begins in a *nursery* that stays
//! in cache, and if a few fragments simply fit together it is completed there. All others
//! *settle* in the table, where a fragment costs one look-up, one or two cache lines of its
//! queue and a place in a slab, however many fragments its datagram has: a few runs or a bitmap
//! hold the parts that have arrived, and the fragments are sorted once, at the end, if they
//! came out of order.

mod coverage;
mod discard_cause;
mod eviction;
mod fifo;
mod memory;
mod migration;
mod nursery;
mod piece;
mod promotion;
mod queue;
mod quick_hash;
mod reassembler;
mod settings;
mod slab;
mod sources;
mod steps;
mod tally;
mod view;

pub use discard_cause::{DiscardCause, Progress};
pub use memory::{Memory, Pools};
pub use migration::Parcel;
pub use piece::{DatagramKey, Ecn, Piece, Realm};
pub use queue::Phase;
pub use reassembler::{Buffer, Context, Outcome, Reassembler};
pub use settings::{FamilySettings, Settings};
pub use tally::Summary;
pub use view::{Cursor, QueueView};

#[cfg(test)]
mod cost_tests;
#[cfg(test)]
mod nursery_tests;
