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

use world::World;

/// Runs a seed.
///
/// # Errors
/// The first invariant that did not hold.
pub fn run(seed: u64, planted: Planted) -> Result<(), Failure> {
    World::new(seed, planted, None)?.run(seed)
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
    World::new(seed, planted, Some(lines))?.run(seed)
}
