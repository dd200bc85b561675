//! The decision how the packets of a connection are forwarded, as a value that can be kept.

/// The decision of rules, routes and neighbours about one packet, which the next packets of the
/// same connection and direction follow. The translation is not part of it, because the
/// connection has that already.
///
/// It holds until one of its sources changes: the rules, the routes, the neighbours, the ports and
/// their names, the zones, the settings, or the addresses whose packets rules may translate. It has
/// no pointers and no slots, so that it can move with its table. The numbers of ports are those of
/// this gateway's configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forwarding {
    /// Number of the port at which the packets arrive.
    pub input: u16,
    /// Number of the port through which they leave.
    pub output: u16,
    /// Link address of the next hop; all zero if the frame keeps its own, as in a bridge.
    pub station: [u8; 6],
    /// Length of the longest packet that may leave, in bytes from the network header on;
    /// [`u16::MAX`] if no limit is known.
    pub mtu: u16,
}
