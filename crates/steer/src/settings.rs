//! The settings of steering, under the kernel's names.

use flow::{SetTunableError, Tunable, Unit};

use crate::{BacklogLimits, WorkerId};

/// The settings that can be changed while the gateway runs.
pub const TUNABLES: &[Tunable] = &[
    Tunable {
        name: "netdev_max_backlog",
        unit: Unit::Packets,
        default: 1000,
        min: 1,
        max: 65536,
        meaning: "Packets that may wait from one worker to another, a datagram in fragments counted as many; more are dropped.",
    },
    Tunable {
        name: "netdev_budget",
        unit: Unit::Packets,
        default: 300,
        min: 1,
        max: 65536,
        meaning: "Packets that a worker takes in one turn before it looks at its other duties.",
    },
    Tunable {
        name: "dev_weight",
        unit: Unit::Packets,
        default: 64,
        min: 1,
        max: 4096,
        meaning: "Packets that a worker takes from one queue before it goes on to the next.",
    },
    Tunable {
        name: "flow_limit_table_len",
        unit: Unit::Entries,
        default: 4096,
        min: 1,
        max: 8192,
        meaning: "Size of the flow limit's table, rounded up to a power of two.",
    },
    Tunable {
        name: "flow_limit_cpu_bitmap",
        unit: Unit::Count,
        default: 0,
        min: 0,
        max: u64::MAX,
        meaning: "Bit n limits the share of one flow in the backlog of worker n from half \
                  netdev_max_backlog up. 0: no limit for any flow. A number as all others, while \
                  the kernel's file holds hexadecimal digits.",
    },
];

/// The values in force. Always within the ranges of [`TUNABLES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SteerSettings {
    values: [u64; TUNABLES.len()],
}

impl Default for SteerSettings {
    fn default() -> Self {
        Self { values: std::array::from_fn(|index| TUNABLES[index].default) }
    }
}

impl SteerSettings {
    /// The value of a setting; `None` when there is none of that name.
    pub fn get(&self, name: &str) -> Option<u64> {
        index_of(name).map(|index| self.values[index])
    }

    /// Changes a setting.
    ///
    /// # Errors
    /// [`SetTunableError`]; nothing was changed.
    pub fn set(&mut self, name: &str, value: u64) -> Result<(), SetTunableError> {
        let index =
            index_of(name).ok_or_else(|| SetTunableError::Unknown { name: name.to_owned() })?;
        self.values[index] = TUNABLES[index].check(value)?;
        Ok(())
    }

    /// Packets that may wait from one worker to another.
    pub const fn netdev_max_backlog(&self) -> usize {
        self.values[0] as usize
    }

    /// Packets that a worker takes in one turn.
    pub const fn netdev_budget(&self) -> usize {
        self.values[1] as usize
    }

    /// Packets that a worker takes from one queue before it goes on to the next.
    pub const fn dev_weight(&self) -> usize {
        self.values[2] as usize
    }

    /// The limits of the backlogs that lead to `consumer`.
    pub const fn backlog_limits(&self, consumer: WorkerId) -> BacklogLimits {
        let [max_backlog, _, _, table_len, limited] = self.values;
        let limited = consumer.0 < u64::BITS as u16 && limited >> consumer.0 & 1 == 1;
        BacklogLimits {
            max_backlog: max_backlog as u32,
            flow_limit_table_len: if limited { Some(table_len as u16) } else { None },
        }
    }
}

fn index_of(name: &str) -> Option<usize> {
    TUNABLES.iter().position(|tunable| tunable.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_the_default_limits() {
        let settings = SteerSettings::default();
        assert_eq!(
            settings.backlog_limits(WorkerId(0)),
            BacklogLimits { flow_limit_table_len: None, ..BacklogLimits::default() }
        );
        assert_eq!((settings.netdev_budget(), settings.dev_weight()), (300, 64));
        assert!(TUNABLES.iter().all(|tunable| tunable.check(tunable.default).is_ok()));
    }

    #[test]
    fn every_setting_takes_its_limits_and_nothing_beyond() {
        for tunable in TUNABLES {
            let mut settings = SteerSettings::default();
            for value in [tunable.min, tunable.max] {
                settings.set(tunable.name, value).unwrap();
                assert_eq!(settings.get(tunable.name), Some(value));
            }
            if let Some(beyond) = tunable.max.checked_add(1) {
                assert!(settings.set(tunable.name, beyond).is_err());
                assert_eq!(settings.get(tunable.name), Some(tunable.max), "unchanged");
            }
        }
        let unknown = SteerSettings::default().set("netdev_max_backlogg", 1);
        assert_eq!(unknown, Err(SetTunableError::Unknown { name: "netdev_max_backlogg".into() }));
    }

    #[test]
    fn the_flow_limit_is_chosen_worker_by_worker() {
        let mut settings = SteerSettings::default();
        settings.set("flow_limit_cpu_bitmap", 0b10).unwrap();
        settings.set("netdev_max_backlog", 7).unwrap();
        let limits = |worker| settings.backlog_limits(WorkerId(worker));
        assert_eq!(limits(0), BacklogLimits { max_backlog: 7, flow_limit_table_len: None });
        assert_eq!(limits(1), BacklogLimits { max_backlog: 7, flow_limit_table_len: Some(4096) });
    }
}
