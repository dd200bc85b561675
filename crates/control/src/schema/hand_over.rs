//! The gateway hands over to a new process.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The new process that is to take over.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Upgrade {
    /// The program, an absolute path.
    pub program: PathBuf,
    /// It may have other rules than those that are in force.
    #[serde(default)]
    pub other_rules: bool,
}

/// A new process has taken over.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HandedOver {
    /// Schema version.
    pub schema: u32,
    /// Number of the new process.
    pub process: u32,
    /// Connections that go on there.
    pub connections: u64,
    /// Time in which they were copied while packets were forwarded, seconds.
    pub copied_s: f64,
    /// Time in which nothing was forwarded, milliseconds.
    pub frozen_ms: f64,
    /// Settings and elements that the new process does not have, each with the reason.
    #[serde(default)]
    pub not_carried: Vec<String>,
}
