//! pfsync, by which gateways that run pf tell each other about their states.
//!
//! docs/internals/pfsync.md has the layouts and rules.

mod bulk;
mod carrier;
mod deferred;
mod dialect;
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
mod slot;
mod state;
mod state_codec;

pub use bulk::{
    BULK_ALONE_TIME, BULK_ANSWER_TIME, BULK_ASKS_MAX, BULK_END_INTERVAL, BULK_ENDS,
    BULK_RESTART_INTERVAL, BULK_SILENCE, BulkIn, BulkOut,
};
pub use carrier::{
    Arrival, Carrier, MULTICAST_V4, MULTICAST_V6, PROTOCOL, TTL, TYPE_OF_SERVICE,
};
pub use deferred::{DEFER_TIME, DEFERRED_MAX};
pub use dialect::Dialect;
pub use identity::{CreatorId, InterfaceName, StateId, TagName};
pub use message::{BulkEdge, BulkStatus, CompressedUpdate, Message, Request};
pub use packet::{GROUP_BYTES, HEADER_BYTES, NotWritten, Packet, PacketWriter};
pub use progress::{Direction, FlowState, TcpState, Timeout};
pub use refusal::{Refusal, Refusals};
pub use slot::Slot;
pub use state::{
    Addresses, Counts, Index, Key, NO_RULE, Numbers, Peers, Policy, SctpPeer, Scrub, State,
    StateFlags, StateParts, TcpPeer, Tuple, WindowScale,
};
pub use state_codec::{Inexpressible, RawPeer};
