//! Reassembly from outside: what goes in, what comes out, what it costs.

mod attacks;
mod fixture;
mod model;
mod properties;
mod semantics;
mod stages;
mod travel;
mod wrap;
