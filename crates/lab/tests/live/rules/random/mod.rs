//! Comparison of our rules with the kernel's: the same ruleset and the same packets must give the
//! same outcomes and the same counters.

mod connections;
mod differences;
mod generate;
mod kernel;
mod stateway;
mod translation;

use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use lab::Result;

use self::differences::differences;
use self::generate::{Traffic, case};
use self::kernel::Kernel;
use crate::scenario::{beside_others, seeds};

/// The number of cases of each kind, unless `STATEWAY_SEEDS` gives another.
const SEEDS: u64 = 700;
/// The number of differences that a failure lists.
const MOST_LISTED: usize = 3;
/// The number of cases that a namespace gets at a time.
const BATCH: u64 = 20;

#[test]
fn packets_are_judged_and_counted_as_by_the_kernel() {
    beside_others(|| compare(Traffic::Stateless));
}

#[test]
fn tracked_packets_are_judged_and_counted_as_by_the_kernel() {
    beside_others(|| compare(Traffic::Tracked));
}

#[test]
fn packets_are_translated_as_the_kernel_translates_them() {
    beside_others(|| compare(Traffic::Translated));
}

/// The cases and their results.
struct Comparison {
    traffic: Traffic,
    seeds: std::ops::Range<u64>,
    next: AtomicU64,
    packets: AtomicU64,
    passed: AtomicU64,
    failures: Mutex<Vec<String>>,
    is_over: AtomicBool,
}

impl Comparison {
    /// Runs batches of cases until none is left.
    fn take(&self, cpu: usize) -> Result<()> {
        let kernel = Kernel::new(cpu)?;
        while !self.is_over.load(Ordering::Relaxed) {
            let first = self.next.fetch_add(BATCH, Ordering::Relaxed);
            let batch = first..(first + BATCH).min(self.seeds.end);
            if batch.is_empty() {
                break;
            }
            let cases: Vec<_> = batch.clone().map(|seed| case(seed, self.traffic)).collect();
            let outcomes = kernel.run(&cases)?;
            assert_eq!(outcomes.len(), cases.len());
            for ((seed, case), outcome) in batch.zip(&cases).zip(&outcomes) {
                let Some(differences) = differences(case, outcome, self.traffic) else { continue };
                let passed = outcome.answers.iter().filter(|answer| answer.out.is_some()).count();
                self.packets.fetch_add(outcome.answers.len() as u64, Ordering::Relaxed);
                self.passed.fetch_add(passed as u64, Ordering::Relaxed);
                if !differences.is_empty() {
                    let mut failures = self.failures.lock().expect("nobody panics");
                    failures.push(format!("seed {seed}:\n{differences}\n{}", outcome.rules));
                    self.is_over.fetch_or(failures.len() >= MOST_LISTED, Ordering::Relaxed);
                }
            }
        }
        Ok(())
    }
}

fn compare(traffic: Traffic) -> Result<()> {
    let seeds = seeds(SEEDS);
    let comparison = Comparison {
        traffic,
        next: AtomicU64::new(seeds.start),
        seeds,
        packets: AtomicU64::new(0),
        passed: AtomicU64::new(0),
        failures: Mutex::default(),
        is_over: AtomicBool::new(false),
    };
    // The kernel makes a process that changes its rules wait, so there are more players than CPUs.
    let players = 2 * thread::available_parallelism().map_or(1, NonZero::get);
    thread::scope(|scope| {
        let comparison = &comparison;
        let players: Vec<_> =
            (0..players).map(|cpu| scope.spawn(move || comparison.take(cpu))).collect();
        players.into_iter().try_for_each(|player| player.join().expect("it does not panic"))
    })?;
    let Comparison { packets, passed, failures, .. } = comparison;
    let (packets, passed) = (packets.into_inner(), passed.into_inner());
    println!("{packets} packets, {passed} of them passed");
    let failures = failures.into_inner().expect("nobody panics");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    // If all packets passed or none, the cases would show nothing. Translated traffic passes
    // mostly, because only a packet that passes shows its translation.
    let most =
        if traffic == Traffic::Translated { packets - packets / 200 } else { packets / 10 * 9 };
    assert!(passed > packets / 10 && passed < most, "{passed} of {packets} passed");
    Ok(())
}
