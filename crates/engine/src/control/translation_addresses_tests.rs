use ruleset::{Options, import};
use wire::Family;

use super::*;
use crate::testing::router::{picture_with, routing_of};

/// The translations of a rule behind `wan0`.
fn translations(rule: &str) -> Translations {
    let text = format!(
        r#"{{"nftables":[{{"table":{{"family":"ip","name":"t","handle":1}}}},
        {{"chain":{{"family":"ip","table":"t","name":"out","handle":2,"type":"nat",
            "hook":"postrouting","prio":100,"policy":"accept"}}}},
        {{"rule":{{"family":"ip","table":"t","chain":"out","handle":3,"expr":[
            {{"match":{{"op":"==","left":{{"meta":{{"key":"oifname"}}}},"right":"wan0"}}}},
            {rule}]}}}}]}}"#
    );
    let imported = import(text.as_bytes(), Options::default());
    imported.unwrap_or_else(|refused| panic!("{refused}")).ruleset.translations()
}

#[test]
fn peers_are_outside_again_once_no_rule_translates_to_their_addresses() {
    let routing = routing_of(&picture_with("198.51.100.254"));
    let names = ["lan0", "wan0"].map(str::to_owned);
    let of = |rule: &str, before: &AddressSet| {
        inside(&translations(rule), Some(&routing), &names, before)
    };
    let to_range = |low: &str, high: &str| {
        format!(r#"{{"snat":{{"family":"ip","addr":{{"range":["{low}","{high}"]}}}}}}"#)
    };
    let address = |text: &str| mapped(text.parse().unwrap());
    for (low, high) in [("198.51.100.64", "198.51.100.95"), ("203.0.113.0", "203.0.113.255")] {
        let first = of(&to_range(low, high), &AddressSet::default());
        assert!(first.contains(&address(low), Family::V4));
        let former = AddressSet::new([address(low)..=address(high)]);
        let next = of(r#"{"masquerade":null}"#, &first.without(&former));
        assert!(!next.contains(&address(low), Family::V4), "{low}");
        for it in ["198.51.100.254", "192.0.2.1"] {
            assert!(next.contains(&address(it), Family::V4), "{it}");
        }
        // A route that goes for a moment changes nothing.
        assert_eq!(of(r#"{"masquerade":null}"#, &next), next);
    }
}
