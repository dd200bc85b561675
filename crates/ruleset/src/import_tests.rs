use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::kind::only;
use crate::limits::MAX_JUMP_DEPTH;
use crate::model::Item;
use crate::{Effect, Interval, Verdict};

/// The listing of a ruleset with every expression by the real `nft`.
const EVERYTHING: &str = include_str!("../tests/everything.json");

fn document(objects: &[Value]) -> Value {
    let mut all = vec![json!({"table": {"family": "inet", "name": "t", "handle": 1}})];
    all.extend_from_slice(objects);
    json!({ "nftables": all })
}

fn chain(name: &str) -> Value {
    json!({"chain": {"family": "inet", "table": "t", "name": name, "handle": 7}})
}

fn forward() -> Value {
    json!({"chain": {"family": "inet", "table": "t", "name": "f", "handle": 2, "type": "filter",
        "hook": "forward", "prio": 0, "policy": "drop"}})
}

fn rule(chain: &str, statements: &Value) -> Value {
    json!({"rule": {"family": "inet", "table": "t", "chain": chain, "handle": 9,
        "expr": statements}})
}

fn jump(from: &str, to: &str) -> Value {
    rule(from, &json!([{"jump": {"target": to}}]))
}

fn problems(document: &Value) -> String {
    match import_value(document, Options::default()) {
        Ok(imported) => format!("loaded\n{}", imported.problems),
        Err(refused) => refused.to_string(),
    }
}

#[test]
fn jumps_that_come_back_are_refused() {
    let looped = document(&[
        forward(),
        chain("a"),
        chain("b"),
        jump("f", "a"),
        jump("a", "b"),
        rule(
            "b",
            &json!([{"vmap": {"key": {"meta": {"key": "l4proto"}},
            "data": {"set": [["tcp", {"goto": {"target": "a"}}]]}}}]),
        ),
    ]);
    let message = problems(&looped);
    assert!(
        message.contains(
            "inet t chain a handle 7: invalid: jumps of this chain lead back to it: a > b > a"
        ),
        "{message}"
    );
    let own = document(&[forward(), chain("a"), jump("f", "a"), jump("a", "a")]);
    assert!(problems(&own).contains("lead back to it: a > a"));
}

#[test]
fn jumps_are_as_deep_as_the_kernel_allows_and_no_deeper() {
    let nested = |depth: usize| {
        let mut objects = vec![forward()];
        objects.extend((1..=depth).map(|at| chain(&format!("c{at}"))));
        objects.push(jump("f", "c1"));
        objects.extend((1..depth).map(|at| jump(&format!("c{at}"), &format!("c{}", at + 1))));
        problems(&document(&objects))
    };
    assert!(nested(MAX_JUMP_DEPTH).starts_with("loaded"), "{}", nested(MAX_JUMP_DEPTH));
    assert!(nested(MAX_JUMP_DEPTH + 1).contains("more than 16 chains deep"));
    assert!(nested(5000).contains("more than 16 chains deep"), "and no stack overflows");
}

/// Chains that each lead so often to the next, the last of which has one rule.
fn fan(chains: usize, times: usize, statement: impl Fn(&str) -> Value) -> Value {
    let name = |at: usize| if at == 0 { "f".to_owned() } else { format!("c{at}") };
    let mut objects = vec![forward()];
    objects.extend((1..=chains).map(|at| chain(&name(at))));
    for at in 0..chains {
        let lead = rule(&name(at), &json!([statement(&name(at + 1))]));
        objects.extend(std::iter::repeat_n(lead, times));
    }
    objects.push(rule(&name(chains), &json!([{"counter": null}])));
    document(&objects)
}

#[test]
fn no_packet_meets_so_many_rules_that_a_worker_hangs() {
    let jump = |to: &str| json!({"jump": {"target": to}});
    let goto = |to: &str| json!({"goto": {"target": to}});
    let by_map = |to: &str| {
        let verdicts = [json!(["tcp", {"jump": {"target": to}}]), json!(["udp", {"accept": null}])];
        json!({"vmap": {"key": {"meta": {"key": "l4proto"}}, "data": {"set": verdicts}}})
    };
    // Six deep 561,736 rules are met, seven deep eight times as many.
    assert!(problems(&fan(6, 8, jump)).starts_with("loaded"));
    for statement in [&jump as &dyn Fn(&str) -> Value, &by_map] {
        for chains in [7, 14] {
            let message = problems(&fan(chains, 8, statement));
            let place = format!("inet t chain c{} handle 7: invalid: ", chains - 7);
            let place = place.replace("chain c0 handle 7", "chain f handle 2");
            assert!(
                message.starts_with(&place) && message.contains("rules from here on"),
                "{message}"
            );
            assert!(message.contains("verdict map"), "what to do: {message}");
        }
    }
    // A chain that does not come back is met once.
    assert!(problems(&fan(14, 8, goto)).starts_with("loaded"));
}

#[test]
fn rules_of_all_chains_of_a_stage_count_together() {
    let hub = |number: usize| {
        json!({"chain": {"family": "inet", "table": "t", "name": format!("h{number}"),
            "handle": 20 + number, "type": "filter", "hook": "forward", "prio": number,
            "policy": "accept"}})
    };
    let load = |hubs: usize| {
        let Value::Object(mut all) = fan(6, 8, |to| json!({"jump": {"target": to}})) else {
            unreachable!()
        };
        let Some(Value::Array(objects)) = all.get_mut("nftables") else { unreachable!() };
        objects.extend((0..hubs).map(hub));
        objects.extend((0..hubs).map(|number| jump(&format!("h{number}"), "c1")));
        problems(&Value::Object(all))
    };
    // 561,736 from `f` on and 70,217 from each other one.
    assert!(load(6).starts_with("loaded"), "{}", load(6));
    let message = load(7);
    assert!(message.contains("inet t chain h6 handle 26: invalid: a packet may meet"), "{message}");
}

#[test]
fn statements_stand_where_they_work() {
    for (statement, message) in [
        (json!({"masquerade": null}), "source translation only works in nat chains"),
        (json!({"redirect": null}), "destination translation only works in nat chains"),
        (json!({"notrack": null}), "notrack only works in chains of prerouting"),
    ] {
        let through_a_jump =
            document(&[forward(), chain("a"), jump("f", "a"), rule("a", &json!([statement]))]);
        assert!(problems(&through_a_jump).contains(message), "{}", problems(&through_a_jump));
        let never_reached = document(&[forward(), chain("a"), rule("a", &json!([statement]))]);
        assert!(problems(&never_reached).starts_with("loaded"));
    }
}

#[test]
fn zones_are_known_beforehand() {
    let raw = json!({"chain": {"family": "inet", "table": "t", "name": "raw", "handle": 2,
        "type": "filter", "hook": "prerouting", "prio": -300, "policy": "accept"}});
    let set = |key: Value, value: Value| {
        let statement = json!([{"mangle": {"key": {"ct": key}, "value": value}}]);
        document(&[raw.clone(), rule("raw", &statement)])
    };
    let both = json!({"key": "zone"});
    let map = json!({"map": {"key": {"meta": {"key": "mark"}},
        "data": {"set": [[1, 9], [2, 5], [3, 9]]}}});
    for (value, zones) in [(json!(7), vec![7]), (map, vec![5, 9])] {
        let imported = import_value(&set(both.clone(), value), Options::default()).unwrap();
        assert_eq!(imported.ruleset.zones_set(), zones);
    }
    // nft writes the type of zones, as of all numbers without a name, as `integer`.
    let named = json!({"map": {"family": "inet", "table": "t", "name": "zones", "handle": 3,
        "type": "ifname", "map": "integer", "elem": [["lan0", 4], ["lan1", 6]]}});
    let value = json!({"map": {"key": {"meta": {"key": "iifname"}}, "data": "@zones"}});
    let statement = json!([{"mangle": {"key": {"ct": both.clone()}, "value": value}}]);
    let by_name = document(&[raw.clone(), named, rule("raw", &statement)]);
    let imported = import_value(&by_name, Options::default()).unwrap();
    assert_eq!(imported.ruleset.zones_set(), [4, 6]);
    let one_way = set(json!({"key": "zone", "dir": "original"}), json!(7));
    let imported = import_value(&one_way, Options::default()).unwrap();
    assert_eq!(imported.ruleset.zones_set(), [7]);
    let message = problems(&set(both, json!({"ct": {"key": "zone"}})));
    assert!(message.contains("neither a number nor from a map"), "{message}");
}

#[test]
fn timeouts_are_of_states_that_their_protocol_has() {
    let object = |protocol: &str, policy: &Value| {
        let rest = json!({"family": "inet", "table": "t", "name": "a", "handle": 3,
            "protocol": protocol, "l3proto": "ip", "policy": policy});
        problems(&document(&[forward(), json!({"ct timeout": rest})]))
    };
    assert!(object("tcp", &json!({"established": 100, "unack": 0})).starts_with("loaded"));
    assert!(object("udp", &json!({"replied": 100})).starts_with("loaded"));
    for (protocol, policy, message) in [
        ("udp", json!({"established": 100}), "no state `\"established\"`"),
        ("tcp", json!({"close": 2_147_484}), "`2147484` is not a time of 0 to 2147483 seconds"),
        ("tcp", json!({"close": "4s"}), "is not a time"),
        ("sctp", json!({}), "timeouts of other protocols than TCP and UDP"),
    ] {
        let said = object(protocol, &policy);
        assert!(said.contains(message), "{said}");
    }
}

#[test]
fn mistakes_in_a_ruleset_are_named_with_their_place() {
    let wrong = document(&[
        forward(),
        json!({"set": {"family": "inet", "table": "t", "name": "s", "handle": 3,
            "type": "ipv4_addr", "elem": ["192.0.2.1", "192.0.2.256"]}}),
        rule(
            "f",
            &json!([{"match": {"op": "==",
            "left": {"payload": {"protocol": "ip6", "field": "saddr"}}, "right": "@s"}}]),
        ),
        rule(
            "f",
            &json!([{"match": {"op": "==",
            "left": {"payload": {"protocol": "tcp", "field": "dport"}}, "right": 65536}}]),
        ),
        rule("f", &json!([{"jump": {"target": "nowhere"}}])),
        rule("f", &json!([{"jump": {"target": "f"}}])),
        rule("nowhere", &json!([])),
        rule("f", &json!([{"counter": "missing"}, {"match": {}}])),
        json!({"chain": {"family": "inet", "table": "other", "name": "x", "handle": 4}}),
        json!({"surprise": {}}),
        json!(7),
    ]);
    insta::assert_snapshot!("invalid", problems(&wrong));
}

/// As nft 1.0.6 prints rules of iptables-nft.
#[test]
fn leaving_out_an_extension_of_iptables_that_drops_filters_less() {
    let xt = |kind: &str, name: &str| json!({"xt": {"type": kind, "name": name}});
    let counter = json!({"counter": {"packets": 0, "bytes": 0}});
    for (statements, effect) in [
        (json!([xt("match", "string"), counter, xt("target", "REJECT")]), Effect::Open),
        (json!([counter, xt("target", "REJECT")]), Effect::Open),
        (json!([xt("match", "string"), counter, {"drop": null}]), Effect::Open),
        (json!([xt("match", "recent"), counter, {"accept": null}]), Effect::Stricter),
        (json!([xt("match", "u32"), counter, xt("target", "LOG")]), Effect::SideEffect),
        (json!([xt("target", "MASQUERADE")]), Effect::Untranslated),
        (json!([xt("target", "NFQUEUE")]), Effect::Unclear),
        (json!([{"xt": null}]), Effect::Unclear),
    ] {
        let refused =
            import_value(&document(&[forward(), rule("f", &statements)]), Options::default());
        let problems = refused.unwrap_err().problems;
        for problem in problems.listed() {
            assert_eq!(problem.effect, Some(effect), "{statements}");
            let message = problem.to_string();
            assert!(
                message.contains("save the rules by iptables-save and load that file"),
                "{message}"
            );
            assert_eq!(message.contains("PACKETS THAT IT DROPS GO ON"), effect == Effect::Open);
        }
        assert!(problems.count(Severity::Unsupported) > 0, "{statements}");
    }
}

#[test]
fn the_table_of_a_running_gateway_is_none_of_the_operators() {
    let of = |table: &str| {
        document(&[
            forward(),
            json!({"table": {"family": "inet", "name": table, "handle": 9}}),
            json!({"chain": {"family": "inet", "table": table, "name": "host", "handle": 1,
                "type": "filter", "hook": "prerouting", "prio": -300, "policy": "accept"}}),
            json!({"rule": {"family": "inet", "table": table, "chain": "host", "handle": 2,
                "expr": [{"match": {"op": "==", "right": 1,
                    "left": {"socket": {"key": "wildcard"}}}}, {"drop": null}]}}),
        ])
    };
    for name in ["stateway_4711", "stateway_4711_2"] {
        let imported = import_value(&of(name), Options::default()).unwrap();
        assert_eq!(imported.ruleset.chains().len(), 1);
        let noted = format!(
            "inet {name} handle 9: note: a running gateway made this table for itself: left \
             out\n"
        );
        assert_eq!(imported.problems.to_string(), noted);
    }
    // An operator may well use such a name.
    for name in ["stateway_rules", "stateway_4711_rules", "stateway_", "stateway_4711_"] {
        assert!(import_value(&of(name), Options::default()).is_err(), "{name}");
    }
}

#[test]
fn leaving_out_says_what_it_does() {
    for (last, effect) in [
        (json!({"accept": null}), Effect::Stricter),
        (json!({"drop": null}), Effect::Open),
        (json!({"reject": null}), Effect::Open),
        (json!({"return": null}), Effect::Unclear),
        (json!({"masquerade": null}), Effect::Untranslated),
        (json!({"counter": null}), Effect::SideEffect),
        // A statement of a newer nft, or a misspelt one.
        (json!({"discard": null}), Effect::Unclear),
    ] {
        let statements = json!([{"secmark": "label"}, last]);
        let document = document(&[forward(), rule("f", &statements)]);
        let imported = import_value(&document, Options { allow_unsupported: true });
        let imported = imported.expect("it is allowed");
        assert_eq!(imported.problems.listed()[0].effect, Some(effect));
        assert!(imported.ruleset.rules().is_empty());
    }
}

#[test]
fn base_chains_of_one_priority_are_asked_the_last_first() {
    let base = |name: &str, priority: i32| {
        json!({"chain": {"family": "inet", "table": "t", "name": name, "handle": 2,
            "type": "filter", "hook": "forward", "prio": priority}})
    };
    let document = document(&[base("a", 0), base("b", -5), base("c", 0)]);
    let ruleset = import_value(&document, Options::default()).expect("it is right").ruleset;
    let order = &ruleset.bases[Hook::Forward as usize];
    let names: Vec<&str> =
        order.iter().map(|id| ruleset.chains[id.index()].name.as_str()).collect();
    assert_eq!(names, ["b", "c", "a"]);
}

#[test]
fn rules_that_only_packets_for_the_host_reach_are_left_to_the_kernel() {
    let input = json!({"chain": {"family": "inet", "table": "t", "name": "i", "handle": 2,
        "type": "filter", "hook": "input", "prio": 0}});
    let unknown = json!([{"match": {"op": "==", "left": {"socket": {"key": "wildcard"}},
        "right": 1}}, {"accept": null}]);
    let both = [input, chain("a"), jump("i", "a"), rule("a", &unknown), rule("i", &unknown)];
    assert!(problems(&document(&both)).starts_with("loaded\ninet t chain i handle 2: left"));
    let reached = [&both[..], &[forward(), jump("f", "a")]].concat();
    let message = problems(&document(&reached));
    assert!(message.contains("0 invalid and 1 unsupported"), "{message}");
}

#[test]
fn the_document_of_every_expression_has_a_ruleset_and_its_problems() {
    let options = Options { allow_unsupported: true };
    let imported = match import(EVERYTHING.as_bytes(), options) {
        Ok(imported) => imported,
        Err(refused) => panic!("{refused}"),
    };
    insta::assert_snapshot!("everything", imported.problems);
    let jumps = imported.ruleset.rules.iter().flat_map(|rule| &rule.items);
    assert!(
        jumps.clone().any(|item| matches!(item, crate::model::Item::Verdict(Verdict::Jump(_))))
    );
}

/// A newer nft may have keys that change what a rule says.
#[test]
fn a_key_that_nobody_knows_is_refused_wherever_it_stands() {
    const FORMS_WITH_ELEMENTS: [&str; 2] = ["set", "meter"];
    let everything: Value = serde_json::from_str(EVERYTHING).unwrap();
    let (rules, others): (Vec<_>, Vec<_>) =
        everything["nftables"].as_array().unwrap().iter().partition(|it| it.get("rule").is_some());
    let is_loaded = |rule: &Value| {
        let all = others.iter().copied().chain([rule]).cloned().collect::<Vec<_>>();
        import_value(&json!({ "nftables": all }), Options::default()).is_ok()
    };
    // Rules of other chains are only read if one leads there.
    let is_forward = |chain: &Value| {
        chain.get("hook").is_some_and(|hook| !["input", "output"].iter().any(|own| hook == own))
    };
    let bases = others.iter().filter(|it| is_forward(&it["chain"]));
    let bases: Vec<&Value> = bases.map(|it| &it["chain"]["name"]).collect();
    let mut changed = 0;
    for rule in rules.into_iter().filter(|it| bases.contains(&&it["rule"]["chain"])) {
        let statements = rule["rule"]["expr"].as_array().unwrap();
        for at in (0..statements.len()).filter(|_| is_loaded(rule)) {
            let (form, inside) = statements[at].as_object().unwrap().iter().next().unwrap();
            let place = format!("/rule/expr/{at}/{form}");
            let mut places = vec![place.clone()];
            for part in ["left", "key", "value", "elem"] {
                let mut value = &inside[part];
                let mut place = format!("{place}/{part}");
                // A list of two is a value with a mask.
                while let Some((name, inside)) = only(value) {
                    place = format!("{place}/{}", name.replace('~', "~0").replace('/', "~1"));
                    if inside.get(0).is_some() {
                        place += "/0";
                    }
                    value = inside.get(0).unwrap_or(inside);
                }
                if value.is_object() && !FORMS_WITH_ELEMENTS.contains(&form.as_str()) {
                    places.push(place);
                }
            }
            for place in places {
                let mut with_key = rule.clone();
                let Some(Value::Object(form)) = with_key.pointer_mut(&place) else { continue };
                form.insert("unheard-of".to_owned(), json!(1));
                assert!(!is_loaded(&with_key), "{place}: {with_key}");
                changed += 1;
            }
        }
    }
    assert!(changed > 300, "{changed}");
}

#[test]
fn a_field_inside_a_tunnel_is_not_taken_for_that_of_the_tunnel() {
    let source = json!({"payload": {"tunnel": "vxlan", "protocol": "ip", "field": "saddr"}});
    let inside = json!({"match": {"op": "==", "left": source, "right": "192.0.2.1"}});
    let message = problems(&document(&[forward(), rule("f", &json!([inside, {"accept": null}]))]));
    assert!(
        message.contains("unsupported: `vxlan ip saddr`: about the inside of a tunnel"),
        "{message}"
    );
}

#[test]
fn deep_documents_are_refused() {
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        for depth in [100, 10_000, 1_000_000] {
            let mut text = format!("{{\"nftables\": {}", open.repeat(depth));
            assert!(import(text.as_bytes(), Options::default()).is_err());
            text += "0";
            text += &close.repeat(depth);
            text.push('}');
            assert!(import(text.as_bytes(), Options::default()).is_err());
        }
    }
    let mut expression = json!({"payload": {"protocol": "ip", "field": "saddr"}});
    for _ in 0..50 {
        expression = json!({"&": [expression, 1]});
    }
    let matching = json!([{"match": {"op": "==", "left": expression, "right": 1}}]);
    let message = problems(&document(&[forward(), rule("f", &matching)]));
    assert!(message.contains("nested too deep"), "{message}");
}

/// Any small JSON value, with words that mean something here.
fn value() -> impl Strategy<Value = Value> {
    const WORDS: [&str; 24] = [
        "",
        "ip",
        "ip6",
        "inet",
        "saddr",
        "tcp",
        "accept",
        "drop",
        "jump",
        "target",
        "@s1",
        "*",
        "10.0.0.0",
        "::",
        "eth*",
        "set",
        "concat",
        "range",
        "prefix",
        "len",
        "elem",
        "map",
        "val",
        "4294967296",
    ];
    let word = prop::sample::select(&WORDS[..]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (0..70_000_u64).prop_map(Value::from),
        Just(json!(1.5)),
        Just(json!(u64::MAX)),
        word.clone().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((word.clone(), inner), 0..3).prop_map(|fields| {
                fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
            }),
        ]
    })
}

/// Replaces a part of a document, counted in the order of a walk.
fn replace(document: &mut Value, at: &mut usize, with: &Value) {
    if *at == 0 {
        *document = with.clone();
    }
    *at = at.wrapping_sub(1);
    match document {
        Value::Array(parts) => parts.iter_mut().for_each(|part| replace(part, at, with)),
        Value::Object(fields) => fields.values_mut().for_each(|part| replace(part, at, with)),
        _ => {}
    }
}

fn size(value: &Value) -> usize {
    1 + match value {
        Value::Array(parts) => parts.iter().map(size).sum::<usize>(),
        Value::Object(fields) => fields.values().map(size).sum::<usize>(),
        _ => 0,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// A damaged document never panics: it is refused or right.
    #[test]
    fn damaged_documents(edits in prop::collection::vec((any::<prop::sample::Index>(), value()), 1..6)) {
        let mut document: Value = serde_json::from_str(EVERYTHING).unwrap();
        for (index, with) in &edits {
            let mut at = index.index(size(&document));
            replace(&mut document, &mut at, with);
        }
        for allow_unsupported in [false, true] {
            if let Ok(imported) = import_value(&document, Options { allow_unsupported }) {
                let mut flaws = graph::check(&imported.ruleset).into_iter();
            prop_assert!(flaws.all(|flaw| flaw.severity == Severity::Note));
            }
        }
    }

    #[test]
    fn cut_documents(length in 0..EVERYTHING.len()) {
        let cut = EVERYTHING.as_bytes().get(..length).unwrap_or_default();
        let refused = import(cut, Options { allow_unsupported: true }).is_err();
        prop_assert!(refused || length + 2 > EVERYTHING.len(), "cut at {}", length);
    }
}

#[test]
fn a_group_of_interfaces_that_its_host_has_named_is_unsupported() {
    let of_group = |group: Value| {
        let left = json!({"meta": {"key": "iifgroup"}});
        let asks = json!({"match": {"op": "==", "left": left, "right": group}});
        let document = document(&[forward(), rule("f", &json!([asks, {"drop": null}]))]);
        import_value(&document, Options::default())
    };
    for group in [json!("default"), json!(0), json!(u32::MAX)] {
        assert!(of_group(group).is_ok());
    }
    let severity = |group: Value| of_group(group).unwrap_err().problems.listed()[0].severity;
    assert_eq!(severity(json!("guests")), Severity::Unsupported);
    assert_eq!(severity(json!(1_u64 << 32)), Severity::Invalid);
}

#[test]
fn values_that_are_printed_oddly_are_understood() {
    let matching =
        |left: Value, right: Value| json!({"match": {"op": "==", "left": left, "right": right}});
    let kind = |name: &str| matching(json!({"meta": {"key": "iiftype"}}), json!(name));
    let port = matching(
        json!({"ct": {"key": "proto-dst", "dir": "original"}}),
        json!({"range": ["0x16 [invalid type]", "0x50 [invalid type]"]}),
    );
    let right = document(&[forward(), rule("f", &json!([kind("ether"), port, {"drop": null}]))]);
    let imported = import_value(&right, Options::default()).expect("it is right");
    let items = &imported.ruleset.rules()[0].items;
    let interval = Interval { low: 22, high: 80 };
    assert!(
        matches!(items[..], [Item::Within { interval: ethernet, .. },
            Item::Within { interval: found, negated: false, .. }, Item::Verdict(_)]
            if found == interval && ethernet == Interval::one(1)),
        "{items:?}"
    );
    let other = document(&[forward(), rule("f", &json!([kind("loopback"), {"drop": null}]))]);
    let imported = import_value(&other, Options::default()).expect("it is right");
    let items = &imported.ruleset.rules()[0].items;
    assert!(
        matches!(items[..], [Item::Within { interval, .. }, _] if interval == Interval::one(772)),
        "{items:?}"
    );
}

#[test]
fn an_offload_of_a_flow_is_a_hint_and_the_rest_of_its_rule_holds() {
    let rule = json!([
        {"match": {"op": "in", "left": {"ct": {"key": "state"}}, "right": "established"}},
        {"flow": {"op": "add", "flowtable": "@f"}},
        {"accept": null},
    ]);
    let document = json!({"nftables": [
        {"table": {"family": "inet", "name": "t"}},
        {"flowtable": {"family": "inet", "table": "t", "name": "f", "hook": "ingress", "prio": 0,
            "dev": "lan0"}},
        {"chain": {"family": "inet", "table": "t", "name": "c", "type": "filter",
            "hook": "forward", "prio": 0, "policy": "drop"}},
        {"rule": {"family": "inet", "table": "t", "chain": "c", "handle": 4, "expr": rule}},
    ]});
    let imported = import_value(&document, Options::default()).expect("it is accepted");
    assert_eq!(imported.ruleset.rules()[0].items.len(), 2);
    let message = imported.problems.to_string();
    assert!(message.contains("rule handle 4, expr[1].flow: note: a hint"), "{message}");
}
