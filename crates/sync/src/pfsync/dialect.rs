//! The dialects of pfsync, which differ in their messages and structures.

/// A dialect, by the name under which pfsync's `version` tunable has it. FreeBSD's dialects share
/// header version 5 and differ in the numbers and structures of full states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Dialect {
    /// FreeBSD 13 and earlier.
    Version1301,
    /// FreeBSD 14.
    Version1400,
    /// FreeBSD 15.
    Version1500,
    /// OpenBSD.
    Version6,
}

/// The structure of a full state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StateForm {
    V1301,
    V1400,
    V1500,
    OpenBsd,
}

impl StateForm {
    /// Length, bytes.
    pub const fn bytes(self) -> usize {
        match self {
            Self::V1301 => 242,
            Self::V1400 => 277,
            Self::V1500 => 360,
            Self::OpenBsd => 264,
        }
    }

    /// The number of IPv6 as an address family. That of IPv4 is 2 everywhere.
    pub const fn ipv6(self) -> u8 {
        match self {
            Self::V1301 | Self::V1400 | Self::V1500 => 28,
            Self::OpenBsd => 24,
        }
    }
}

impl Dialect {
    /// All dialects.
    pub const ALL: [Self; 4] =
        [Self::Version1301, Self::Version1400, Self::Version1500, Self::Version6];

    /// The number that names it: 1301, 1400, 1500 or 6.
    pub const fn number(self) -> u16 {
        match self {
            Self::Version1301 => 1301,
            Self::Version1400 => 1400,
            Self::Version1500 => 1500,
            Self::Version6 => 6,
        }
    }

    /// The dialect of a number, `None` if there is none.
    pub fn of_number(number: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|it| u64::from(it.number()) == number)
    }

    /// Version in the header of a packet.
    pub const fn header_version(self) -> u8 {
        match self {
            Self::Version1301 | Self::Version1400 | Self::Version1500 => 5,
            Self::Version6 => 6,
        }
    }

    /// True if each group of messages tells their length, so that unknown ones can be skipped.
    pub const fn tells_lengths(self) -> bool {
        matches!(self, Self::Version6)
    }

    /// The structure in which this dialect sends full states.
    pub(super) const fn state_form(self) -> StateForm {
        match self {
            Self::Version1301 => StateForm::V1301,
            Self::Version1400 => StateForm::V1400,
            Self::Version1500 => StateForm::V1500,
            Self::Version6 => StateForm::OpenBsd,
        }
    }

    /// Length of a full state, bytes.
    pub const fn state_bytes(self) -> usize {
        self.state_form().bytes()
    }
}
