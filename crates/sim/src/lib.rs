//! A simulation of two gateways with state sync, in one thread under virtual time: real workers, real
//! sessions, hosts with a real TCP, and links that lose, delay, repeat and change what they carry. A
//! seed decides everything, so each failure can be repeated. docs/internals/simulation.md says more.

mod actions;
mod address;
mod chat;
mod failure;
mod fault;
mod host;
mod hosts;
mod node;
mod order;
mod plan;
mod talk;
mod watch;
mod weather;
mod world;

pub use failure::{Failure, Invariant, Violation};
pub use fault::{Fault, Planted};

use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use world::World;

/// Runs a seed.
///
/// # Errors
/// The first invariant that did not hold.
pub fn run(seed: u64, planted: Planted) -> Result<(), Failure> {
    caught(seed, || World::new(seed, planted, None)?.run(seed))
}

/// Runs seeds on all CPUs, until so many have failed. Returns those in order. All seeds below the
/// last one were run.
pub fn run_all(seeds: std::ops::Range<u64>, planted: Planted, most: usize) -> Vec<Failure> {
    let next = AtomicU64::new(seeds.start);
    let last = AtomicU64::new(seeds.end);
    let work = || {
        let mut failed = Vec::new();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= last.load(Ordering::Relaxed) {
                return failed;
            }
            failed.extend(run(seed, planted).err());
            if failed.len() >= most {
                last.fetch_min(seed, Ordering::Relaxed);
            }
        }
    };
    let workers = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let mut failed: Vec<Failure> = thread::scope(|scope| {
        let threads: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        // A seed that panics has failed, so no thread panics.
        threads.into_iter().flat_map(|it| it.join().unwrap_or_default()).collect()
    });
    failed.sort_by_key(|failure| failure.seed);
    failed.truncate(most);
    failed
}

/// Turns a panic into a failure.
fn caught(seed: u64, run: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|it| (*it).to_owned()));
        let violation = Violation::new(Invariant::NoPanic, text.unwrap_or_default());
        Err(Failure { seed, at: 0, violation, trace: Vec::new() })
    })
}

/// Runs a seed, and tells how it has ended: the same in each run.
pub fn digest(seed: u64) -> String {
    match World::new(seed, Planted::default(), None) {
        Err(failure) => failure.to_string(),
        Ok(mut world) => {
            let result = world.run(seed);
            format!("{result:?} {} {}", world.random.bits(), world.counters())
        }
    }
}

/// Runs a seed, and keeps a trace of its plan and its last events, of so many lines.
///
/// # Errors
/// As for [`run`]; the failure has a trace.
pub fn explain(seed: u64, planted: Planted, lines: usize) -> Result<(), Failure> {
    caught(seed, || World::new(seed, planted, Some(lines))?.run(seed))
}
