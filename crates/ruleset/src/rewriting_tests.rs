use flow::Timestamp;
use serde_json::{Value, json};
use wire::build::PacketBuilder;
use wire::{FieldWrite, dissect};

use crate::{
    CompileOptions, Decision, Hook, Options, Outcome, PacketView, Program, RuleState, SharedState,
    evaluate, import_value,
};

fn field(header: &str, name: &str) -> Value {
    json!({"payload": {"protocol": header, "field": name}})
}

fn set(header: &str, name: &str, value: &Value) -> Value {
    json!({"mangle": {"key": field(header, name), "value": value}})
}

fn asks(header: &str, name: &str, value: &Value) -> Value {
    json!({"match": {"op": "==", "left": field(header, name), "right": value}})
}

/// A chain that drops what no rule accepts.
fn program(rules: &[Vec<Value>], index: bool) -> Program {
    let rules = rules
        .iter()
        .map(|expr| json!({"rule": {"family": "inet", "table": "t", "chain": "c", "expr": expr}}));
    let mut objects = vec![
        json!({"table": {"family": "inet", "name": "t"}}),
        json!({"chain": {"family": "inet", "table": "t", "name": "c", "type": "filter",
            "hook": "forward", "prio": 0, "policy": "drop"}}),
    ];
    objects.extend(rules);
    let document = json!({ "nftables": objects });
    let ruleset = import_value(&document, Options::default()).expect("it is right").ruleset;
    Program::compile(ruleset, CompileOptions { index, seed: 7 }).expect("it is small")
}

fn outcome_of(program: &Program, frame: &[u8]) -> (Outcome, Vec<FieldWrite>) {
    let network = dissect(frame).expect("it is right").network.expect("it is IP");
    let view = PacketView::untracked(frame, &network);
    let mut state =
        RuleState::new(program, &SharedState::new(program, Timestamp::ZERO), Timestamp::ZERO);
    // Nothing of an earlier packet stays.
    evaluate(program, Hook::Forward, &view, &mut state, Timestamp::ZERO);
    let outcome = evaluate(program, Hook::Forward, &view, &mut state, Timestamp::ZERO);
    (outcome, state.writes().to_vec())
}

fn udp() -> Vec<u8> {
    let mut frame = Vec::new();
    PacketBuilder::v4([192, 0, 2, 1], [198, 51, 100, 1]).udp(4000, 53, &[0; 8], &mut frame);
    frame
}

#[test]
fn later_rules_of_the_hook_see_what_was_written() {
    let accept = json!({"accept": null});
    let mut rules = vec![
        vec![set("ip", "daddr", &json!("198.51.100.9")), set("udp", "dport", &json!(5353))],
        vec![asks("ip", "daddr", &json!("198.51.100.1")), json!({"drop": null})],
        vec![asks("udp", "dport", &json!(53)), json!({"drop": null})],
        vec![set("ip", "dscp", &json!("ef")), set("ip", "ttl", &json!(7))],
        vec![set("udp", "dport", &json!(5354))],
    ];
    // The chain is long enough for an index, which does not know of what rules write.
    rules.extend((0..20).map(|port| vec![asks("udp", "dport", &json!(port)), accept.clone()]));
    rules.push(vec![
        asks("ip", "daddr", &json!("198.51.100.9")),
        asks("udp", "dport", &json!(5354)),
        asks("ip", "dscp", &json!("ef")),
        asks("ip", "ttl", &json!(7)),
        accept,
    ]);
    for index in [false, true] {
        let (outcome, writes) = outcome_of(&program(&rules, index), &udp());
        assert_eq!(outcome.decision, Decision::Accept);
        assert!(outcome.is_rewritten && outcome.per_packet);
        // Each field is there once, with its last value.
        let places = writes.iter().map(|it| (it.of_transport, it.offset, it.value));
        let wanted = [(false, 128, 0xc633_6409), (true, 16, 5354), (false, 8, 46), (false, 64, 7)];
        assert_eq!(places.collect::<Vec<_>>(), wanted);
    }
}

#[test]
fn a_rule_ends_where_the_packet_lacks_the_field() {
    let accept = json!({"accept": null});
    for (header, name, value) in
        [("ip6", "hoplimit", json!(9)), ("tcp", "dport", json!(9)), ("icmp", "id", json!(9))]
    {
        let rules = [vec![set(header, name, &value), accept.clone()]];
        let (outcome, _) = outcome_of(&program(&rules, false), &udp());
        assert_eq!((outcome.decision, outcome.is_rewritten), (Decision::Drop, false), "{header}");
    }
}

#[test]
fn fields_that_say_what_follows_are_not_set() {
    for (header, name) in [
        ("ip", "version"),
        ("ip", "hdrlength"),
        ("ip", "length"),
        ("ip", "frag-off"),
        ("ip", "protocol"),
        ("ip", "checksum"),
        ("ip6", "nexthdr"),
        ("ip6", "length"),
        ("tcp", "doff"),
        ("tcp", "flags"),
        ("tcp", "checksum"),
        ("udp", "length"),
        ("udp", "checksum"),
        ("icmp", "type"),
        ("icmpv6", "type"),
        ("icmpv6", "checksum"),
        ("th", "dport"),
        ("ether", "saddr"),
    ] {
        let document = json!({"nftables": [
            {"table": {"family": "inet", "name": "t"}},
            {"chain": {"family": "inet", "table": "t", "name": "c"}},
            {"rule": {"family": "inet", "table": "t", "chain": "c", "handle": 3,
                "expr": [set(header, name, &json!(1))]}},
            {"chain": {"family": "inet", "table": "t", "name": "f", "type": "filter",
                "hook": "forward", "prio": 0, "policy": "drop"}},
            {"rule": {"family": "inet", "table": "t", "chain": "f", "handle": 4,
                "expr": [{"jump": {"target": "c"}}]}},
        ]});
        let refused = import_value(&document, Options::default()).expect_err(name).to_string();
        assert!(refused.contains(&format!("setting `{header} {name}`")), "{refused}");
    }
}
