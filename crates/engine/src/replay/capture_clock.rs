//! The clock of a replay, driven by the time stamps of a capture.

/// The latest time, nanoseconds since 1970: the year 2262. Timers that are set then still fit. A
/// later time stamp is damaged and is ignored.
const LATEST: u64 = 1 << 63;
/// The time by which a packet may be behind others, nanoseconds. Packets of several queues or
/// interfaces are not quite in order.
const DISORDER: u64 = 1_000_000_000;

/// A clock that never runs backwards and does not stand still for long.
///
/// If the clock of the capturing host was set back, all later packets are behind. After
/// [`DISORDER`] of their own time, this clock goes on with them. If it waited for them to catch
/// up, no connection would end and no limit would recover for as long as the clock was set back.
#[derive(Debug, Default)]
pub struct CaptureClock {
    now: u64,
    /// The difference between this clock and the time stamps, nanoseconds.
    shift: u64,
    /// The earliest time of the packets that are behind now; `None` if the last packet was not
    /// behind.
    behind_since: Option<u64>,
}

impl CaptureClock {
    /// The time now, nanoseconds.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// The time at which a packet with this time stamp is played.
    pub fn tick(&mut self, stamp: u64) -> u64 {
        if stamp > LATEST {
            return self.now;
        }
        let time = (stamp + self.shift).min(LATEST);
        if time + DISORDER >= self.now {
            self.behind_since = None;
            self.now = self.now.max(time);
            return self.now;
        }
        let since = self.behind_since.map_or(time, |since| since.min(time));
        self.behind_since = Some(since);
        if time - since > DISORDER {
            self.behind_since = None;
            self.shift += self.now - time;
        }
        self.now
    }
}

#[cfg(test)]
#[path = "capture_clock_tests.rs"]
mod tests;
