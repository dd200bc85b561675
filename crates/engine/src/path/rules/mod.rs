//! The stages that ask the operator's rules.

pub mod actions;
pub mod connection;
pub mod hooks;
pub mod rewriting;
pub mod routes;
pub mod ruleset;
pub mod worker_rules;
