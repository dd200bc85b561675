//! The addresses that connections are translated to: for the workers they are inside, and the host
//! guard keeps their packets from the host.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::RangeInclusive;

use conntrack::Filter;
use netio::PortId;
use ruleset::{Forwarded, Translations, name_bits};
use steer::AddressSet;
use wire::{mapped, protocol};

use crate::control::coordinator::Coordinator;
use crate::control::host_guard::FromHost;
use crate::control::realms::{Realms, range};
use crate::control::rule_loading::LoadRulesError;
use crate::control::worker_handle::Unresponsive;
use crate::egress::routing::Routing;
use crate::path::rules::ruleset::Rules;

/// Most ranges of addresses that are remembered, including those that are no longer used. An
/// interface whose address changes often leaves one each time.
const MAX_RANGES: usize = 4096;

impl Coordinator {
    /// Takes these addresses for translation addresses, and returns when all workers do.
    pub fn add_translation_addresses(
        &mut self,
        addresses: impl IntoIterator<Item = RangeInclusive<[u8; 16]>>,
    ) -> Result<(), Unresponsive> {
        let new = AddressSet::new(addresses);
        let inside = self.hasher.inside().with(new.ranges());
        self.note_translation_addresses(new);
        self.change_inside(inside)
    }

    fn note_translation_addresses(&mut self, new: AddressSet) {
        let all = self.translation_addresses.with(new.ranges());
        self.translation_addresses = if all.ranges().count() > MAX_RANGES { new } else { all };
    }

    /// Gets ready for the translations of rules: replies find their way, and are kept from the
    /// host. The host loses the packets that only the rules before leave to it. It gets the
    /// packets of these rules later, when they hold for all workers. So no packet is carried by
    /// both.
    pub fn prepare_translations(&mut self, rules: &Rules) -> Result<(), LoadRulesError> {
        let Some(mut left) = self.know_addresses(rules) else { return Ok(()) };
        // Addresses to which only rules before have translated are where they are by the routes.
        let before = self.hasher.inside().without(&self.translation_addresses);
        self.divide_addresses(rules, &before)?;
        left.retain(|packets| self.host_has.contains(packets));
        self.keep_from_host(Some(rules), &left)?;
        self.host_has = left;
        Ok(())
    }

    /// Tells the host what is kept from it by the current rules, after addresses have changed.
    pub fn follow_addresses(&mut self, rules: &Rules) {
        let Some(mut left) = self.know_addresses(rules) else { return };
        if self.rule_exchange.owes_host {
            left.retain(|packets| self.host_has.contains(packets));
        }
        self.give_host(left);
    }

    /// Notes the addresses that rules translate sources to. Returns the packets that the rules leave
    /// to the host; `None` if nothing is translated.
    fn know_addresses(&mut self, rules: &Rules) -> Option<Vec<Forwarded>> {
        let translations = rules.translations();
        let translates = self.rules.as_ref().is_some_and(|before| before.translates());
        if translations.is_empty() && !translates && self.translation_addresses.is_empty() {
            return None;
        }
        let names = self.ports.names();
        let new = AddressSet::new(addresses(translations, self.routing.as_deref(), &names));
        self.note_translation_addresses(new);
        Some(self.left_to_host(Some(rules)))
    }

    /// Has workers steer packets by the realms of these rules and the current routes, if anything is
    /// translated. The addresses `before` stay inside until a route says otherwise.
    pub fn divide_addresses(
        &mut self,
        rules: &Rules,
        before: &AddressSet,
    ) -> Result<(), Unresponsive> {
        if self.translation_addresses.is_empty() && rules.translations().leaving.is_empty() {
            return Ok(());
        }
        let names = self.ports.names();
        self.change_inside(inside(rules.translations(), self.routing.as_deref(), &names, before))
    }

    /// Keeps all packets of the current rules from the host, because the rules are about to go.
    pub fn withhold_from_host(&mut self) -> Result<(), LoadRulesError> {
        if let Some(rules) = self.rules.as_deref().filter(|rules| rules.translates()) {
            self.keep_from_host(Some(rules), &[])?;
            self.host_has.clear();
        }
        Ok(())
    }

    /// Gives the host the packets that the current rules leave to it, also if they were led
    /// elsewhere before.
    pub fn leave_to_host(&mut self) -> Result<(), Unresponsive> {
        let all = self.left_to_host(self.rules.as_deref());
        let is_new = |packets: &&Forwarded| !self.host_has.contains(packets);
        let new: Vec<_> = all.iter().filter(is_new).cloned().collect();
        if !new.is_empty() {
            self.end_what_kernel_may_take(&new)?;
        }
        self.give_host(all);
        Ok(())
    }

    /// Gives the host these packets soon, by the current rules.
    fn give_host(&mut self, left: Vec<Forwarded>) {
        if let Some(guard) = &self.config.host_guard {
            guard.follow(&self.share_of_host(self.rules.as_deref(), &left));
        }
        self.host_has = left;
    }

    /// Ends connections whose packets the kernel takes for its own from now on, so that their next
    /// packet is judged anew. TCP is excepted: there the kernel takes no segment of a connection
    /// that it has not seen open.
    fn end_what_kernel_may_take(&mut self, left: &[Forwarded]) -> Result<(), Unresponsive> {
        let protocols: BTreeSet<_> = left.iter().map(|packets| packets.protocol).collect();
        let one = protocols.first().copied().flatten().filter(|_| protocols.len() == 1);
        if one == Some(protocol::TCP) {
            return Ok(());
        }
        self.end_led(Filter { protocol: one, ..Filter::default() }, left)
    }

    /// Waits until the host gets no other packets than these.
    fn keep_from_host(
        &self,
        rules: Option<&Rules>,
        left: &[Forwarded],
    ) -> Result<(), LoadRulesError> {
        let Some(guard) = &self.config.host_guard else { return Ok(()) };
        guard.keep_out(&self.share_of_host(rules, left)).map_err(LoadRulesError::HostGuard)
    }

    fn share_of_host<'a>(
        &'a self,
        rules: Option<&'a Rules>,
        left: &'a [Forwarded],
    ) -> FromHost<'a> {
        let translations = rules.map(Rules::translations);
        let expects = self.config.settings.conntrack.helpers.iter().next().is_some()
            || rules
                .is_some_and(|rules| rules.has_helpers() || !rules.translations().vague.is_empty());
        FromHost {
            translated: &self.translation_addresses,
            expects,
            forwarded: translations.map_or(&[], |it| &it.destinations),
            left,
        }
    }

    /// The packets that rules may lead to the host.
    pub fn left_to_host(&self, rules: Option<&Rules>) -> Vec<Forwarded> {
        let Some(rules) = rules else { return Vec::new() };
        rules.translations().left_to_host(|family, interval| {
            let own = self.routing.iter().flat_map(|routing| routing.own_addresses());
            let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
            own.chain([loopback]).any(|own| interval.holds_address(family, own))
        })
    }
}

/// The inside addresses for these rules and routes, and those that were inside `before` of which the
/// routes say nothing else.
fn inside(
    translations: &Translations,
    routing: Option<&Routing>,
    names: &[String],
    before: &AddressSet,
) -> AddressSet {
    let own = AddressSet::new(addresses(translations, routing, names));
    Realms::of(translations, &own, routing, names).after(before).inside
}

/// The addresses that rules translate sources to, in the mapped form. `routing` has the addresses
/// of masquerades, and `names` are the interfaces of the ports as rules name them.
pub fn addresses(
    translations: &Translations,
    routing: Option<&Routing>,
    names: &[String],
) -> Vec<RangeInclusive<[u8; 16]>> {
    let sources = translations.sources.iter();
    let literal = sources.map(|(family, interval)| range(*family, interval.low, interval.high));
    let mut addresses: Vec<_> = literal.collect();
    if let Some(routing) = routing.filter(|_| translations.masquerades) {
        let may_leave = |port: PortId| {
            let name = names.get(usize::from(port.0)).and_then(|name| name_bits(name));
            let leaving = &translations.leaving;
            name.is_none_or(|name| leaving.iter().any(|rule| rule.outputs.allow(name)))
        };
        addresses.extend(routing.masquerade_addresses(may_leave).map(|address| {
            let address = mapped(address);
            address..=address
        }));
    }
    addresses
}

#[cfg(test)]
#[path = "translation_addresses_tests.rs"]
mod tests;
