//! The translations of a ruleset, as far as they are known without a packet.

use wire::Family;

use crate::elements::Element;
use crate::field::{Field, Guard};
use crate::hook::TableFamily;
use crate::kind::Interval;
use crate::leaving::Leaving;
use crate::model::{Item, Key, Load, Nat, NatKind, NatOperand, Rule, SetId, ValidRuleset};

/// Values of `meta nfproto` (`NFPROTO_IPV4`, `NFPROTO_IPV6` of the kernel's interface).
const NFPROTO_IPV4: u128 = 2;
const NFPROTO_IPV6: u128 = 10;

/// The largest number of kinds of packets into which the packets of one rule are split, where it
/// does no harm to name too many packets.
const MAX_PARTS: usize = 64;

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
    /// Indices of rules whose packets can not be described. Such a rule translates destinations,
    /// names no address and no port, and has conditions that [`Forwarded`] does not express. Its
    /// packets are not among `destinations`.
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
            let some_host = |addresses: &[(Family, Interval)]| {
                addresses.iter().any(|&(family, interval)| is_host(family, interval))
            };
            let ends_here = |packets: &&Forwarded| match &ending.at {
                EndsAt::Host => true,
                EndsAt::OwnAddress => packets.addresses.is_none_or(|it| some_host(&[it])),
                EndsAt::Addresses(addresses) => some_host(addresses),
            };
            for packets in ending.packets.iter().filter(ends_here) {
                if !left.contains(packets) {
                    left.push(*packets);
                }
            }
        }
        left
    }
}

impl ValidRuleset {
    /// A summary of its translations.
    pub fn translations(&self) -> Translations {
        let mut all = Translations::default();
        for (id, rule) in self.reachable_rules() {
            let index = id.index();
            for item in &rule.items {
                let Item::Nat(id) = item else { continue };
                let nat = &self.nats[id.index()];
                if matches!(nat.kind, NatKind::Source | NatKind::Masquerade) {
                    all.source_ports.extend(self.ports(nat));
                    all.leaving.push(self.leaving(rule, nat));
                }
                match nat.kind {
                    NatKind::Source => all.sources.extend(self.addresses(nat)),
                    NatKind::Masquerade => all.masquerades = true,
                    NatKind::Redirect => {
                        let packets = self.forwarded(rule, nat);
                        all.ends.push(Ending { rule: index, packets, at: EndsAt::Host });
                    }
                    NatKind::Destination => {
                        let at = match nat.address {
                            NatOperand::None | NatOperand::WithAddress => EndsAt::OwnAddress,
                            _ => {
                                let mut addresses = self.addresses(nat);
                                addresses.retain(|(_, it)| nat.netmap || it.low == it.high);
                                EndsAt::Addresses(addresses)
                            }
                        };
                        let packets = self.forwarded(rule, nat);
                        all.ends.push(Ending { rule: index, packets, at });
                        let found = self.forwarded_in_parts(rule, nat, usize::MAX);
                        if found.iter().any(Forwarded::is_wide) && !self.takes_all(index) {
                            all.vague.push(index);
                        } else {
                            all.destinations.extend(found);
                        }
                    }
                }
            }
        }
        all
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

    /// The packets for which a rule may ask for a translation, in few kinds.
    pub(crate) fn forwarded(&self, rule: &Rule, nat: &Nat) -> Vec<Forwarded> {
        self.forwarded_in_parts(rule, nat, MAX_PARTS)
    }

    /// The packets for which a rule may ask for a translation. Conditions other than interface,
    /// address, protocol and port are ignored, and so is a set that would make more than `most`
    /// kinds of packets.
    fn forwarded_in_parts(&self, rule: &Rule, nat: &Nat, most: usize) -> Vec<Forwarded> {
        let family = nat.family.or(match self.chains[rule.chain.index()].family {
            TableFamily::Inet => None,
            TableFamily::Ip => Some(Family::V4),
            TableFamily::Ip6 => Some(Family::V6),
        });
        let mut found = vec![Forwarded { family, ..Forwarded::default() }];
        let keys = [&nat.address, &nat.port].into_iter().filter_map(|operand| match operand {
            NatOperand::Mapped { key, map } => Some((key, *map)),
            _ => None,
        });
        let sets = rule.items.iter().filter_map(|item| match item {
            Item::Member { key, set, negated: false } => Some((key, *set)),
            _ => None,
        });
        for item in &rule.items {
            if let Item::Within { load, interval, negated: false } = item {
                let narrow = |it| narrowed(it, load, *interval);
                found = found.into_iter().filter_map(narrow).collect();
            }
        }
        for (key, set) in sets.chain(keys) {
            let parts: Vec<_> = found.iter().flat_map(|it| self.members(*it, key, set)).collect();
            if parts.len() <= most {
                found = parts;
            }
        }
        found
    }

    /// The packets of a kind whose key is in a set.
    fn members(&self, packets: Forwarded, key: &Key, set: SetId) -> Vec<Forwarded> {
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
fn narrowed(packets: Forwarded, load: &Load, interval: Interval) -> Option<Forwarded> {
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
            let before =
                packets.ports.map(|(low, high)| Interval { low: low.into(), high: high.into() });
            let Interval { low, high } = common(before, interval)?;
            narrowed.ports = Some((low as u16, high as u16));
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
