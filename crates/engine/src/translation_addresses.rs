//! Which addresses the workers steer by port.

use std::net::Ipv4Addr;
use std::ops::RangeInclusive;

use ruleset::Translations;
use steer::Translated;
use wire::{Family, mapped};

use crate::command::Command;
use crate::coordinator::Coordinator;
use crate::crew::Unresponsive;
use crate::routing::Routing;
use crate::rules::{LoadRulesError, Rules};

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

    /// Gets ready for what rules translate: replies find their way, and are kept from the host.
    pub fn prepare_translations(&mut self, rules: &Rules) -> Result<(), LoadRulesError> {
        let translations = rules.translations();
        let translates = self.rules.as_ref().is_some_and(|before| before.translates());
        if translations.is_empty() && !translates && self.hasher.translated().is_empty() {
            return Ok(());
        }
        let addresses = addresses(translations, self.routing.as_deref());
        self.add_translation_addresses(addresses)?;
        if let Some(guard) = &self.config.host_guard {
            guard
                .keep_out(self.hasher.translated(), &translations.destinations)
                .map_err(LoadRulesError::HostGuard)?;
        }
        Ok(())
    }

    /// Lets the host have what rules that are gone led elsewhere.
    pub fn leave_destinations_to_host(&self) -> Result<(), LoadRulesError> {
        let Some(guard) = &self.config.host_guard else { return Ok(()) };
        guard.keep_out(self.hasher.translated(), &[]).map_err(LoadRulesError::HostGuard)
    }

    /// Takes over the range of ports from the tunables. The workers do so by themselves.
    pub fn apply_nat_ports(&mut self) {
        let ports = self.config.settings.steer.nat_ports();
        let translated = self.hasher.translated().with_ports(ports);
        self.hasher.set_translated(translated);
    }
}

/// The addresses that rules translate sources to, the mapped form; `routing` tells those of a
/// masquerade.
pub fn addresses(
    translations: &Translations,
    routing: Option<&Routing>,
) -> Vec<RangeInclusive<[u8; 16]>> {
    let literal = translations.sources.iter().map(|(family, interval)| {
        let address = |number: u128| match family {
            Family::V4 => Ipv4Addr::from_bits(number as u32).to_ipv6_mapped().octets(),
            Family::V6 => number.to_be_bytes(),
        };
        address(interval.low)..=address(interval.high)
    });
    let mut addresses: Vec<_> = literal.collect();
    if let Some(routing) = routing.filter(|_| translations.masquerades) {
        addresses.extend(routing.masquerade_addresses().map(|address| {
            let address = mapped(address);
            address..=address
        }));
    }
    addresses
}
