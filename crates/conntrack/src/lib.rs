//! The connection table of a bucket and the protocol trackers.
//!
//! A [`Table`] holds the connections of one bucket and belongs to one worker at a time, so
//! nothing in it is shared or locked. [`Table::track`] tells how a packet relates to the known
//! connections. The caller prefetches memory for a whole batch ([`Table::prefetch_index`],
//! [`Table::prefetch_entry`]). It [confirms](Table::confirm) a connection that a packet has
//! opened when the packet passes, and [withdraws](Table::withdraw) it otherwise. Outside the
//! packet path connections appear as [`Connection`]s, which [`mod@format`] prints as the
//! kernel's `conntrack` tool does.

mod direction;
mod entry;
mod event;
mod expect;
mod filter;
pub mod format;
mod forwarding;
pub mod helper;
mod labels;
mod limits;
pub mod nat;
mod packet;
mod policy;
pub mod proto;
pub mod seqadj;
mod settings;
mod slab;
pub mod syn_proxy;
mod table;
mod tunnels;
mod view;
mod why;

pub use direction::Direction;
pub use event::{Event, EventKind, EventSink, ExpectationEvent, ExpectationSink};
pub use expect::{ExpectationCursor, Expectations};
pub use filter::{Filter, New, Prefix, PrefixError};
pub use forwarding::Forwarding;
pub use labels::{Label, LabelNames, Labels, NameError, UnknownLabel};
pub use limits::{
    HalfOpen, LimitPools, Limits, MOST_ZONES, RESERVE_SHARE, Reserve, Sources, TooManyZones,
};
pub use packet::{
    Checksum, ConnectionId, Context, Ended, Guess, Tracked, TrackedPacket, class_without_flow,
};
pub use policy::TimeoutPolicy;
pub use settings::{Settings, Timeouts};
pub use table::{
    Action, Again, CALLS_OF_A_PAIR, CHOSEN_COST, Changes, Claimant, Cursor, Inside, Passage,
    Reached, Shortage, Table,
};
pub use tunnels::KnownTunnels;
pub use view::{Connection, Counts, Expected, Tuple, TupleTransport};
pub use why::Why;
