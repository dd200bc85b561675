//! The packets that may come to each chain on the way to the translation of destinations.
//!
//! A rule that translates often names no port itself: a rule that leads to its chain does, by `jump`,
//! `goto` or a verdict map, or a rule that has set the mark which it asks for. Packets here are kinds
//! of [`Forwarded`]: a kind may include packets that do not come, but no packet that comes is missing.

use std::collections::HashSet;

use wire::Family;

use crate::elements::Element;
use crate::field::Field;
use crate::hook::{Hook, TableFamily};
use crate::model::{ChainId, Item, Operand, Rule, SetId, Target, ValidRuleset, Verdict};
use crate::translations::{Forwarded, both, narrowed};

/// The largest number of kinds of packets that are told apart for one chain or one mark. If there are
/// more, ports are left out, then sources, then everything.
const MAX_KINDS: usize = 4096;

/// The largest number of kinds that the elements of a set are joined with, in one step.
const MAX_JOINED: usize = 1 << 20;

/// The packets that may come to each chain, and those that rules give a mark.
#[derive(Debug)]
pub(crate) struct Arrivals {
    /// For each chain; none if no packet comes to it before or in the translation of destinations.
    chains: Vec<Vec<Forwarded>>,
    marks: Vec<Marked>,
}

/// Packets that a rule gives a mark.
#[derive(Debug)]
struct Marked {
    packets: Vec<Forwarded>,
    /// The mark, unless it depends on the packet.
    mark: Option<u128>,
}

impl Arrivals {
    /// The packets that may come to a chain.
    pub fn at(&self, chain: ChainId) -> &[Forwarded] {
        &self.chains[chain.index()]
    }
}

/// The packets that chains of a family see.
pub(crate) const fn of_table(family: TableFamily) -> Option<Family> {
    match family {
        TableFamily::Inet => None,
        TableFamily::Ip => Some(Family::V4),
        TableFamily::Ip6 => Some(Family::V6),
    }
}

impl ValidRuleset {
    /// The packets that may come to each chain until their destination is translated.
    pub(crate) fn arrivals(&self) -> Arrivals {
        let mut chains = vec![Vec::new(); self.chains.len()];
        let mut bases: Vec<ChainId> = Vec::new();
        for hook in [Hook::Untracked, Hook::Prerouting, Hook::DestinationNat] {
            for &base in &self.bases[hook as usize] {
                let family = of_table(self.chains[base.index()].family);
                chains[base.index()] = vec![Forwarded { family, ..Forwarded::default() }];
                bases.push(base);
            }
        }
        // Jumps lead to no chain that leads back, so all packets of a chain are known when its turn
        // comes.
        for chain in self.callers_first(bases) {
            let packets = limited(std::mem::take(&mut chains[chain.index()]));
            for rule in self.rules_of(chain) {
                self.lead(rule, &packets, &mut |to, led| chains[to.index()].extend(led));
            }
            chains[chain.index()] = packets;
        }
        let marks = self.marks(&chains);
        Arrivals { chains, marks }
    }

    fn rules_of(&self, chain: ChainId) -> &[Rule] {
        let rules = self.chains[chain.index()].rules.clone();
        &self.rules[rules.start as usize..rules.end as usize]
    }

    /// The chains that packets reach from these, each behind all those that lead to it.
    fn callers_first(&self, bases: Vec<ChainId>) -> Vec<ChainId> {
        /// A chain to begin with, or one whose targets are all in the list.
        enum Turn {
            Begin(ChainId),
            End(ChainId),
        }
        let (mut is_known, mut ended) = (vec![false; self.chains.len()], Vec::new());
        let mut open: Vec<Turn> = bases.into_iter().map(Turn::Begin).collect();
        while let Some(turn) = open.pop() {
            match turn {
                Turn::Begin(chain) if !std::mem::replace(&mut is_known[chain.index()], true) => {
                    open.push(Turn::End(chain));
                    for rule in self.rules_of(chain) {
                        self.lead(rule, &[], &mut |to, _| open.push(Turn::Begin(to)));
                    }
                }
                Turn::Begin(_) => {}
                Turn::End(chain) => ended.push(chain),
            }
        }
        ended.reverse();
        ended
    }

    /// Tells the chains that a rule leads to, and which of these packets go there.
    fn lead(
        &self,
        rule: &Rule,
        packets: &[Forwarded],
        tell: &mut dyn FnMut(ChainId, Vec<Forwarded>),
    ) {
        let target = |verdict| match verdict {
            Verdict::Jump(to) | Verdict::Goto(to) => Some(to),
            Verdict::Accept | Verdict::Drop | Verdict::Continue | Verdict::Return => None,
        };
        for (at, item) in rule.items.iter().enumerate() {
            let before = || self.meeting(&rule.items[..at], packets.to_vec(), MAX_KINDS);
            match item {
                Item::Verdict(verdict) => {
                    if let Some(to) = target(*verdict) {
                        tell(to, before());
                    }
                }
                Item::VerdictMap { key, map } => {
                    let before = before();
                    for element in self.sets[map.index()].elements.iter() {
                        let Some(to) = element.verdict().and_then(target) else { continue };
                        let narrow = |it: &Forwarded| {
                            let mut parts = key.loads.iter().zip(element.key());
                            parts.try_fold(*it, |it, (load, value)| narrowed(it, load, value))
                        };
                        tell(to, before.iter().filter_map(narrow).collect());
                    }
                }
                _ => {}
            }
        }
    }

    /// The packets of these that may meet the conditions among these items of a rule. Conditions other
    /// than interface, address, protocol and port are ignored, and so is a set that would make more
    /// than `most` kinds of packets.
    pub(crate) fn meeting(
        &self,
        items: &[Item],
        mut packets: Vec<Forwarded>,
        most: usize,
    ) -> Vec<Forwarded> {
        for item in items {
            if let Item::Within { load, interval, negated: false } = item {
                let narrow = |it| narrowed(it, load, *interval);
                packets = packets.into_iter().filter_map(narrow).collect();
            }
        }
        for item in items {
            if let Item::Member { key, set, negated: false } = item
                && self.is_joinable(&packets, *set)
            {
                let members = packets.iter().flat_map(|it| self.members(*it, key, *set));
                let parts: Vec<_> = members.collect();
                if parts.len() <= most {
                    packets = parts;
                }
            }
        }
        packets
    }

    /// True if it takes little time to join these packets with the elements of a set.
    pub(crate) fn is_joinable(&self, packets: &[Forwarded], set: SetId) -> bool {
        let elements = self.sets[set.index()].element_count();
        packets.len() <= 1 || packets.len().saturating_mul(elements) <= MAX_JOINED
    }

    /// The packets that may come to a rule. Those without the mark that it asks for do not.
    pub(crate) fn arriving(&self, arrivals: &Arrivals, rule: &Rule) -> Vec<Forwarded> {
        let mut packets = arrivals.at(rule.chain).to_vec();
        for item in &rule.items {
            let Some(marked) = self.marked(arrivals, item) else { continue };
            if packets.len().saturating_mul(marked.len()) <= MAX_JOINED {
                let joined = packets.iter().flat_map(|it| marked.iter().map(|of| both(*it, *of)));
                packets = limited(joined.flatten().collect());
            }
        }
        packets
    }

    /// The packets that may meet a condition for the mark; `None` if it is no such condition, or if
    /// packets without a mark meet it.
    fn marked(&self, arrivals: &Arrivals, item: &Item) -> Option<Vec<Forwarded>> {
        // A packet comes without a mark.
        let asks = self.asks_for_mark(item)?;
        if asks(0) {
            return None;
        }
        let meets = |marked: &&Marked| marked.mark.is_none_or(&asks);
        let marked = arrivals.marks.iter().filter(meets);
        Some(limited(marked.flat_map(|marked| marked.packets.iter().copied()).collect()))
    }

    /// The marks that meet a condition; `None` if it is about something else.
    fn asks_for_mark<'a>(&'a self, item: &'a Item) -> Option<Box<dyn Fn(u128) -> bool + 'a>> {
        match item {
            Item::Within { load, interval, negated } if load.field == Field::Mark => {
                Some(Box::new(move |mark| interval.holds((mark & load.and) ^ load.xor) != *negated))
            }
            Item::Bits { load, mask, any } if load.field == Field::Mark => {
                Some(Box::new(move |mark| (((mark & load.and) ^ load.xor) & mask != 0) == *any))
            }
            Item::Member { key, set, negated: false } => {
                let ([load], set) = (&key.loads[..], &self.sets[set.index()]) else { return None };
                let is_it = load.field == Field::Mark && !set.dynamic;
                let holds = move |mark: u128| {
                    let value = (mark & load.and) ^ load.xor;
                    let has = |it: Element<'_>| it.key().next().is_some_and(|it| it.holds(value));
                    set.elements.iter().any(has)
                };
                is_it.then(|| Box::new(holds) as Box<dyn Fn(u128) -> bool + 'a>)
            }
            _ => None,
        }
    }

    /// The packets that rules give a mark, of those that may come to their chains.
    fn marks(&self, chains: &[Vec<Forwarded>]) -> Vec<Marked> {
        let mut marks = Vec::new();
        for rule in self.rules.iter().filter(|rule| !chains[rule.chain.index()].is_empty()) {
            for (at, item) in rule.items.iter().enumerate() {
                let Item::Assign { target: Target::Mark, value } = item else { continue };
                let mark = match value {
                    Operand::Constant(mark) => Some(*mark),
                    Operand::Computed(_) | Operand::Mapped { .. } | Operand::PathMtu => None,
                };
                let packets = chains[rule.chain.index()].clone();
                let packets = self.meeting(&rule.items[..at], packets, MAX_KINDS);
                marks.push(Marked { packets, mark });
            }
        }
        marks
    }
}

/// The same packets in at most [`MAX_KINDS`] kinds, each once.
pub(crate) fn limited(packets: Vec<Forwarded>) -> Vec<Forwarded> {
    let once = |packets: Vec<Forwarded>| -> Vec<Forwarded> {
        let mut known = HashSet::new();
        packets.into_iter().filter(|it| known.insert(*it)).collect()
    };
    let coarser: [fn(Forwarded) -> Forwarded; 3] = [
        |it| Forwarded { ports: None, ..it },
        |it| Forwarded { ports: None, sources: None, ..it },
        |_| Forwarded::default(),
    ];
    let mut packets = once(packets);
    for coarser in coarser {
        if packets.len() > MAX_KINDS {
            packets = once(packets.into_iter().map(coarser).collect());
        }
    }
    packets
}

#[cfg(test)]
#[path = "arrivals_tests.rs"]
mod tests;
