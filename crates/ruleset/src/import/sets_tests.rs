use serde_json::{Value, json};

use crate::hook::Hook;
use crate::import::{Options, import_value};
use crate::testing::{Surroundings, drops, matches, one_rule};

fn field(protocol: &str, field: &str) -> Value {
    json!({"payload": {"protocol": protocol, "field": field}})
}

/// True if a UDP packet from 192.0.2.1:1000 to 198.51.100.2:53 has a field among these elements.
fn is_among(key: &Value, operator: &str, elements: &Value) -> bool {
    let condition = json!({"match": {"op": operator, "left": key, "right": {"set": elements}}});
    matches(&condition, &Surroundings::default())
}

#[test]
fn the_element_for_all_others_matches_every_packet_that_has_the_field() {
    let source = field("ip", "saddr");
    for other in [json!("192.0.2.9"), json!({"range": ["192.0.2.1", "192.0.2.5"]})] {
        assert!(is_among(&source, "==", &json!([other, "*"])));
        assert!(!is_among(&source, "!=", &json!([other, "*"])));
    }
    assert!(!is_among(&field("ip6", "saddr"), "==", &json!(["2001:db8::1", "*"])));
    assert!(!is_among(&field("tcp", "dport"), "==", &json!([80, "*"])));
}

#[test]
fn other_elements_of_a_map_come_before_the_one_for_all_others() {
    let [accept, drop] = [json!({"accept": null}), json!({"drop": null})];
    let pair = json!({"concat": [field("ip", "saddr"), field("udp", "dport")]});
    let of = |address: &Value, port: &Value| json!({ "concat": [address, port] });
    let (here, net) = (json!("192.0.2.1"), json!({"prefix": {"addr": "192.0.2.0", "len": 24}}));
    for (key, known, unknown) in [
        (field("ip", "saddr"), here.clone(), json!("192.0.2.9")),
        (field("ip", "saddr"), net.clone(), json!({"range": ["192.0.2.2", "192.0.2.9"]})),
        (pair.clone(), of(&here, &json!(53)), of(&here, &json!(54))),
        (pair, of(&net, &json!({"range": [50, 60]})), of(&net, &json!({"range": [54, 60]}))),
        (json!({"meta": {"key": "iifname"}}), json!("in0"), json!("in1")),
    ] {
        for (element, is_known) in [(known, true), (unknown, false)] {
            let map = json!({"set": [["*", drop], [element, accept]]});
            let rule = json!([{"vmap": {"key": key, "data": map}}]);
            let document = one_rule(Hook::Forward, &[], &rule);
            assert_eq!(drops(&document, &Surroundings::default()), !is_known, "{rule}");
        }
    }
}

#[test]
fn an_element_for_all_others_is_there_once_and_packets_change_nothing_beside_it() {
    let told = |more: Value, statement: Value| {
        let mut set = json!({"family": "inet", "table": "t", "name": "s", "type": "ipv4_addr"});
        set.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let document = one_rule(Hook::Forward, &[json!({ "set": set })], &json!([statement]));
        let refused = import_value(&document, Options::default()).unwrap_err();
        refused.problems.listed()[0].to_string()
    };
    let source = field("ip", "saddr");
    let asks = json!({"match": {"op": "==", "left": source, "right": "@s"}});
    let adds = json!({"set": {"op": "add", "elem": source, "set": "@s"}});
    let twice = told(json!({"elem": ["*", "*"]}), asks.clone());
    assert!(twice.contains("a second element `*`"), "{twice}");
    let limit = json!([{"limit": {"rate": 1, "per": "second"}}]);
    let limited = told(json!({"elem": ["192.0.2.1", "*"], "stmt": limit}), asks);
    assert!(limited.contains("the element `*` of a set whose elements have limits"), "{limited}");
    assert!(limited.contains("left out, other rules decide"), "{limited}");
    let changed = told(json!({"elem": ["192.0.2.1", "*"]}), adds);
    assert!(changed.contains("the element `*` of a set that packets change"), "{changed}");
    assert!(changed.contains("left out, only its side effect"), "{changed}");
}

#[test]
fn an_element_has_no_other_limit_than_its_set() {
    let with = |rate: u32, of_set: Value| {
        let limited =
            json!({"elem": {"val": "192.0.2.1", "limit": {"rate": rate, "per": "second"}}});
        let set = json!({"set": {"family": "inet", "table": "t", "name": "s", "type": "ipv4_addr",
            "elem": [limited], "stmt": of_set}});
        let asks = json!({"match": {"op": "==", "left": field("ip", "saddr"), "right": "@s"}});
        let document = one_rule(Hook::Forward, &[set], &json!([asks]));
        import_value(&document, Options::default()).map_err(|refused| refused.problems)
    };
    let limit = json!([{"limit": {"rate": 1, "per": "second"}}]);
    assert!(with(1, limit.clone()).is_ok());
    let told = with(5, limit).unwrap_err().listed()[0].to_string();
    assert!(told.contains("an element whose `limit` is another one than its set's"), "{told}");
    // As rules have added it.
    assert!(with(5, json!([])).is_ok());
}

#[test]
fn a_concatenation_that_nft_lists_wrongly_is_refused() {
    let length = json!({"meta": {"key": "length"}});
    let key = json!({"concat": [length, field("ip", "saddr")]});
    let asks = |length: Value| {
        let set = json!({"set": [{"concat": [length, "0.0.0.84"]}]});
        let rule = json!([{"match": {"op": "==", "left": key, "right": set}}, {"drop": null}]);
        import_value(&one_rule(Hook::Forward, &[], &rule), Options::default())
    };
    assert!(asks(json!(84)).is_ok());
    for doubtful in [json!(0), json!({"range": [84, 90]})] {
        let told = asks(doubtful).unwrap_err().problems.listed()[0].to_string();
        assert!(told.contains("nft 1.0.6 lists sets with ranges so"), "{told}");
    }
}
