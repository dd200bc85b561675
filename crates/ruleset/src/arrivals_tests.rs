use serde_json::{Value, json};
use wire::protocol::TCP;

use super::*;
use crate::kind::Interval;
use crate::{Options, Translations, import_value};

/// Rules of a chain `pre`, which translates destinations, of chains that it may lead to, and of a
/// chain `mark` before it.
fn translations(rules: &[(&str, Value)]) -> Translations {
    let base = |name: &str, kind: &str, priority: i32| {
        json!({"chain": {"family": "ip", "table": "t", "name": name, "handle": 2, "type": kind,
            "hook": "prerouting", "prio": priority, "policy": "accept"}})
    };
    let mut all = vec![
        json!({"table": {"family": "ip", "name": "t", "handle": 1}}),
        base("mark", "filter", -150),
        base("pre", "nat", -100),
    ];
    for name in ["web", "mail", "both"] {
        all.push(json!({"chain": {"family": "ip", "table": "t", "name": name, "handle": 3}}));
    }
    for (at, (chain, expr)) in rules.iter().enumerate() {
        all.push(json!({"rule": {"family": "ip", "table": "t", "chain": chain, "handle": 9 + at,
            "expr": expr}}));
    }
    let imported = import_value(&json!({ "nftables": all }), Options::default());
    imported.unwrap_or_else(|refused| panic!("{refused}")).ruleset.translations()
}

fn port() -> Value {
    json!({"payload": {"protocol": "tcp", "field": "dport"}})
}

fn is(left: &Value, right: &Value) -> Value {
    json!({"match": {"op": "==", "left": left, "right": right}})
}

fn tcp() -> Value {
    is(&json!({"meta": {"key": "l4proto"}}), &json!("tcp"))
}

fn to_server() -> Value {
    json!({"dnat": {"addr": "192.0.2.10", "port": 8080}})
}

/// The ports of the packets that are kept from the host, and the number of vague rules.
fn ports(rules: &[(&str, Value)]) -> (Vec<Option<(u16, u16)>>, usize) {
    let found = translations(rules);
    let mut ports: Vec<_> = found.destinations.iter().map(|it| it.ports).collect();
    ports.sort();
    assert!(found.destinations.iter().all(|it| it.protocol == Some(TCP)), "{found:?}");
    (ports, found.vague.len())
}

const fn one(port: u16) -> Option<(u16, u16)> {
    Some((port, port))
}

#[test]
fn ports_are_those_of_the_rules_that_lead_to_a_chain() {
    let jump = |kind: &str, to: &str| json!({kind: {"target": to}});
    for kind in ["jump", "goto"] {
        let calls = json!([is(&port(), &json!(30080)), jump(kind, "web")]);
        let rules = [("pre", calls), ("web", json!([tcp(), to_server()]))];
        assert_eq!(ports(&rules), (vec![one(30080)], 0), "{kind}");
    }
    let vmap = json!([{"vmap": {"key": port(), "data": {"set": [
        [80, jump("goto", "web")],
        [443, jump("jump", "web")],
        [25, jump("goto", "mail")],
        [22, {"accept": null}],
    ]}}}]);
    let rules = [
        ("pre", vmap.clone()),
        ("web", json!([tcp(), to_server()])),
        ("mail", json!([jump("goto", "both")])),
        ("both", json!([tcp(), to_server()])),
    ];
    assert_eq!(ports(&rules), (vec![one(25), one(80), one(443)], 0));
    // The conditions of a chain's own rule restrict the packets that come to it.
    let rules = [("pre", vmap), ("web", json!([is(&port(), &json!(443)), to_server()]))];
    assert_eq!(ports(&rules), (vec![one(443)], 0));
    // One of the ways names nothing.
    let set = is(&port(), &json!({"set": [80, {"range": [8000, 8009]}]}));
    let by_port = ("pre", json!([set, jump("jump", "web")]));
    let marked = is(&json!({"meta": {"key": "iifname"}}), &json!("wan0"));
    let rules = [
        by_port,
        ("pre", json!([marked, jump("jump", "web")])),
        ("web", json!([tcp(), to_server()])),
    ];
    assert_eq!(ports(&rules), (vec![one(80), Some((8000, 8009))], 1));
}

#[test]
fn an_address_without_a_port_means_any_port_of_it() {
    let address = json!({"payload": {"protocol": "ip", "field": "daddr"}});
    let calls = json!([is(&address, &json!("198.51.100.1")), {"jump": {"target": "web"}}]);
    let found = translations(&[("pre", calls), ("web", json!([tcp(), to_server()]))]);
    let [packets] = found.destinations[..] else { panic!("{found:?}") };
    let number = u128::from(u32::from_be_bytes([198, 51, 100, 1]));
    assert_eq!(packets.addresses, Some((Family::V4, Interval::one(number))));
    assert_eq!((packets.ports, found.vague.len()), (None, 0));
}

#[test]
fn packets_with_a_mark_are_those_that_rules_have_given_it() {
    let mark = json!({"meta": {"key": "mark"}});
    let set = |mark: Value| json!({"mangle": {"key": {"meta": {"key": "mark"}}, "value": mark}});
    let marks =
        |number: u16, value: Value| ("mark", json!([is(&port(), &json!(number)), set(value)]));
    let asks = |right: Value| ("pre", json!([is(&mark, &right), tcp(), to_server()]));
    let seven = [marks(30080, json!(7)), marks(30081, json!(8)), asks(json!(7))];
    assert_eq!(ports(&seven), (vec![one(30080)], 0));
    let one_of = [marks(30080, json!(7)), marks(30081, json!(8)), asks(json!({"set": [7, 8]}))];
    assert_eq!(ports(&one_of), (vec![one(30080), one(30081)], 0));
    // Nobody knows which mark this is, and a packet comes without one.
    let computed = json!({"|": [mark, 7]});
    assert_eq!(ports(&[marks(30080, computed), asks(json!(7))]), (vec![one(30080)], 0));
    assert_eq!(ports(&[marks(30080, json!(7)), asks(json!(0))]), (vec![], 1));
    assert_eq!(ports(&[asks(json!(7))]), (vec![], 0));
}

#[test]
fn too_many_ports_become_any_port() {
    let elements: Vec<_> =
        (1..=5000).map(|port| json!([port, {"goto": {"target": "web"}}])).collect();
    let address = json!({"payload": {"protocol": "ip", "field": "daddr"}});
    let vmap = json!({"vmap": {"key": port(), "data": {"set": elements}}});
    let web = ("web", json!([to_server()]));
    let at = [("pre", json!([is(&address, &json!("198.51.100.1")), vmap])), web.clone()];
    let found = translations(&at);
    assert!(found.destinations.len() == 1 && found.vague.is_empty(), "{found:?}");
    assert_eq!(ports(&[("pre", json!([vmap])), web]), (vec![], 1));
}
