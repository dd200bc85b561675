//! What was decided for the packets of a connection, as a value that is kept.

/// How the packets of one direction of a connection are forwarded: what rules, routes and
/// neighbours decided for one of them, to be done again with the next. The translation is not
/// part of it, because the connection has that already.
///
/// It holds as long as nothing changes that it was decided from. It names nothing by its place
/// in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forwarding {
    /// Number of the port that the packets come in by.
    pub input: u16,
    /// Number of the port that they leave by.
    pub output: u16,
    /// Link address of the next hop; all zero where the frame keeps its own, as in a bridge.
    pub station: [u8; 6],
    /// Longest packet that goes this way, bytes from the network header on; [`u16::MAX`] where
    /// nothing is known of a limit.
    pub mtu: u16,
}
