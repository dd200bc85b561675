//! The progress of a control connection, which decides which end may announce something.

use crate::Direction;
use crate::helper::HelperSettings;

/// Commands with which clients begin: those that need no login (RFC 959 section 4.1.1, RFC
/// 2389, RFC 2640, RFC 7151 and others in the registry of IANA).
const FIRST: [&[u8]; 16] = [
    b"ACCT", b"CLNT", b"CSID", b"FEAT", b"HELP", b"HOST", b"LANG", b"NOOP", b"OPTS", b"QUIT",
    b"REIN", b"SITE", b"STAT", b"SYST", b"USER", b"XAUT",
];

/// The state of a control connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Session {
    /// The server has not greeted: the client must not speak (RFC 959 section 5.4).
    #[default]
    Opening,
    /// The server has greeted, and the client has not sent its first command.
    Greeted,
    /// Commands and replies take turns.
    Commands,
    /// The client has asked for encryption (RFC 4217 section 4).
    Securing,
    /// The helper did not see its beginning. The client's text may be part of a web page, so
    /// only the server's announcements count.
    Joined,
}

/// The kinds of lines that change the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// 220.
    Ready,
    /// 234: the rest is encrypted.
    Secured,
    /// 4xx and 5xx.
    Refused,
    /// Any other reply.
    Reply,
    /// A command with which clients begin.
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

    /// The state of a connection whose beginning was not seen.
    pub fn joined(settings: &HelperSettings) -> Self {
        if settings.expect_picked_up { Self::Commands } else { Self::Joined }
    }

    /// The next state; `None` if there is nothing more to read, because it is not FTP or is
    /// encrypted.
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

    /// True if announcements of this end count.
    pub fn believes(self, speaker: Direction) -> bool {
        match self {
            Self::Opening | Self::Greeted | Self::Securing => false,
            Self::Commands => true,
            Self::Joined => speaker == Direction::Reply,
        }
    }

    /// True while everything depends on the first lines of this end.
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
