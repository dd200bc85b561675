//! The figures of the policies in the data plane, under names of their own.

use std::time::Duration;

use flow::{SetTunableError, Tunable, declare_tunables};

use crate::waiting::Manner;
use crate::{Lanes, Policy};

/// The figures by which workers of the gateway wait and take packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitSettings {
    bulk_batch: u64,
    bulk_gather_us: u64,
    cpu_batch: u64,
    cpu_gather_us: u64,
    latency_batch: u64,
    latency_spin_us: u64,
    latency_budget: u64,
    latency_gather_us: u64,
    mix_bulk_batch: u64,
}

impl WaitSettings {
    /// All tunables of policies.
    pub fn tunables() -> impl Iterator<Item = &'static Tunable> {
        DECLARED.tunables.iter()
    }

    /// The value of a tunable, `None` if there is none of that name.
    pub fn get(&self, name: &str) -> Option<u64> {
        DECLARED.get(self, name)
    }

    /// Changes a tunable.
    ///
    /// # Errors
    /// An unknown name or a value out of range; nothing is changed then.
    pub fn set(&mut self, name: &str, value: u64) -> Result<(), SetTunableError> {
        DECLARED.set(self, name, value)
    }

    /// How a worker waits under a policy.
    pub fn manner(&self, policy: Policy) -> Manner {
        let gather = |us, lingers| Manner::Gather { longest: Duration::from_micros(us), lingers };
        match policy {
            Policy::None => Manner::Block,
            Policy::Bulk => gather(self.bulk_gather_us, true),
            Policy::Cpu => gather(self.cpu_gather_us, false),
            Policy::Latency | Policy::Mix => Manner::Spin {
                longest: Duration::from_micros(self.latency_spin_us),
                // The range of the tunable ends at 100.
                budget: self.latency_budget as u32,
                gather: Duration::from_micros(self.latency_gather_us),
            },
        }
    }

    /// Most packets that a worker takes from a queue of a device before it goes on to the next.
    /// Without a policy that is `dev_weight`.
    pub const fn batch(&self, policy: Policy, dev_weight: usize) -> usize {
        match policy {
            Policy::None => dev_weight,
            Policy::Bulk => self.bulk_batch as usize,
            Policy::Cpu => self.cpu_batch as usize,
            Policy::Latency => self.latency_batch as usize,
            Policy::Mix => self.mix_bulk_batch as usize,
        }
    }

    /// How a worker divides its turns between the services of devices with the policy mix.
    pub fn lanes(&self) -> Lanes {
        Lanes::new(self.latency_batch as usize, self.mix_bulk_batch as usize)
    }
}

impl Default for WaitSettings {
    fn default() -> Self {
        let mut settings = Self {
            bulk_batch: 0,
            bulk_gather_us: 0,
            cpu_batch: 0,
            cpu_gather_us: 0,
            latency_batch: 0,
            latency_spin_us: 0,
            latency_budget: 0,
            latency_gather_us: 0,
            mix_bulk_batch: 0,
        };
        DECLARED.apply_defaults(&mut settings);
        settings
    }
}

declare_tunables! {
    WaitSettings;
    "stateway_policy_bulk_batch", Packets, 256, 1..=4096,
        "Packets that a worker takes from one queue of a device with the policy bulk before it goes on to the next.",
        [bulk_batch];
    "stateway_policy_bulk_gather_usecs", Microseconds, 64, 0..=10_000,
        "Longest sleep after packets have come, so that several come together, of a worker with the policy bulk; 0: none.",
        [bulk_gather_us];
    "stateway_policy_cpu_batch", Packets, 256, 1..=4096,
        "The same as stateway_policy_bulk_batch, for the policy cpu.",
        [cpu_batch];
    "stateway_policy_cpu_gather_usecs", Microseconds, 256, 0..=10_000,
        "The same as stateway_policy_bulk_gather_usecs, for the policy cpu.",
        [cpu_gather_us];
    "stateway_policy_latency_batch", Packets, 16, 1..=4096,
        "The same as stateway_policy_bulk_batch, for the policy latency; and packets of latency that a worker takes for stateway_policy_mix_bulk_batch packets of bulk, for the policy mix, while both wait.",
        [latency_batch];
    "stateway_policy_latency_spin_usecs", Microseconds, 12_000, 0..=100_000,
        "How long a worker with the policy latency or mix stays awake without a packet. Packets that are further apart wake it.",
        [latency_spin_us];
    "stateway_policy_latency_budget_percent", Percent, 100, 0..=100,
        "Part of a CPU that a worker with the policy latency or mix may spend on staying awake without a packet.",
        [latency_budget];
    "stateway_policy_latency_gather_usecs", Microseconds, 256, 0..=10_000,
        "Longest sleep after packets have come, of a worker with the policy latency or mix, while requests wait for responses and more of them pass by that; 0: none.",
        [latency_gather_us];
    "stateway_policy_mix_bulk_batch", Packets, 64, 1..=4096,
        "Packets of bulk that a worker takes from one queue of a device with the policy mix before it looks for packets of latency again.",
        [mix_bulk_batch];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_policy_waits_and_takes_as_a_gateway_without_policies() {
        let mut settings = WaitSettings::default();
        for tunable in WaitSettings::tunables() {
            settings.set(tunable.name, tunable.max).unwrap();
            assert_eq!(settings.get(tunable.name), Some(tunable.max));
        }
        assert_eq!(settings.manner(Policy::None), Manner::Block);
        assert_eq!(settings.batch(Policy::None, 7), 7);
    }

    #[test]
    fn each_policy_has_its_figures() {
        let mut settings = WaitSettings::default();
        settings.set("stateway_policy_cpu_gather_usecs", 128).unwrap();
        settings.set("stateway_policy_latency_budget_percent", 20).unwrap();
        let gather = |us, lingers| Manner::Gather { longest: Duration::from_micros(us), lingers };
        assert_eq!(settings.manner(Policy::Bulk), gather(64, true));
        assert_eq!(settings.manner(Policy::Cpu), gather(128, false));
        let gather = Duration::from_micros(256);
        let spin = Manner::Spin { longest: Duration::from_millis(12), budget: 20, gather };
        assert_eq!([Policy::Latency, Policy::Mix].map(|it| settings.manner(it)), [spin; 2]);
        let policies = [Policy::Bulk, Policy::Cpu, Policy::Latency, Policy::Mix];
        assert_eq!(policies.map(|it| settings.batch(it, 64)), [256, 256, 16, 64]);
    }
}
