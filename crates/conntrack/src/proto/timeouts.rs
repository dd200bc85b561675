//! The timeouts of all trackers but that of TCP.

use super::dccp::DccpState;
use super::sctp::SctpState;

/// Lifetimes of connections without a packet, seconds.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Timeouts {
    /// UDP with packets of one end, or an exchange of less than two seconds; UDP-Lite with
    /// packets of one end.
    pub udp: u32,
    /// UDP with packets of both ends for longer; UDP-Lite with packets of both ends.
    pub udp_stream: u32,
    /// ICMP queries.
    pub icmp: u32,
    /// ICMPv6 queries.
    pub icmpv6: u32,
    /// GRE with packets of one end.
    pub gre: u32,
    /// GRE with packets of both ends.
    pub gre_stream: u32,
    /// An announced call of PPTP with packets of one end.
    pub call: u32,
    /// An announced call of PPTP with packets of both ends.
    pub call_stream: u32,
    /// SCTP, by discriminant of [`SctpState`].
    pub sctp: [u32; SctpState::ALL.len()],
    /// DCCP, by discriminant of [`DccpState`].
    pub dccp: [u32; DccpState::ALL.len()],
    /// All other protocols.
    pub generic: u32,
}
