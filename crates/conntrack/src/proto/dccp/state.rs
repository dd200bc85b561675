//! The states of a connection and the transitions between them.

use wire::dccp::PacketType;

/// State of a connection as seen from the middle (RFC 4340 section 4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DccpState {
    /// A Request was seen.
    Request,
    /// A Response was seen.
    Respond,
    /// The client has acknowledged the Response.
    PartOpen,
    /// The server has answered that, or the connection was picked up midway.
    Open,
    /// The server has asked the client to close.
    CloseReq,
    /// A Close was seen.
    Closing,
    /// A Reset was seen.
    TimeWait,
}

impl DccpState {
    /// All states, in the order of their discriminants.
    pub const ALL: [Self; 7] = [
        Self::Request,
        Self::Respond,
        Self::PartOpen,
        Self::Open,
        Self::CloseReq,
        Self::Closing,
        Self::TimeWait,
    ];

    /// The name that `conntrack -L` prints.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Request => "REQUEST",
            Self::Respond => "RESPOND",
            Self::PartOpen => "PARTOPEN",
            Self::Open => "OPEN",
            Self::CloseReq => "CLOSEREQ",
            Self::Closing => "CLOSING",
            Self::TimeWait => "TIMEWAIT",
        }
    }

    /// True when the connection is closing. Such an entry may be evicted early when the table
    /// is full.
    pub const fn is_closing(self) -> bool {
        match self {
            Self::CloseReq | Self::Closing | Self::TimeWait => true,
            Self::Request | Self::Respond | Self::PartOpen | Self::Open => false,
        }
    }

    /// True before the server has acknowledged the client's answer.
    pub const fn is_opening(self) -> bool {
        matches!(self, Self::Request | Self::Respond | Self::PartOpen)
    }
}

/// The role of an end (RFC 4340 section 4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// It has sent the Request.
    Client,
    /// It has received the Request.
    Server,
}

/// The effect of a packet on the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transition {
    /// The next state, possibly the same.
    To(DccpState),
    /// It passes and changes nothing: its receiver's answer will tell whether it counts.
    Ignore,
    /// No honest sender sends this here.
    Invalid,
}

/// The state after the first packet of a flow. Only a Request opens a connection; the others
/// pick one up in its middle, which has to be allowed.
pub const fn opening(kind: PacketType) -> Transition {
    match kind {
        PacketType::Request => Transition::To(DccpState::Request),
        PacketType::Data | PacketType::Ack | PacketType::DataAck => Transition::To(DccpState::Open),
        _ => Transition::Invalid,
    }
}

/// The transition table of the Linux kernel's tracker, as rules, with two differences: a client
/// may repeat its Close (RFC 4340 section 8.3), and a repeated Reset of a server is ignored
/// like that of a client.
pub const fn transition(state: DccpState, role: Role, kind: PacketType) -> Transition {
    use DccpState::{CloseReq, Closing, Open, PartOpen, Request, Respond, TimeWait};
    use PacketType as Type;
    use Role::{Client, Server};
    use Transition::{Ignore, Invalid, To};

    match (kind, role, state) {
        // The receiver judges a Request or Response amid another connection; its answer tells.
        (Type::Request, Client, Request | Respond) => To(state),
        (Type::Request, _, TimeWait) => To(Request),
        (Type::Request, _, _) => Ignore,
        (Type::Response, _, TimeWait) => Invalid,
        (Type::Response, Server, Request | Respond) => To(Respond),
        (Type::Response, _, _) => Ignore,
        (Type::Sync | Type::SyncAck, _, _) => Ignore,

        (Type::Reset, _, TimeWait) => Ignore,
        (Type::Reset, _, _) => To(TimeWait),

        (_, _, TimeWait | Request) => Invalid,

        // No plain Data before the server has shown that it is open (section 8.1.5).
        (Type::Ack | Type::DataAck, Client, Respond | PartOpen) => To(PartOpen),
        (Type::Data | Type::Ack | Type::DataAck, Server, PartOpen) => To(Open),
        (Type::Data | Type::Ack | Type::DataAck, _, Open | Closing)
        | (Type::Data | Type::Ack | Type::DataAck, Client, CloseReq) => To(state),
        (Type::Data | Type::Ack | Type::DataAck, _, _) => Invalid,

        // Only a server asks for a Close, and then only the client closes.
        (Type::CloseReq, Server, PartOpen | Open | CloseReq | Closing) => To(CloseReq),
        (Type::CloseReq, _, _) => Invalid,
        (Type::Close, _, PartOpen | Open | Closing) | (Type::Close, Client, CloseReq) => {
            To(Closing)
        }
        (Type::Close, _, _) => Invalid,
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
