//! The direction of a packet within its connection.

/// The direction of a packet, relative to the end that opened the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Direction {
    /// From the end that sent the first packet.
    Original = 0,
    /// To that end.
    Reply = 1,
}

impl Direction {
    /// The opposite direction.
    #[must_use]
    pub const fn reversed(self) -> Self {
        match self {
            Self::Original => Self::Reply,
            Self::Reply => Self::Original,
        }
    }

    /// 0 for `Original`, 1 for `Reply`: an index into per-direction pairs.
    pub const fn index(self) -> usize {
        self as usize
    }
}

impl std::fmt::Display for Direction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Original => "original",
            Self::Reply => "reply",
        })
    }
}
