use flow::Timestamp;
use proptest::prelude::*;
use serde_json::{Value, json};
use wire::build::PacketBuilder;
use wire::dissect;

use super::*;
use crate::{
    CompileOptions, Connection, Decider, Decision, Options, Outcome, PacketView, Program,
    RuleState, SharedState, evaluate, import_value, name_bits,
};

fn document(chains: &[(bool, Vec<Value>)]) -> Value {
    let mut objects = vec![json!({"table": {"family": "inet", "name": "t", "handle": 1}})];
    for (at, (accepts, rules)) in chains.iter().enumerate() {
        let (name, policy) = (format!("c{at}"), if *accepts { "accept" } else { "drop" });
        objects.push(json!({"chain": {"family": "inet", "table": "t", "name": name, "handle": 1,
            "type": "filter", "hook": "forward", "prio": at, "policy": policy}}));
        objects.extend(rules.iter().map(|statements| {
            json!({"rule": {"family": "inet", "table": "t", "chain": name, "handle": 2,
                "expr": statements}})
        }));
    }
    json!({ "nftables": objects })
}

fn program(chains: &[(bool, Vec<Value>)]) -> Program {
    let imported = import_value(&document(chains), Options::default()).expect("it is right");
    Program::compile(imported.ruleset, CompileOptions { index: true, seed: 1 })
        .expect("it is small")
}

fn state(operator: &str, states: &Value, behind: &[Value]) -> Value {
    let test =
        json!({"match": {"op": operator, "left": {"ct": {"key": "state"}}, "right": states}});
    let mut statements = vec![test];
    statements.extend_from_slice(behind);
    Value::Array(statements)
}

fn outcome(program: &Program, state: CtState) -> Outcome {
    let mut frame = Vec::new();
    PacketBuilder::v4([192, 0, 2, 1], [198, 51, 100, 1]).udp(1024, 53, &[0; 8], &mut frame);
    let network = dissect(&frame).expect("it is whole").network.expect("it is IP");
    let view = PacketView {
        frame: &frame,
        network: &network,
        vlan: 0,
        packet_type: 0,
        input: name_bits("lan0").expect("a name"),
        output: name_bits("wan0").expect("a name"),
        mark: 0,
        priority: 0,
        routes: None,
        connection: Connection { state, known: None },
    };
    let mut counted =
        RuleState::new(program, &SharedState::new(program, Timestamp::ZERO), Timestamp::ZERO);
    evaluate(program, Hook::Forward, &view, &mut counted, Timestamp::ZERO)
}

fn at_once(program: &Program) -> Vec<CtState> {
    STATES.into_iter().filter(|state| program.accepts_at_once(Hook::Forward, *state)).collect()
}

#[test]
fn packets_of_a_connection_pass_at_once_if_the_rules_begin_by_accepting_them() {
    let established = state("in", &json!(["established", "related"]), &[json!({"accept": null})]);
    let invalid = state("in", &json!("invalid"), &[json!({"drop": null})]);
    let counted = state(
        "in",
        &json!("established"),
        &[json!({"counter": {"packets": 0, "bytes": 0}}), json!({"accept": null})],
    );
    let known = [CtState::Established, CtState::Related];
    for rules in [vec![established.clone(), invalid.clone()], vec![invalid, established.clone()]] {
        assert_eq!(at_once(&program(&[(false, rules)])), known);
    }
    // The second chain drops every packet.
    assert_eq!(at_once(&program(&[(false, vec![established.clone()]), (false, vec![])])), []);
    // A rule with a counter has to see each packet.
    assert_eq!(at_once(&program(&[(true, vec![counted, established])])), []);
    assert_eq!(at_once(&program(&[(true, vec![])])), STATES);
    assert_eq!(at_once(&program(&[])), STATES);
}

#[test]
fn a_chain_begins_with_the_first_rule_that_does_not_ask_for_other_states() {
    let established = state("in", &json!(["established", "related"]), &[json!({"accept": null})]);
    let invalid =
        state("in", &json!("invalid"), &[json!({"counter": null}), json!({"drop": null})]);
    let input = json!([{"match":
        {"op": "==", "left": {"meta": {"key": "iifname"}}, "right": "lan0"}}, {"accept": null}]);
    let program = program(&[(false, vec![established.clone(), invalid, input, established])]);
    let first = STATES.map(|state| program.chains[0].first_rules.of_state(state));
    assert_eq!(first, [1, 0, 0, 2, 2], "of {STATES:?}");
}

fn rule() -> impl Strategy<Value = Value> {
    const NAMES: [&str; 5] = ["invalid", "established", "related", "new", "untracked"];
    let some = prop::sample::subsequence(&NAMES[..], 1..4);
    let operator = prop::sample::select(&["in", "in", "==", "!="][..]);
    let verdict = prop::sample::select(&["accept", "accept", "drop", "return", "continue"][..]);
    (some, operator, verdict, 0..8_u8).prop_map(|(states, operator, verdict, more)| {
        let states = if operator == "in" { json!(states) } else { json!(states[0]) };
        let verdict = json!({ verdict: null });
        let counter = json!({"counter": {"packets": 0, "bytes": 0}});
        let input = |name: &str| {
            json!({"match": {"op": "==", "left": {"meta": {"key": "iifname"}}, "right": name}})
        };
        match more {
            0 => state(operator, &states, &[counter, verdict]),
            1 => state(operator, &states, &[input("lan0"), verdict]),
            2 => json!([input("eth9"), verdict]),
            _ => state(operator, &states, &[verdict]),
        }
    })
}

proptest! {
    #[test]
    fn rules_would_accept_all_packets_that_pass_at_once(
        chains in prop::collection::vec(
            (any::<bool>(), prop::collection::vec(rule(), 0..5)), 0..3),
    ) {
        let program = program(&chains);
        for state in at_once(&program) {
            let Outcome { decided_by, .. } = outcome(&program, state);
            prop_assert!(!matches!(decided_by, Some(Decider::Rule(_))) || !chains.is_empty());
            let nothing = Outcome { decided_by, ..Outcome::NOTHING };
            prop_assert_eq!(outcome(&program, state), nothing, "{:?}", state);
            prop_assert_eq!(nothing.decision, Decision::Accept);
        }
    }
    #[test]
    fn rules_for_other_states_are_left_out_without_an_effect(
        chains in prop::collection::vec(
            (any::<bool>(), prop::collection::vec(rule(), 0..5)), 0..3),
    ) {
        let program = program(&chains);
        let mut whole = program.clone();
        for chain in &mut whole.chains {
            chain.first_rules = FirstRules([0; 8]);
        }
        for state in STATES {
            prop_assert_eq!(outcome(&program, state), outcome(&whole, state), "{:?}", state);
        }
    }
}
