//! Objects that rules attach to connections: helpers, timeouts and SYN proxies.

use wire::Family;

/// A helper.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Helper {
    /// Table and name.
    pub name: (String, String),
    /// Its kind, for example `ftp` or `sip`.
    pub kind: String,
    /// Transport protocol.
    pub protocol: u8,
    /// Address family; `None` for both.
    pub family: Option<Family>,
}

/// Timeouts for connections: an object `ct timeout`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimeoutObject {
    /// Table and name.
    pub name: (String, String),
    /// Transport protocol.
    pub protocol: u8,
    /// Seconds for each state that the policy names; nftables' defaults hold for the others.
    pub seconds: Vec<(TimeoutState, u32)>,
}

/// The state of a connection that a timeout belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TimeoutState {
    /// TCP: a SYN without an answer.
    SynSent,
    /// TCP: an answered SYN.
    SynRecv,
    /// TCP: open.
    Established,
    /// TCP: one end has sent a FIN.
    FinWait,
    /// TCP: one FIN is acknowledged.
    CloseWait,
    /// TCP: both ends have sent a FIN.
    LastAck,
    /// TCP: both ends have closed.
    TimeWait,
    /// TCP: reset.
    Close,
    /// TCP: both ends have sent a SYN.
    SynSent2,
    /// TCP: upper bound after repetitions without an answer.
    Retransmitted,
    /// TCP: upper bound while data is unacknowledged.
    Unacknowledged,
    /// UDP: packets from one end only.
    Unreplied,
    /// UDP: packets from both ends.
    Replied,
}

impl TimeoutState {
    /// nftables' names of the TCP states.
    pub(crate) const OF_TCP: &[(&str, Self)] = &[
        ("syn_sent", Self::SynSent),
        ("syn_recv", Self::SynRecv),
        ("established", Self::Established),
        ("fin_wait", Self::FinWait),
        ("close_wait", Self::CloseWait),
        ("last_ack", Self::LastAck),
        ("time_wait", Self::TimeWait),
        ("close", Self::Close),
        ("syn_sent2", Self::SynSent2),
        ("retrans", Self::Retransmitted),
        ("unack", Self::Unacknowledged),
    ];
    /// nftables' names of the UDP states.
    pub(crate) const OF_UDP: &[(&str, Self)] =
        &[("unreplied", Self::Unreplied), ("replied", Self::Replied)];
}

/// The TCP options that a SYN proxy offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SynProxy {
    /// Maximum segment size, in bytes; `None` if the object names none.
    pub mss: Option<u16>,
    /// Window scale; `None` if the proxy offers none.
    pub wscale: Option<u8>,
    /// True if the proxy offers timestamps.
    pub timestamp: bool,
    /// True if the proxy offers selective acknowledgment.
    pub sack: bool,
}
