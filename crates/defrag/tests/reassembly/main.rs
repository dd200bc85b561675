//! Reassembly from outside: input, output and cost.

mod attacks;
mod fixture;
mod model;
mod properties;
mod semantics;
mod stages;
mod travel;
mod wrap;
