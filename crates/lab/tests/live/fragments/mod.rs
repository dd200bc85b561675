//! Fragmented datagrams: what arrives behind the kernel and behind Stateway.

mod again;
mod attacks;
mod batch;
mod differential;
mod memory;
mod model;
mod programs;
mod sequence;
