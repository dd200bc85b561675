//! How many TCP connections are in their handshake, which is when the SYN proxy begins.

use std::collections::BTreeMap;

use flow::Zone;

/// Half-open TCP connections by zone, of one table or of all of a worker. They are counted
/// if they are opened while the SYN proxy has a threshold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HalfOpen(BTreeMap<Zone, u64>);

impl HalfOpen {
    /// Those of a zone.
    pub fn get(&self, zone: Zone) -> u64 {
        self.0.get(&zone).copied().unwrap_or(0)
    }

    pub(crate) fn enter(&mut self, zone: Zone) {
        *self.0.entry(zone).or_default() += 1;
    }

    pub(crate) fn leave(&mut self, zone: Zone) {
        *self.0.entry(zone).or_default() -= 1;
    }

    pub(crate) fn add(&mut self, table: &Self) {
        for (&zone, count) in &table.0 {
            *self.0.entry(zone).or_default() += count;
        }
    }

    pub(crate) fn subtract(&mut self, table: &Self) {
        for (&zone, count) in &table.0 {
            *self.0.entry(zone).or_default() -= count;
        }
    }
}
