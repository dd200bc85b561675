use flow::Timestamp;
use serde_json::{Value, json};

use crate::import::{Options, import_value};
use crate::{CompileOptions, Program, SharedState, ValidRuleset};

/// A ruleset whose map `m` leads packets to the chains that its elements name, with further chains.
fn document(elements: &Value, more: &[Value]) -> Value {
    let part = |kind: &str, name: &str, more: Value| {
        let mut object = json!({"family": "inet", "table": "t", "name": name, "handle": 5});
        object.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({ kind: object })
    };
    let vmap = json!([{"vmap": {"key": {"payload": {"protocol": "tcp", "field": "dport"}},
        "data": "@m"}}]);
    let mut objects = vec![
        json!({"table": {"family": "inet", "name": "t"}}),
        part("map", "m", json!({"type": "inet_service", "map": "verdict", "elem": elements})),
        part(
            "chain",
            "f",
            json!({"type": "filter", "hook": "forward", "prio": 0,
            "policy": "accept"}),
        ),
    ];
    for chain in ["a", "b", "c"] {
        objects.push(part("chain", chain, json!({})));
    }
    objects.push(rule("f", &vmap));
    objects.push(rule("a", &json!([{"limit": {"rate": 5, "per": "second"}}, {"accept": null}])));
    objects.push(rule("b", &json!([{"counter": {"packets": 0, "bytes": 0}}, {"drop": null}])));
    objects.extend_from_slice(more);
    json!({ "nftables": objects })
}

fn rule(chain: &str, statements: &Value) -> Value {
    json!({"rule": {"family": "inet", "table": "t", "chain": chain, "handle": 9,
        "expr": statements}})
}

fn jump(port: u16, chain: &str) -> Value {
    json!([port, {"jump": {"target": chain}}])
}

fn read(document: &Value) -> Result<ValidRuleset, String> {
    let imported = import_value(document, Options::default());
    imported.map(|it| it.ruleset).map_err(|refused| refused.to_string())
}

fn chains(ruleset: &ValidRuleset) -> Vec<&str> {
    ruleset.chains().iter().map(|chain| chain.name.as_str()).collect()
}

#[test]
fn chains_wait_for_elements_that_lead_to_them_and_back() {
    let program = |elements: Value| {
        let ruleset = read(&document(&elements, &[])).expect("it is right");
        Program::compile(ruleset, CompileOptions { index: true, seed: 1 }).expect("it is small")
    };
    let steps = [
        program(json!([])),
        program(json!([jump(22, "b")])),
        program(json!([jump(22, "b"), jump(80, "a"), jump(443, "c")])),
        program(json!([jump(80, "a")])),
        program(json!([])),
    ];
    let shared = SharedState::new(&steps[0], Timestamp::ZERO);
    for two in steps.windows(2) {
        assert!(shared.goes_on_with(&two[0], &two[1]), "all chains are there from the start");
    }
    assert_eq!(chains(steps[0].ruleset()), ["f", "a", "b", "c"]);
    // Rules that no packet meets yet ask for nothing.
    assert_eq!(steps[0].ruleset().reachable_rules().count(), 1);
    assert_eq!(steps[1].ruleset().reachable_rules().count(), 2);
}

#[test]
fn a_chain_that_is_not_understood_does_not_wait_and_refuses_nothing() {
    let word = json!([{"dup": {"addr": "192.0.2.1"}}]);
    let looping = json!([{"jump": {"target": "c"}}]);
    let misplaced = json!([{"masquerade": null}, {"frobnicate": 7}]);
    let nothing = json!([{"match": {"op": "==", "left": {"payload": {"protocol": "tcp",
        "field": "dport"}}, "right": "@nosuch"}}]);
    for bad in [word, looping, misplaced, nothing] {
        let more = [rule("c", &bad)];
        let ruleset = read(&document(&json!([jump(22, "b")]), &more)).expect("c is not needed");
        assert_eq!(chains(&ruleset), ["f", "a", "b"], "{bad}");
        // It is another matter where packets are led there.
        let message = read(&document(&json!([jump(22, "c")]), &more)).unwrap_err();
        assert!(message.contains("inet t chain c"), "{message}");
    }
    // Chains that lead to it do not wait either, and the others do.
    let more = [
        rule("c", &json!([{"dup": {"addr": "192.0.2.1"}}])),
        rule("a", &json!([{"jump": {"target": "c"}}])),
    ];
    let ruleset = read(&document(&json!([]), &more)).expect("neither is needed");
    assert_eq!(chains(&ruleset), ["f", "b"]);
    // A set that nothing else needs is in the way of no other rule.
    let set = json!({"set": {"family": "inet", "table": "t", "name": "s", "handle": 3,
        "type": "ipv4_addr", "elem": ["nobody"]}});
    let member = json!([{"match": {"op": "==", "left": {"payload": {"protocol": "ip",
        "field": "saddr"}}, "right": "@s"}}, {"drop": null}]);
    let ruleset = read(&document(&json!([]), &[set, rule("c", &member)])).expect("not needed");
    assert_eq!(chains(&ruleset), ["f"]);
}

#[test]
fn no_chain_waits_where_no_element_can_lead_to_it() {
    let mut all = document(&json!([]), &[]);
    let objects = all["nftables"].as_array_mut().unwrap();
    objects.retain(|object| object["rule"]["chain"] != "f");
    assert_eq!(chains(&read(&all).expect("it is right")), ["f"]);
}
