//! The date and the time of day, which rules may ask for. Time is an argument below the engine, so
//! the engine says how far the clock on the wall is ahead of it.

use std::sync::atomic::{AtomicI64, Ordering};

use flow::Timestamp;

use crate::field::ClockField;

/// Seconds of a day.
const DAY: i64 = 86_400;
/// The day of the week of 1970-01-01: a Thursday, where Sunday is 0.
const FIRST_WEEKDAY: i64 = 4;
const NANOS: i64 = 1_000_000_000;
/// The value of a clock that nobody has set.
const UNSET: i64 = i64::MIN;

/// The clock on the wall. All workers read it, and it is set when it has changed.
#[derive(Debug)]
pub(super) struct WallClock {
    /// Nanoseconds from the time of packets to the time since 1970-01-01 00:00:00 UTC.
    ahead: AtomicI64,
    /// Seconds that the local time is ahead of UTC.
    zone: AtomicI64,
}

impl Default for WallClock {
    fn default() -> Self {
        Self { ahead: AtomicI64::new(UNSET), zone: AtomicI64::new(0) }
    }
}

impl WallClock {
    pub fn set(&self, ahead_ns: i64, zone_s: i32) {
        self.zone.store(zone_s.into(), Ordering::Relaxed);
        self.ahead.store(ahead_ns, Ordering::Relaxed);
    }

    /// The value of a field; `None` if nobody has set the clock. The date and the time of day are
    /// local, as nft writes them. The day of the week is that of UTC, as in the kernel.
    pub fn value(&self, field: ClockField, now: Timestamp) -> Option<u128> {
        let ahead = Some(self.ahead.load(Ordering::Relaxed)).filter(|ahead| *ahead != UNSET)?;
        let zone = self.zone.load(Ordering::Relaxed);
        let now = i64::try_from(now.as_nanos()).ok()?.checked_add(ahead)?;
        let local = now.checked_add(zone * NANOS)?;
        Some(match field {
            ClockField::Date => u128::try_from(local).ok()?,
            ClockField::Hour => local.div_euclid(NANOS).rem_euclid(DAY) as u128,
            ClockField::Day => (now.div_euclid(NANOS * DAY) + FIRST_WEEKDAY).rem_euclid(7) as u128,
        })
    }
}

#[cfg(test)]
#[path = "../wall_tests.rs"]
mod tests;
