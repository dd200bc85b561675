//! The connection table of a bucket and the protocol trackers.

mod direction;
pub mod proto;

pub use direction::Direction;
