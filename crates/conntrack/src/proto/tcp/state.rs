//! The states of a connection and the transitions between them.

use wire::TcpFlags;

use crate::Direction;

/// State of a connection as seen from the middle.
///
/// It names the last event that was seen, not the state of either end: `SynRecv` means that a
/// SYN+ACK has passed, whether or not it arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum TcpState {
    /// A SYN was seen.
    SynSent,
    /// A SYN+ACK was seen.
    SynRecv,
    /// The ACK that completes the handshake, or a connection picked up midway.
    Established,
    /// A FIN was seen.
    FinWait,
    /// The FIN was answered by an ACK.
    CloseWait,
    /// A second FIN was seen.
    LastAck,
    /// The ACK of the second FIN was seen.
    TimeWait,
    /// A RST was seen.
    Close,
    /// Both ends sent a SYN: simultaneous open (RFC 9293 section 3.5).
    SynSent2,
}

impl TcpState {
    /// All states, in the order of their discriminants.
    pub const ALL: [Self; 9] = [
        Self::SynSent,
        Self::SynRecv,
        Self::Established,
        Self::FinWait,
        Self::CloseWait,
        Self::LastAck,
        Self::TimeWait,
        Self::Close,
        Self::SynSent2,
    ];

    /// The name that `conntrack -L` prints.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SynSent => "SYN_SENT",
            Self::SynRecv => "SYN_RECV",
            Self::Established => "ESTABLISHED",
            Self::FinWait => "FIN_WAIT",
            Self::CloseWait => "CLOSE_WAIT",
            Self::LastAck => "LAST_ACK",
            Self::TimeWait => "TIME_WAIT",
            Self::Close => "CLOSE",
            Self::SynSent2 => "SYN_SENT2",
        }
    }

    /// True when the connection is closing. Such an entry may be evicted early when the table
    /// is full.
    pub const fn is_closing(self) -> bool {
        match self {
            Self::FinWait | Self::CloseWait | Self::LastAck | Self::TimeWait | Self::Close => true,
            Self::SynSent | Self::SynRecv | Self::Established | Self::SynSent2 => false,
        }
    }

    /// How far a connection has come: it goes back only by a SYN that opens another one.
    pub const fn progress(self) -> u8 {
        match self {
            Self::SynSent => 0,
            Self::SynSent2 => 1,
            Self::SynRecv => 2,
            Self::Established => 3,
            Self::FinWait => 4,
            Self::CloseWait => 5,
            Self::LastAck => 6,
            Self::TimeWait => 7,
            Self::Close => 8,
        }
    }

    /// True before the ACK that completes the handshake.
    pub const fn is_opening(self) -> bool {
        matches!(self, Self::SynSent | Self::SynRecv | Self::SynSent2)
    }
}

/// The kinds of control bits that the state machine distinguishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FlagClass {
    /// SYN alone.
    Syn,
    /// SYN and ACK.
    SynAck,
    /// FIN and ACK.
    Fin,
    /// ACK alone.
    Ack,
    /// RST, with or without ACK.
    Rst,
}

impl FlagClass {
    /// All classes, in the order of their discriminants.
    pub const ALL: [Self; 5] = [Self::Syn, Self::SynAck, Self::Fin, Self::Ack, Self::Rst];

    /// The class of a legal combination of control bits, `None` for one that no TCP sends. PSH,
    /// ECE and CWR may accompany any class; URG any but SYN+ACK and RST.
    pub const fn of(flags: TcpFlags) -> Option<Self> {
        const FREE: TcpFlags = TcpFlags::PSH.with(TcpFlags::ECE).with(TcpFlags::CWR);
        const SYN_ACK: u8 = TcpFlags::SYN.with(TcpFlags::ACK).0;
        const RST_ACK: u8 = TcpFlags::RST.with(TcpFlags::ACK).0;
        const FIN_ACK: u8 = TcpFlags::FIN.with(TcpFlags::ACK).0;
        const URG: u8 = TcpFlags::URG.0;
        const SYN_URG: u8 = TcpFlags::SYN.0 | URG;
        const ACK_URG: u8 = TcpFlags::ACK.0 | URG;
        const FIN_ACK_URG: u8 = FIN_ACK | URG;
        const SYN: u8 = TcpFlags::SYN.0;
        const ACK: u8 = TcpFlags::ACK.0;
        const RST: u8 = TcpFlags::RST.0;
        match flags.without(FREE).0 {
            ACK | ACK_URG => Some(Self::Ack),
            SYN | SYN_URG => Some(Self::Syn),
            SYN_ACK => Some(Self::SynAck),
            FIN_ACK | FIN_ACK_URG => Some(Self::Fin),
            RST | RST_ACK => Some(Self::Rst),
            _ => None,
        }
    }

    /// True for a SYN with or without ACK.
    pub const fn is_syn(self) -> bool {
        matches!(self, Self::Syn | Self::SynAck)
    }
}

impl std::fmt::Display for FlagClass {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Syn => "SYN",
            Self::SynAck => "SYN+ACK",
            Self::Fin => "FIN",
            Self::Ack => "ACK",
            Self::Rst => "RST",
        })
    }
}

/// The effect of a segment on the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transition {
    /// The next state, possibly the same.
    To(TcpState),
    /// It passes and changes nothing: its receiver's answer will tell whether it counts.
    Ignore,
    /// No honest sender sends this here.
    Invalid,
}

/// The state after the first segment of a flow, whether or not
/// [`loose`](super::TcpSettings::loose) allows it.
pub const fn opening(class: FlagClass) -> Transition {
    match class {
        FlagClass::Syn => Transition::To(TcpState::SynSent),
        FlagClass::Ack => Transition::To(TcpState::Established),
        FlagClass::SynAck | FlagClass::Fin | FlagClass::Rst => Transition::Invalid,
    }
}

/// The transition table of the Linux kernel's tracker, as rules.
///
/// [`TcpTracker`](super::TcpTracker) decides the cases that depend on more than state,
/// direction and class: reopening, challenge ACKs, the checks of a RST.
pub const fn transition(state: TcpState, direction: Direction, class: FlagClass) -> Transition {
    use Direction::{Original, Reply};
    use FlagClass::{Ack, Fin, Rst, Syn, SynAck};
    use TcpState::{
        Close, CloseWait, Established, FinWait, LastAck, SynRecv, SynSent, SynSent2, TimeWait,
    };
    use Transition::{Ignore, Invalid, To};

    match (class, direction, state) {
        (Rst, _, _) => To(Close),

        // The opener may try (again). A SYN amid a connection is left to its receiver (RFC 5961
        // section 4).
        (Syn, Original, SynSent | TimeWait | Close) => To(SynSent),
        (Syn, Original, SynSent2) => To(SynSent2),
        (Syn, Original, _) => Ignore,
        (Syn, Reply, SynSent | SynSent2) => To(SynSent2),
        (Syn, Reply, TimeWait) => To(SynSent),
        (Syn, Reply, _) => Invalid,

        // The opener sends SYN+ACK only in a simultaneous open.
        (SynAck, Original, SynSent2 | SynRecv) => To(SynRecv),
        (SynAck, Original, _) => Invalid,
        (SynAck, Reply, SynSent | SynSent2) => To(SynRecv),
        (SynAck, Reply, _) => Ignore,

        // Before the SYN+ACK there is nothing to close or to acknowledge, but a
        // half-open peer may answer a SYN with an ACK (RFC 9293 section 3.5.1).
        (Ack, Reply, SynSent | SynSent2) => Ignore,
        (Ack | Fin, _, SynSent | SynSent2) => Invalid,

        (Ack, Original, SynRecv) => To(Established),
        (Ack, Reply, SynRecv) => To(SynRecv),
        (Ack, _, Established) => To(Established),
        (Ack, _, FinWait | CloseWait) => To(CloseWait),
        (Ack, _, LastAck) => To(TimeWait),

        (Fin, _, SynRecv | Established) => To(FinWait),
        (Fin, _, FinWait | CloseWait | LastAck) => To(LastAck),

        (Ack | Fin, _, TimeWait) => To(TimeWait),
        (Ack | Fin, _, Close) => To(Close),
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
