//! Policies of the gateway's devices.

use serde::{Deserialize, Serialize};

/// The devices of the gateway with their policies.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Policies {
    /// Schema version.
    pub schema: u32,
    /// In the order of the configuration.
    pub devices: Vec<DevicePolicy>,
}

/// A device with its policy. It is also the request to set that.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DevicePolicy {
    /// Its name.
    pub device: String,
    /// `none`, `bulk`, `cpu`, `latency` or `mix`.
    pub policy: String,
}
