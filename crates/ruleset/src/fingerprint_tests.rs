use serde_json::{Value, json};

use crate::import::{Options, import_value};

/// A ruleset with a set, a map, a counter and a quota.
fn ruleset() -> Value {
    json!({"nftables": [
        {"table": {"family": "inet", "name": "t", "handle": 1}},
        {"counter": {"family": "inet", "table": "t", "name": "seen", "handle": 2, "packets": 0,
            "bytes": 0}},
        {"quota": {"family": "inet", "table": "t", "name": "day", "handle": 3, "bytes": 1000,
            "used": 0, "inv": false}},
        {"set": {"family": "inet", "table": "t", "name": "bad", "handle": 4, "type": "ipv4_addr",
            "flags": ["timeout"], "elem": ["192.0.2.1", "192.0.2.2"]}},
        {"map": {"family": "inet", "table": "t", "name": "doors", "handle": 5,
            "type": "inet_service", "map": "ipv4_addr",
            "elem": [[80, "198.51.100.1"], [443, "198.51.100.2"]]}},
        {"chain": {"family": "inet", "table": "t", "name": "f", "handle": 6, "type": "filter",
            "hook": "forward", "prio": 0, "policy": "accept"}},
        {"rule": {"family": "inet", "table": "t", "chain": "f", "handle": 7, "expr": [
            {"match": {"op": "==", "left": {"payload": {"protocol": "ip", "field": "saddr"}},
                "right": "@bad"}},
            {"counter": "seen"}, {"drop": null}]}},
    ]})
}

fn fingerprint(document: &Value) -> u128 {
    import_value(document, Options::default()).unwrap().ruleset.fingerprint()
}

/// The fingerprint after a change of a part of the document.
fn after(path: &str, value: Value) -> u128 {
    let mut document = ruleset();
    *document.pointer_mut(path).unwrap() = value;
    fingerprint(&document)
}

#[test]
fn what_rules_do_not_say_makes_no_difference() {
    let same = fingerprint(&ruleset());
    for (path, value) in [
        ("/nftables/1/counter/packets", json!(7)),
        ("/nftables/2/quota/used", json!(70)),
        ("/nftables/3/set/elem", json!(["192.0.2.2", "192.0.2.1"])),
        (
            "/nftables/3/set/elem",
            json!(["192.0.2.1", "192.0.2.2",
                {"elem": {"val": "192.0.2.9", "timeout": 60, "expires": 9}}]),
        ),
        ("/nftables/4/map/elem", json!([[443, "198.51.100.2"], [80, "198.51.100.1"]])),
        ("/nftables/5/chain/handle", json!(60)),
        ("/nftables/6/rule/handle", json!(70)),
    ] {
        assert_eq!(after(path, value), same, "{path}");
    }
    let mut document = ruleset();
    document["nftables"][6]["rule"]["comment"] = json!("a word");
    assert_eq!(fingerprint(&document), same);
}

#[test]
fn rulesets_that_say_something_else_differ() {
    let changes = [
        ("/nftables/1/counter/name", json!("other")),
        ("/nftables/3/set/elem", json!(["192.0.2.1"])),
        ("/nftables/3/set/elem", json!(["192.0.2.1", "192.0.2.3"])),
        ("/nftables/5/chain/policy", json!("drop")),
        ("/nftables/5/chain/prio", json!(1)),
        ("/nftables/6/rule/expr/0/match/op", json!("!=")),
        ("/nftables/6/rule/expr/2", json!({"accept": null})),
    ];
    let mut seen = vec![fingerprint(&ruleset())];
    for (path, value) in changes {
        // The rule that names the counter keeps its name, so it goes.
        let other = match path {
            "/nftables/1/counter/name" => {
                let mut document = ruleset();
                document["nftables"][1]["counter"]["name"] = value;
                document["nftables"][6]["rule"]["expr"][1] = json!({"counter": "other"});
                fingerprint(&document)
            }
            path => after(path, value),
        };
        assert!(!seen.contains(&other), "{path}");
        seen.push(other);
    }
}
