//! The interfaces that rules name.

use std::collections::BTreeMap;

use crate::field::Field;
use crate::kind::Interval;
use crate::model::{Item, Key, RuleId, SetId, ValidRuleset};

impl ValidRuleset {
    /// The interfaces that rules name, each with the first rule that names it. A wildcard names
    /// none.
    pub fn interfaces(&self) -> BTreeMap<String, RuleId> {
        let mut named = BTreeMap::new();
        let mut note = |interval: Interval, rule: u32| {
            if let Some(name) = name(interval) {
                named.entry(name).or_insert(RuleId(rule));
            }
        };
        for (RuleId(id), rule) in self.reachable_rules() {
            for item in &rule.items {
                match item {
                    Item::Within { load, interval, .. } if is_interface(load.field) => {
                        note(*interval, id);
                    }
                    Item::Member { key, set, .. } | Item::VerdictMap { key, map: set } => {
                        self.in_set(key, *set).for_each(|interval| note(interval, id));
                    }
                    _ => {}
                }
            }
        }
        named
    }

    fn in_set<'a>(&'a self, key: &'a Key, set: SetId) -> impl Iterator<Item = Interval> + 'a {
        let parts = key.loads.iter().enumerate().filter(|(_, load)| is_interface(load.field));
        let elements = &self.sets[set.index()].elements;
        parts.flat_map(|(at, _)| elements.iter().filter_map(move |element| element.part(at)))
    }
}

fn is_interface(field: Field) -> bool {
    matches!(field, Field::Input | Field::Output)
}

fn name(interval: Interval) -> Option<String> {
    if !interval.is_one() {
        return None;
    }
    let bytes = interval.low.to_be_bytes();
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let name = std::str::from_utf8(&bytes[..end]).ok()?;
    // A number is the index of an interface that was gone when nft printed the ruleset.
    let is_number = name.bytes().all(|byte| byte.is_ascii_digit());
    (!is_number).then(|| name.to_owned())
}
