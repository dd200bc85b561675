//! Changes tunables while the gateway runs, even while a worker hangs.

use flow::{SetTunableError, Tunable};

use crate::control::coordinator::Coordinator;
use crate::control::gateway::Gateway;
use crate::control::worker_handle::Unresponsive;
use crate::path::settings::Settings;
use crate::worker::command::Command;

/// Why a tunable was not changed, or not yet for every worker.
#[derive(Debug, thiserror::Error)]
pub enum ChangeTunableError {
    /// There is no tunable of this name, or the value is out of range; nothing has changed.
    #[error(transparent)]
    Refused(#[from] SetTunableError),
    /// A worker hangs. The value is set and the other workers have it. The worker gets it when it
    /// answers again, and a lower limit takes effect then.
    #[error("{0}; the other workers have the value, and it gets the value when it answers again")]
    Unresponsive(#[from] Unresponsive),
}

impl Gateway {
    /// All tunables with their values.
    pub fn tunables(&self) -> Vec<(&'static Tunable, u64)> {
        let settings = self.shared.lock().config.settings.clone();
        Settings::tunables()
            .filter_map(|tunable| Some((tunable, settings.get(tunable.name)?)))
            .collect()
    }

    /// Changes a tunable for all workers.
    ///
    /// # Errors
    /// [`ChangeTunableError`].
    pub fn set_tunable(&self, name: &str, value: u64) -> Result<(), ChangeTunableError> {
        self.shared.lock().set_tunable(name, value)
    }
}

impl Coordinator {
    fn set_tunable(&mut self, name: &str, value: u64) -> Result<(), ChangeTunableError> {
        self.config.settings.set(name, value)?;
        self.blueprint.limit_pools.apply(&self.config.settings.conntrack);
        self.blueprint.fragment_pools.apply(&self.config.settings.defrag);
        self.spread.settings = true;
        Ok(self.spread_settings().inspect_err(|error| {
            tracing::error!("{name} = {value} has not reached every worker: {error}");
        })?)
    }

    /// Tells all workers the current tunables. If one of them hangs, all are told again when all
    /// answer.
    pub(crate) fn spread_settings(&mut self) -> Result<(), Unresponsive> {
        let settings = self.config.settings.clone();
        self.tell_all(|| Command::Settings(Box::new(settings.clone())))?;
        self.change_limits()?;
        self.spread.settings = false;
        Ok(())
    }
}
