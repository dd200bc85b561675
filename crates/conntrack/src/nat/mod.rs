//! Translation: choosing the addresses and ports of a connection's packets (RFC 3022, RFC 4787,
//! RFC 5382, RFC 5508).
//!
//! A rule asks for a translation with a [`Request`].
//! [`Table::translate`](crate::Table::translate) chooses it while the rules judge the
//! connection's first packet, so no packet leaves with another translation than the later ones.
//! From then on the replies have a key of their own, by which the table finds the connection
//! too.
//!
//! A reply has to find its bucket before anybody has looked at a table. Steering chooses the bucket
//! by the remote endpoint and the local port, which a translation leaves as they are if it can. So
//! a source keeps its port (RFC 4787, REQ-1) unless that is in use towards the destination. Then it
//! gets another of its bucket ([`BucketPorts`]), or if there is none, one of another bucket, where
//! an alias leads to its own. It keeps that one towards further destinations.

mod announced;
mod changed_ports;
mod ends;
mod pool;
mod ports;
mod request;
mod supply;
mod translation;

pub use flow::BucketPorts;

pub use self::announced::Edit;
pub(crate) use self::announced::ExpectedTranslation;
pub(crate) use self::changed_ports::{ChangedPorts, PortChange};
pub use self::ends::AddressChanges;
pub(crate) use self::ends::Ends;
pub(crate) use self::pool::Pool;
pub use self::request::{Addresses, Ports, Request, TranslatedEnd};
pub use self::supply::Supply;
pub(crate) use self::supply::{Candidates, Subject};
pub(crate) use self::translation::Translation;
