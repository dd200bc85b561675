//! State sync between gateways, without sockets, clocks and randomness.
//!
//! A [`Session`] speaks with one peer. Its owner passes in the time, the datagrams that arrive and
//! the records of connections that have changed, and takes out datagrams to send and records to
//! apply. Records are opaque here but for their [`Identity`]. docs/internals/sync-protocol.md
//! explains the protocol.
//!
//! The module [`hand_over`] has the words by which a gateway gives all to a new process on the same
//! machine. The module [`pfsync`] speaks the protocol of the BSDs' packet filter instead.

// Its macro declares the refusals of pfsync, too.
#[macro_use]
mod refusal;

mod bulk;
mod cursor;
mod epoch;
mod fault;
mod greeting;
pub mod hand_over;
mod handshake;
mod inbox;
mod keys;
mod likeness;
mod lineage;
mod message;
mod names;
mod node;
mod outbox;
mod packet;
pub mod pfsync;
mod record;
mod replay_window;
mod round_trip;
mod session;
#[cfg(test)]
mod simulation;

pub use bulk::{Inflow, Outflow, Progress};
pub use epoch::{KEY_FRAMES_MAX, SEALED_OVERHEAD_BYTES};
#[cfg(any(test, feature = "faults"))]
pub use fault::Fault;
pub use fault::Faults;
pub use keys::{HashSecret, KeyTooShort, PreSharedKey, Seed};
pub use likeness::{Aspect, Consequence, Likeness, Mismatch};
pub use lineage::{Applied, GRAVES_MAX, Lineage, Verdict};
pub use message::{BulkId, WORDS_BYTES_MAX};
pub use names::{NameHasher, NameMap};
pub use node::{NameNotFit, NodeId, NodeName};
pub use record::{Batch, Identity, Mark, Part, RECORD_BYTES_MAX, Record, RecordKind};
pub use refusal::{Refusal, Refusals};
pub use session::{
    AWAY_AFTER, Agreement, Config, Counters, Event, NotTaken, PeerStatus, Presence,
    RECORD_COST_BYTES, SecretRole, Session, SettingOutOfBounds, Settings, Status, StreamId,
};
