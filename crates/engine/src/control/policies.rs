//! Policies of devices, changed while the gateway runs.

use netio::PortId;
use netpolicy::Policy;
use steer::WorkerId;

use crate::control::gateway::Gateway;
use crate::control::port_book::PortBook;
use crate::control::ports::OpenSelectors;
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

/// How the packets of a device are served.
#[derive(Clone, Debug)]
pub struct DeviceService {
    /// Its name.
    pub device: String,
    /// Its policy.
    pub policy: Policy,
    /// The selectors that divide its packets.
    pub selectors: OpenSelectors,
    /// The workers that poll its queues, in order.
    pub pollers: Vec<WorkerId>,
}

impl Gateway {
    /// How the packets of a device are served now.
    ///
    /// # Errors
    /// [`SetPolicyError::NoSuchDevice`].
    pub fn device_service(&self, device: &str) -> Result<DeviceService, SetPolicyError> {
        let ports = &self.shared.lock().ports;
        let port = find(ports, device)?;
        Ok(DeviceService {
            device: device.to_owned(),
            policy: ports.policies()[usize::from(port.0)],
            selectors: ports.selectors_of(port),
            pollers: ports.pollers_of(port).into_iter().collect(),
        })
    }

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
        let port = find(&coordinator.ports, device)?;
        let before = coordinator.ports.set_policy(port, policy);
        if before != policy {
            let policies = coordinator.ports.policies();
            coordinator.tell_all(|| Command::Policies(policies.clone()))?;
            tracing::info!("{device}: {policy}, was {before}");
        }
        Ok(before)
    }
}

fn find(ports: &PortBook, device: &str) -> Result<PortId, SetPolicyError> {
    ports.find(device).ok_or_else(|| {
        let (given, devices) = (device.to_owned(), ports.names());
        SetPolicyError::NoSuchDevice { given, devices }
    })
}
