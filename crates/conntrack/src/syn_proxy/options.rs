//! The options that a SYN offers, and their encoding in a timestamp that the opener returns.

use flow::Timestamp;
use wire::tcp_option::{TcpOption, TcpOptions, kind};
use wire::{Family, TcpFlags, TcpInfo};

/// Largest shift of a window (RFC 7323 section 2.3).
const MAX_SCALE: u8 = 14;
/// Value in the place of a shift: windows are not scaled.
const NO_SCALE: u32 = 15;
const SCALE_BITS: u32 = 4;
const SACK_PERMITTED: u32 = 1 << SCALE_BITS;
const ECN: u32 = 1 << (SCALE_BITS + 1);
/// Low bits of a timestamp that hold [`Extras`]. Above them is a clock in milliseconds, in
/// steps of 64.
const EXTRA_BITS: u32 = SCALE_BITS + 2;

/// The offers in the control bits and options of a SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Offer {
    /// Largest segment that the sender accepts, bytes.
    pub segment_size: u16,
    /// Its timestamp, if it sends one.
    pub timestamp: Option<u32>,
    pub extras: Extras,
}

/// The offers for which a cookie has no room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Extras {
    /// Shift of the windows that the sender announces, at most 14.
    pub scale: Option<u8>,
    pub sack_permitted: bool,
    /// Explicit congestion notification (RFC 3168 section 6.1.1).
    pub ecn: bool,
}

/// The timestamps of a segment (RFC 7323 section 3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Timestamps {
    pub value: u32,
    pub echo: u32,
}

impl Offer {
    pub fn of(tcp: &TcpInfo, options: &[u8], family: Family) -> Self {
        // RFC 9293 section 3.7.1.
        let segment_size = match family {
            Family::V4 => 536,
            Family::V6 => 1220,
        };
        let ecn = tcp.flags.contains(TcpFlags::ECE.with(TcpFlags::CWR));
        let mut offer =
            Self { segment_size, timestamp: None, extras: Extras { ecn, ..Extras::default() } };
        for TcpOption { kind, body, .. } in TcpOptions::new(options) {
            match (kind, body) {
                (kind::MAX_SEGMENT_SIZE, &[high, low]) => {
                    offer.segment_size = u16::from_be_bytes([high, low]);
                }
                (kind::WINDOW_SCALE, &[shift]) => offer.extras.scale = Some(shift.min(MAX_SCALE)),
                (kind::SACK_PERMITTED, &[]) => offer.extras.sack_permitted = true,
                (kind::TIMESTAMPS, &[a, b, c, d, ..]) => {
                    offer.timestamp = Some(u32::from_be_bytes([a, b, c, d]));
                }
                _ => {}
            }
        }
        offer
    }
}

impl Extras {
    /// The timestamp for an answer. It never goes back, because the clock does not.
    pub fn to_timestamp(self, now: Timestamp) -> u32 {
        let scale = self.scale.map_or(NO_SCALE, u32::from);
        let sack_permitted = if self.sack_permitted { SACK_PERMITTED } else { 0 };
        let ecn = if self.ecn { ECN } else { 0 };
        let clock = (now.as_nanos() / 1_000_000) as u32 >> EXTRA_BITS << EXTRA_BITS;
        clock | scale | sack_permitted | ecn
    }

    /// The offers in the echo of such a timestamp.
    pub const fn of_timestamp(timestamp: u32) -> Self {
        let scale = timestamp & ((1 << SCALE_BITS) - 1);
        Self {
            scale: if scale == NO_SCALE { None } else { Some(scale as u8) },
            sack_permitted: timestamp & SACK_PERMITTED != 0,
            ecn: timestamp & ECN != 0,
        }
    }
}

impl Timestamps {
    pub fn of(options: &[u8]) -> Option<Self> {
        TcpOptions::new(options).find_map(|option| {
            let (kind::TIMESTAMPS, &[a, b, c, d, e, f, g, h]) = (option.kind, option.body) else {
                return None;
            };
            let [value, echo] = [[a, b, c, d], [e, f, g, h]].map(u32::from_be_bytes);
            Some(Self { value, echo })
        })
    }
}
