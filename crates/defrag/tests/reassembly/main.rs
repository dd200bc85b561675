//! Reassembly from outside: input, output and cost.

mod attacks;
mod fixture;
mod migration;
mod model;
mod phases;
mod properties;
mod semantics;
mod wrap;
