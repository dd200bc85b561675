//! Tunables of next hops, under the kernel's names.

use flow::{SetTunableError, Tunable, declare_tunables};

/// Everything that can be tuned about next hops.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Most bytes of packets that wait for the station of one next hop.
    pub unres_qlen_bytes: u64,
}

impl Settings {
    /// All tunables of next hops.
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
}

impl Default for Settings {
    fn default() -> Self {
        let mut settings = Self { unres_qlen_bytes: 0 };
        DECLARED.apply_defaults(&mut settings);
        settings
    }
}

declare_tunables! {
    Settings;
    "unres_qlen_bytes", Bytes, 212_992, 0..=16_777_216,
        "Most bytes of packets that wait in a worker for the station of one next hop. Each packet counts 128 more than its length, and no more than 256 packets wait.",
        [unres_qlen_bytes];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queue_of_a_next_hop_can_be_set_in_its_range() {
        let mut settings = Settings::default();
        for value in [0, 16_777_216] {
            assert!(settings.set("unres_qlen_bytes", value).is_ok());
            assert_eq!(settings.get("unres_qlen_bytes"), Some(value));
        }
        assert!(settings.set("unres_qlen_bytes", 16_777_217).is_err());
        assert_eq!(settings.unres_qlen_bytes, 16_777_216);
    }
}
