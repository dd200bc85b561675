//! The time of a node and its peer. It passes with the CPU time of the workers while these work, so
//! that a busy machine does not make more connections due for each packet than a quiet one. It stands
//! still between two turns.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use flow::Timestamp;

/// The clock.
#[derive(Debug)]
pub struct NodeClock(AtomicU64);

impl NodeClock {
    /// A clock that does not show zero, because that means "never" in some places.
    pub fn new() -> Self {
        Self(AtomicU64::new(1_000_000_000))
    }

    /// The time.
    pub fn now(&self) -> Timestamp {
        Timestamp::from_nanos(self.0.load(Ordering::Relaxed))
    }

    /// Lets time pass. It never runs backwards.
    pub fn pass_to(&self, time: Timestamp) {
        self.0.fetch_max(time.as_nanos(), Ordering::Relaxed);
    }

    /// Lets so much time pass.
    pub fn pass(&self, time: Duration) {
        self.pass_to(self.now().after(time));
    }
}

/// Compares the time of a node with passed time.
#[derive(Debug)]
pub struct Comparison {
    began: (Instant, Timestamp),
}

impl Comparison {
    /// Begins now.
    pub fn new(clock: &NodeClock) -> Self {
        Self { began: (Instant::now(), clock.now()) }
    }

    /// About how long this time of the node takes: longer if other programs have the CPUs.
    pub fn wall(&self, clock: &NodeClock, time: Duration) -> Duration {
        const SLOWEST: f64 = 20.0;
        let (wall, node) = (self.began.0.elapsed(), clock.now().since(self.began.1));
        let slowness = wall.as_secs_f64() / node.as_secs_f64().max(1e-6);
        time.mul_f64(slowness.clamp(1.0, SLOWEST))
    }
}
