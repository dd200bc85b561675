//! Reassembly of IPv4 and IPv6 datagrams.
//!
//! A [`Reassembler`] holds the incomplete datagrams of one worker, so nothing in it
//! is shared or locked. The frames stay what the caller has ([`Buffer`]): they are
//! kept as they came and handed out in order when the last one is there. It emits
//! the sender's bytes or nothing: fragments that overlap condemn their datagram,
//! and later fragments of it with it (RFC 5722).
//!
//! # Memory
//!
//! Everything that is held is charged with what it really occupies ([`Buffer::footprint`]
//! and the bookkeeping) to a lease of the worker ([`Memory`]). When it is used up,
//! older datagrams make room, so a flood can not stop the datagrams that come after
//! it; a paced datagram is complete long before it is the oldest. There are three
//! classes ([`Stage`]). Datagrams that were given up are remembered in a small part of
//! the memory. Datagrams in several pieces may hold `low_thresh` of `high_thresh`; if
//! they hold more, the oldest of them goes if it stands still, and otherwise the
//! youngest, which has the longest way to go. If they hold less, the oldest that has one
//! piece goes. So a flood of single fragments pushes out its own kind, and so does one
//! of datagrams that never become complete.
//!
//! # Cost
//!
//! Nearly every datagram is complete within microseconds. It begins in a nursery that
//! stays in cache, and with a few pieces that fit plainly it is completed there. All
//! others settle in the table, where a fragment costs one look-up, one or two queue
//! lines and a place in a slab, however many pieces its datagram has: what has arrived is
//! known as a few runs or as a bitmap, and the pieces are put in order once, at the end,
//! if they came out of order.

mod coverage;
mod eviction;
mod fifo;
mod memory;
mod nursery;
mod piece;
mod places;
mod queue;
mod reassembler;
mod settings;
mod settling;
mod slab;
mod sources;
mod steps;
mod tally;
mod travel;
mod view;
mod why;

pub use memory::{Memory, Pools};
pub use piece::{DatagramKey, Ecn, Piece, Realm};
pub use queue::Stage;
pub use reassembler::{Buffer, Context, Outcome, Reassembler};
pub use settings::{FamilySettings, Settings};
pub use tally::Summary;
pub use travel::Parcel;
pub use view::{Cursor, QueueView};
pub use why::{Progress, Why};

#[cfg(test)]
mod cost_tests;
#[cfg(test)]
mod nursery_tests;
