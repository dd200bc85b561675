use std::time::Duration;

use flow::ZonePair;
use proptest::prelude::*;
use serde_json::{Value, json};
use wire::dissect;

use super::*;
use crate::compile::Dimension;
use crate::{CompileOptions, Options, Reject, SetId, Unreachable, import_value, name_bits};

/// A frame with an IP packet, from a handful of addresses and ports.
fn frame(v6: bool, ends: [u8; 2], protocol: u8, ports: [u16; 2], flags: u8) -> Vec<u8> {
    let mut transport = [ports[0].to_be_bytes(), ports[1].to_be_bytes()].concat();
    match protocol {
        6 => transport.extend([0, 0, 0, 1, 0, 0, 0, 2, 0x50, flags, 1, 0, 0, 0, 0, 0]),
        17 => transport.extend([0, 8, 0, 0]),
        1 | 58 => transport = vec![8, flags & 1, 0, 0, 0, 1, 0, 2],
        _ => transport.extend([0; 16]),
    }
    let mut frame = vec![0, 0, 0x5e, 0, 0x53, 2, 0, 0, 0x5e, 0, 0x53, 1];
    if v6 {
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        frame.extend((transport.len() as u16).to_be_bytes());
        frame.extend([protocol, 64]);
        for end in ends {
            frame.extend([0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, end]);
        }
    } else {
        frame.extend([8, 0, 0x45, 0xb8]);
        frame.extend((20 + transport.len() as u16).to_be_bytes());
        frame.extend([0, 1, 0, 0, 64, protocol, 0, 0]);
        for end in ends {
            frame.extend([192, 0, 2, end]);
        }
        let words =
            frame[14..].chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
        let sum: u32 = words.sum();
        let folded = !((sum & 0xffff) + (sum >> 16)) as u16;
        frame[24..26].copy_from_slice(&folded.to_be_bytes());
    }
    frame.extend(transport);
    frame
}

#[derive(Clone, Debug)]
struct Sample {
    frame: Vec<u8>,
    input: &'static str,
    output: &'static str,
    mark: u32,
    known: bool,
}

impl Sample {
    fn evaluate(
        &self,
        program: &Program,
        state: &mut RuleState,
        now: Timestamp,
    ) -> (Outcome, Vec<Step>) {
        let mut steps = Vec::new();
        let mut tell = |step| steps.push(step);
        let outcome =
            self.seen(|view| explain(program, Hook::Forward, view, state, now, &mut tell));
        (outcome, steps)
    }

    fn seen<T>(&self, act: impl FnOnce(&PacketView<'_>) -> T) -> T {
        let dissected = dissect(&self.frame).expect("the frame is right");
        let network = dissected.network.expect("it is IP");
        let known =
            Known { reply: false, status: 8, mark: 3, zones: ZonePair::default(), details: None };
        let view = PacketView {
            frame: &self.frame,
            network: &network,
            vlan: 0,
            packet_type: 0,
            input: name_bits(self.input).expect("a name"),
            output: name_bits(self.output).expect("a name"),
            mark: self.mark,
            priority: 0,
            routes: None,
            connection: match self.known {
                true => Connection { state: CtState::New, known: Some(known) },
                false => Connection::UNTRACKED,
            },
        };
        act(&view)
    }
}

fn sample() -> impl Strategy<Value = Sample> {
    let names = || prop::sample::select(&["eth0", "eth1", "lan0", "e"][..]);
    let protocol = prop::sample::select(&[6_u8, 17, 1, 58, 47, 132][..]);
    let ends = [1..12_u8, 1..12_u8];
    let ports = [20..30_u16, 75..85_u16];
    (any::<bool>(), ends, protocol, ports, any::<u8>(), names(), names(), 0..4_u32, any::<bool>())
        .prop_filter_map(
            "a packet that can not be",
            |(v6, ends, protocol, ports, flags, input, output, mark, known)| {
                if protocol == if v6 { 1 } else { 58 } {
                    return None;
                }
                // The dissector checks SCTP's chunks, and no rule here asks for SCTP.
                let protocol = if protocol == 132 { 253 } else { protocol };
                Some(Sample {
                    frame: frame(v6, ends, protocol, ports, flags),
                    input,
                    output,
                    mark,
                    known,
                })
            },
        )
}

fn matching(left: &Value, operator: &str, right: &Value) -> Value {
    json!({"match": {"op": operator, "left": left, "right": right}})
}

fn payload(protocol: &str, field: &str) -> Value {
    json!({"payload": {"protocol": protocol, "field": field}})
}

/// A condition of a rule.
fn question() -> impl Strategy<Value = Value> {
    let operator = || prop::sample::select(&["==", "==", "==", "!="][..]);
    let side = || prop::sample::select(&["saddr", "daddr"][..]);
    let v4 = |end: u8| format!("192.0.2.{end}");
    let v6 = |end: u8| format!("2001:db8::{end:x}");
    let address = (operator(), side(), any::<bool>(), 1..12_u8, 1..12_u8, 0..4).prop_map(
        move |(operator, side, is_v6, a, b, form)| {
            let (protocol, text, bits) = if is_v6 {
                ("ip6", v6 as fn(u8) -> String, 128)
            } else {
                ("ip", v4 as fn(u8) -> String, 32)
            };
            let right = match form {
                0 => json!(text(a)),
                1 => json!({"range": [text(a.min(b)), text(a.max(b))]}),
                2 => json!({"prefix": {"addr": text(a & 0xfc), "len": bits - 2}}),
                _ => json!({"set": [text(a), text(b)]}),
            };
            matching(&payload(protocol, side), operator, &right)
        },
    );
    let port = (
        operator(),
        prop::sample::select(&["tcp", "udp", "th"][..]),
        any::<bool>(),
        20..85_u16,
        0..10_u16,
        0..5,
    )
        .prop_map(|(operator, protocol, source, port, span, form)| {
            let field = if source { "sport" } else { "dport" };
            let (operator, right) = match form {
                0 => (operator, json!(port)),
                1 => (operator, json!({"range": [port, port + span]})),
                2 => (">=", json!(port)),
                3 => ("<", json!(port)),
                _ => (operator, json!({"set": [port, {"range": [80, 80 + span]}]})),
            };
            matching(&payload(protocol, field), operator, &right)
        });
    let meta = |key: &'static str, values: &'static [&'static str]| {
        (operator(), prop::sample::select(values)).prop_map(move |(operator, value)| {
            matching(&json!({"meta": {"key": key}}), operator, &json!(value))
        })
    };
    prop_oneof![
        4 => address,
        4 => port,
        1 => meta("l4proto", &["tcp", "udp", "icmp", "ipv6-icmp"]),
        1 => meta("nfproto", &["ipv4", "ipv6"]),
        2 => meta("iifname", &["eth0", "eth*", "lan0", "e*", "*"]),
        1 => meta("oifname", &["eth1", "eth*", "*"]),
        1 => (operator(), 0..4_u32).prop_map(|(operator, mark)| {
            matching(&json!({"meta": {"key": "mark"}}), operator, &json!(mark))
        }),
        1 => Just(matching(&json!({"ct": {"key": "state"}}), "in", &json!("new"))),
        1 => Just(matching(&payload("icmp", "type"), "==", &json!("echo-request"))),
        1 => Just(matching(&payload("tcp", "flags"), "in", &json!("syn"))),
        1 => Just(matching(&payload("ip", "dscp"), "==", &json!("ef"))),
        1 => (0..4).prop_map(|_| json!({"counter": null})),
        1 => (1..5_u32).prop_map(|mark| json!({"mangle": {"key": {"meta": {"key": "mark"}}, "value": mark}})),
        1 => any::<bool>().prop_map(|named| {
            let key = json!({"concat": [payload("ip", "saddr"), payload("tcp", "dport")]});
            let set = json!({"set": [{"concat": ["192.0.2.3", 80]},
                {"concat": [{"range": ["192.0.2.4", "192.0.2.9"]}, {"range": [76, 81]}]}]});
            matching(&key, if named { "==" } else { "!=" }, &set)
        }),
        1 => Just(json!({"set": {"op": "add", "elem": payload("ip", "saddr"), "set": "@seen"}})),
        1 => operator().prop_map(|operator| matching(&payload("ip", "daddr"), operator, &json!("@seen"))),
        1 => operator().prop_map(|operator| matching(&payload("ip", "saddr"), operator, &json!("@counted"))),
    ]
}

fn verdict(depth: usize) -> impl Strategy<Value = Value> {
    let target = format!("c{}", depth + 1);
    let last = depth == 2;
    prop_oneof![
        6 => Just(json!({"counter": null})),
        1 => Just(json!({"accept": null})),
        1 => Just(json!({"drop": null})),
        1 => Just(json!({"return": null})),
        1 => Just(json!({"reject": {"type": "tcp reset"}})),
        2 => any::<bool>().prop_map(move |jump| match (last, jump) {
            (true, _) => json!({"continue": null}),
            (false, true) => json!({"jump": {"target": target}}),
            (false, false) => json!({"goto": {"target": target}}),
        }),
        1 => (20..85_u16).prop_map(|port| json!({"vmap": {"key": payload("th", "dport"),
            "data": {"set": [[port, {"drop": null}], [{"range": [port + 1, port + 3]}, {"accept": null}]]}}})),
    ]
}

/// Rules of one chain: some of few and some of many.
fn rules(depth: usize) -> impl Strategy<Value = Vec<Value>> {
    let rule = (prop::collection::vec(question(), 0..4), verdict(depth)).prop_map(move |(mut items, verdict)| {
        items.push(verdict);
        json!({"rule": {"family": "inet", "table": "t", "chain": format!("c{depth}"), "expr": items}})
    });
    let rule = rule.boxed();
    prop_oneof![prop::collection::vec(rule.clone(), 0..8), prop::collection::vec(rule, 16..90)]
}

fn document(rules: Vec<Vec<Value>>, accepts: bool) -> Value {
    let policy = if accepts { "accept" } else { "drop" };
    let mut objects = vec![
        json!({"table": {"family": "inet", "name": "t"}}),
        json!({"chain": {"family": "inet", "table": "t", "name": "c0", "type": "filter",
            "hook": "forward", "prio": 0, "policy": policy}}),
        json!({"chain": {"family": "inet", "table": "t", "name": "c1"}}),
        json!({"chain": {"family": "inet", "table": "t", "name": "c2"}}),
        json!({"set": {"family": "inet", "table": "t", "name": "seen", "type": "ipv4_addr", "size": 4}}),
        json!({"set": {"family": "inet", "table": "t", "name": "counted", "type": "ipv4_addr",
            "flags": ["interval"], "stmt": [{"counter": null}],
            "elem": ["192.0.2.2", {"range": ["192.0.2.5", "192.0.2.7"]}]}}),
    ];
    objects.extend(rules.into_iter().flatten());
    json!({ "nftables": objects })
}

fn program(document: &Value, index: bool) -> Program {
    let imported = match import_value(document, Options::default()) {
        Ok(imported) => imported,
        Err(refused) => panic!("{refused}"),
    };
    Program::compile(imported.ruleset, CompileOptions { index, seed: 11 }).expect("it is small")
}

fn state(program: &Program) -> RuleState {
    RuleState::new(program, &SharedState::new(program, Timestamp::ZERO), Timestamp::ZERO)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// The index changes nothing: not the outcome, not the trace, not what is counted.
    #[test]
    fn an_index_changes_nothing(
        rules in (rules(0), rules(1), rules(2)),
        accepts: bool,
        samples in prop::collection::vec(sample(), 1..40),
    ) {
        let document = document(vec![rules.0, rules.1, rules.2], accepts);
        let (indexed, linear) = (program(&document, true), program(&document, false));
        let (mut a, mut b) = (state(&indexed), state(&linear));
        for (at, sample) in samples.iter().enumerate() {
            let now = Timestamp::from_secs(at as u64);
            let (short, short_steps) = sample.evaluate(&indexed, &mut a, now);
            let (long, long_steps) = sample.evaluate(&linear, &mut b, now);
            prop_assert_eq!(short_steps, long_steps);
            prop_assert!(long.per_packet || !short.per_packet, "an index asks no more rules");
            prop_assert_eq!(Outcome { per_packet: long.per_packet, ..short }, long);
        }
        for counter in 0..indexed.counters.len() as u32 {
            let counter = crate::CounterId(counter);
            prop_assert_eq!(a.counted(counter), b.counted(counter));
        }
    }
}

#[test]
fn many_rules_have_an_index_that_leaves_few() {
    let rule = |at: u16| {
        json!({"rule": {"family": "inet", "table": "t", "chain": "c0", "expr": [
            matching(&payload("ip", "saddr"), "==", &json!(format!("192.0.2.{}", at % 250))),
            matching(&payload("tcp", "dport"), "==", &json!(1000 + at)), {"drop": null}]}})
    };
    let program = program(&document(vec![(0..5000).map(rule).collect()], true), true);
    let index = program.chains[0].index.as_deref().expect("there are many rules");
    let left = index[0].candidates(|dimension| match dimension {
        Dimension::Protocol => Some(6),
        Dimension::Source => Some(0xc000_0200 | 7),
        Dimension::DestinationPort => Some(1000 + 4757),
        _ => None,
    });
    assert_eq!(left.collect::<Vec<_>>(), [4757]);
    let none = index[1].candidates(|_| Some(6));
    assert_eq!(none.count(), 0, "no rule is for IPv6");
}

#[test]
fn a_long_chain_has_an_index_of_few_bytes_for_each_rule() {
    const RULES: u16 = 20_000;
    let rule = |port: u16| {
        json!({"rule": {"family": "inet", "table": "t", "chain": "c0", "expr": [
            matching(&payload("tcp", "dport"), "==", &json!(port)), {"drop": null}]}})
    };
    let program = program(&document(vec![(0..RULES).map(rule).collect()], true), true);
    let index = program.chains[0].index.as_deref().expect("there are many rules");
    for family in index {
        assert!(family.memory_bytes() <= 256 * usize::from(RULES));
        for port in (0..RULES).step_by(61) {
            let left = family.candidates(|dimension| match dimension {
                Dimension::Protocol => Some(6),
                Dimension::DestinationPort => Some(port.into()),
                _ => None,
            });
            let left: Vec<_> = left.collect();
            assert!(left.contains(&port.into()) && left.len() <= 32, "{port}: {left:?}");
        }
    }
}

fn one_rule(statements: &Value) -> Program {
    let rule = json!({"rule": {"family": "inet", "table": "t", "chain": "c0", "expr": statements}});
    program(&document(vec![vec![rule]], true), true)
}

fn tcp() -> Sample {
    let frame = frame(false, [1, 2], 6, [20, 80], 2);
    Sample { frame, input: "eth0", output: "eth1", mark: 1, known: true }
}

#[test]
fn a_rate_lets_a_burst_through_and_then_its_rate() {
    for (over, expected) in [(false, [5, 0, 2]), (true, [5, 10, 8])] {
        let statements = json!([{"limit": {"rate": 10, "per": "second", "burst": 5, "inv": over}}, {"drop": null}]);
        let program = one_rule(&statements);
        let mut state = state(&program);
        let mut dropped = |count, now| {
            let outcomes = (0..count).map(|_| tcp().evaluate(&program, &mut state, now).0.decision);
            outcomes.filter(|decision| *decision == Decision::Drop).count()
        };
        let start = Timestamp::from_secs(10);
        let at_first = dropped(if over { 10 } else { 5 }, start);
        let then = dropped(10, start);
        let later = dropped(10, start.after(Duration::from_millis(200)));
        assert_eq!([at_first, then, later], expected);
    }
}

#[test]
fn a_rate_is_exact_over_workers() {
    let rate = json!({"limit": {"rate": 1000, "per": "second", "burst": 100}});
    let program = one_rule(&json!([rate, {"drop": null}]));
    let shared = SharedState::new(&program, Timestamp::ZERO);
    let now = Timestamp::from_secs(1);
    let mut workers = [(); 2].map(|()| RuleState::new(&program, &shared, now));
    let passed = (0..500).filter(|at| {
        tcp().evaluate(&program, &mut workers[at % 2], now).0.decision == Decision::Drop
    });
    assert_eq!(passed.count(), 100);
}

#[test]
fn a_quota_is_used_up_once() {
    let program = one_rule(
        &json!([{"quota": {"val": 100, "val_unit": "bytes", "inv": true}}, {"drop": null}]),
    );
    let mut state = state(&program);
    let mut decision = || tcp().evaluate(&program, &mut state, Timestamp::ZERO).0.decision;
    // Each packet has 40 bytes.
    let decisions = [decision(), decision(), decision(), decision()];
    assert_eq!(decisions, [Decision::Accept, Decision::Accept, Decision::Drop, Decision::Drop]);
}

#[test]
fn a_quota_stays_used_up_when_workers_leave_and_others_come() {
    let program = one_rule(
        &json!([{"quota": {"val": 2000, "val_unit": "bytes", "inv": false}}, {"drop": null}]),
    );
    let shared = SharedState::new(&program, Timestamp::ZERO);
    let now = Timestamp::ZERO;
    let passed = |worker: &mut RuleState| {
        let is_dropped =
            |_: &i32| tcp().evaluate(&program, worker, now).0.decision == Decision::Drop;
        (0..100).filter(is_dropped).count()
    };
    let hire = || RuleState::new(&program, &shared, now);
    let mut used = 0;
    for workers in [1, 2, 1, 2] {
        let mut crew: Vec<_> = (0..workers).map(|_| hire()).collect();
        let counts: Vec<usize> = crew.iter_mut().map(passed).collect();
        used += counts.iter().sum::<usize>();
    }
    // Each packet has 40 bytes. Those that no worker has used are there for the next.
    assert_eq!(used, 2000 / 40);
}

#[test]
fn a_packet_about_which_rules_are_consulted_uses_nothing_of_them() {
    let rate = |over: bool| json!({"limit": {"rate": 1, "per": "second", "burst": 2, "inv": over}});
    let quota = |over: bool| json!({"quota": {"val": 100, "val_unit": "bytes", "inv": over}});
    let update = |statement: Value| {
        json!({"set": {"op": "add", "elem": payload("ip", "saddr"), "set": "@seen",
            "stmt": [statement]}})
    };
    let now = Timestamp::from_secs(10);
    for statement in [
        rate(false),
        rate(true),
        quota(false),
        quota(true),
        update(rate(true)),
        update(quota(true)),
    ] {
        let program = one_rule(&json!([statement, {"drop": null}]));
        let consulted = |state: &mut RuleState| {
            tcp().seen(|view| consult(&program, Hook::Forward, view, state, now)).decision
        };
        let decision = |state: &mut RuleState| tcp().evaluate(&program, state, now).0.decision;
        let (mut state, mut alone) = (state(&program), state(&program));
        let mut decisions = Vec::new();
        for _ in 0..6 {
            let first = consulted(&mut state);
            assert!((0..10).all(|_| consulted(&mut state) == first), "{statement}");
            let then = decision(&mut state);
            assert_eq!(then, decision(&mut alone), "{statement}");
            decisions.push(then);
        }
        let held = |state: &RuleState| state.sets.iter().map(|set| set.len(now)).sum::<usize>();
        assert_eq!(held(&state), held(&alone));
        let dropped = |decision: &Decision| *decision == Decision::Drop;
        assert!(decisions.iter().any(dropped) && !decisions.iter().all(dropped), "{statement}");
    }
}

#[test]
fn a_segment_size_is_lowered_and_seen_so_by_what_follows() {
    let size = json!({"tcp option": {"name": "maxseg", "field": "size"}});
    let most = |bytes: u16| json!({"mangle": {"key": size, "value": bytes}});
    let announcing = |options: &[u8]| {
        let mut frame = Vec::new();
        let header = wire::build::Tcp { flags: wire::TcpFlags::SYN, options, ..Default::default() };
        let builder = wire::build::PacketBuilder::v4([192, 0, 2, 1], [192, 0, 2, 2]);
        builder.tcp(&header, b"", &mut frame);
        Sample { frame, ..tcp() }
    };
    let is_536 = matching(&size, "==", &json!(536));
    let lowering = one_rule(&json!([most(536), most(1400), is_536, {"drop": null}]));
    let (outcome, _) =
        announcing(&[2, 4, 5, 0xb4]).evaluate(&lowering, &mut state(&lowering), Timestamp::ZERO);
    assert_eq!(outcome.decision, Decision::Drop);
    assert_eq!(outcome.segment_size, Some(SegmentSize::AtMost(536)));

    // A TCP packet that announces no size goes on to the other items of the rule.
    let deciding = one_rule(&json!([most(1400), {"drop": null}]));
    let (outcome, _) = announcing(&[]).evaluate(&deciding, &mut state(&deciding), Timestamp::ZERO);
    assert_eq!((outcome.decision, outcome.segment_size), (Decision::Drop, None));
    let udp = Sample { frame: frame(false, [1, 2], 17, [20, 80], 0), ..tcp() };
    let (outcome, _) = udp.evaluate(&deciding, &mut state(&deciding), Timestamp::ZERO);
    assert_eq!(outcome.decision, Decision::Accept);
}

#[test]
fn marks_change_what_later_rules_see() {
    let meta_mark = json!({"meta": {"key": "mark"}});
    let set_mark =
        json!({"mangle": {"key": meta_mark, "value": {"|": [{"&": [meta_mark, 0xf0]}, 5]}}});
    let program = one_rule(&json!([
        set_mark,
        {"mangle": {"key": {"ct": {"key": "mark"}}, "value": meta_mark}},
        matching(&json!({"ct": {"key": "mark"}}), "==", &json!(0x15)),
        {"reject": null},
    ]));
    let sample = Sample { mark: 0x1f, ..tcp() };
    let (outcome, _) = sample.evaluate(&program, &mut state(&program), Timestamp::ZERO);
    assert_eq!((outcome.mark, outcome.ct_mark), (Some(0x15), Some(0x15)));
    assert_eq!(outcome.decision, Decision::Reject(Reject::Icmpx(Unreachable::Port)));
}

#[test]
fn an_element_that_a_worker_adds_is_there_for_all_workers() {
    let add = json!({"set": {"op": "add", "elem": {"elem": {"val": payload("ip", "saddr"), "timeout": 10}},
        "set": "@seen"}});
    let program = one_rule(&json!([add, {"drop": null}]));
    let shared = SharedState::new(&program, Timestamp::ZERO);
    let now = Timestamp::from_secs(1);
    let mut workers = [(); 2].map(|()| RuleState::new(&program, &shared, now));
    for worker in &mut workers {
        tcp().evaluate(&program, worker, now);
        assert_eq!(shared.element_count(&program, SetId(0), now), Some(1));
    }
    // It outlives the workers, and it ends in time.
    drop(workers);
    assert_eq!(shared.element_count(&program, SetId(0), now), Some(1));
    let later = now.after(Duration::from_secs(10));
    assert_eq!(shared.element_count(&program, SetId(0), later), Some(0));
}

#[test]
fn a_constant_is_a_part_of_an_element_that_a_rule_adds() {
    let pairs = json!({"set": {"family": "inet", "table": "t", "name": "pairs",
        "type": ["ipv4_addr", "inet_service"], "size": 4, "flags": ["timeout"]}});
    let knock = json!({"set": {"op": "add", "set": "@pairs", "elem": {"elem": {"timeout": 10,
        "val": {"concat": [payload("ip", "saddr"), 2345]}}}}});
    let rule = json!({"rule": {"family": "inet", "table": "t", "chain": "c0", "expr": [knock]}});
    let program = program(&document(vec![vec![pairs, rule]], true), true);
    let (shared, now) = (SharedState::new(&program, Timestamp::ZERO), Timestamp::from_secs(1));
    tcp().evaluate(&program, &mut RuleState::new(&program, &shared, now), now);
    assert_eq!(shared.elements(&program, now)[0].key, [0xc000_0201, 2345]);
}

/// The same packets, dealt out to more and more workers, some of which leave.
#[test]
fn more_workers_let_no_more_and_no_less_pass() {
    let of_element = |statement: Value| {
        json!({"set": {"op": "add", "elem": payload("ip", "saddr"), "set": "@seen",
            "stmt": [statement]}})
    };
    let rate = json!({"limit": {"rate": 1, "per": "minute", "burst": 3}});
    let fast = json!({"limit": {"rate": 500_000, "per": "second", "burst": 100}});
    let quota = json!({"quota": {"val": 3000, "val_unit": "bytes", "inv": false}});
    let now = Timestamp::from_secs(1);
    for (statement, expected) in [
        (of_element(rate.clone()), 3),
        (of_element(quota.clone()), 75),
        (rate, 3),
        (fast, 100),
        (quota, 75),
    ] {
        let program = one_rule(&json!([statement, {"drop": null}]));
        for count in [1, 2, 4, 8] {
            let shared = SharedState::new(&program, now);
            let hire = || RuleState::new(&program, &shared, now);
            let mut workers: Vec<RuleState> = (0..count).map(|_| hire()).collect();
            let mut passed = 0;
            for at in 0..1000 {
                if at % 97 == 96 {
                    workers.push(hire());
                    workers.swap_remove(at % count);
                }
                let worker = &mut workers[at * 7 % count];
                let (outcome, _) = tcp().evaluate(&program, worker, now);
                passed += u32::from(outcome.decision == Decision::Drop);
            }
            assert_eq!(passed, expected, "{statement} with {count} workers");
        }
    }
}

#[test]
fn bits_of_headers_that_do_not_begin_at_bytes() {
    let raw = |offset: u16, bits: u8, value: u64| {
        matching(
            &json!({"payload": {"base": "nh", "offset": offset, "len": bits}}),
            "==",
            &json!(value),
        )
    };
    for (offset, bits, value) in
        [(0, 4, 4), (4, 4, 5), (8, 6, 46), (12, 8, 0x80), (4, 12, 0x5b8), (8, 1, 1)]
    {
        let program = one_rule(&json!([raw(offset, bits, value), {"drop": null}]));
        let (outcome, _) = tcp().evaluate(&program, &mut state(&program), Timestamp::ZERO);
        assert_eq!(outcome.decision, Decision::Drop, "{bits} bits at {offset}");
    }
}

/// The names share their first or their last eight bytes, which are compared apart.
#[test]
fn names_of_interfaces_and_states_are_compared_whole() {
    const NAMES: [&str; 4] = ["uplink-00000001", "uplink-00000002", "inside-00000001", "eth0"];
    let passes = |statement: &Value, sample: &Sample| {
        let program = one_rule(&json!([statement, {"accept": null}]));
        let (_, steps) = sample.evaluate(&program, &mut state(&program), Timestamp::ZERO);
        matches!(steps[..], [Step::Rule(_), ..])
    };
    for (input, named) in NAMES.into_iter().flat_map(|input| NAMES.map(|named| (input, named))) {
        let sample = Sample { input, ..tcp() };
        for (operator, wanted) in [("==", input == named), ("!=", input != named)] {
            let statement = matching(&json!({"meta": {"key": "iifname"}}), operator, &json!(named));
            assert_eq!(passes(&statement, &sample), wanted, "{input} {operator} {named}");
        }
    }
    for (states, is_new) in
        [(json!(["new", "related"]), true), (json!(["invalid", "related"]), false)]
    {
        let sample = Sample { known: true, ..tcp() };
        for (operator, wanted) in [("in", is_new), ("!", !is_new)] {
            let statement = matching(&json!({"ct": {"key": "state"}}), operator, &states);
            assert_eq!(passes(&statement, &sample), wanted, "new {operator} {states}");
        }
    }
}
