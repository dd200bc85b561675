//! Recognizes what nft prints of the tables of iptables-nft by their form.
//!
//! Some of that text has no meaning for nft, and some has another than the rule: nft 1.0.6 prints
//! `-m conntrack ! --ctstate DNAT` as `ct status dnat`, without the negation. The form of a table is
//! only a likely sign: people may write such tables by hand.

use ruleset::each_object;
use serde_json::Value;

/// Tables of iptables and ip6tables.
const TABLES: [&str; 5] = ["filter", "nat", "mangle", "raw", "security"];

/// The base chains of iptables, and the hook of each.
const CHAINS: [(&str, &str); 5] = [
    ("PREROUTING", "prerouting"),
    ("INPUT", "input"),
    ("FORWARD", "forward"),
    ("OUTPUT", "output"),
    ("POSTROUTING", "postrouting"),
];

/// A warning about the tables of a ruleset in nft's JSON that have the form of iptables-nft.
pub fn iptables_warning(json: &[u8]) -> Option<String> {
    let tables = alike(json);
    (!tables.is_empty()).then(|| {
        format!(
            "THIS LOOKS LIKE RULES OF IPTABLES AS NFT PRINTS THEM ({}): nft prints some of them \
             with another meaning, such as `! --ctstate` without its negation; load the output of \
             iptables-save and ip6tables-save instead, unless the rules were written for nft",
            tables.join(", ")
        )
    })
}

/// A table, and whether it is like one of iptables-nft so far.
struct Table {
    name: (String, String),
    has_rules: bool,
    is_alike: bool,
}

/// The tables with rules whose base chains all are those of iptables, and whose rules all count: those
/// of iptables-nft do.
fn alike(json: &[u8]) -> Vec<String> {
    let mut tables: Vec<Table> = Vec::new();
    let is_read = each_object(json, |value| {
        let Some((kind, object)) = value.as_object().and_then(|it| it.iter().next()) else {
            return;
        };
        let text = |key: &str| object.get(key).and_then(Value::as_str).unwrap_or_default();
        if kind == "table" {
            let is_alike = matches!(text("family"), "ip" | "ip6") && TABLES.contains(&text("name"));
            let name = (text("family").to_owned(), text("name").to_owned());
            tables.push(Table { name, has_rules: false, is_alike });
            return;
        }
        let is_its = |it: &&mut Table| it.name.0 == text("family") && it.name.1 == text("table");
        let Some(table) = tables.iter_mut().rev().find(is_its).filter(|table| table.is_alike)
        else {
            return;
        };
        match kind.as_str() {
            "chain" if object.get("hook").is_some() => {
                table.is_alike = CHAINS.contains(&(text("name"), text("hook")));
            }
            "rule" => {
                let statements = object.get("expr").and_then(Value::as_array);
                let mut statements = statements.into_iter().flatten();
                table.is_alike = statements.any(|it| it.get("counter").is_some());
                table.has_rules = true;
            }
            // iptables has no sets, maps or objects with names.
            "set" | "map" | "counter" | "quota" | "limit" | "flowtable" => table.is_alike = false,
            _ => {}
        }
    });
    let found = tables.into_iter().filter(|table| is_read && table.has_rules && table.is_alike);
    found.map(|Table { name: (family, name), .. }| format!("table {family} {name}")).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A ruleset with one table, whose base chain `chain` forwards.
    fn ruleset(family: &str, name: &str, chain: &str, rules: &[Value]) -> Vec<u8> {
        let mut objects = vec![
            json!({"metainfo": {"json_schema_version": 1}}),
            json!({"table": {"family": family, "name": name, "handle": 1}}),
            json!({"chain": {"family": family, "table": name, "name": chain, "handle": 2,
                "type": "filter", "hook": "forward", "prio": 0, "policy": "accept"}}),
        ];
        objects.extend(rules.iter().map(|expr| {
            json!({"rule": {"family": family, "table": name, "chain": chain, "handle": 3,
                "expr": expr}})
        }));
        json!({ "nftables": objects }).to_string().into_bytes()
    }

    #[test]
    fn tables_of_iptables_nft_are_known_by_their_form() {
        let counts = json!([{"counter": {"packets": 0, "bytes": 0}}, {"drop": null}]);
        let silent = json!([{"drop": null}]);
        let of = |family: &str, name: &str, chain: &str, rules: &[Value]| {
            iptables_warning(&ruleset(family, name, chain, rules))
        };
        let both = [counts.clone(), counts.clone()];
        let warning = of("ip", "filter", "FORWARD", &both).expect("it looks like one");
        assert!(warning.contains("(table ip filter)"), "{warning}");
        assert!(of("ip6", "mangle", "FORWARD", &both).is_some());
        // Rules that people write.
        assert_eq!(of("ip", "filter", "forward", &both), None);
        assert_eq!(of("ip", "mine", "FORWARD", &both), None);
        assert_eq!(of("inet", "filter", "FORWARD", &both), None);
        assert_eq!(of("ip", "filter", "FORWARD", &[counts, silent]), None);
        assert_eq!(of("ip", "filter", "FORWARD", &[]), None);
        let whole = ruleset("ip", "filter", "FORWARD", &both);
        assert_eq!(iptables_warning(&whole[..whole.len() - 1]), None, "it is cut");
    }
}
