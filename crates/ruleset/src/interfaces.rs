//! The interfaces that rules name.

use std::collections::BTreeMap;

use crate::elements::Element;
use crate::field::Field;
use crate::kind::{Interval, name_bits};
use crate::model::{Item, Key, Rule, RuleId, SetId, ValidRuleset, Verdict};

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

    /// The rules that refuse packets, and ask for the interfaces of both sides. Some of them isolate the
    /// ports of a bridge.
    pub fn isolating(&self) -> Vec<RuleId> {
        let refuses = |item: &Item| matches!(item, Item::Verdict(Verdict::Drop) | Item::Reject(_));
        let asks = |item: &Item, field| item.loads().iter().any(|load| load.field == field);
        let isolates = |rule: &Rule| {
            let has = |is: &dyn Fn(&Item) -> bool| rule.items.iter().any(is);
            has(&refuses)
                && SIDES.iter().all(|side| has(&|item| item.compares() && asks(item, *side)))
        };
        self.reachable_rules().filter(|(_, rule)| isolates(rule)).map(|(id, _)| id).collect()
    }

    /// True if a rule goes on with packets that come in by an interface and leave by it again, as far as
    /// their interfaces decide.
    pub fn is_of_interface(&self, rule: RuleId, interface: &str) -> bool {
        let Some(name) = name_bits(interface) else { return false };
        self.rules[rule.index()].items.iter().all(|item| match item {
            Item::Within { load, interval, negated } if is_interface(load.field) => {
                interval.holds(name) != *negated
            }
            Item::Member { key, set, negated } => {
                let loads = key.loads.iter().enumerate();
                let sides = loads.filter(|(_, load)| is_interface(load.field)).map(|(at, _)| at);
                let holds = |element: Element<'_>| {
                    let part = |at| element.part(at).is_some_and(|part| part.holds(name));
                    sides.clone().all(part)
                };
                sides.clone().next().is_none()
                    || self.sets[set.index()].elements.iter().any(holds) != *negated
            }
            _ => true,
        })
    }

    fn in_set<'a>(&'a self, key: &'a Key, set: SetId) -> impl Iterator<Item = Interval> + 'a {
        let parts = key.loads.iter().enumerate().filter(|(_, load)| is_interface(load.field));
        let elements = &self.sets[set.index()].elements;
        parts.flat_map(|(at, _)| elements.iter().filter_map(move |element| element.part(at)))
    }
}

/// The fields with the name of an interface.
const SIDES: [Field; 2] = [Field::Input, Field::Output];

fn is_interface(field: Field) -> bool {
    SIDES.contains(&field)
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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::{Options, import};

    #[test]
    fn a_rule_isolates_the_interfaces_that_it_names_on_both_sides() {
        let side = |key: &str, op: &str, right: Value| json!({"match": {"op": op, "left": {"meta": {"key": key}}, "right": right}});
        let (input, output) = ("iifname", "oifname");
        let isolates = |matches: &[Value], end: &str| {
            let mut expr = matches.to_vec();
            expr.push(json!({end: null}));
            let document = json!({"nftables": [
                {"table": {"family": "inet", "name": "t", "handle": 1}},
                {"chain": {"family": "inet", "table": "t", "name": "f", "handle": 2,
                    "type": "filter", "hook": "forward", "prio": 0, "policy": "accept"}},
                {"rule": {"family": "inet", "table": "t", "chain": "f", "handle": 3, "expr": expr}},
            ]});
            let document = document.to_string();
            let ruleset = import(document.as_bytes(), Options::default()).unwrap().ruleset;
            ruleset.isolating().iter().any(|rule| ruleset.is_of_interface(*rule, "br0"))
        };
        let both =
            |op: &str, right: Value| [side(input, op, right.clone()), side(output, op, right)];
        for (op, right) in [
            ("==", json!("br0")),
            ("==", json!("br*")),
            ("==", json!({"set": ["br0", "br1"]})),
            ("!=", json!("wan0")),
            ("!=", json!({"set": ["wan0", "wan1"]})),
        ] {
            assert!(isolates(&both(op, right.clone()), "drop"), "{op} {right}");
            assert!(!isolates(&both(op, right.clone()), "accept"), "{op} {right}");
        }
        let (from, to) = (side(input, "==", json!("br0")), side(output, "==", json!("wan0")));
        assert!(!isolates(&[from.clone(), to], "drop"));
        assert!(!isolates(&[from], "drop"));
        assert!(!isolates(&both("==", json!("br1")), "drop"));
        let pair = json!({"match": {"op": "==",
            "left": {"concat": [{"meta": {"key": input}}, {"meta": {"key": output}}]},
            "right": {"set": [{"concat": ["br0", "wan0"]}, {"concat": ["br0", "br0"]}]}}});
        assert!(isolates(&[pair], "drop"));
    }
}
