//! All tunables of the gateway in one place.

use flow::{SetTunableError, Tunable};
use netpolicy::WaitSettings;
use steer::SteerSettings;

/// The settings that can be changed while the gateway runs, under the kernel's names.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Connection tracking.
    pub conntrack: conntrack::Settings,
    /// Reassembly.
    pub defrag: defrag::Settings,
    /// Next hops.
    pub next_hops: fib::Settings,
    /// Policies of interfaces.
    pub waits: WaitSettings,
    /// Steering.
    pub steer: SteerSettings,
}

impl Settings {
    /// All tunables, tracking first.
    pub fn tunables() -> impl Iterator<Item = &'static Tunable> {
        conntrack::Settings::tunables()
            .chain(defrag::Settings::tunables())
            .chain(fib::Settings::tunables())
            .chain(steer::TUNABLES)
            .chain(WaitSettings::tunables())
    }

    /// The value of a tunable; `None` if there is none of that name.
    pub fn get(&self, name: &str) -> Option<u64> {
        let Self { conntrack, defrag, next_hops, waits, steer } = self;
        let found = conntrack.get(name).or_else(|| defrag.get(name));
        found
            .or_else(|| next_hops.get(name))
            .or_else(|| waits.get(name))
            .or_else(|| steer.get(name))
    }

    /// Changes a tunable. If it is refused, nothing has changed.
    ///
    /// # Errors
    /// [`SetTunableError`] names the setting and the range.
    pub fn set(&mut self, name: &str, value: u64) -> Result<(), SetTunableError> {
        if self.conntrack.get(name).is_some() {
            self.conntrack.set(name, value)
        } else if self.defrag.get(name).is_some() {
            self.defrag.set(name, value)
        } else if self.next_hops.get(name).is_some() {
            self.next_hops.set(name, value)
        } else if self.waits.get(name).is_some() {
            self.waits.set(name, value)
        } else {
            self.steer.set(name, value)
        }
    }
}
