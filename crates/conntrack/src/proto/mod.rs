//! One tracker for each protocol.

pub mod tcp;
