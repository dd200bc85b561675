//! For tests: small rulesets.

use ruleset::{Options, ValidRuleset, import};

/// A ruleset with one base chain, whose rules are lists of expressions in nft's JSON.
pub fn one_chain(hook: &str, priority: i32, policy: &str, rules: &[&str]) -> ValidRuleset {
    one_chain_with("", hook, priority, policy, rules)
}

/// The same with named objects in front.
pub fn one_chain_with(
    objects: &str,
    hook: &str,
    priority: i32,
    policy: &str,
    rules: &[&str],
) -> ValidRuleset {
    let mut document = format!(
        r#"{{"nftables":[{{"table":{{"family":"inet","name":"t","handle":1}}}},{objects}{{"chain":{{
            "family":"inet","table":"t","name":"c","handle":1,"type":"filter","hook":"{hook}",
            "prio":{priority},"policy":"{policy}"}}}}"#
    );
    for (handle, rule) in (10..).zip(rules) {
        document += &format!(
            r#",{{"rule":{{"family":"inet","table":"t","chain":"c","handle":{handle},
                "expr":[{rule}]}}}}"#
        );
    }
    import(format!("{document}]}}").as_bytes(), Options::default()).unwrap().ruleset
}
