//! Reassembly from outside: input, output and cost.

mod attacks;
mod fixture;
mod model;
mod phases;
mod properties;
mod semantics;
mod travel;
mod wrap;
