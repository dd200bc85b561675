//! What rules give to connections, by name: helpers, timeouts, SYN proxies.

use wire::Family;

/// A helper.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Helper {
    /// Table and name.
    pub name: (String, String),
    /// Which: `ftp`, `sip` and so on.
    pub kind: String,
    /// Transport protocol.
    pub protocol: u8,
    /// Address family; `None` for both.
    pub family: Option<Family>,
}

/// Timeouts for connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimeoutPolicy {
    /// Table and name.
    pub name: (String, String),
    /// Transport protocol.
    pub protocol: u8,
    /// State and seconds; what is not there is as nftables has it by default.
    pub seconds: Vec<(TimeoutState, u32)>,
}

/// What of a connection a timeout is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TimeoutState {
    /// TCP: nobody has answered the SYN.
    SynSent,
    /// TCP: it was answered.
    SynRecv,
    /// TCP: open.
    Established,
    /// TCP: one FIN.
    FinWait,
    /// TCP: one acknowledged FIN.
    CloseWait,
    /// TCP: a FIN of both ends.
    LastAck,
    /// TCP: closed by both.
    TimeWait,
    /// TCP: reset.
    Close,
    /// TCP: both ends have sent a SYN.
    SynSent2,
    /// TCP: after repetitions, at most.
    Retransmitted,
    /// TCP: while data is unacknowledged, at most.
    Unacknowledged,
    /// UDP: one end heard.
    Unreplied,
    /// UDP: both ends heard.
    Replied,
}

impl TimeoutState {
    /// Those of TCP as nftables calls them.
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
    /// Those of UDP.
    pub(crate) const OF_UDP: &[(&str, Self)] =
        &[("unreplied", Self::Unreplied), ("replied", Self::Replied)];
}

/// How a SYN proxy answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SynProxy {
    /// Maximum segment size, if it says any.
    pub mss: Option<u16>,
    /// Window scale, if it offers one.
    pub wscale: Option<u8>,
    /// It offers timestamps.
    pub timestamp: bool,
    /// It offers selective acknowledgment.
    pub sack: bool,
}
