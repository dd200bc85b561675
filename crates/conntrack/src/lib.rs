//! The connection table of a bucket and the protocol trackers.
//!
//! A [`Table`] holds the connections of one bucket and belongs to one worker at a time, so
//! nothing in it is shared or locked. [`Table::track`] tells how a packet relates to the known
//! connections. The caller prefetches memory for a whole batch ([`Table::prefetch_index`],
//! [`Table::prefetch_entry`]). It [confirms](Table::confirm) a connection that a packet has
//! opened when the packet passes, and [withdraws](Table::withdraw) it otherwise. Outside the
//! packet path connections appear as [`Connection`]s, which [`mod@format`] prints as the
//! kernel's `conntrack` tool does.

mod capacity;
mod connection;
mod expect;
mod fault;
pub mod helper;
pub mod nat;
pub mod proto;
mod record;
mod replication;
pub mod seqadj;
mod settings;
pub mod syn_proxy;
mod table;
#[cfg(test)]
mod testing;
mod tunnels;
mod view;

pub use capacity::{
    HalfOpen, LimitPools, Limits, MOST_ZONES, RESERVE_SHARE, Reserve, Shortage, Sources,
    TooManyZones,
};
pub use connection::{
    Direction, Forwarding, InterfaceName, Interfaces, Label, LabelNames, Labels, NameError,
    NoInterfaces, Prefix, PrefixError, UnknownLabel,
};
pub use expect::{
    AnnouncementCursor, AnnouncementRecord, COPY_KEPT, ExpectationCursor, Expectations,
};
#[cfg(any(test, feature = "faults"))]
pub use fault::Fault;
pub use fault::Faults;
pub use flow::codec::{DecodeError, Millis};
pub use proto::{TimeoutPolicy, Timeouts, TrackingCause};
pub use record::{
    Batch, ConnectionRecord, ImportRefusal, LONGEST_RECORD, Outline, OutlineState, RecordFileError,
    RecordFileReader, RecordFileWriter, Untold, decode_flow, encode_flow, end_of_export,
    push_to_batch, whole_records,
};
pub use replication::{Change, ENDS_MAX, Replication};
pub use settings::Settings;
pub use table::{
    Action, Again, CALLS_OF_A_PAIR, CHOSEN_COST, Changes, Checksum, Claimant, ConnectionId,
    Context, Cursor, Ended, Guess, Imported, Importing, Inside, NextSource, Owner, Passage,
    Reached, Table, Tracked, TrackedPacket, Verdict, class_without_flow,
};
pub use tunnels::KnownTunnels;
pub use view::{
    Connection, Counts, Event, EventKind, EventSink, ExpectationEvent, ExpectationSink, Expected,
    Filter, New, Tuple, TupleTransport, format,
};
