use serde_json::{Value, json};

use wire::TcpFlags;
use wire::build::Tcp;

use crate::evaluate::{Decision, Outcome};
use crate::hook::Hook;
use crate::import::{Options, import_value};
use crate::model::{HelperId, SynProxyId, TimeoutId};
use crate::needs::Need;
use crate::testing::{Surroundings, one_rule, outcome};

/// Two helpers and two policies of timeouts, each first for TCP and then for UDP.
fn objects() -> Vec<Value> {
    let object = |kind: &str, name: &str, protocol: &str, more: Value| {
        let mut fields =
            json!({"family": "inet", "table": "t", "name": name, "protocol": protocol});
        fields.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({ kind: fields })
    };
    vec![
        object("ct helper", "files", "tcp", json!({"type": "ftp", "l3proto": "ip"})),
        object("ct helper", "calls", "udp", json!({"type": "sip", "l3proto": "ip"})),
        object("ct timeout", "long", "tcp", json!({"policy": {"established": 9000}})),
        object("ct timeout", "short", "udp", json!({"policy": {"unreplied": 9}})),
        json!({"synproxy": {"family": "inet", "table": "t", "name": "guard", "mss": 1460,
            "wscale": 7}}),
    ]
}

/// A rule that gives connections what the map holds for their destination port.
fn by_port(statement: &str, elements: Value) -> Value {
    let port = json!({"payload": {"protocol": "udp", "field": "dport"}});
    let rule =
        json!([{statement: {"map": {"key": port, "data": {"set": elements}}}}, {"drop": null}]);
    one_rule(Hook::Forward, &objects(), &rule)
}

/// The outcome for a UDP packet to port 53.
fn at(statement: &str, elements: Value) -> Outcome {
    outcome(&by_port(statement, elements), &Surroundings::default())
}

#[test]
fn a_map_holds_helpers_and_timeouts_by_name() {
    let calls = at("ct helper", json!([[21, "files"], [53, "calls"]]));
    assert_eq!(calls.helper, Some(HelperId(1)));
    // One of another protocol gives nothing.
    assert_eq!(at("ct helper", json!([[53, "files"]])).helper, None);
    let short = at("ct timeout", json!([[53, "short"], ["*", "long"]]));
    assert_eq!(short.timeout, Some(TimeoutId(1)));
    let none = at("ct helper", json!([[54, "calls"]]));
    assert!(none.helper.is_none() && none.decision != short.decision, "the rule ends: {none:?}");
}

#[test]
fn a_map_holds_syn_proxies() {
    let port = json!({"payload": {"protocol": "tcp", "field": "dport"}});
    let rule = |elements: Value| {
        let data = json!({"set": elements});
        json!([{"synproxy": {"map": {"key": port, "data": data}}}, {"drop": null}])
    };
    let decision = |hook: Hook, elements: Value, flags: TcpFlags| {
        let document = one_rule(hook, &objects(), &rule(elements));
        let surroundings =
            Surroundings { tcp: Some(Tcp { flags, ..Tcp::default() }), ..Surroundings::default() };
        outcome(&document, &surroundings).decision
    };
    let guard = || json!([[53, "guard"]]);
    let guarded = decision(Hook::Forward, guard(), TcpFlags::SYN);
    assert_eq!(guarded, Decision::SynProxy(SynProxyId(0)));
    assert_eq!(decision(Hook::Forward, json!([[54, "guard"]]), TcpFlags::SYN), Decision::Accept);
    assert_eq!(decision(Hook::Forward, guard(), TcpFlags::RST), Decision::Drop);
    let early = one_rule(Hook::Prerouting, &objects(), &rule(guard()));
    let refused = import_value(&early, Options::default()).unwrap_err();
    assert!(refused.problems.listed()[0].to_string().contains("only works in chains of forward"));
}

#[test]
fn every_helper_of_a_map_is_asked_of_the_gateway() {
    let document = by_port("ct helper", json!([[21, "files"], [53, "calls"]]));
    let ruleset = import_value(&document, Options::default()).unwrap().ruleset;
    let needs: Vec<Need> = ruleset.needs().map(|(_, need)| need).collect();
    assert_eq!(needs, [Need::Helper(HelperId(0)), Need::Helper(HelperId(1))]);
}

#[test]
fn a_name_of_no_helper_is_told_with_its_place() {
    let document = by_port("ct helper", json!([[21, "nobody"]]));
    let refused = import_value(&document, Options::default()).unwrap_err();
    let first = refused.problems.listed()[0].to_string();
    assert!(first.contains("nobody") && first.contains("map.data.set[0][1]"), "{first}");
}
