//! The parts of a gateway that a new process looks at before the state is copied.

use std::sync::Arc;

use fib::LinkId;
use netio::PortId;

use crate::Gateway;
use crate::control::coordinator::Coordinator;
use crate::control::settings_in_force::SettingsInForce;
use crate::path::rules::ruleset::Rules;

/// All that may not change from the offer to the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fixed {
    /// The number of loads of rules, and that of changes of zones.
    pub rules: u32,
    pub zones: u64,
    /// The interface of each port that is open.
    pub open: Vec<Option<LinkId>>,
}

/// Rules and settings at one time. A new process has asked for those of this time, or of a later one.
pub struct Standing {
    pub(super) fixed: Fixed,
    rules: Option<Arc<Rules>>,
    settings: SettingsInForce,
}

impl Gateway {
    /// Rules and settings as they are now.
    pub fn standing(&self) -> Standing {
        let coordinator = self.shared.lock();
        Standing {
            fixed: coordinator.fixed(),
            rules: coordinator.rules.clone(),
            settings: coordinator.settings_in_force(),
        }
    }
}

impl Coordinator {
    pub(super) fn fixed(&self) -> Fixed {
        let links = self.ports.links().into_iter().zip((0..).map(PortId));
        let open = links.map(|(link, port)| link.filter(|_| self.ports.is_up(port)));
        let (rules, zones) = (self.rules_revision, self.zones_revision);
        Fixed { rules, zones, open: open.collect() }
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
