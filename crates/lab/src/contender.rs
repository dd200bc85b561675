//! Who is compared with whom.

/// A gateway of two that do the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contender {
    /// `stateway run`.
    Stateway,
    /// The kernel that forwards, or its bridge.
    Kernel,
}

impl Contender {
    /// Both of them.
    pub const ALL: [Self; 2] = [Self::Stateway, Self::Kernel];

    /// Its name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stateway => "stateway",
            Self::Kernel => "kernel",
        }
    }
}
