use serde_json::json;

use super::*;
use crate::{CompileOptions, Options, SharedState, import_value};

fn chain(name: &str, kind: &str, hook: &str, priority: i32) -> serde_json::Value {
    json!({"chain": {"family": "inet", "table": "t", "name": name, "handle": 1, "type": kind,
                     "hook": hook, "prio": priority, "policy": "accept"}})
}

fn rule(chain: &str, handle: u64, expr: serde_json::Value) -> serde_json::Value {
    json!({"rule": {"family": "inet", "table": "t", "chain": chain, "handle": handle, "expr": expr}})
}

fn walked(document: serde_json::Value, question: &str) -> (Program, Walk) {
    let imported = import_value(&document, Options::default()).expect("it is right");
    let options = CompileOptions { index: true, seed: 1 };
    let program = Program::compile(imported.ruleset, options).expect("it is small");
    let shared = SharedState::new(&program, Timestamp::ZERO);
    let mut state = RuleState::new(&program, &shared, Timestamp::ZERO);
    let probe = Probe::parse(question).expect("it is a question");
    let walk = walk(&program, &mut state, Question::alone(&probe), Timestamp::ZERO);
    (program, walk)
}

/// Handles of the rules that matched.
fn handles(program: &Program, walk: &Walk) -> Vec<u64> {
    let steps = walk.hooks.iter().flat_map(|hook| &hook.steps);
    let of_rule = |step: &Step| match step {
        Step::Rule(rule) => program.ruleset().rules()[rule.index()].handle,
        Step::Policy(_) => None,
    };
    steps.filter_map(of_rule).collect()
}

fn forwarding(port: u16) -> serde_json::Value {
    let to_port = |field: &str, port: u16| {
        json!({"match": {"op": "==", "left": {"payload": {"protocol": "tcp", "field": field}},
                         "right": port}})
    };
    let is_translated =
        json!({"match": {"op": "in", "left": {"ct": {"key": "status"}}, "right": "dnat"}});
    json!({"nftables": [
        {"table": {"family": "inet", "name": "t", "handle": 1}},
        chain("d", "nat", "prerouting", -100),
        chain("f", "filter", "forward", 0),
        rule("d", 10, json!([to_port("dport", port), {"dnat": {"family": "ip", "addr": "198.51.100.9", "port": 8080}}])),
        rule("f", 11, json!([to_port("dport", 80), {"drop": null}])),
        rule("f", 12, json!([to_port("dport", 8080), is_translated, {"accept": null}])),
        rule("f", 13, json!([{"drop": null}])),
    ]})
}

#[test]
fn rules_behind_a_translation_see_what_it_has_made() {
    let (program, walk) = walked(forwarding(80), "tcp 192.0.2.1 198.51.100.2:80 in wan0");
    assert_eq!(handles(&program, &walk), [10, 12]);
    assert_eq!(walk.fate, Fate::Passes);
}

#[test]
fn only_packets_that_open_a_connection_are_translated() {
    let question = "tcp 192.0.2.1 198.51.100.2:80 in wan0 state established";
    let (program, walk) = walked(forwarding(80), question);
    assert_eq!(handles(&program, &walk), [11]);
    assert_eq!(walk.fate, Fate::Ends(Hook::Forward, Decision::Drop));
}

/// A connection that exists and translates the packet's destination.
struct Forwarded<'a>(&'a Probe);

impl Details for Forwarded<'_> {
    fn tuple(&self, reply: bool) -> crate::Tuple {
        self.0.tuple(reply)
    }

    fn counts(&self) -> Option<[(u64, u64); 2]> {
        None
    }

    fn expiration_ms(&self) -> u64 {
        0
    }

    fn helper(&self) -> u128 {
        0
    }

    fn label(&self) -> u128 {
        0
    }
}

impl Tracked for Forwarded<'_> {
    fn state(&self) -> CtState {
        CtState::New
    }

    fn known(&self) -> Known<'_> {
        Known { status: DESTINATION_TRANSLATED, ..self.0.known() }
    }

    fn translation(&self) -> Option<Readdress> {
        let address = std::net::Ipv4Addr::new(198, 51, 100, 9).to_ipv6_mapped().octets();
        let destination = Some(TransportAddress { address, port: 8080 });
        Some(Readdress { source: None, destination })
    }
}

#[test]
fn packets_for_the_host_are_left_to_it_unless_they_are_translated() {
    let imported = import_value(&forwarding(80), Options::default()).expect("it is right");
    let options = CompileOptions { index: true, seed: 1 };
    let program = Program::compile(imported.ruleset, options).expect("it is small");
    let shared = SharedState::new(&program, Timestamp::ZERO);
    let mut state = RuleState::new(&program, &shared, Timestamp::ZERO);
    let mut ask = |question: &str, is_known: bool| {
        let host_addresses = vec![std::net::IpAddr::from([198, 51, 100, 2])];
        let probe = Probe::parse(question).expect("it is a question");
        let probe = Probe { host_addresses, ..probe };
        let known = Forwarded(&probe);
        let tracked: &dyn Tracked = if is_known { &known } else { &probe };
        let walk = walk(
            &program,
            &mut state,
            Question { tracked, ..Question::alone(&probe) },
            Timestamp::ZERO,
        );
        (handles(&program, &walk), walk.fate)
    };
    assert_eq!(ask("tcp 192.0.2.1 198.51.100.2:80", false), (vec![10, 12], Fate::Passes));
    // No rule chooses the translation of a connection that exists.
    assert_eq!(ask("tcp 192.0.2.1 198.51.100.2:81", true), (vec![12], Fate::Passes));
    assert_eq!(ask("tcp 192.0.2.1 198.51.100.2:81", false), (vec![], Fate::ToHost));
    let refused = Fate::Ends(Hook::Forward, Decision::Drop);
    assert_eq!(ask("tcp 192.0.2.1 198.51.100.3:81", false), (vec![13], refused));
}

#[test]
fn a_redirected_packet_is_for_the_host() {
    let document = json!({"nftables": [
        {"table": {"family": "inet", "name": "t", "handle": 1}},
        chain("d", "nat", "prerouting", -100),
        chain("f", "filter", "forward", 0),
        rule("d", 10, json!([{"redirect": {"port": 3128}}])),
        rule("f", 11, json!([{"drop": null}])),
    ]});
    let (program, walk) = walked(document, "tcp 192.0.2.1 198.51.100.2:80");
    assert_eq!(handles(&program, &walk), [10]);
    assert_eq!(walk.fate, Fate::ToHost);
}

#[test]
fn a_packet_that_a_rule_leads_to_the_host_ends_there() {
    let document = json!({"nftables": [
        {"table": {"family": "inet", "name": "t", "handle": 1}},
        chain("d", "nat", "prerouting", -100),
        chain("m", "filter", "prerouting", 0),
        chain("f", "filter", "forward", 0),
        rule("d", 10, json!([{"dnat": {"family": "ip", "addr": "192.0.2.254", "port": 8080}}])),
        rule("m", 11, json!([{"counter": {"packets": 0, "bytes": 0}}])),
        rule("f", 12, json!([{"drop": null}])),
    ]});
    let ask = |own: &str| {
        let imported = import_value(&document, Options::default()).expect("it is right");
        let options = CompileOptions { index: true, seed: 7 };
        let program = Program::compile(imported.ruleset, options).expect("it compiles");
        let question = "tcp 198.51.100.2:5000 198.51.100.254:80";
        let probe = Probe::parse(question).expect("it is a question");
        let host_addresses = vec![own.parse().expect("an address")];
        let probe = Probe { host_addresses, ..probe };
        let shared = SharedState::new(&program, Timestamp::ZERO);
        let mut state = RuleState::new(&program, &shared, Timestamp::ZERO);
        let walk = walk(&program, &mut state, Question::alone(&probe), Timestamp::ZERO);
        (handles(&program, &walk), walk.fate)
    };
    assert_eq!(ask("192.0.2.254"), (vec![10, 11], Fate::ToHost));
    let refused = Fate::Ends(Hook::Forward, Decision::Drop);
    assert_eq!(ask("192.0.2.253"), (vec![10, 11, 12], refused));
}

#[test]
fn marks_and_untracking_go_from_stage_to_stage() {
    let set_mark = json!({"mangle": {"key": {"meta": {"key": "mark"}}, "value": 7}});
    let is_marked = json!({"match": {"op": "==", "left": {"meta": {"key": "mark"}}, "right": 7}});
    let is_untracked =
        json!({"match": {"op": "in", "left": {"ct": {"key": "state"}}, "right": "untracked"}});
    let document = json!({"nftables": [
        {"table": {"family": "inet", "name": "t", "handle": 1}},
        chain("r", "filter", "prerouting", -300),
        chain("f", "filter", "forward", 0),
        rule("r", 10, json!([set_mark, {"notrack": null}])),
        rule("f", 11, json!([is_marked, is_untracked, {"reject": {"type": "icmpx", "expr": "admin-prohibited"}}])),
    ]});
    let (program, walk) = walked(document, "udp 192.0.2.1 198.51.100.2:53");
    assert_eq!(handles(&program, &walk), [10, 11]);
    assert!(matches!(walk.fate, Fate::Ends(Hook::Forward, Decision::Reject(_))));
}

#[test]
fn the_interfaces_that_rules_name_are_known() {
    let document = json!({"nftables": [
        {"table": {"family": "inet", "name": "t", "handle": 1}},
        {"set": {"family": "inet", "table": "t", "name": "s", "type": ["ifname", "inet_service"],
                 "elem": [{"concat": ["wan0", 22]}, {"concat": ["wan1", 23]}]}},
        chain("f", "filter", "forward", 0),
        rule("f", 10, json!([{"match": {"op": "==", "left": {"meta": {"key": "iifname"}}, "right": "lan*"}}])),
        rule("f", 11, json!([{"match": {"op": "!=", "left": {"meta": {"key": "oifname"}}, "right": "dmz0"}}])),
        rule("f", 12, json!([{"match": {"op": "==", "left": {"concat": [
            {"meta": {"key": "iifname"}}, {"payload": {"protocol": "tcp", "field": "dport"}}]},
            "right": "@s"}}, {"accept": null}])),
    ]});
    let imported = import_value(&document, Options::default()).expect("it is right");
    let names: Vec<String> = imported.ruleset.interfaces().into_keys().collect();
    assert_eq!(names, ["dmz0", "wan0", "wan1"]);
}

#[test]
fn what_prerouting_refuses_reaches_the_host_unless_a_rule_leads_it_elsewhere() {
    let port = |port: u16| {
        json!({"match": {"op": "==", "right": port,
            "left": {"payload": {"protocol": "tcp", "field": "dport"}}}})
    };
    let document = json!({"nftables": [
        {"table": {"family": "inet", "name": "t", "handle": 1}},
        chain("raw", "filter", "prerouting", -300),
        chain("d", "nat", "prerouting", -100),
        rule("raw", 10, json!([{"drop": null}])),
        rule("d", 11, json!([port(8080), {"dnat": {"family": "ip", "addr": "192.0.2.9"}}])),
        rule("d", 12, json!([port(3128), {"redirect": null}])),
    ]});
    let imported = import_value(&document, Options::default()).expect("it is right");
    let guards: Vec<_> = imported.ruleset.host_chains().iter().map(|it| &it.name).collect();
    assert_eq!(guards, ["raw"]);
    let options = CompileOptions { index: true, seed: 7 };
    let program = Program::compile(imported.ruleset, options).expect("it compiles");
    let ask = |destination: &str| {
        let question = format!("tcp 198.51.100.2:5000 {destination} in wan0");
        let probe = Probe::parse(&question).expect("it is a question");
        let host_addresses = vec![std::net::IpAddr::from([192, 0, 2, 254])];
        let probe = Probe { host_addresses, ..probe };
        let shared = SharedState::new(&program, Timestamp::ZERO);
        let mut state = RuleState::new(&program, &shared, Timestamp::ZERO);
        walk(&program, &mut state, Question::alone(&probe), Timestamp::ZERO).fate
    };
    let refused = Fate::RefusedToHost(Hook::Untracked);
    let dropped = Fate::Ends(Hook::Untracked, Decision::Drop);
    assert_eq!(ask("192.0.2.254:22"), refused);
    assert_eq!(ask("192.0.2.254:8080"), dropped, "the table keeps it from the host");
    assert_eq!(ask("192.0.2.9:22"), dropped);
    assert_eq!(ask("192.0.2.9:3128"), refused, "the kernel redirects it");
}
