//! The time of a node and its peer. It passes with the CPU time of the workers while these work, so
//! that a busy machine does not make more connections due for each packet than a quiet one. It stands
//! still between two turns.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use flow::Timestamp;

/// Two clocks: that of the workers, and that of the session. Work that is left when the workers are done
/// takes time of the session only, or connections would become due because a machine is slow.
#[derive(Debug)]
pub struct NodeClock {
    /// Time of the workers, nanoseconds.
    worked: AtomicU64,
    /// By so much the clock of the session is ahead.
    ahead: AtomicU64,
}

impl NodeClock {
    /// Clocks that do not show zero, because that means "never" in some places.
    pub fn new() -> Self {
        Self { worked: AtomicU64::new(1_000_000_000), ahead: AtomicU64::new(0) }
    }

    /// The time of the workers.
    pub fn now(&self) -> Timestamp {
        Timestamp::from_nanos(self.worked.load(Ordering::Relaxed))
    }

    /// The time of the session.
    pub fn session(&self) -> Timestamp {
        self.now().after(Duration::from_nanos(self.ahead.load(Ordering::Relaxed)))
    }

    /// Lets time pass for both. It never runs backwards.
    pub fn pass_to(&self, time: Timestamp) {
        self.worked.fetch_max(time.as_nanos(), Ordering::Relaxed);
    }

    /// Lets so much time pass for both.
    pub fn pass(&self, time: Duration) {
        self.pass_to(self.now().after(time));
    }

    /// Lets so much time pass for the session.
    pub fn pass_at_rest(&self, time: Duration) {
        self.ahead.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
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
        Self { began: (Instant::now(), clock.session()) }
    }

    /// About how long this time of the node takes: longer if other programs have the CPUs.
    pub fn wall(&self, clock: &NodeClock, time: Duration) -> Duration {
        const SLOWEST: f64 = 20.0;
        let (wall, node) = (self.began.0.elapsed(), clock.session().since(self.began.1));
        let slowness = wall.as_secs_f64() / node.as_secs_f64().max(1e-6);
        time.mul_f64(slowness.clamp(1.0, SLOWEST))
    }
}
