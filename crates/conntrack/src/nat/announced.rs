//! The effects of a translation on the connections that a translated one announces.

use std::net::IpAddr;
use std::ops::Range;

/// The translation of an announced connection: that of the announcing connection, in the
/// opposite direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExpectedTranslation {
    /// The real destination.
    pub destination: Option<(IpAddr, u16)>,
    /// The new source: its receiver knows its peer by this address.
    pub source: Option<IpAddr>,
    /// For a call, the call id by which its receiver knows the source.
    pub source_port: Option<u16>,
    /// The interface whose address the announcing connection uses.
    pub interface: Option<u32>,
}

/// A change of a packet's payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    /// The range of the payload behind the transport header that is replaced.
    pub place: Range<usize>,
    /// The bytes that replace it.
    pub text: Vec<u8>,
}
