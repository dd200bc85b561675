//! The time for which packets gather: a few steps, of which the traffic shows the best one.
//!
//! As in the kernel's dynamic interrupt moderation, more packets a second are better, and with as
//! many packets, fewer batches are. The search goes on in a direction as long as it gets better.

use std::time::Duration;

use flow::Timestamp;

/// The steps, microseconds.
const RUNGS_US: [u64; 7] = [0, 8, 16, 32, 64, 128, 256];
/// The shortest time that is compared with another.
const EPOCH: Duration = Duration::from_millis(20);
/// Traffic that takes longer than this for [`FEWEST_BATCHES`] is no load.
const LONGEST_EPOCH: Duration = Duration::from_secs(1);
/// Fewest batches of an epoch.
const FEWEST_BATCHES: u32 = 64;
/// Percentage by which packets a second differ only by chance.
const PACKET_TOLERANCE: u64 = 3;
/// Percentage by which batches a second differ only by chance.
const BATCH_TOLERANCE: u64 = 10;
/// Percentage by which the traffic changes before the search begins anew.
const CHANGE: u64 = 10;

/// The goal of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Aim {
    /// More packets a second, and with as many, fewer batches: less work for each.
    LessWork,
    /// More packets a second, and with as many, a shorter time. Where requests wait for their
    /// responses, more of them in a second is a shorter delay for each (Little's law). Elsewhere the
    /// time stays at nothing.
    LessDelay,
}

/// The time for which packets gather.
#[derive(Clone, Debug)]
pub(crate) struct Ladder {
    aim: Aim,
    /// The highest rung.
    top: usize,
    /// The longest time, which the highest rung stands for.
    longest: Duration,
    rung: usize,
    course: Course,
    epoch: Option<Epoch>,
}

/// The course of the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Course {
    /// It looks at this rung first.
    Start,
    /// Up, with the best rates so far.
    Up { before: Rates },
    /// Down, with those of the rung above.
    Down { before: Rates },
    /// At its end, with the rates there.
    Parked { at: Option<Rates> },
}

/// An epoch that has not ended.
#[derive(Clone, Copy, Debug)]
struct Epoch {
    began: Timestamp,
    packets: u64,
    batches: u32,
}

/// Rates of an epoch, for each second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rates {
    packets: u64,
    batches: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Better,
    Same,
    Worse,
}

impl Ladder {
    /// A ladder up to this time.
    pub fn new(aim: Aim, longest: Duration) -> Self {
        let lower = RUNGS_US.iter().filter(|&&us| Duration::from_micros(us) < longest).count();
        let top = lower.min(RUNGS_US.len() - 1);
        Self { aim, top, longest, rung: 0, course: Course::Start, epoch: None }
    }

    /// The time for which packets gather now.
    pub fn rung(&self) -> Duration {
        if self.rung == self.top {
            self.longest
        } else {
            Duration::from_micros(RUNGS_US[self.rung])
        }
    }

    /// Notes the packets of a turn, and takes a step at the end of an epoch.
    pub fn note(&mut self, now: Timestamp, packets: u32) {
        // These packets have come since the turn before.
        let Some(epoch) = &mut self.epoch else {
            self.epoch = Some(Epoch { began: now, packets: 0, batches: 0 });
            return;
        };
        epoch.packets += u64::from(packets);
        epoch.batches += 1;
        let time = now.since(epoch.began);
        if time < EPOCH || epoch.batches < FEWEST_BATCHES && time < LONGEST_EPOCH {
            return;
        }
        let rates = epoch.rates(time);
        let is_load = epoch.batches >= FEWEST_BATCHES;
        self.epoch = Some(Epoch { began: now, packets: 0, batches: 0 });
        if is_load {
            self.step(rates);
        } else {
            (self.rung, self.course) = (0, Course::Start);
        }
    }

    fn step(&mut self, rates: Rates) {
        self.course = match self.course {
            Course::Start => self.up(rates),
            Course::Up { before } => match rates.against(&before, self.aim) {
                Verdict::Better => self.up(rates.best(&before)),
                Verdict::Same | Verdict::Worse => self.down(rates),
            },
            Course::Down { before } => match rates.against(&before, self.aim) {
                Verdict::Better | Verdict::Same => self.down(rates),
                Verdict::Worse => {
                    self.rung = (self.rung + 1).min(self.top);
                    Course::Parked { at: None }
                }
            },
            Course::Parked { at: None } => Course::Parked { at: Some(rates) },
            // The traffic changed in the middle of this epoch, so its rates are of no use.
            Course::Parked { at: Some(at) } if rates.is_other(&at) => Course::Start,
            Course::Parked { at } => Course::Parked { at },
        };
    }

    fn up(&mut self, before: Rates) -> Course {
        if self.rung == self.top {
            // The traffic may have been another one on the way up.
            return self.down(before);
        }
        self.rung += 1;
        Course::Up { before }
    }

    fn down(&mut self, before: Rates) -> Course {
        if self.rung == 0 {
            return Course::Parked { at: None };
        }
        self.rung -= 1;
        Course::Down { before }
    }
}

impl Epoch {
    fn rates(&self, time: Duration) -> Rates {
        let each_second = |count: u64| count * 1_000_000 / (time.as_micros() as u64).max(1);
        Rates { packets: each_second(self.packets), batches: each_second(self.batches.into()) }
    }
}

impl Rates {
    fn against(&self, before: &Self, aim: Aim) -> Verdict {
        if is_above(self.packets, before.packets, PACKET_TOLERANCE) {
            Verdict::Better
        } else if is_above(before.packets, self.packets, PACKET_TOLERANCE) {
            Verdict::Worse
        } else if aim == Aim::LessDelay {
            Verdict::Same
        } else if is_above(before.batches, self.batches, BATCH_TOLERANCE) {
            Verdict::Better
        } else if is_above(self.batches, before.batches, BATCH_TOLERANCE) {
            Verdict::Worse
        } else {
            Verdict::Same
        }
    }

    /// The batches now, with the most packets so far: many small losses must not add up.
    fn best(self, before: &Self) -> Self {
        Self { packets: self.packets.max(before.packets), ..self }
    }

    fn is_other(&self, at: &Self) -> bool {
        let differs = |now, then| is_above(now, then, CHANGE) || is_above(then, now, CHANGE);
        differs(self.packets, at.packets) || differs(self.batches, at.batches)
    }
}

/// True if `high` exceeds `low` by more than so many percent.
const fn is_above(high: u64, low: u64, percent: u64) -> bool {
    high.saturating_mul(100) > low.saturating_mul(100 + percent)
}

#[cfg(test)]
#[path = "ladder_tests.rs"]
mod tests;
