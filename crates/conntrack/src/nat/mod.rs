//! Translation: which addresses and ports the packets of a connection get (RFC 3022,
//! RFC 4787, RFC 5382, RFC 5508).
//!
//! A rule asks for a translation with a [`Request`]; [`Table::translate`](crate::Table::translate)
//! chooses for it while the connection's first packet is being judged, so a connection is never
//! seen with one translation and then with another. Its replies have a key of their own then,
//! by which the table finds it too.
//!
//! A reply has to find its bucket before anybody has looked at a table. So each bucket gives
//! away the ports of a [`Block`] of its own: the destination port of a reply names the bucket.
//! That has a price that RFC 4787 (REQ-1) would rather not pay: one port of a client gets
//! different ports towards different destinations, because these are of different buckets.

mod ends;
mod follow;
mod request;
mod supply;

pub(crate) use self::ends::Ends;
pub use self::ends::Halves;
pub use self::follow::Edit;
pub(crate) use self::follow::{Follow, Passage};
pub use self::request::{Addresses, End, Ports, Request};
pub use self::supply::{Block, Supply};
pub(crate) use self::supply::{candidates, candidates_behind};
