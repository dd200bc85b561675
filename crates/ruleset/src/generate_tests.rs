//! Numbers that rules make for packets.

use flow::Timestamp;
use serde_json::{Value, json};
use wire::build::PacketBuilder;
use wire::dissect;

use crate::{
    CompileOptions, Hook, Options, PacketView, Program, RuleState, SharedState, consult, evaluate,
    import_value,
};

/// A ruleset that sets the mark of each packet to an expression.
fn marking(value: &Value) -> Program {
    let mark = json!({"mangle": {"key": {"meta": {"key": "mark"}}, "value": value}});
    let document = json!({"nftables": [
        {"table": {"family": "inet", "name": "t"}},
        {"chain": {"family": "inet", "table": "t", "name": "c", "type": "filter",
            "hook": "forward", "prio": 0, "policy": "accept"}},
        {"rule": {"family": "inet", "table": "t", "chain": "c", "expr": [mark]}},
    ]});
    let ruleset = import_value(&document, Options::default()).expect("it is right").ruleset;
    Program::compile(ruleset, CompileOptions { index: true, seed: 7 }).expect("it is small")
}

fn state(program: &Program) -> RuleState {
    RuleState::new(program, &SharedState::new(program, Timestamp::ZERO), Timestamp::ZERO)
}

fn udp(source: ([u8; 4], u16), destination: ([u8; 4], u16)) -> Vec<u8> {
    let mut frame = Vec::new();
    PacketBuilder::v4(source.0, destination.0).udp(source.1, destination.1, &[0; 8], &mut frame);
    frame
}

fn mark(program: &Program, state: &mut RuleState, frame: &[u8], asking: bool) -> u32 {
    let network = dissect(frame).expect("it is right").network.expect("it is IP");
    let view = PacketView::untracked(frame, &network);
    let evaluator = if asking { consult } else { evaluate };
    evaluator(program, Hook::Forward, &view, state, Timestamp::ZERO).mark.expect("it is marked")
}

const CLIENT: ([u8; 4], u16) = ([192, 0, 2, 1], 4000);
const SERVER: ([u8; 4], u16) = ([198, 51, 100, 1], 53);

#[test]
fn a_number_follows_the_other_and_begins_anew_behind_the_last() {
    let program = marking(&json!({"numgen": {"mode": "inc", "mod": 3, "offset": 10}}));
    let (mut state, frame) = (state(&program), udp(CLIENT, SERVER));
    let mut next = |asking| mark(&program, &mut state, &frame, asking);
    assert_eq!([(); 4].map(|()| next(false)), [10, 11, 12, 10]);
    // A question takes no number.
    assert_eq!([next(true), next(true), next(false)], [11, 11, 11]);
}

#[test]
fn random_numbers_are_even_and_differ_between_workers() {
    let program = marking(&json!({"numgen": {"mode": "random", "mod": 8, "offset": 0}}));
    let frame = udp(CLIENT, SERVER);
    let shared = SharedState::new(&program, Timestamp::ZERO);
    let draw = || {
        let mut state = RuleState::new(&program, &shared, Timestamp::ZERO);
        (0..8000).map(|_| mark(&program, &mut state, &frame, false)).collect::<Vec<_>>()
    };
    let (one, other) = (draw(), draw());
    for drawn in [&one, &other] {
        for number in 0..8 {
            let count = drawn.iter().filter(|it| **it == number).count();
            // Four standard deviations around 1000.
            assert!((882..=1118).contains(&count), "{number}: {count}");
        }
    }
    let equal = one.iter().zip(&other).filter(|(one, other)| one == other).count();
    assert!((882..=1118).contains(&equal), "{equal} of 8000 are equal in both workers");
}

#[test]
fn a_symmetric_hash_is_that_of_the_answer_and_spreads_flows() {
    let program = marking(&json!({"symhash": {"mod": 8, "offset": 0}}));
    let mut state = state(&program);
    let mut counts = [0; 8];
    for port in 0..8000 {
        let client = (CLIENT.0, 1024 + port);
        let there = mark(&program, &mut state, &udp(client, SERVER), false);
        assert_eq!(mark(&program, &mut state, &udp(SERVER, client), false), there);
        counts[there as usize] += 1;
    }
    assert!(counts.iter().all(|count| (882..=1118).contains(count)), "{counts:?}");
}

#[test]
fn a_hash_covers_what_the_kernels_registers_hold() {
    let saddr = json!({"payload": {"protocol": "ip", "field": "saddr"}});
    let sport = json!({"payload": {"protocol": "udp", "field": "sport"}});
    let marked = |expression: Value| {
        let program = marking(&json!({"jhash":
            {"mod": 0xffff_ffff_u32, "seed": 5, "expr": expression}}));
        mark(&program, &mut state(&program), &udp(CLIENT, SERVER), false)
    };
    let expected =
        |bytes: &[u8]| crate::generator::scaled(crate::generator::jenkins(bytes, 5), u32::MAX);
    assert_eq!(marked(saddr.clone()), expected(&CLIENT.0));
    assert_eq!(marked(sport.clone()), expected(&[0x0f, 0xa0]));
    let both = [192, 0, 2, 1, 0x0f, 0xa0, 0, 0];
    assert_eq!(marked(json!({"concat": [saddr, sport]})), expected(&both));
}
