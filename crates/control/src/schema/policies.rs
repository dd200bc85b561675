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

/// A request to explain how a device serves its packets, or one of them.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AskPolicy {
    /// The device.
    pub device: String,
    /// The packet in words, in the notation of `stateway rules explain`.
    #[serde(default)]
    pub packet: Option<String>,
}

/// How a device serves its packets, or one of them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ExplainedPolicy {
    /// Schema version.
    pub schema: u32,
    /// The device.
    pub device: String,
    /// `none`, `bulk`, `cpu`, `latency` or `mix`.
    pub policy: String,
    /// The packet as asked.
    pub packet: Option<String>,
    /// `one` without selectors; `latency_and_bulk`; or `of_former_process` if another process has opened
    /// the queues and its selectors, if it had any, are not known here.
    pub lanes: String,
    /// The selectors, in the order in which they are looked at.
    pub selectors: Vec<ExplainedSelector>,
    /// The service of the packet, or without one that of packets which no selector names: `latency` or
    /// `bulk`. Null if there is one lane, or it is not known.
    pub service: Option<String>,
    /// The workers that poll the device's queues.
    pub workers: Vec<PollingWorker>,
}

/// A selector, and what it says of the packet.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ExplainedSelector {
    /// `latency` or `bulk`.
    pub service: String,
    /// Its conditions.
    pub flows: String,
    /// With a packet: `decides`, `not looked at` behind the one that decides, or the condition that the
    /// packet does not meet: `other protocol`, `other addresses`, `other ports`.
    pub says: Option<String>,
}

/// A worker that polls queues of a device.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PollingWorker {
    /// Its number.
    pub worker: u16,
    /// Its CPU, if it has one of its own.
    pub cpu: Option<usize>,
    /// The policy by which it waits: the strictest of its devices.
    pub waits_by: String,
    /// The devices of which it polls queues and that have this policy.
    pub because_of: Vec<String>,
}
