//! Timeouts of single connections, in the place of those of their zone.

use wire::protocol;

use crate::proto::tcp::{TcpSettings, TcpState, TcpTimeouts};

/// The timeouts of a connection of one protocol, as the kernel's `nf_conntrack_timeout` has
/// them: what a rule gives a connection stays with it, whatever becomes of the rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeoutPolicy {
    /// TCP.
    Tcp(TcpTimeouts),
    /// UDP, seconds.
    Udp {
        /// With one end heard, or an exchange of less than two seconds.
        unreplied: u32,
        /// With both ends heard for longer.
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

    /// How long a connection lives after its first packet, seconds. Of TCP that is the timer
    /// of a SYN also for what is picked up from the middle, as with the kernel.
    pub const fn first(&self) -> u32 {
        match self {
            Self::Tcp(timeouts) => timeouts.of(TcpState::SynSent),
            Self::Udp { unreplied, .. } => *unreplied,
        }
    }

    /// The settings of the TCP tracker with these timers; `None` if they are none of TCP.
    pub(crate) fn of_tcp(&self, settings: &TcpSettings) -> Option<TcpSettings> {
        match self {
            Self::Tcp(timeouts) => Some(TcpSettings { timeouts: *timeouts, ..*settings }),
            Self::Udp { .. } => None,
        }
    }
}
