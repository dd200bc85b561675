//! Timeouts of single connections, which replace those of their zone.

use wire::protocol;

use crate::proto::tcp::{TcpSettings, TcpState, TcpTimeouts};

/// The timeouts of a connection of one protocol, as with the kernel's `nf_conntrack_timeout`: a
/// connection keeps those that a rule gave it, whatever happens to the rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeoutPolicy {
    /// TCP.
    Tcp(TcpTimeouts),
    /// UDP, seconds.
    Udp {
        /// After packets of one end, or an exchange of less than two seconds.
        unreplied: u32,
        /// After packets of both ends for longer.
        replied: u32,
    },
}

impl TimeoutPolicy {
    /// The protocol whose connections can have it.
    pub const fn protocol(&self) -> u8 {
        match self {
            Self::Tcp(_) => protocol::TCP,
            Self::Udp { .. } => protocol::UDP,
        }
    }

    /// Lifetime of a connection after its first packet, seconds. For TCP it is the timer of a
    /// SYN also if the connection is picked up in the middle, as with the kernel.
    pub const fn first(&self) -> u32 {
        match self {
            Self::Tcp(timeouts) => timeouts.of(TcpState::SynSent),
            Self::Udp { unreplied, .. } => *unreplied,
        }
    }

    /// The settings of the TCP tracker with these timeouts; `None` if they are not for TCP.
    pub(crate) fn of_tcp(&self, settings: &TcpSettings) -> Option<TcpSettings> {
        match self {
            Self::Tcp(timeouts) => Some(TcpSettings { timeouts: *timeouts, ..*settings }),
            Self::Udp { .. } => None,
        }
    }
}
