//! The plan that the balancer makes.

use std::fmt;

use crate::{BucketId, BucketMove, WorkerId};

/// The moves of one round and their effect. Prints as a report.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The moves, in the order in which to make them.
    pub moves: Vec<Move>,
    /// The loads before the moves.
    pub before: Spread,
    /// The loads after the moves, if the work stays the same.
    pub after: Spread,
    /// How many workers the load calls for at the target load. The balancer does
    /// not start or stop workers.
    pub wanted_workers: usize,
}

/// A move with its reason.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Move {
    /// The change of owner.
    pub change: BucketMove,
    /// Load of the bucket, a fraction of one worker's time.
    pub load: f64,
    /// The reason.
    pub reason: MoveReason,
}

/// Why a bucket moves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MoveReason {
    /// Its owner may own no buckets any more.
    NotAllowed,
    /// Its owner carries more than the fair level.
    Overloaded {
        /// Load of the owner when the move was chosen.
        load: f64,
        /// The fair level.
        level: f64,
    },
    /// Its owner carries a bucket that alone is above the fair level.
    Elephant {
        /// That bucket.
        bucket: BucketId,
        /// Its load.
        load: f64,
    },
}

/// The distribution of the load over the workers that may own buckets.
#[derive(Clone, Debug, PartialEq)]
pub struct Spread {
    /// Load of each worker, a fraction of its time. In [`Plan::after`] it can pass 1, because
    /// the workers that must give up their buckets add their load.
    pub loads: Vec<(WorkerId, f64)>,
    /// The level that all workers without an elephant would share.
    pub level: f64,
    /// The largest load that one worker carries and that could be elsewhere.
    pub excess: f64,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "before: {}", self.before)?;
        for step in &self.moves {
            writeln!(f, "  {step}")?;
        }
        if self.moves.is_empty() {
            writeln!(f, "  nothing to move")?;
        } else {
            writeln!(f, "after:  {}", self.after)?;
        }
        write!(f, "workers wanted at the target load: {}", self.wanted_workers)
    }
}

impl fmt::Display for Move {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { change: BucketMove { bucket, from, to }, load, reason } = self;
        write!(f, "{bucket} ({}) from {from} to {to}: {reason}", Percent(*load))
    }
}

impl fmt::Display for MoveReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NotAllowed => f.write_str("its owner may own no buckets"),
            Self::Overloaded { load, level } => {
                write!(f, "its owner carries {}, the level is {}", Percent(load), Percent(level))
            }
            Self::Elephant { bucket, load } => {
                write!(f, "makes way for {bucket} ({}), which can not be split", Percent(load))
            }
        }
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (worker, load) in &self.loads {
            write!(f, "{worker} {}, ", Percent(*load))?;
        }
        write!(f, "level {}, excess {}", Percent(self.level), Percent(self.excess))
    }
}

struct Percent(f64);

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} %", self.0 * 100.0)
    }
}
