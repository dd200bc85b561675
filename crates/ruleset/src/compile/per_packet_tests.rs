use serde_json::{Value, json};

use super::*;
use crate::{Options, import_value};

/// Rules of a forward chain, which may use a plain and a dynamic set.
fn reasons(rules: &[Value]) -> Vec<(u32, PerPacket)> {
    let mut objects = vec![
        json!({"table": {"family": "inet", "name": "t", "handle": 1}}),
        json!({"chain": {"family": "inet", "table": "t", "name": "c", "handle": 1,
            "type": "filter", "hook": "forward", "prio": 0, "policy": "drop"}}),
        json!({"chain": {"family": "inet", "table": "t", "name": "more", "handle": 2}}),
        json!({"set": {"family": "inet", "table": "t", "name": "still", "handle": 3,
            "type": "ipv4_addr", "elem": ["192.0.2.1"]}}),
        json!({"set": {"family": "inet", "table": "t", "name": "moving", "handle": 4,
            "type": "ipv4_addr", "flags": ["dynamic"], "size": 100}}),
    ];
    let rule = |chain: &str, statements: &Value| {
        json!({"rule": {"family": "inet", "table": "t", "chain": chain, "handle": 9,
            "expr": statements}})
    };
    objects.extend(rules.iter().map(|statements| rule("c", statements)));
    objects.push(rule("more", &json!([{"log": {"prefix": "seen "}}])));
    let document = json!({ "nftables": objects });
    let ruleset = import_value(&document, Options::default()).expect("it is right").ruleset;
    ruleset.per_packet_rules().into_iter().map(|(rule, why)| (rule.index() as u32, why)).collect()
}

fn is(left: Value, right: &str) -> Value {
    json!([{"match": {"op": "==", "left": left, "right": right}}, {"accept": null}])
}

fn any(left: Value, right: Value) -> Value {
    json!([{"match": {"op": "in", "left": left, "right": right}}, {"accept": null}])
}

#[test]
fn addresses_ports_interfaces_states_and_marks_are_those_of_a_flow() {
    let tests = [
        is(json!({"payload": {"protocol": "ip", "field": "saddr"}}), "192.0.2.1"),
        is(json!({"payload": {"protocol": "ip", "field": "daddr"}}), "@still"),
        json!([{"match": {"op": "==", "left": {"payload": {"protocol": "tcp", "field": "dport"}},
            "right": 22}}, {"drop": null}]),
        is(json!({"meta": {"key": "iifname"}}), "lan0"),
        is(json!({"meta": {"key": "iifgroup"}}), "default"),
        any(json!({"ct": {"key": "state"}}), json!(["new"])),
        any(json!({"ct": {"key": "status"}}), json!("dnat")),
        json!([{"mangle": {"key": {"meta": {"key": "mark"}}, "value": {"ct": {"key": "mark"}}}}]),
        json!([{"mangle": {"key": {"ct": {"key": "mark"}}, "value": 7}}]),
    ];
    assert_eq!(reasons(&tests), []);
}

#[test]
fn the_flags_that_open_and_end_a_connection_are_those_of_a_flow_and_others_are_not() {
    let flags = |right: Value| {
        let left = json!({"payload": {"protocol": "tcp", "field": "flags"}});
        any(left, right)
    };
    let clamp = json!([
        {"match": {"op": "in", "left": {"payload": {"protocol": "tcp", "field": "flags"}},
            "right": "syn"}},
        {"mangle": {"key": {"tcp option": {"name": "maxseg", "field": "size"}},
            "value": {"rt": {"key": "mtu"}}}}
    ]);
    assert_eq!(reasons(&[flags(json!(["syn", "rst"])), clamp]), []);
    let differs = PerPacket::Differs("bytes of its headers");
    assert_eq!(reasons(&[flags(json!(["syn", "psh"]))]), [(0, differs)]);
}

#[test]
fn counters_limits_quotas_logs_and_sets_that_change_see_every_packet() {
    let length = json!({"meta": {"key": "length"}});
    let rules = [
        json!([{"counter": {"packets": 0, "bytes": 0}}]),
        json!([{"limit": {"rate": 10, "per": "second", "burst": 5}}, {"accept": null}]),
        json!([{"quota": {"val": 100, "val_unit": "bytes"}}]),
        json!([{"log": null}]),
        json!([{"set": {"op": "add", "set": "@moving",
            "elem": {"payload": {"protocol": "ip", "field": "saddr"}}}}]),
        json!([{"match": {"op": ">", "left": length, "right": 1000}}, {"drop": null}]),
        any(json!({"ct": {"key": "status"}}), json!("assured")),
        is(json!({"payload": {"protocol": "ip", "field": "dscp"}}), "ef"),
    ];
    let expected = [
        PerPacket::Counts,
        PerPacket::Rate,
        PerPacket::Quota,
        PerPacket::Logs,
        PerPacket::ChangingSet,
        PerPacket::Differs("its length"),
        PerPacket::Differs("the status of its connection"),
        PerPacket::Differs("bytes of its headers"),
    ];
    assert_eq!(reasons(&rules), (0..).zip(expected).collect::<Vec<_>>());
}

#[test]
fn a_rule_that_established_packets_do_not_meet_may_do_as_it_likes() {
    let established = any(json!({"ct": {"key": "state"}}), json!(["established", "related"]));
    let counts = json!([{"counter": {"packets": 0, "bytes": 0}}, {"accept": null}]);
    let jumps = json!([{"jump": {"target": "more"}}]);
    assert_eq!(reasons(&[established, counts.clone(), jumps.clone()]), []);
    let expected = [(0, PerPacket::Counts), (2, PerPacket::Logs)];
    assert_eq!(reasons(&[counts, jumps]), expected, "also in the chain behind the jump");
}

#[test]
fn a_rule_of_other_transports_is_met_by_no_flow_that_is_decided_about_once() {
    let limit = json!({"limit": {"rate": 10, "per": "second", "burst": 5}});
    let equal =
        |left: Value, right: Value| json!({"match": {"op": "==", "left": left, "right": right}});
    let kind = json!({"payload": {"protocol": "icmp", "field": "type"}});
    let protocol = || json!({"meta": {"key": "l4proto"}});
    let rules = [
        json!([equal(kind.clone(), json!("echo-request")), limit, {"accept": null}]),
        json!([equal(kind, json!({"set": ["echo-request", "echo-reply"]})), {"jump": {"target": "more"}}]),
        json!([equal(protocol(), json!("icmp")), limit, {"accept": null}]),
        json!([equal(protocol(), json!("udp")), limit, {"accept": null}]),
        json!([equal(json!({"payload": {"protocol": "udp", "field": "length"}}), json!(100)),
            {"drop": null}]),
    ];
    assert_eq!(
        reasons(&rules),
        [(3, PerPacket::Rate), (4, PerPacket::Differs("bytes of its headers"))]
    );
}

#[test]
fn a_rule_that_sets_a_zone_sees_every_packet_that_it_puts_there() {
    let zone = json!([{"mangle": {"key": {"ct": {"key": "zone"}}, "value": 9}}]);
    let objects = json!({"nftables": [
        {"table": {"family": "ip", "name": "t", "handle": 1}},
        {"chain": {"family": "ip", "table": "t", "name": "c", "handle": 1, "type": "filter",
            "hook": "prerouting", "prio": -300, "policy": "accept"}},
        {"rule": {"family": "ip", "table": "t", "chain": "c", "handle": 2, "expr": zone}}
    ]});
    let ruleset = import_value(&objects, Options::default()).expect("it is right").ruleset;
    let reasons = ruleset.per_packet_rules();
    assert_eq!(reasons, [(RuleId(0), PerPacket::Zone)]);
}

#[test]
fn a_hash_is_of_the_flow_if_its_values_are_and_a_number_is_drawn_for_each_packet() {
    let saddr = json!({"payload": {"protocol": "ip", "field": "saddr"}});
    let jhash = |value: Value| json!({"jhash": {"mod": 2, "expr": value}});
    let tests = [
        is(jhash(saddr.clone()), "1"),
        is(json!({"symhash": {"mod": 2}}), "1"),
        is(jhash(json!({"concat": [saddr, {"meta": {"key": "length"}}]})), "1"),
        is(json!({"numgen": {"mode": "inc", "mod": 2}}), "1"),
        is(json!({"numgen": {"mode": "random", "mod": 2}}), "1"),
    ];
    let expected =
        [(2, PerPacket::Differs("its length")), (3, PerPacket::Draws), (4, PerPacket::Draws)];
    assert_eq!(reasons(&tests), expected);
}
