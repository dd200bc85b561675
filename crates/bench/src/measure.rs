//! Measuring: pinned threads, rounds in turns, medians with spread.
//!
//! Rates are per second of the threads' CPU time. Otherwise a benchmark would measure other
//! programs too, which share its CPUs. On a quiet machine CPU time and elapsed time are the same,
//! and [`Turn::share`] says how quiet it was. So no measured code may sleep: the locks of the
//! baselines spin, as those of a kernel do.

use std::fmt::{self, Display};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use netio::{clock, cpu};
use serde::Serialize;

use crate::{Error, Options};

/// Median, least and greatest of several rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    /// Half of the rounds were below it.
    pub median: f64,
    /// The lowest figure.
    pub min: f64,
    /// The highest figure.
    pub max: f64,
}

impl Spread {
    /// The spread of a list of figures; zeros for an empty one.
    pub fn of(mut figures: Vec<f64>) -> Self {
        figures.sort_by(f64::total_cmp);
        match figures.as_slice() {
            [] => Self::default(),
            [min, .., max] => Self { median: median(&figures), min: *min, max: *max },
            [one] => Self { median: *one, min: *one, max: *one },
        }
    }

    /// The same in another unit.
    #[must_use]
    pub fn scaled(self, by: f64) -> Self {
        Self { median: self.median * by, min: self.min * by, max: self.max * by }
    }
}

fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 {
        sorted[middle]
    } else {
        f64::midpoint(sorted[middle - 1], sorted[middle])
    }
}

/// Number and length of the turns of each variant.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    /// Rounds that count; one more before them warms up.
    pub rounds: usize,
    /// Length of one turn of one variant.
    pub turn: Duration,
}

impl Schedule {
    /// Five rounds for figures, or two to see that everything works.
    pub fn of(options: Options) -> Self {
        if options.quick {
            Self { rounds: 2, turn: Duration::from_millis(10) }
        } else {
            Self { rounds: 5, turn: Duration::from_millis(200) }
        }
    }
}

/// Work that one thread can repeat.
pub trait Work: Send {
    /// Does a batch and returns its number of units.
    fn batch(&mut self) -> u64;
}

/// The result of one turn of a variant.
#[derive(Clone, Copy, Debug, Default)]
pub struct Turn {
    /// Units per second of CPU time, of all threads together.
    pub rate: f64,
    /// CPU time over elapsed time of the thread that got the least, at most 1.
    pub share: f64,
}

/// Runs all `works` at once for `time`, each on a CPU of its own.
pub fn turn(works: &mut [&mut dyn Work], cpus: &[usize], time: Duration) -> Result<Turn, Error> {
    let (ready, over) = (Barrier::new(works.len()), AtomicBool::new(false));
    let (ready, over) = (&ready, &over);
    let results: Vec<Result<Turn, Error>> = std::thread::scope(|scope| {
        let threads: Vec<_> = works
            .iter_mut()
            .zip(cpus)
            .map(|(work, &cpu)| scope.spawn(move || one(*work, cpu, time, ready, over)))
            .collect();
        let panicked =
            || Error::Wrong { benchmark: "measuring", problem: "a thread panicked".into() };
        threads.into_iter().map(|thread| thread.join().map_err(|_| panicked())?).collect()
    });
    let mut sum = Turn { rate: 0.0, share: 1.0 };
    for result in results {
        let Turn { rate, share } = result?;
        sum = Turn { rate: sum.rate + rate, share: sum.share.min(share) };
    }
    Ok(sum)
}

fn one(
    work: &mut dyn Work,
    cpu: usize,
    time: Duration,
    ready: &Barrier,
    over: &AtomicBool,
) -> Result<Turn, Error> {
    /// Batches between two looks at the clock.
    const STRIDE: usize = 16;
    let pinned = cpu::pin_current_thread(cpu);
    // The thread meets the barrier in any case, or the others would wait for ever.
    ready.wait();
    pinned.map_err(|source| Error::System { what: "can not pin a thread", source })?;
    let (begun, used) = (Instant::now(), clock::thread_nanoseconds());
    let mut done = 0;
    // The first thread to finish ends the turn, so that all counted work was done while the others
    // were at work.
    while begun.elapsed() < time && !over.load(Ordering::Relaxed) {
        for _ in 0..STRIDE {
            done += work.batch();
        }
    }
    over.store(true, Ordering::Relaxed);
    let used = (clock::thread_nanoseconds() - used).max(1) as f64;
    let passed = begun.elapsed().as_nanos().max(1) as f64;
    Ok(Turn { rate: done as f64 * 1e9 / used, share: (used / passed).min(1.0) })
}

/// Runs variants in turns, so that all of them meet the same conditions, and returns the rounds of
/// each. The first round does not count.
pub fn rounds<T: Clone>(
    schedule: Schedule,
    variants: usize,
    mut turn: impl FnMut(usize) -> Result<T, Error>,
) -> Result<Vec<Vec<T>>, Error> {
    let mut turns = vec![Vec::with_capacity(schedule.rounds); variants];
    for round in 0..=schedule.rounds {
        for (variant, turns) in turns.iter_mut().enumerate() {
            let result = turn(variant)?;
            if round > 0 {
                turns.push(result);
            }
        }
    }
    Ok(turns)
}

/// Spread of the rates.
pub fn rates(turns: &[Turn]) -> Spread {
    Spread::of(turns.iter().map(|turn| turn.rate).collect())
}

/// Spread of the ratios of turns in the same rounds.
pub fn ratios(of: &[Turn], to: &[Turn]) -> Spread {
    Spread::of(of.iter().zip(to).map(|(of, to)| of.rate / to.rate).collect())
}

/// The smallest share of a CPU that a thread had in any of the rounds.
pub fn least_share(turns: &[Vec<Turn>]) -> f64 {
    turns.iter().flatten().map(|turn| turn.share).fold(1.0, f64::min)
}

/// The report of a benchmark.
pub trait Findings: Display + Serialize {
    /// The smallest share of a CPU that a measured thread had, 0 to 1.
    fn cpu_share(&self) -> f64;
}

/// The share of a CPU below which figures are not to be trusted. Rates per second of CPU time leave
/// out the time that other programs had the CPU, but not their effect on its caches.
const QUIET: f64 = 0.9;

/// A warning that the machine was not quiet during the measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Noise {
    cpu_share: f64,
}

impl Noise {
    /// The warning; `None` if the threads had their CPUs nearly for themselves.
    pub fn of(cpu_share: f64) -> Option<Self> {
        (cpu_share < QUIET).then_some(Self { cpu_share })
    }
}

impl Display for Noise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "warning: NOT A QUIET MACHINE: a measured thread had {:.0} % of its CPU in one of the \
             turns (less than {:.0} %), the rest went to other programs or other virtual machines. \
             Do not quote these figures, least of all ratios of two threads to one; end what else \
             runs and measure again",
            // Rounded down, so that a share just below the limit does not look like the limit.
            (self.cpu_share * 100.0).floor(),
            QUIET * 100.0
        )
    }
}

/// The CPUs to measure on: two, or one if there are no more.
pub fn cpus() -> Result<Vec<usize>, Error> {
    let cpus = engine::system_cpus();
    if cpus.is_empty() {
        let source = std::io::Error::other("the system names none");
        return Err(Error::System { what: "no CPU to measure on", source });
    }
    Ok(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_ends() {
        assert_eq!(Spread::of(vec![]), Spread::default());
        assert_eq!(Spread::of(vec![2.0]), Spread { median: 2.0, min: 2.0, max: 2.0 });
        let even = Spread::of(vec![4.0, 1.0, 3.0, 2.0]);
        assert_eq!(even, Spread { median: 2.5, min: 1.0, max: 4.0 });
        assert_eq!(Spread::of(vec![9.0, 1.0, 2.0]).median, 2.0);
    }

    #[test]
    fn a_measurement_without_a_cpu_of_its_own_warns() {
        assert_eq!(Noise::of(1.0), None);
        assert_eq!(Noise::of(0.9), None);
        let warning = Noise::of(0.634).unwrap().to_string();
        assert!(warning.starts_with("warning: ") && warning.contains("63 %"), "{warning}");
    }

    #[test]
    fn variants_take_turns_and_the_first_round_does_not_count() {
        let schedule = Schedule { rounds: 2, turn: Duration::ZERO };
        let mut order = Vec::new();
        let turns = rounds(schedule, 3, |variant| {
            order.push(variant);
            Ok(Turn { rate: order.len() as f64, share: 1.0 })
        })
        .unwrap();
        assert_eq!(order, [0, 1, 2, 0, 1, 2, 0, 1, 2]);
        assert_eq!(turns.iter().map(|turns| turns[0].rate).collect::<Vec<_>>(), [4.0, 5.0, 6.0]);
        assert_eq!(ratios(&turns[1], &turns[0]).max, 5.0 / 4.0);
    }

    #[test]
    fn a_turn_counts_what_every_thread_did() {
        struct Busy(u64);
        impl Work for Busy {
            fn batch(&mut self) -> u64 {
                self.0 += 3;
                3
            }
        }
        let mut busy = [Busy(0), Busy(0)];
        let [a, b] = &mut busy;
        let cpu = cpus().unwrap()[0];
        let turn = turn(&mut [a, b], &[cpu, cpu], Duration::from_millis(2)).unwrap();
        assert!(turn.rate > 0.0 && (0.0..=1.0).contains(&turn.share));
        assert!(busy.iter().any(|busy| busy.0 > 0));
    }
}
