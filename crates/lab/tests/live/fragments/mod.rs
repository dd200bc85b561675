//! Datagrams in fragments: what arrives behind the kernel and behind Stateway.

mod batch;
mod differential;
mod model;
mod sequence;
