//! The gateways that are compared.

/// One of two gateways with the same task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contender {
    /// `stateway run`.
    Stateway,
    /// The kernel's forwarding, or its bridge.
    Kernel,
}

impl Contender {
    /// Both gateways.
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
