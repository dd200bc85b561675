//! Policies of devices, changed while the gateway runs.

use netpolicy::Policy;

use crate::control::gateway::Gateway;
use crate::control::worker_handle::Unresponsive;
use crate::worker::command::Command;

/// Why a policy was not set, or not yet for every worker.
#[derive(Debug, thiserror::Error)]
pub enum SetPolicyError {
    /// The gateway has no such device; nothing has changed.
    #[error("the gateway has no device {given:?}; its devices are {}", .devices.join(", "))]
    NoSuchDevice {
        /// The name as given.
        given: String,
        /// The devices that there are.
        devices: Vec<String>,
    },
    /// A worker hangs. The policy is set, and the other workers have it.
    #[error("{0}; the other workers have the policy, and it gets the policy with its next change")]
    Unresponsive(#[from] Unresponsive),
}

impl Gateway {
    /// The devices with their policies, in the order of the configuration.
    pub fn policies(&self) -> Vec<(String, Policy)> {
        let coordinator = self.shared.lock();
        let policies = coordinator.ports.policies();
        coordinator.ports.names().into_iter().zip(policies.iter().copied()).collect()
    }

    /// Sets the policy of a device. Returns the policy before; to set the same again changes
    /// nothing.
    ///
    /// # Errors
    /// [`SetPolicyError`].
    pub fn set_policy(&self, device: &str, policy: Policy) -> Result<Policy, SetPolicyError> {
        let mut coordinator = self.shared.lock();
        let Some(port) = coordinator.ports.find(device) else {
            let (given, devices) = (device.to_owned(), coordinator.ports.names());
            return Err(SetPolicyError::NoSuchDevice { given, devices });
        };
        let before = coordinator.ports.set_policy(port, policy);
        if before != policy {
            let policies = coordinator.ports.policies();
            coordinator.tell_all(|| Command::Policies(policies.clone()))?;
            tracing::info!("{device}: {policy}, was {before}");
        }
        Ok(before)
    }
}
