//! The settings that may change while the gateway runs, as they were at its start and as they are now.

use std::time::Duration;

use netpolicy::Policy;

use crate::Gateway;
use crate::control::config::{Config, WorkerCount};
use crate::control::coordinator::Coordinator;
use crate::control::port_book::PortBook;
use crate::control::zone_changes::ZoneBook;
use crate::path::settings::Settings;

/// Settings that may change while the gateway runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingsInForce {
    /// All tunables with their values.
    pub tunables: Vec<(&'static str, u64)>,
    /// The zones.
    pub zones: ZoneBook,
    /// The number of workers.
    pub workers: WorkerCount,
    /// The interval at which the balancer runs; `None`: never.
    pub balance: Option<Duration>,
    /// How workers wait for the packets of each port.
    pub policies: Vec<Policy>,
}

impl SettingsInForce {
    /// Those of a configuration whose zones have been changed so often.
    pub(super) fn new(config: &Config, ports: &PortBook, zones: u64) -> Self {
        let value = |name: &'static str| Some((name, config.settings.get(name)?));
        Self {
            tunables: Settings::tunables().filter_map(|it| value(it.name)).collect(),
            zones: ZoneBook {
                revision: zones,
                timeout_policies: config.timeout_policies.clone(),
                zones: config.zones.clone(),
            },
            workers: config.workers,
            balance: config.balance,
            policies: ports.policies().to_vec(),
        }
    }
}

impl Gateway {
    /// The settings of the configuration that the gateway was started with.
    pub fn settings_at_start(&self) -> SettingsInForce {
        self.shared.lock().settings_at_start.clone()
    }

    /// The settings as they are now.
    pub fn settings_in_force(&self) -> SettingsInForce {
        self.shared.lock().settings_in_force()
    }
}

impl Coordinator {
    /// The settings as they are now.
    pub fn settings_in_force(&self) -> SettingsInForce {
        let Self { config, ports, zones_revision, .. } = self;
        SettingsInForce::new(config, ports, *zones_revision)
    }
}
