//! Settings that were changed while the gateway ran.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The settings that are others now than in the configuration with which the gateway was started.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ChangedSettings {
    /// Schema version.
    pub schema: u32,
    /// In the order of their names.
    pub settings: Vec<ChangedSetting>,
    /// The time that is left to the trial of a ruleset, seconds, if there is one.
    #[serde(default)]
    pub trial_s: Option<u64>,
}

/// A setting that was changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangedSetting {
    /// `tunables.NAME`, `gateway.workers`, `gateway.balance` (milliseconds), `zones` (as
    /// [`SetZones`](super::SetZones)) or `interface.NAME.policy`.
    pub name: String,
    /// Its value in the configuration. `null`: one worker for each CPU, or no balancer.
    pub at_start: Value,
    /// Its value now.
    pub now: Value,
}
