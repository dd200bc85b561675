//! Checks of all chains together: jumps must end, and statements must stand where they work.

use super::worst_case;
use crate::field::FragmentField;
use crate::hook::Hook;
use crate::kind::ObjectKind;
use crate::limits::MAX_JUMP_DEPTH;
use crate::model::{Chain, ChainId, Item, NatKind, Parts, Rule, RuleId, Verdict};
use crate::problem::Severity;

/// Something that is wrong with a chain or a rule, or to be known of it.
pub(crate) struct Flaw {
    pub severity: Severity,
    pub chain: ChainId,
    pub rule: Option<RuleId>,
    pub what: String,
}

/// The chains that each chain's rules lead to.
struct Graph {
    edges: Vec<Vec<ChainId>>,
}

/// All flaws.
pub(crate) fn check(ruleset: &Parts) -> Vec<Flaw> {
    let graph = Graph { edges: edges(ruleset) };
    let mut flaws = Vec::new();
    match graph.depths() {
        Err(on_loop) => {
            // The other checks would follow a loop for ever.
            let first = on_loop[0];
            let names = on_loop.iter().chain([&first]);
            let names: Vec<&str> =
                names.map(|chain| ruleset.chains[chain.index()].name.as_str()).collect();
            let what = format!("jumps of this chain lead back to it: {}", names.join(" > "));
            return vec![Flaw { severity: Severity::Invalid, chain: first, rule: None, what }];
        }
        Ok(depths) => {
            let bases = (0..).zip(&ruleset.chains).filter(|(_, chain)| chain.base.is_some());
            for (id, _) in bases.filter(|(id, _)| depths[*id as usize] > MAX_JUMP_DEPTH) {
                let what = format!("jumps more than {MAX_JUMP_DEPTH} chains deep");
                flaws.push(Flaw {
                    severity: Severity::Invalid,
                    chain: ChainId(id),
                    rule: None,
                    what,
                });
            }
        }
    }
    if flaws.is_empty() {
        flaws.extend(worst_case::check(ruleset));
    }
    let hooks = graph.hooks(ruleset);
    for (id, chain) in (0..).zip(&ruleset.chains) {
        for rule in chain.rules.clone() {
            let items = &ruleset.rules[rule as usize].items;
            for misplaced in
                items.iter().filter_map(|item| misplaced(ruleset, item, hooks[id as usize]))
            {
                let rule = Some(RuleId(rule));
                flaws.push(Flaw {
                    severity: Severity::Invalid,
                    chain: ChainId(id),
                    rule,
                    what: misplaced,
                });
            }
        }
    }
    flaws.extend(proxies_beside_source_translation(ruleset));
    flaws.extend(blind_to_the_host(ruleset, &hooks));
    flaws.extend(blind_to_fragments(ruleset));
    flaws
}

/// Rules that ask whether a packet is a fragment. Datagrams are whole when rules see them, also where
/// the kernel would not have put them together yet.
fn blind_to_fragments(ruleset: &Parts) -> Vec<Flaw> {
    let asks = |rule: &Rule| {
        rule.items.iter().find_map(|item| {
            let mask = if let Item::Bits { mask, .. } = item { *mask } else { u128::MAX };
            item.loads().iter().find_map(|load| load.field.tells_fragments(load.and & mask))
        })
    };
    let flaw = |(id, rule): (u32, &Rule)| {
        let what = match asks(rule)? {
            FragmentField::Ipv4 => {
                "no packet is a fragment for this rule: datagrams in fragments are put together before, \
                 and leave as they came"
            }
            FragmentField::Ipv6 => {
                "only datagrams that came whole have a fragment header for this rule (RFC 6946): those \
                 in fragments are put together before, and leave as they came"
            }
        };
        Some(note((id, rule), what))
    };
    (0..).zip(&ruleset.rules).filter_map(flaw).collect()
}

/// Rules that change sets by packets before routing. The host's kernel has packets for the host to
/// itself, so that such a rule sees none of them, or not all of a connection.
fn blind_to_the_host(ruleset: &Parts, hooks: &[u8]) -> Vec<Flaw> {
    let early = [Hook::Untracked, Hook::Prerouting, Hook::PreroutingTranslated];
    let early = early.iter().fold(0, |bits, hook| bits | 1 << *hook as u8);
    let is_meant = |(_, rule): &(u32, &Rule)| {
        hooks[rule.chain.index()] & early != 0
            && rule.items.iter().any(|item| matches!(item, Item::Update(_)))
    };
    let what = "packets for this host's own addresses may not change this set: they are the kernel's, \
                which needs a rule and a set of its own for them";
    (0..).zip(&ruleset.rules).filter(is_meant).map(|rule| note(rule, what)).collect()
}

/// Rules with SYN proxies in a ruleset that translates sources, which their connections can not have.
fn proxies_beside_source_translation(ruleset: &Parts) -> Vec<Flaw> {
    let mut kinds = ruleset.nats.iter().map(|nat| nat.kind);
    if !kinds.any(|kind| matches!(kind, NatKind::Source | NatKind::Masquerade)) {
        return Vec::new();
    }
    let is_proxy = |item: &Item| {
        matches!(item, Item::SynProxy(_) | Item::Object { what: ObjectKind::SynProxy, .. })
    };
    let rules = (0..).zip(&ruleset.rules).filter(|(_, rule)| rule.items.iter().any(is_proxy));
    let what = "connections of this proxy whose source a rule translates as well are dropped \
                (`nat_syn_proxy`): except their clients from masquerade and snat";
    rules.map(|rule| note(rule, what)).collect()
}

/// Something to be known of a rule.
fn note((id, rule): (u32, &Rule), what: &str) -> Flaw {
    let (severity, what) = (Severity::Note, what.to_owned());
    Flaw { severity, chain: rule.chain, rule: Some(RuleId(id)), what }
}

fn edges(ruleset: &Parts) -> Vec<Vec<ChainId>> {
    let targets = |chain: &Chain| {
        let mut targets = Vec::new();
        for rule in chain.rules.clone() {
            for item in &ruleset.rules[rule as usize].items {
                match item {
                    Item::Verdict(verdict) => targets.extend(target(*verdict)),
                    Item::VerdictMap { map, .. } => {
                        let elements = &ruleset.sets[map.index()].elements;
                        targets.extend(
                            elements
                                .iter()
                                .filter_map(|element| element.verdict().and_then(target)),
                        );
                    }
                    _ => {}
                }
            }
        }
        targets.sort_unstable();
        targets.dedup();
        targets
    };
    ruleset.chains.iter().map(targets).collect()
}

const fn target(verdict: Verdict) -> Option<ChainId> {
    match verdict {
        Verdict::Jump(chain) | Verdict::Goto(chain) => Some(chain),
        _ => None,
    }
}

impl Graph {
    /// How deep chains nest from each chain on; the error is the chains of a loop, at least one.
    fn depths(&self) -> Result<Vec<usize>, Vec<ChainId>> {
        const OPEN: usize = usize::MAX;
        let mut depths: Vec<Option<usize>> = vec![None; self.edges.len()];
        for start in 0..self.edges.len() {
            // The walk has a stack of its own, because a ruleset may have many chains.
            let mut walk = vec![(start, 0)];
            while let Some(&mut (chain, ref mut next)) = walk.last_mut() {
                if *next == 0 {
                    match depths[chain] {
                        Some(OPEN) => {
                            let before = &walk[..walk.len() - 1];
                            let begin = before.iter().rposition(|(on, _)| *on == chain);
                            let on_loop = &before[begin.unwrap_or_default()..];
                            return Err(on_loop
                                .iter()
                                .map(|(on, _)| ChainId(*on as u32))
                                .collect());
                        }
                        Some(_) => {
                            walk.pop();
                            continue;
                        }
                        None => depths[chain] = Some(OPEN),
                    }
                }
                if let Some(target) = self.edges[chain].get(*next) {
                    *next += 1;
                    walk.push((target.index(), 0));
                } else {
                    let below = self.edges[chain].iter().filter_map(|to| depths[to.index()]);
                    depths[chain] = Some(below.max().map_or(0, |depth| depth + 1));
                    walk.pop();
                }
            }
        }
        Ok(depths.into_iter().map(Option::unwrap_or_default).collect())
    }

    /// The hooks from which each chain is reached, one bit each.
    fn hooks(&self, ruleset: &Parts) -> Vec<u8> {
        let mut hooks = vec![0; self.edges.len()];
        for (id, chain) in ruleset.chains.iter().enumerate() {
            let Some(base) = chain.base else { continue };
            let bit = 1 << base.hook as u8;
            let mut reached = vec![id];
            while let Some(chain) = reached.pop() {
                if hooks[chain] & bit == 0 {
                    hooks[chain] |= bit;
                    reached.extend(self.edges[chain].iter().map(|to| to.index()));
                }
            }
        }
        hooks
    }
}

/// The reason why an item does not work in a chain that is reached from these hooks.
fn misplaced(ruleset: &Parts, item: &Item, hooks: u8) -> Option<String> {
    let only_in = |allowed: &[Hook], what: &str, place: &str| {
        let allowed = allowed.iter().fold(0, |bits, hook| bits | 1 << *hook as u8);
        (hooks & !allowed != 0).then(|| format!("{what} only works in {place}"))
    };
    match item {
        Item::Nat(nat) => match ruleset.nats[nat.index()].kind {
            NatKind::Source | NatKind::Masquerade => {
                only_in(&[Hook::SourceNat], "source translation", "nat chains of postrouting")
            }
            NatKind::Destination | NatKind::Redirect => {
                let place = "nat chains of prerouting";
                only_in(&[Hook::DestinationNat], "destination translation", place)
            }
        },
        Item::SynProxy(_) | Item::Object { what: ObjectKind::SynProxy, .. } => {
            only_in(&[Hook::Forward], "the SYN proxy", "chains of forward")
        }
        Item::Reject(_) => {
            const SENDING: [Hook; 4] =
                [Hook::Untracked, Hook::Prerouting, Hook::PreroutingTranslated, Hook::Forward];
            only_in(&SENDING, "reject", "chains of type filter before postrouting")
        }
        Item::Update(update) => {
            let is_exact = ruleset.sets[update.set.index()].elements.is_exact();
            (!is_exact).then(|| "a set of ranges can not be added to by rules".to_owned())
        }
        Item::Notrack => {
            const BEFORE: [Hook; 3] =
                [Hook::Untracked, Hook::Prerouting, Hook::PreroutingTranslated];
            only_in(&BEFORE, "notrack", "chains of prerouting")
        }
        _ => None,
    }
}

#[cfg(test)]
#[path = "graph_tests.rs"]
mod tests;
