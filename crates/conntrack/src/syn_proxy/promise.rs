//! The promise to a client in the name of a server.

use wire::Family;

use super::SynProxySettings;
use super::options::Extras;

/// The content of the answer to a SYN beside its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promise {
    /// Largest segment, bytes; `None` to leave it out.
    pub segment_size: Option<u16>,
    /// Scale of the windows, if the client offers one.
    pub window_scale: Option<u8>,
    /// Timestamps, if the client sends them. Without them it promises none of the following,
    /// and no scale of windows.
    pub timestamps: bool,
    /// Selective acknowledgment, if the client permits it.
    pub sack: bool,
    /// Explicit congestion notification, if the client supports it.
    pub ecn: bool,
    /// True for the promise of a rule: its cookies are valid for no other promise.
    pub by_rule: bool,
}

impl Promise {
    /// The promise of the settings of a zone.
    pub const fn of_zone(settings: &SynProxySettings, family: Family) -> Self {
        let ipv6_header = match family {
            Family::V4 => 0,
            Family::V6 => 20,
        };
        Self {
            segment_size: Some(settings.segment_size - ipv6_header),
            window_scale: Some(settings.window_scale),
            timestamps: settings.timestamps,
            sack: true,
            ecn: true,
            by_rule: false,
        }
    }

    /// The offers of a client that the promise accepts.
    pub(super) fn of_offered(&self, offered: Extras) -> Extras {
        Extras {
            scale: offered.scale.filter(|_| self.window_scale.is_some()),
            sack_permitted: offered.sack_permitted && self.sack,
            ecn: offered.ecn && self.ecn,
        }
    }

    /// A number that no other promise of a rule has. It is 0 for the promises of all zones,
    /// because their settings may change before a client returns the cookie.
    pub(super) fn number(&self) -> u64 {
        if !self.by_rule {
            return 0;
        }
        let Self { segment_size, window_scale, timestamps, sack, ecn, by_rule } = *self;
        let size = segment_size.map_or(0, |size| 1 << 16 | u64::from(size));
        let scale = window_scale.map_or(0, |scale| 1 << 8 | u64::from(scale));
        let bits = [timestamps, sack, ecn, by_rule].into_iter();
        bits.fold(size << 9 | scale, |number, bit| number << 1 | u64::from(bit))
    }
}
