//! The simulation catches each planted fault within 500 seeds, by an invariant that names it.

#![cfg(feature = "faults")]

use sim::Invariant::{self, *};
use sim::{Fault, Planted, run};

/// Seeds within which each fault has to show.
const SEEDS: u64 = 500;

/// The first seed that shows a fault shows it by one of these.
fn caught(fault: Fault, by: &[Invariant]) {
    let failing = (1..=SEEDS).find_map(|seed| run(seed, Planted(Some(fault))).err());
    let failure = failing.unwrap_or_else(|| panic!("no seed of {SEEDS} shows {fault:?}"));
    println!("{fault:?}: {failure}");
    assert!(by.contains(&failure.violation.invariant), "{fault:?} is caught otherwise: {failure}");
}
