//! The parts of a gateway that a new process asks for before the state is copied.

use std::sync::Arc;

use crate::Gateway;
use crate::control::settings_in_force::SettingsInForce;
use crate::path::rules::ruleset::Rules;

/// Rules and settings at one time. A new process has asked for those of this time, or of a later one.
pub struct Standing {
    /// The number of loads of rules, and that of changes of zones.
    pub(super) revisions: (u32, u64),
    rules: Option<Arc<Rules>>,
    settings: SettingsInForce,
}

impl Gateway {
    /// Rules and settings as they are now.
    pub fn standing(&self) -> Standing {
        let coordinator = self.shared.lock();
        Standing {
            revisions: coordinator.revisions(),
            rules: coordinator.rules.clone(),
            settings: coordinator.settings_in_force(),
        }
    }
}

impl Standing {
    /// True if a gateway has other settings now, or other elements in sets that packets do not change.
    pub fn has_changed(&self, gateway: &Gateway) -> bool {
        let now = gateway.standing();
        // A change of such elements makes other rules.
        let has_same_rules = match (&self.rules, &now.rules) {
            (Some(before), Some(now)) => Arc::ptr_eq(before, now),
            (before, now) => before.is_none() && now.is_none(),
        };
        !has_same_rules || self.settings != now.settings
    }
}
