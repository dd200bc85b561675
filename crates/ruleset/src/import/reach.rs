//! Finds the chains and sets that forwarded packets can reach. Chains that only the host's own
//! traffic reaches are left to the kernel and need not be understood.

use std::collections::{HashMap, HashSet};

use super::document::{Object, Sorted};
use super::sets::{Mention, mentions};
use super::{TableKey, table_key};

/// Names of the chains and sets that packets can reach, with their tables.
#[derive(Default)]
pub(crate) struct Reached {
    pub chains: HashSet<(TableKey, String)>,
    pub sets: HashSet<(TableKey, String)>,
}

/// Follows rules and elements from the base chains on.
pub(crate) fn find<'k>(
    document: &Sorted<'_>,
    bases: impl Iterator<Item = &'k (TableKey, String)>,
) -> Reached {
    let by_name = |objects: &[Object<'_>]| {
        let mut named: HashMap<(TableKey, String), Vec<usize>> = HashMap::new();
        for (at, object) in objects.iter().enumerate() {
            let name = (table_key(&object.place), object.place.name.clone());
            named.entry(name).or_default().push(at);
        }
        named
    };
    let (rules, sets) = (by_name(&document.rules), by_name(&document.sets));
    let mut reached = Reached::default();
    let mut open: Vec<(TableKey, String)> = bases.cloned().collect();
    while let Some(chain) = open.pop() {
        if !reached.chains.insert(chain.clone()) {
            continue;
        }
        let table = &chain.0;
        // Sets whose elements are still to be followed.
        let mut found: Vec<usize> = Vec::new();
        let mut note = |mention: Mention<'_>, found: &mut Vec<usize>| match mention {
            Mention::Chain(name) => open.push((table.clone(), name.to_owned())),
            Mention::Set(name) => {
                let name = (table.clone(), name.to_owned());
                if !reached.sets.contains(&name) {
                    found.extend(sets.get(&name).into_iter().flatten());
                    reached.sets.insert(name);
                }
            }
        };
        for &at in rules.get(&chain).into_iter().flatten() {
            if let Some(statements) = document.rules[at].open().fields.get("expr") {
                mentions(statements, 0, &mut |mention| note(mention, &mut found));
            }
        }
        while let Some(at) = found.pop() {
            document.sets[at].each_element(|number, element| {
                // An element of a list is one level deeper than the list.
                let depth = usize::from(number.is_some());
                mentions(&element, depth, &mut |mention| note(mention, &mut found));
            });
        }
    }
    reached
}
