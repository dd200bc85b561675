//! The states of an association and the transitions between them.

use wire::sctp::chunk_type;

use crate::Direction;

/// State of an association as seen from the middle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum SctpState {
    /// An INIT was seen, or the association has ended.
    Closed,
    /// The INIT was answered.
    CookieWait,
    /// The cookie was returned.
    CookieEchoed,
    /// The cookie was acknowledged, or a heartbeat on a separate path was answered.
    Established,
    /// The opener began to shut down.
    ShutdownSent,
    /// The peer of the opener began to shut down.
    ShutdownRecd,
    /// The SHUTDOWN was answered.
    ShutdownAckSent,
    /// A heartbeat opened this path.
    HeartbeatSent,
}

impl SctpState {
    /// All states, in the order of their discriminants.
    pub const ALL: [Self; 8] = [
        Self::Closed,
        Self::CookieWait,
        Self::CookieEchoed,
        Self::Established,
        Self::ShutdownSent,
        Self::ShutdownRecd,
        Self::ShutdownAckSent,
        Self::HeartbeatSent,
    ];

    /// The name that `conntrack -L` prints.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Closed => "CLOSED",
            Self::CookieWait => "COOKIE_WAIT",
            Self::CookieEchoed => "COOKIE_ECHOED",
            Self::Established => "ESTABLISHED",
            Self::ShutdownSent => "SHUTDOWN_SENT",
            Self::ShutdownRecd => "SHUTDOWN_RECD",
            Self::ShutdownAckSent => "SHUTDOWN_ACK_SENT",
            Self::HeartbeatSent => "HEARTBEAT_SENT",
        }
    }

    /// True when the association is closing. Such an entry may be evicted early when the table
    /// is full.
    pub const fn is_closing(self) -> bool {
        match self {
            Self::Closed | Self::ShutdownSent | Self::ShutdownRecd | Self::ShutdownAckSent => true,
            Self::CookieWait | Self::CookieEchoed | Self::Established | Self::HeartbeatSent => {
                false
            }
        }
    }

    /// True before the cookie was acknowledged.
    pub const fn is_opening(self) -> bool {
        matches!(self, Self::Closed | Self::CookieWait | Self::CookieEchoed)
    }
}

/// The kinds of chunks that the state machine distinguishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChunkClass {
    /// INIT.
    Init,
    /// INIT ACK.
    InitAck,
    /// ABORT.
    Abort,
    /// SHUTDOWN.
    Shutdown,
    /// SHUTDOWN ACK.
    ShutdownAck,
    /// ERROR.
    Error,
    /// COOKIE ECHO.
    CookieEcho,
    /// COOKIE ACK.
    CookieAck,
    /// SHUTDOWN COMPLETE.
    ShutdownComplete,
    /// HEARTBEAT.
    Heartbeat,
    /// HEARTBEAT ACK.
    HeartbeatAck,
    /// DATA.
    Data,
    /// Everything else.
    Other,
}

impl ChunkClass {
    /// All classes.
    pub const ALL: [Self; 13] = [
        Self::Init,
        Self::InitAck,
        Self::Abort,
        Self::Shutdown,
        Self::ShutdownAck,
        Self::Error,
        Self::CookieEcho,
        Self::CookieAck,
        Self::ShutdownComplete,
        Self::Heartbeat,
        Self::HeartbeatAck,
        Self::Data,
        Self::Other,
    ];

    /// The class of a chunk type.
    pub const fn of(kind: u8) -> Self {
        match kind {
            chunk_type::DATA => Self::Data,
            chunk_type::INIT => Self::Init,
            chunk_type::INIT_ACK => Self::InitAck,
            chunk_type::HEARTBEAT => Self::Heartbeat,
            chunk_type::HEARTBEAT_ACK => Self::HeartbeatAck,
            chunk_type::ABORT => Self::Abort,
            chunk_type::SHUTDOWN => Self::Shutdown,
            chunk_type::SHUTDOWN_ACK => Self::ShutdownAck,
            chunk_type::ERROR => Self::Error,
            chunk_type::COOKIE_ECHO => Self::CookieEcho,
            chunk_type::COOKIE_ACK => Self::CookieAck,
            chunk_type::SHUTDOWN_COMPLETE => Self::ShutdownComplete,
            _ => Self::Other,
        }
    }

    /// The name in RFC 9260 section 3.2.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Init => "INIT",
            Self::InitAck => "INIT ACK",
            Self::Abort => "ABORT",
            Self::Shutdown => "SHUTDOWN",
            Self::ShutdownAck => "SHUTDOWN ACK",
            Self::Error => "ERROR",
            Self::CookieEcho => "COOKIE ECHO",
            Self::CookieAck => "COOKIE ACK",
            Self::ShutdownComplete => "SHUTDOWN COMPLETE",
            Self::Heartbeat => "HEARTBEAT",
            Self::HeartbeatAck => "HEARTBEAT ACK",
            Self::Data => "DATA",
            Self::Other => "a chunk of another type",
        }
    }
}

/// The state after the first chunk of a flow; `None` if the chunk can not be the first.
///
/// Heartbeats of another path of an association may come first too, and so may the SHUTDOWN ACK
/// of a forgotten association (RFC 9260 section 8.4).
pub const fn opening(chunk: ChunkClass) -> Option<SctpState> {
    match chunk {
        ChunkClass::Init | ChunkClass::HeartbeatAck => Some(SctpState::Closed),
        ChunkClass::Heartbeat => Some(SctpState::HeartbeatSent),
        ChunkClass::ShutdownAck => Some(SctpState::ShutdownAckSent),
        _ => None,
    }
}

/// The transition table of the Linux kernel's tracker, as rules; `None` for a chunk that no
/// honest sender sends in this state.
pub const fn transition(
    state: SctpState,
    direction: Direction,
    chunk: ChunkClass,
) -> Option<SctpState> {
    use ChunkClass::{
        Abort, CookieAck, CookieEcho, Data, Error, Heartbeat, HeartbeatAck, Init, InitAck, Other,
        Shutdown, ShutdownAck, ShutdownComplete,
    };
    use Direction::{Original, Reply};
    use SctpState::{
        Closed, CookieEchoed, CookieWait, Established, HeartbeatSent, ShutdownAckSent,
        ShutdownRecd, ShutdownSent,
    };

    Some(match (chunk, direction, state) {
        (Data | Other | Heartbeat, _, same) => same,

        // A path that only a heartbeat has opened is up when it is answered.
        (HeartbeatAck, Reply, HeartbeatSent) => Established,
        (HeartbeatAck, _, same) => same,
        (_, Reply, HeartbeatSent) => return None,
        (Init, _, HeartbeatSent) => CookieWait,
        (ShutdownAck, _, HeartbeatSent) => ShutdownAckSent,
        (_, _, HeartbeatSent) => Closed,

        (Abort, _, _) => Closed,

        (Init, Original, ShutdownSent | ShutdownRecd) => Closed,
        (InitAck, Reply, Closed) => CookieWait,
        (CookieEcho, _, CookieWait) => CookieEchoed,
        (CookieAck, _, CookieEchoed) => Established,
        // The cookie was stale.
        (Error, Reply, CookieEchoed) => Closed,

        (Shutdown, Original, Established) => ShutdownSent,
        (Shutdown, Reply, Established) => ShutdownRecd,
        (ShutdownAck, _, ShutdownSent | ShutdownRecd) => ShutdownAckSent,
        (ShutdownComplete, _, ShutdownAckSent) => Closed,

        (_, _, same) => same,
    })
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
