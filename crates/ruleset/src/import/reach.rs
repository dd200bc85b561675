//! Which chains and sets packets can reach through us. What only the host's own traffic
//! reaches is the kernel's, and need not be understood.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::document::{Document, Object};
use super::sets::{Mention, mentions};
use super::{TableKey, table_key};

/// Names of what can be reached, with their tables.
#[derive(Default)]
pub(crate) struct Reached {
    pub chains: HashSet<(TableKey, String)>,
    pub sets: HashSet<(TableKey, String)>,
}

/// Follows rules and elements from the base chains on.
pub(crate) fn find<'k>(
    document: &Document<'_>,
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
        let mut look_at: Vec<&Value> = Vec::new();
        for &at in rules.get(&chain).into_iter().flatten() {
            look_at.extend(document.rules[at].fields.get("expr"));
        }
        while let Some(value) = look_at.pop() {
            mentions(value, 0, &mut |mention| match mention {
                Mention::Chain(name) => open.push((table.clone(), name.to_owned())),
                Mention::Set(name) => {
                    let name = (table.clone(), name.to_owned());
                    if reached.sets.insert(name.clone()) {
                        for &at in sets.get(&name).into_iter().flatten() {
                            look_at.extend(document.sets[at].fields.get("elem"));
                        }
                    }
                }
            });
        }
    }
    reached
}
