//! pfsync, by which gateways that run pf tell each other about their states.
//!
//! docs/internals/pfsync.md has the layouts and rules.

mod bulk;
mod carrier;
mod deferred;
mod dialect;
#[cfg(test)]
mod ends;
#[cfg(test)]
mod golden;
mod identity;
mod merge;
mod message;
mod packet;
mod progress;
mod recent;
mod refusal;
#[cfg(test)]
mod sample;
#[cfg(test)]
mod simulation_tests;
mod slot;
mod speaker;
mod state;
mod state_codec;
mod table;

pub use bulk::{
    BULK_ALONE_TIME, BULK_ANSWER_TIME, BULK_ASKS_MAX, BULK_END_INTERVAL, BULK_ENDS,
    BULK_REPEAT_INTERVAL, BULK_SILENCE, BULK_TIME_MAX, BulkIn, BulkOut,
};
pub use carrier::{Arrival, Carrier, MULTICAST_V4, MULTICAST_V6, PROTOCOL, TTL, TYPE_OF_SERVICE};
pub use deferred::{DEFER_TIME, DEFERRED_MAX};
pub use dialect::Dialect;
pub use identity::{CreatorId, InterfaceName, StateId, TagName};
pub use message::{BulkEdge, BulkStatus, CompressedUpdate, Message, Request};
pub use packet::{GROUP_BYTES, HEADER_BYTES, NotWritten, Packet, PacketWriter};
pub use progress::{Direction, FlowState, TcpState, Timeout};
pub use refusal::{Refusal, Refusals};
pub use slot::Slot;
pub use speaker::{
    CONTROLS_MAX, COPY_ASK_INTERVAL, COPY_ASKS_MAX, COPY_GRACE, Config, Counters, EVENTS_MAX,
    Event, FLUSH_TIME, GRAVE_TIME, GRAVES_MAX, NotTaken, Passage, REQUEST_INTERVAL, REQUESTS_MAX,
    REQUESTS_PER_S, Speaker, TOUCH_TIME,
};
pub use state::{
    Addresses, Counts, Index, Key, NO_RULE, Numbers, Peers, Policy, Scrub, SctpPeer, State,
    StateFlags, StateParts, TcpPeer, Tuple, WindowScale,
};
pub use state_codec::{Inexpressible, RawPeer};
