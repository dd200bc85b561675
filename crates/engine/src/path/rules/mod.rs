//! The stages that ask the operator's rules.

pub mod actions;
pub mod journey;
pub mod ruleset;
pub mod stages;
