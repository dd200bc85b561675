//! The translations of a ruleset, as far as they are known without a packet.

use std::collections::HashSet;

use wire::Family;

use crate::arrivals::{limited, of_table};
use crate::elements::Element;
use crate::field::{Field, Guard};
use crate::kind::Interval;
use crate::leaving::Leaving;
use crate::model::{Item, Key, Load, Nat, NatKind, NatOperand, Rule, SetId, ValidRuleset};

/// Values of `meta nfproto` (`NFPROTO_IPV4`, `NFPROTO_IPV6` of the kernel's interface).
const NFPROTO_IPV4: u128 = 2;
const NFPROTO_IPV6: u128 = 10;

/// The largest number of kinds of packets into which the packets of one rule are split, where it
/// does no harm to name too many packets.
const MAX_PARTS: usize = 64;

/// The largest number of rules that are warned of one by one.
const MAX_WARNINGS: usize = 8;

/// A summary of the translations of a ruleset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Translations {
    /// Addresses that sources are translated to, as numbers of 32 or 128 bits, without those that
    /// packets add to maps.
    pub sources: Vec<(Family, Interval)>,
    /// Ports that rules name for these addresses: the first and the last, without those that
    /// packets add to maps.
    pub source_ports: Vec<(u16, u16)>,
    /// True if sources are translated to addresses of interfaces.
    pub masquerades: bool,
    /// Packets whose source a rule may translate, for each such rule.
    pub leaving: Vec<Leaving>,
    /// Packets whose destination a rule may translate to another address.
    pub destinations: Vec<Forwarded>,
    /// Rules whose packets may end at the host.
    pub ends: Vec<Ending>,
    /// Indices of rules whose packets can not all be described. Such a rule translates destinations.
    /// Neither it nor the rules that lead to it name an address or a port, and it has conditions that
    /// [`Forwarded`] does not express. Those packets are not among `destinations`.
    pub vague: Vec<usize>,
}

/// A rule that translates destinations and whose packets may end at the host. Only the kernel can
/// deliver such packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    /// The rule, as an index.
    pub rule: usize,
    /// Its packets, and possibly others.
    pub packets: Vec<Forwarded>,
    /// Their new destination.
    pub at: EndsAt,
}

/// The new destination of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndsAt {
    /// The address of the interface that the packet came in by: a redirect.
    Host,
    /// The packet's own address, with another port.
    OwnAddress,
    /// One of these, as numbers of 32 or 128 bits. They do not include a range of several
    /// addresses: the kernel might choose another address than the gateway, so the host gets none
    /// of its packets.
    Addresses(Vec<(Family, Interval)>),
}

/// Packets whose destination a rule may translate: those that meet all these conditions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Forwarded {
    /// Family; `None`: both.
    pub family: Option<Family>,
    /// Input interfaces, see [`name_bits`](crate::name_bits); `None`: any.
    pub interfaces: Option<Interval>,
    /// Source addresses; `None`: any.
    pub sources: Option<(Family, Interval)>,
    /// Destination addresses; `None`: any.
    pub addresses: Option<(Family, Interval)>,
    /// Protocol; `None`: any.
    pub protocol: Option<u8>,
    /// Destination ports; `None`: any.
    pub ports: Option<(u16, u16)>,
}

impl Translations {
    /// True if nothing is translated.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Packets that a rule may lead to the host: all of those, and possibly others. `is_host` says
    /// whether any of these addresses belongs to the host.
    pub fn left_to_host(&self, is_host: impl Fn(Family, Interval) -> bool) -> Vec<Forwarded> {
        let mut left: Vec<Forwarded> = Vec::new();
        for ending in &self.ends {
            for packets in &ending.packets {
                if ending.may_be_host(packets, &is_host) && !left.contains(packets) {
                    left.push(*packets);
                }
            }
        }
        left
    }
}

impl Ending {
    /// True if the rule may lead these of its packets to the host. `is_host` says whether any of
    /// these addresses belongs to the host.
    pub(crate) fn may_be_host(
        &self,
        packets: &Forwarded,
        is_host: &impl Fn(Family, Interval) -> bool,
    ) -> bool {
        let some_host = |&(family, interval): &(Family, Interval)| is_host(family, interval);
        match &self.at {
            EndsAt::Host => true,
            EndsAt::OwnAddress => packets.addresses.is_none_or(|it| some_host(&it)),
            EndsAt::Addresses(addresses) => addresses.iter().any(some_host),
        }
    }
}

impl ValidRuleset {
    /// A summary of its translations.
    pub fn translations(&self) -> Translations {
        let mut all = Translations::default();
        let mut arrivals = None;
        let mut known = HashSet::new();
        for (id, rule) in self.reachable_rules() {
            let index = id.index();
            for item in &rule.items {
                let Item::Nat(id) = item else { continue };
                let nat = &self.nats[id.index()];
                let arrivals = match nat.kind {
                    NatKind::Source | NatKind::Masquerade => {
                        match nat.kind {
                            NatKind::Masquerade => all.masquerades = true,
                            _ => all.sources.extend(self.addresses(nat)),
                        }
                        all.source_ports.extend(self.ports(nat));
                        all.leaving.push(self.leaving(rule, nat));
                        continue;
                    }
                    NatKind::Redirect | NatKind::Destination => {
                        arrivals.get_or_insert_with(|| self.arrivals())
                    }
                };
                // The kernel may give marks of its own, so packets of any mark are left to it.
                let packets = arrivals.at(rule.chain).to_vec();
                let packets = self.forwarded_of(packets, rule, nat, MAX_PARTS);
                all.ends.push(Ending { rule: index, packets, at: self.end_of(nat) });
                if nat.kind == NatKind::Destination {
                    let (found, is_vague) =
                        self.destinations_of(self.arriving(arrivals, rule), index, nat);
                    all.vague.extend(is_vague.then_some(index));
                    all.destinations.extend(found.into_iter().filter(|it| known.insert(*it)));
                }
            }
        }
        all
    }

    /// The new destination that a rule gives packets.
    fn end_of(&self, nat: &Nat) -> EndsAt {
        match nat.address {
            _ if nat.kind == NatKind::Redirect => EndsAt::Host,
            NatOperand::None | NatOperand::WithAddress => EndsAt::OwnAddress,
            _ => {
                let mut addresses = self.addresses(nat);
                addresses.retain(|(_, it)| nat.netmap || it.low == it.high);
                EndsAt::Addresses(addresses)
            }
        }
    }

    /// The packets among these whose destination a rule may translate, and whether there are others
    /// that can not be described.
    fn destinations_of(
        &self,
        arriving: Vec<Forwarded>,
        index: usize,
        nat: &Nat,
    ) -> (Vec<Forwarded>, bool) {
        let rule = &self.rules[index];
        // Where many kinds come to one chain, its rules need not be told apart.
        let mut found = match arriving.len() {
            0 | 1 => self.forwarded_of(arriving, rule, nat, usize::MAX),
            ..=MAX_PARTS => limited(self.forwarded_of(arriving, rule, nat, usize::MAX)),
            _ if !arriving.iter().any(Forwarded::is_wide) => arriving,
            _ => limited(self.forwarded_of(arriving, rule, nat, MAX_PARTS)),
        };
        let is_vague = found.iter().any(Forwarded::is_wide) && !self.takes_all(index);
        found.retain(|packets| !is_vague || !packets.is_wide());
        (found, is_vague)
    }

    /// Warnings about the rules of [`Translations::vague`], the first `MAX_WARNINGS` of them.
    pub fn warnings_of(&self, translations: &Translations) -> Vec<String> {
        let place = |rule: &usize| match self.place_of_rule(*rule) {
            Some(place) => place.to_string(),
            None => format!("rule {rule}"),
        };
        let mut warnings: Vec<_> = translations
            .vague
            .iter()
            .take(MAX_WARNINGS)
            .map(|rule| {
                format!(
                    "THE KERNEL MAY ANSWER packets that a rule translates: neither the rule nor those \
                     that lead to it name an address or a port by which they can be kept from the \
                     kernel: {}; add one of them where packets are for this host's own addresses",
                    place(rule)
                )
            })
            .collect();
        let more = translations.vague.len().saturating_sub(MAX_WARNINGS);
        warnings.extend((more > 0).then(|| format!("the same holds for {more} more rules")));
        warnings
    }

    /// True if a rule translates every packet that its [`Forwarded`] describes. Then the rule has
    /// no other condition, and no rule before it takes a packet away.
    fn takes_all(&self, index: usize) -> bool {
        let rule = &self.rules[index];
        let chain = &self.chains[rule.chain.index()];
        let before = &self.rules[chain.rules.start as usize..index];
        let decides = |item: &Item| matches!(item, Item::Verdict(_) | Item::VerdictMap { .. });
        chain.base.is_some()
            && !before.iter().flat_map(|rule| &rule.items).any(decides)
            && rule.items.iter().all(|item| self.is_exact(item))
    }

    /// True if [`Forwarded`] expresses a part of a rule exactly.
    fn is_exact(&self, item: &Item) -> bool {
        let exact = |load: &Load, interval: &Interval| {
            load.is_plain()
                && match load.field {
                    Field::Input
                    | Field::Source(_)
                    | Field::Destination(_)
                    | Field::DestinationPort(_) => true,
                    Field::L4Protocol | Field::Nfproto => interval.low == interval.high,
                    _ => false,
                }
        };
        match item {
            Item::Within { load, interval, negated } => !negated && exact(load, interval),
            Item::Member { key, set, negated } => {
                let set = &self.sets[set.index()];
                let all_exact = |element: Element<'_>| {
                    key.loads.iter().zip(element.key()).all(|(load, it)| exact(load, &it))
                };
                !negated && !set.dynamic && set.elements.iter().all(all_exact)
            }
            Item::Counter(_) | Item::Log(_) | Item::Assign { .. } | Item::Nat(_) => true,
            _ => false,
        }
    }

    fn addresses(&self, nat: &Nat) -> Vec<(Family, Interval)> {
        let held = match &nat.address {
            NatOperand::Fixed(interval) => vec![*interval],
            NatOperand::Mapped { map, .. } => self.values(*map, 0),
            NatOperand::None | NatOperand::WithAddress => Vec::new(),
        };
        let family = |interval: &Interval| match nat.family {
            Some(family) => family,
            None if interval.high <= u32::MAX.into() => Family::V4,
            None => Family::V6,
        };
        held.iter().map(|interval| (family(interval), *interval)).collect()
    }

    /// The ports that a translation names.
    fn ports(&self, nat: &Nat) -> impl Iterator<Item = (u16, u16)> + use<> {
        let held = match (&nat.port, &nat.address) {
            (NatOperand::Fixed(interval), _) => vec![*interval],
            (NatOperand::Mapped { map, .. }, _) => self.values(*map, 0),
            (NatOperand::WithAddress, NatOperand::Mapped { map, .. }) => self.values(*map, 1),
            _ => Vec::new(),
        };
        held.into_iter().map(|interval| (interval.low as u16, interval.high as u16))
    }

    /// The part with number `at` of each value of a map.
    fn values(&self, map: SetId, at: usize) -> Vec<Interval> {
        let elements = self.sets[map.index()].elements.iter();
        elements.filter_map(|element| element.value(at)).collect()
    }

    /// The packets for which a rule may ask for a translation, in few kinds, whatever leads to it.
    pub(crate) fn forwarded(&self, rule: &Rule, nat: &Nat) -> Vec<Forwarded> {
        let family = of_table(self.chains[rule.chain.index()].family);
        let all = Forwarded { family, ..Forwarded::default() };
        self.forwarded_of(vec![all], rule, nat, MAX_PARTS)
    }

    /// The packets among these for which a rule may ask for a translation. Conditions other than
    /// interface, address, protocol and port are ignored, and so is a set that would make more than
    /// `most` kinds of packets.
    fn forwarded_of(
        &self,
        arriving: Vec<Forwarded>,
        rule: &Rule,
        nat: &Nat,
        most: usize,
    ) -> Vec<Forwarded> {
        let of_nat = |it| nat.family.map_or(Some(it), |family| of_one_family(it, family));
        let arriving: Vec<_> = arriving.into_iter().filter_map(of_nat).collect();
        let most = most.max(arriving.len());
        let mut found = self.meeting(&rule.items, arriving, most);
        for operand in [&nat.address, &nat.port] {
            let NatOperand::Mapped { key, map } = operand else { continue };
            if !self.is_joinable(&found, *map) {
                continue;
            }
            let parts: Vec<_> = found.iter().flat_map(|it| self.members(*it, key, *map)).collect();
            if parts.len() <= most {
                found = parts;
            }
        }
        found
    }

    /// The packets of a kind whose key is in a set.
    pub(crate) fn members(&self, packets: Forwarded, key: &Key, set: SetId) -> Vec<Forwarded> {
        let set = &self.sets[set.index()];
        if set.dynamic {
            return vec![packets];
        }
        let narrow = |element: Element<'_>| {
            let mut parts = key.loads.iter().zip(element.key());
            parts.try_fold(packets, |it, (load, interval)| narrowed(it, load, interval))
        };
        set.elements.iter().filter_map(narrow).collect()
    }
}

impl Forwarded {
    /// True if the packets may include those of this protocol between these addresses (numbers of
    /// 32 or 128 bits), by some interface. `port` is the destination port, if there is one.
    pub fn may_be(
        &self,
        (family, protocol): (Family, u8),
        (source, destination): (u128, u128),
        port: Option<u16>,
    ) -> bool {
        let within = |range: Option<(Family, Interval)>, address: u128| {
            range.is_none_or(|(of, Interval { low, high })| {
                of == family && (low..=high).contains(&address)
            })
        };
        self.family.is_none_or(|of| of == family)
            && self.protocol.is_none_or(|wanted| wanted == protocol)
            && within(self.sources, source)
            && within(self.addresses, destination)
            && self
                .ports
                .is_none_or(|(low, high)| port.is_some_and(|port| (low..=high).contains(&port)))
    }

    /// True if neither an address nor a port restricts the packets, so that they may be most of the
    /// traffic.
    const fn is_wide(&self) -> bool {
        self.addresses.is_none() && self.ports.is_none()
    }
}

/// The packets of a kind that have a value in an interval; `None` if there are none.
pub(crate) fn narrowed(packets: Forwarded, load: &Load, interval: Interval) -> Option<Forwarded> {
    if !load.is_plain() {
        return Some(packets);
    }
    let mut narrowed = packets;
    match load.field {
        Field::Input => narrowed.interfaces = Some(common(packets.interfaces, interval)?),
        Field::Source(family) => {
            narrowed.sources = Some(of_family(packets.sources, family, interval)?);
            return of_one_family(narrowed, family);
        }
        Field::Destination(family) => {
            narrowed.addresses = Some(of_family(packets.addresses, family, interval)?);
            return of_one_family(narrowed, family);
        }
        Field::DestinationPort(guard) => {
            let port = |number: u128| u16::try_from(number).unwrap_or(u16::MAX);
            narrowed.ports =
                Some(common_ports(packets.ports, (port(interval.low), port(interval.high)))?);
            if let Guard::Protocol(protocol) | Guard::Over(protocol, _) = guard {
                return of_protocol(narrowed, protocol);
            }
        }
        Field::Nfproto if interval.low == interval.high => {
            let family = [(NFPROTO_IPV4, Family::V4), (NFPROTO_IPV6, Family::V6)]
                .into_iter()
                .find_map(|(number, family)| (interval.low == number).then_some(family))?;
            return of_one_family(narrowed, family);
        }
        Field::L4Protocol if interval.low == interval.high => {
            return of_protocol(narrowed, interval.low as u8);
        }
        _ => {}
    }
    Some(narrowed)
}

/// The packets that are of both kinds; `None` if there are none.
pub(crate) fn both(one: Forwarded, other: Forwarded) -> Option<Forwarded> {
    let mut packets = one;
    if let Some(names) = other.interfaces {
        packets.interfaces = Some(common(packets.interfaces, names)?);
    }
    if let Some((family, addresses)) = other.sources {
        packets.sources = Some(of_family(packets.sources, family, addresses)?);
    }
    if let Some((family, addresses)) = other.addresses {
        packets.addresses = Some(of_family(packets.addresses, family, addresses)?);
    }
    if let Some(ports) = other.ports {
        packets.ports = Some(common_ports(packets.ports, ports)?);
    }
    let families = [other.family, packets.sources.map(|it| it.0), packets.addresses.map(|it| it.0)];
    for family in families.into_iter().flatten() {
        packets = of_one_family(packets, family)?;
    }
    match other.protocol {
        Some(protocol) => of_protocol(packets, protocol),
        None => Some(packets),
    }
}

/// The ports of two ranges; `None` if there are none.
fn common_ports(before: Option<(u16, u16)>, (low, high): (u16, u16)) -> Option<(u16, u16)> {
    let (least, greatest) = before.unwrap_or((0, u16::MAX));
    let (low, high) = (low.max(least), high.min(greatest));
    (low <= high).then_some((low, high))
}

/// The intersection of two intervals; `None` if it is empty.
fn common(before: Option<Interval>, interval: Interval) -> Option<Interval> {
    let Some(before) = before else { return Some(interval) };
    let (low, high) = (interval.low.max(before.low), interval.high.min(before.high));
    (low <= high).then_some(Interval { low, high })
}

fn of_family(
    before: Option<(Family, Interval)>,
    family: Family,
    interval: Interval,
) -> Option<(Family, Interval)> {
    if before.is_some_and(|(other, _)| other != family) {
        return None;
    }
    Some((family, common(before.map(|(_, before)| before), interval)?))
}

fn of_one_family(packets: Forwarded, family: Family) -> Option<Forwarded> {
    let fits = packets.family.is_none_or(|other| other == family);
    fits.then_some(Forwarded { family: Some(family), ..packets })
}

fn of_protocol(packets: Forwarded, protocol: u8) -> Option<Forwarded> {
    let fits = packets.protocol.is_none_or(|other| other == protocol);
    fits.then_some(Forwarded { protocol: Some(protocol), ..packets })
}

#[cfg(test)]
#[path = "translations_tests.rs"]
mod tests;
