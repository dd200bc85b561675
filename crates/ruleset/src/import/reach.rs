//! Finds the chains and sets that forwarded packets can reach. Chains that only the host's own
//! traffic reaches are left to the kernel and need not be understood.
//!
//! Where packets are looked up in a verdict map that has a name, an element that is added later may
//! lead them to any chain of its table. Such a chain *waits*: it is read too, so that its rules and
//! their state do not come and go with elements.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::document::{Object, Sorted};
use super::sets::{Mention, mentions};
use super::{TableKey, table_key};
use crate::problem::{Problems, Severity};

/// A chain or set, by its table and name.
type Name = (TableKey, String);

/// Names of the chains and sets that packets can reach, with their tables.
#[derive(Default)]
pub(crate) struct Reached {
    pub chains: HashSet<Name>,
    pub sets: HashSet<Name>,
    /// Those of them that only elements to come lead to.
    waiting: Waiting,
}

#[derive(Default)]
struct Waiting {
    chains: HashSet<Name>,
    sets: HashSet<Name>,
    /// For each chain, the chains that lead to it.
    origins: HashMap<Name, Vec<Name>>,
}

/// Chains that are not to wait.
pub(crate) enum Without {
    Chains(HashSet<Name>),
    All,
}

impl Default for Without {
    fn default() -> Self {
        Self::Chains(HashSet::new())
    }
}

impl Without {
    fn allows(&self, chain: &Name) -> bool {
        match self {
            Self::Chains(chains) => !chains.contains(chain),
            Self::All => false,
        }
    }
}

impl Reached {
    /// The waiting chains that have problems or lead to one, and whether a set has one that only
    /// these need.
    pub fn faults_of_waiting(&self, problems: &Problems) -> (HashSet<Name>, bool) {
        let (mut chains, mut others) = (HashSet::new(), problems.are_cut());
        if self.waiting.chains.is_empty() {
            return (chains, false);
        }
        let is_fault = |severity| matches!(severity, Severity::Invalid | Severity::Unsupported);
        for problem in problems.listed().iter().filter(|problem| is_fault(problem.severity)) {
            let name = (table_key(&problem.place), problem.place.name.clone());
            match problem.place.object {
                "chain" | "rule" if self.waiting.chains.contains(&name) => {
                    chains.insert(name);
                }
                "set" | "map" => others |= self.waiting.sets.contains(&name),
                _ => {}
            }
        }
        let mut open: Vec<Name> = chains.iter().cloned().collect();
        while let Some(chain) = open.pop() {
            for origin in self.waiting.origins.get(&chain).into_iter().flatten() {
                if chains.insert(origin.clone()) {
                    open.push(origin.clone());
                }
            }
        }
        (chains, others)
    }
}

/// Follows rules and elements from the base chains on, and from the chains that wait.
pub(crate) fn find<'k>(
    document: &Sorted<'_>,
    bases: impl Iterator<Item = &'k Name>,
    without: &Without,
) -> Reached {
    let search =
        Search { document, rules: by_name(&document.rules), sets: by_name(&document.sets) };
    let mut reached = Reached::default();
    search.follow(bases.cloned().collect(), &mut reached, &mut |_, _| {});
    let now = (reached.chains.clone(), reached.sets.clone());
    let mut origins: HashMap<Name, Vec<Name>> = HashMap::new();
    let roots = search.roots_of_waiting(&reached, without);
    search.follow(roots, &mut reached, &mut |from, to| {
        origins.entry(to.clone()).or_default().push(from.clone());
    });
    let waiting = Waiting {
        chains: reached.chains.difference(&now.0).cloned().collect(),
        sets: reached.sets.difference(&now.1).cloned().collect(),
        origins,
    };
    Reached { waiting, ..reached }
}

/// The places of objects by their names.
type ObjectIndex = HashMap<Name, Vec<usize>>;

fn by_name(objects: &[Object<'_>]) -> ObjectIndex {
    let mut named = ObjectIndex::new();
    for (at, object) in objects.iter().enumerate() {
        let name = (table_key(&object.place), object.place.name.clone());
        named.entry(name).or_default().push(at);
    }
    named
}

struct Search<'d, 'o> {
    document: &'d Sorted<'o>,
    rules: ObjectIndex,
    sets: ObjectIndex,
}

impl Search<'_, '_> {
    fn follow(
        &self,
        mut open: Vec<Name>,
        reached: &mut Reached,
        leads: &mut dyn FnMut(&Name, &Name),
    ) {
        while let Some(chain) = open.pop() {
            if !reached.chains.insert(chain.clone()) {
                continue;
            }
            let table = &chain.0;
            // Sets whose elements are still to be followed.
            let mut found: Vec<usize> = Vec::new();
            let mut note = |mention: Mention<'_>, found: &mut Vec<usize>| match mention {
                Mention::Chain(name) => {
                    let to = (table.clone(), name.to_owned());
                    leads(&chain, &to);
                    open.push(to);
                }
                Mention::Set(name) => {
                    let name = (table.clone(), name.to_owned());
                    if !reached.sets.contains(&name) {
                        found.extend(self.sets.get(&name).into_iter().flatten());
                        reached.sets.insert(name);
                    }
                }
            };
            for &at in self.rules.get(&chain).into_iter().flatten() {
                if let Some(statements) = self.document.rules[at].open().fields.get("expr") {
                    mentions(statements, 0, &mut |mention| note(mention, &mut found));
                }
            }
            while let Some(at) = found.pop() {
                self.document.sets[at].each_element(|number, element| {
                    // An element of a list is one level deeper than the list.
                    let depth = usize::from(number.is_some());
                    mentions(&element, depth, &mut |mention| note(mention, &mut found));
                });
            }
        }
    }

    /// The chains of tables with a verdict map that packets reach, which nothing leads to yet.
    fn roots_of_waiting(&self, reached: &Reached, without: &Without) -> Vec<Name> {
        let holds_verdicts = |at: &usize| {
            self.document.sets[*at].open().fields.get("map").and_then(Value::as_str)
                == Some("verdict")
        };
        let maps = reached.sets.iter().filter(|name| {
            self.sets.get(*name).is_some_and(|places| places.iter().any(holds_verdicts))
        });
        let tables: HashSet<&TableKey> = maps.map(|(table, _)| table).collect();
        let waits = |chain: &&Object<'_>| {
            let table = table_key(&chain.place);
            tables.contains(&table) && chain.open().fields.get("hook").is_none()
        };
        let chains = self.document.chains.iter().filter(waits);
        chains
            .map(|chain| (table_key(&chain.place), chain.place.name.clone()))
            .filter(|name| !reached.chains.contains(name) && without.allows(name))
            .collect()
    }
}

#[cfg(test)]
#[path = "../reach_tests.rs"]
mod tests;
