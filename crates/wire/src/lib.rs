//! Reading and writing packet headers, without state.
//!
//! [`dissect`] makes one pass over a frame and returns a [`Dissected`]: where
//! each header lies, who talks to whom, and whatever the stages above need to
//! decide about the packet. It never panics, whatever the bytes are; what it can
//! not make sense of comes back as a [`Malformed`] that names the header.

mod dissected;

pub use dissected::{
    Dissected, Family, FragmentInfo, IcmpError, IcmpQuery, Malformed, Network, QueryKind, Quoted,
    QuotedTransport, TcpFlags, TcpInfo, Transport, Tunnels, protocol,
};
