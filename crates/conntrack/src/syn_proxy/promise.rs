//! What a client is promised in the name of a server.

use wire::Family;

use super::SynProxySettings;
use super::options::Extras;

/// What the answer to a SYN says beside its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promise {
    /// Largest segment, bytes; `None`: says nothing of it.
    pub segment_size: Option<u16>,
    /// Scale of the windows, if the client offers one.
    pub window_scale: Option<u8>,
    /// Timestamps, if the client sends them; without them none of what follows, nor windows
    /// with a scale.
    pub timestamps: bool,
    /// Selective acknowledgment, if the client permits it.
    pub sack: bool,
    /// Explicit congestion notification, if the client can do it.
    pub ecn: bool,
    /// A rule asks for it: nobody else knows its cookies.
    pub by_rule: bool,
}

impl Promise {
    /// What the settings of a zone say.
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

    /// What of a client's offer is taken.
    pub(super) fn of_offered(&self, offered: Extras) -> Extras {
        Extras {
            scale: offered.scale.filter(|_| self.window_scale.is_some()),
            sack_permitted: offered.sack_permitted && self.sack,
            ecn: offered.ecn && self.ecn,
        }
    }

    /// A number that no other promise of a rule has; that of all zones is 0, since their
    /// settings may change while a client is on its way back.
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
