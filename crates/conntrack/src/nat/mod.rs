//! Translation: choosing the addresses and ports of a connection's packets (RFC 3022, RFC 4787,
//! RFC 5382, RFC 5508).
//!
//! A rule asks for a translation with a [`Request`].
//! [`Table::translate`](crate::Table::translate) chooses it while the rules judge the
//! connection's first packet, so no packet leaves with another translation than the later ones.
//! From then on the replies have a key of their own, by which the table finds the connection
//! too.
//!
//! A reply has to find its bucket before anybody has looked at a table. So each bucket gives
//! away only the ports of its own [`Block`]: the destination port of a reply names the bucket.
//! That has a price, which RFC 4787 (REQ-1) advises against: one port of a client gets
//! different ports towards different destinations, because these belong to different buckets.

mod announced;
mod ends;
mod pool;
mod request;
mod supply;
mod translation;

pub use self::announced::Edit;
pub(crate) use self::announced::ExpectedTranslation;
pub use self::ends::AddressChanges;
pub(crate) use self::ends::Ends;
pub(crate) use self::pool::Pool;
pub use self::request::{Addresses, Ports, Request, TranslatedEnd};
pub use self::supply::{Block, Supply};
pub(crate) use self::supply::{Candidates, Subject};
pub(crate) use self::translation::Translation;
