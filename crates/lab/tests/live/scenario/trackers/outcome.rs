//! The result of a tracker for a packet, the kernel's or ours.

use std::fmt::{Display, Formatter, Result};
use std::net::IpAddr;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    New,
    Established,
    Related,
    Invalid,
    Untracked,
    /// The packet did not come out.
    Lost,
}

impl Class {
    pub fn name(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Established => "established",
            Self::Related => "related",
            Self::Invalid => "invalid",
            Self::Untracked => "untracked",
            Self::Lost => "lost",
        }
    }
}

/// The direction of a packet within its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Original,
    Reply,
}

impl Way {
    pub fn name(self) -> &'static str {
        if self == Self::Original { "original" } else { "reply" }
    }
}

/// The entry of the flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The address of the opener.
    pub source: IpAddr,
    pub state: Option<&'static str>,
    pub seen_reply: bool,
    pub assured: bool,
    /// The remaining time in seconds.
    pub timeout_s: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub class: Class,
    pub way: Option<Way>,
    /// The entry after the packet.
    pub entry: Option<Entry>,
}

impl Outcome {
    /// True if both results are the same. The packet took the time `took`, and the kernel counts
    /// the remaining time in ticks and rounds down, so the remaining times may differ that much.
    pub fn agrees(&self, other: &Self, took: Duration) -> bool {
        let time = |said: &Self| said.entry.map_or(0, |entry| entry.timeout_s);
        self.with_timeout(0) == other.with_timeout(0)
            && time(self).abs_diff(time(other)) <= 1 + took.as_secs()
    }

    /// The same with another remaining time.
    pub fn with_timeout(self, timeout_s: u64) -> Self {
        Self { entry: self.entry.map(|entry| Entry { timeout_s, ..entry }), ..self }
    }
}

impl Display for Outcome {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.write_str(self.class.name())?;
        if self.way == Some(Way::Reply) {
            f.write_str(" (reply)")?;
        }
        let Some(entry) = &self.entry else { return f.write_str(", no entry") };
        write!(f, ", {} {}s", entry.state.unwrap_or("entry"), entry.timeout_s)?;
        for (flag, name) in [(!entry.seen_reply, "unreplied"), (entry.assured, "assured")] {
            if flag {
                write!(f, " {name}")?;
            }
        }
        write!(f, " from {}", entry.source)
    }
}
