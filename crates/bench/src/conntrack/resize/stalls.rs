//! The times that packets took, as counts for classes of time.

use std::sync::atomic::{AtomicU64, Ordering};

/// Classes for each doubling of time, so that a figure is right within an eighth.
const PER_DOUBLING: u64 = 8;
/// The classes cover 2^40 ns, 18 minutes.
const CLASSES: usize = 40 * PER_DOUBLING as usize;

/// The times of a phase. Any thread may add.
pub struct Stalls {
    counts: Vec<AtomicU64>,
    worst_ns: AtomicU64,
    worst_turn_ns: AtomicU64,
    /// CPU time of all turns, and the time that passed in them.
    turns_ns: [AtomicU64; 2],
}

impl Default for Stalls {
    fn default() -> Self {
        Self {
            counts: (0..CLASSES).map(|_| AtomicU64::new(0)).collect(),
            worst_ns: AtomicU64::new(0),
            worst_turn_ns: AtomicU64::new(0),
            turns_ns: Default::default(),
        }
    }
}

impl Stalls {
    /// Counts a packet that took so long.
    pub fn packet(&self, took_ns: u64) {
        self.counts[class(took_ns)].fetch_add(1, Ordering::Relaxed);
        self.worst_ns.fetch_max(took_ns, Ordering::Relaxed);
    }

    /// Counts a turn of a worker with its CPU time and its time.
    pub fn turn(&self, cpu_ns: u64, passed_ns: u64) {
        self.worst_turn_ns.fetch_max(cpu_ns, Ordering::Relaxed);
        self.turns_ns[0].fetch_add(cpu_ns, Ordering::Relaxed);
        self.turns_ns[1].fetch_add(passed_ns, Ordering::Relaxed);
    }

    /// The number of packets.
    pub fn packets(&self) -> u64 {
        self.counts.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// The longest that a packet took.
    pub fn worst_ns(&self) -> u64 {
        self.worst_ns.load(Ordering::Relaxed)
    }

    /// CPU time of the longest turn.
    pub fn worst_turn_ns(&self) -> u64 {
        self.worst_turn_ns.load(Ordering::Relaxed)
    }

    /// The part of a CPU that the workers got.
    pub fn cpu_share(&self) -> f64 {
        let [cpu, passed] = [0, 1].map(|at| self.turns_ns[at].load(Ordering::Relaxed) as f64);
        (cpu / passed.max(1.0)).min(1.0)
    }

    /// The time that this part of the packets did not exceed.
    pub fn quantile_ns(&self, part: f64) -> u64 {
        let wanted = (self.packets() as f64 * part).ceil() as u64;
        let mut seen = 0;
        let reached = |count: &AtomicU64| {
            seen += count.load(Ordering::Relaxed);
            seen >= wanted
        };
        self.counts.iter().position(reached).map_or(0, upper).min(self.worst_ns())
    }
}

/// Each number below 8 is a class; above, a class has the leading bit and the three bits behind it
/// in common.
fn class(ns: u64) -> usize {
    let doubling = ns.max(PER_DOUBLING).ilog2() - PER_DOUBLING.ilog2();
    let class = u64::from(doubling) * PER_DOUBLING + (ns >> doubling);
    (class as usize).min(CLASSES - 1)
}

/// The longest time of a class.
fn upper(class: usize) -> u64 {
    let class = class as u64;
    let doubling = (class / PER_DOUBLING).saturating_sub(1);
    ((class - doubling * PER_DOUBLING + 1) << doubling) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_ends_where_the_next_begins() {
        for ns in (0..5000).chain([1 << 20, (1 << 33) + 12345]) {
            let class = class(ns);
            assert!(ns <= upper(class), "{ns}");
            assert!(class == 0 || ns > upper(class - 1), "{ns}");
            assert!(upper(class) - ns <= ns / 8, "{ns}");
        }
    }

    #[test]
    fn quantiles_are_right_within_an_eighth() {
        let stalls = Stalls::default();
        assert_eq!(stalls.quantile_ns(0.5), 0);
        (1..=1000).for_each(|us| stalls.packet(us * 1000));
        let close = |part: f64, wanted: f64| {
            let found = stalls.quantile_ns(part) as f64;
            assert!((wanted..wanted * 1.13).contains(&found), "{found} for {wanted}");
        };
        close(0.5, 500_000.0);
        close(0.999, 999_000.0);
        assert_eq!(stalls.quantile_ns(1.0), 1_000_000);
        assert_eq!((stalls.packets(), stalls.worst_ns()), (1000, 1_000_000));
    }
}
