//! How far the ends of a control connection have come: which of them may announce something.

use crate::{Direction, Settings};

/// Commands by which clients begin: those that need no login (RFC 959 section 4.1.1, RFC 2389,
/// RFC 2640, RFC 7151 and what IANA has registered beside them).
const FIRST: [&[u8]; 16] = [
    b"ACCT", b"CLNT", b"CSID", b"FEAT", b"HELP", b"HOST", b"LANG", b"NOOP", b"OPTS", b"QUIT",
    b"REIN", b"SITE", b"STAT", b"SYST", b"USER", b"XAUT",
];

/// What a control connection has come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Session {
    /// The server has not greeted: the client must not speak (RFC 959 section 5.4).
    #[default]
    Opening,
    /// The client has to say its first command.
    Greeted,
    /// Commands and replies take turns.
    Commands,
    /// The client has asked for encryption (RFC 4217 section 4).
    Securing,
    /// Its beginning was not seen. What the client says may as well be part of a web page, so
    /// only what the server says of itself counts.
    Joined,
}

/// What an end says, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// 220.
    Ready,
    /// 234: what follows is encrypted.
    Secured,
    /// 4xx and 5xx.
    Refused,
    /// Any other reply.
    Reply,
    /// A command by which clients begin.
    First,
    /// AUTH.
    Secure,
    /// Any other line of the client.
    Line,
}

impl Event {
    /// A reply with this code.
    pub fn of_reply(code: [u8; 3]) -> Self {
        match &code {
            b"220" => Self::Ready,
            b"234" => Self::Secured,
            [b'4' | b'5', ..] => Self::Refused,
            _ => Self::Reply,
        }
    }

    /// A line of the client with this first word.
    pub fn of_command(word: &[u8]) -> Self {
        if word.eq_ignore_ascii_case(b"AUTH") {
            Self::Secure
        } else if FIRST.iter().any(|first| word.eq_ignore_ascii_case(first)) {
            Self::First
        } else {
            Self::Line
        }
    }
}

impl Session {
    #[cfg(test)]
    const ALL: [Self; 5] =
        [Self::Opening, Self::Greeted, Self::Commands, Self::Securing, Self::Joined];

    /// Of a connection whose beginning was not seen.
    pub fn joined(settings: &Settings) -> Self {
        if settings.expect_picked_up { Self::Commands } else { Self::Joined }
    }

    /// What it comes to; `None` if there is nothing to read any more: it is no FTP, or encrypted.
    pub fn after(self, event: Event) -> Option<Self> {
        use Event::{First, Line, Ready, Refused, Reply, Secure, Secured};
        Some(match (self, event) {
            (Self::Opening, Ready) => Self::Greeted,
            (Self::Opening, First | Secure | Line) | (Self::Greeted, Line) => return None,
            (Self::Greeted, First) => Self::Commands,
            (Self::Greeted | Self::Commands, Secure) => Self::Securing,
            (Self::Securing, Secured) => return None,
            (Self::Securing, Refused) => Self::Commands,
            (
                Self::Opening | Self::Greeted | Self::Commands | Self::Securing | Self::Joined,
                Ready | Secured | Refused | Reply | First | Secure | Line,
            ) => self,
        })
    }

    /// True if what an end announces counts.
    pub fn believes(self, speaker: Direction) -> bool {
        match self {
            Self::Opening | Self::Greeted | Self::Securing => false,
            Self::Commands => true,
            Self::Joined => speaker == Direction::Reply,
        }
    }

    /// True while everything depends on what an end has said first.
    pub fn needs_all_of(self, speaker: Direction) -> bool {
        match self {
            Self::Opening => true,
            Self::Greeted => speaker == Direction::Original,
            Self::Commands | Self::Securing | Self::Joined => false,
        }
    }
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
