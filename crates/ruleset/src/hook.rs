//! The hooks in which base chains are evaluated.

use wire::Family;

/// Family of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TableFamily {
    /// Both.
    Inet,
    /// IPv4.
    Ip,
    /// IPv6.
    Ip6,
}

impl TableFamily {
    pub(crate) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "inet" => Self::Inet,
            "ip" => Self::Ip,
            "ip6" => Self::Ip6,
            _ => return None,
        })
    }

    /// As nftables writes it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Inet => "inet",
            Self::Ip => "ip",
            Self::Ip6 => "ip6",
        }
    }

    /// True if its chains see packets of a family.
    pub const fn sees(self, family: Family) -> bool {
        match self {
            Self::Inet => true,
            Self::Ip => matches!(family, Family::V4),
            Self::Ip6 => matches!(family, Family::V6),
        }
    }
}

/// The hooks of the kernel, cut where tracking and translation happen between their chains.
///
/// A gateway evaluates the hooks in this order. It tracks a packet between the first two, and
/// translates it in or behind the two hooks of translation. Only packets that open a connection
/// pass those two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Hook {
    /// Prerouting, before connection tracking: priorities up to -200.
    Untracked,
    /// Prerouting, tracked, before destinations are translated.
    Prerouting,
    /// Destination translation: nat chains of prerouting.
    DestinationNat,
    /// Prerouting, behind destination translation.
    PreroutingTranslated,
    /// Forward.
    Forward,
    /// Postrouting, before sources are translated.
    Postrouting,
    /// Source translation: nat chains of postrouting.
    SourceNat,
    /// Postrouting, behind source translation.
    PostroutingTranslated,
}

/// Priority of connection tracking at prerouting.
const TRACKING: i32 = -200;
/// Priority of destination translation.
const DESTINATION_NAT: i32 = -100;
/// Priority of source translation.
const SOURCE_NAT: i32 = 100;

impl Hook {
    /// All hooks, in the order in which a packet passes them.
    pub const ALL: [Self; 8] = [
        Self::Untracked,
        Self::Prerouting,
        Self::DestinationNat,
        Self::PreroutingTranslated,
        Self::Forward,
        Self::Postrouting,
        Self::SourceNat,
        Self::PostroutingTranslated,
    ];

    /// Name for people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Untracked => "prerouting (untracked)",
            Self::Prerouting => "prerouting",
            Self::DestinationNat => "destination translation",
            Self::PreroutingTranslated => "prerouting (translated)",
            Self::Forward => "forward",
            Self::Postrouting => "postrouting",
            Self::SourceNat => "source translation",
            Self::PostroutingTranslated => "postrouting (translated)",
        }
    }

    /// The hook of a chain of type filter.
    pub(crate) fn of_filter(hook: &str, priority: i32) -> Option<Self> {
        Some(match hook {
            "prerouting" if priority <= TRACKING => Self::Untracked,
            "prerouting" if priority <= DESTINATION_NAT => Self::Prerouting,
            "prerouting" => Self::PreroutingTranslated,
            "forward" => Self::Forward,
            "postrouting" if priority <= SOURCE_NAT => Self::Postrouting,
            "postrouting" => Self::PostroutingTranslated,
            _ => return None,
        })
    }

    /// The hook of a chain of type nat.
    pub(crate) fn of_nat(hook: &str) -> Option<Self> {
        Some(match hook {
            "prerouting" => Self::DestinationNat,
            "postrouting" => Self::SourceNat,
            _ => return None,
        })
    }

    /// True for the hooks of translation.
    pub const fn is_nat(self) -> bool {
        matches!(self, Self::DestinationNat | Self::SourceNat)
    }
}
