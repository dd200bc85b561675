//! Which addresses the workers steer by port.

use std::ops::RangeInclusive;

use steer::Translated;

use crate::command::Command;
use crate::coordinator::Coordinator;
use crate::crew::Unresponsive;

/// Ranges of addresses that are remembered after nothing is translated to them any more, those
/// that are included: an interface whose address changes often leaves one each time.
const MAX_RANGES: usize = 4096;

impl Coordinator {
    /// Has all workers steer what is for these addresses by its port, and returns when they
    /// do.
    pub fn add_translation_addresses(
        &mut self,
        addresses: impl IntoIterator<Item = RangeInclusive<[u8; 16]>>,
    ) -> Result<(), Unresponsive> {
        let before = self.hasher.translated().clone();
        let new = Translated::new(addresses, before.ports());
        let mut all = Translated::new(before.addresses().chain(new.addresses()), before.ports());
        if all.addresses().count() > MAX_RANGES {
            all = new;
        }
        if all == before {
            return Ok(());
        }
        self.hasher.set_translated(all.clone());
        self.tell_all(|| Command::Translated(all.clone()))?;
        // Commands are obeyed in order, so who answers knows.
        self.reports().map(drop)
    }

    /// Takes over the range of ports from the tunables. The workers do so by themselves.
    pub fn apply_nat_ports(&mut self) {
        let ports = self.config.settings.steer.nat_ports();
        let translated = self.hasher.translated().with_ports(ports);
        self.hasher.set_translated(translated);
    }
}
