//! The time of a replay, made of the time stamps of a capture.

/// Latest time, nanoseconds since 1970: the year 2262. What is scheduled then has its time still;
/// a later time stamp is damaged and says nothing.
const LATEST: u64 = 1 << 63;
/// How far behind others a packet of a capture may be, nanoseconds: those of several queues or
/// interfaces are not quite in order.
const DISORDER: u64 = 1_000_000_000;

/// A clock that never runs backwards, whatever a capture says, and that does not stand still for
/// long.
///
/// When the clock of the capturing host was set back, all packets from there on are behind. After
/// [`DISORDER`] of their own time they are taken for what they are, and time goes on with them: a
/// clock that waited until they had caught up would keep connections from ending and limits from
/// recovering for as long as the clock was set back.
#[derive(Debug, Default)]
pub struct CaptureClock {
    now: u64,
    /// What is added to time stamps.
    shift: u64,
    /// The first of the packets that are behind, if the last was.
    behind_since: Option<u64>,
}

impl CaptureClock {
    /// The time now, nanoseconds.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// The time at which a packet is played that has this time stamp.
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
