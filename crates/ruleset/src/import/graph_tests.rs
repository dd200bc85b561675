//! Notes about rules that see less than they seem to.

use serde_json::{Value, json};

use crate::{Options, import};

/// True for each of these statements that gets a note with `words`, in a rule of its own.
fn noted(hook: &str, statements: &[Value], words: &str) -> Vec<bool> {
    let mut objects = vec![
        json!({"table": {"family": "inet", "name": "t", "handle": 1}}),
        json!({"set": {"family": "inet", "table": "t", "name": "m", "handle": 2,
            "type": "ipv4_addr", "flags": ["dynamic"], "size": 10}}),
        json!({"chain": {"family": "inet", "table": "t", "name": "c", "handle": 3,
            "type": "filter", "hook": hook, "prio": 0, "policy": "accept"}}),
    ];
    objects.extend((10..).zip(statements).map(|(handle, statement)| {
        json!({"rule": {"family": "inet", "table": "t", "chain": "c", "handle": handle,
            "expr": [statement, {"counter": null}]}})
    }));
    let document = json!({ "nftables": objects }).to_string();
    let problems = import(document.as_bytes(), Options::default()).unwrap().problems.to_string();
    let is_noted = |handle: usize| {
        let place = format!("handle {handle}:");
        problems.lines().any(|line| line.contains(&place) && line.contains(words))
    };
    (10..10 + statements.len()).map(is_noted).collect()
}

#[test]
fn rules_that_ask_for_fragments_are_noted() {
    let field = |name: &str| json!({"payload": {"protocol": "ip", "field": name}});
    let masked = |mask: u16| json!({"&": [field("frag-off"), mask]});
    let matches = |op: &str, left: Value, right: Value| json!({"match": {"op": op, "left": left, "right": right}});
    let bits = json!({"payload": {"base": "nh", "offset": 48, "len": 16}});
    let statements = [
        matches("!=", masked(0x1fff), json!(0)),
        matches("==", masked(0x2000), json!(0x2000)),
        matches("==", field("frag-off"), json!(0)),
        matches("!=", json!({"&": [bits, 0x3fff]}), json!(0)),
        matches("==", json!({"exthdr": {"name": "frag"}}), json!(true)),
        matches("==", json!({"exthdr": {"name": "frag", "field": "more-fragments"}}), json!(1)),
        // "Don't fragment" is a bit of whole datagrams, too.
        matches("!=", masked(0x4000), json!(0)),
        matches("==", field("id"), json!(7)),
        matches("==", json!({"exthdr": {"name": "hbh"}}), json!(true)),
    ];
    let expected = [true, true, true, true, true, true, false, false, false];
    assert_eq!(noted("forward", &statements, "no packet is a fragment"), expected);
}

#[test]
fn rules_that_fill_sets_before_routing_are_noted() {
    let add = json!({"set": {"op": "add", "set": "@m",
        "elem": {"payload": {"protocol": "ip", "field": "saddr"}}}});
    let words = "host's own addresses may not change this set";
    assert_eq!(noted("prerouting", std::slice::from_ref(&add), words), [true]);
    assert_eq!(noted("forward", &[add], words), [false]);
}
