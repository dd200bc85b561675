use proptest::prelude::*;
use serde_json::json;

use super::*;

/// No remarks.
const BARE: HostRemark<'_> = &|_, _, _, _| "";

#[test]
fn a_remark_stands_beside_each_chain_about_the_host_and_no_other() {
    let chain = |name: &str, hook: Option<&str>| {
        json!({"chain": {"family": "inet", "table": "t", "name": name, "handle": 2, "type": "filter",
            "hook": hook, "prio": 0, "policy": "drop"}})
    };
    let document = json!({"nftables": [{"table": {"family": "inet", "name": "t", "handle": 1}},
        chain("in", Some("input")), chain("out", Some("output")), chain("f", Some("forward")),
        chain("plain", None)]});
    let of_host = |family: &str, table: &str, chain: &str, _: &str| match (family, table, chain) {
        ("inet", "t", "in") => "not ours",
        _ => "",
    };
    let text = text(&document, true, &of_host);
    let chains: Vec<&str> = text.lines().filter(|line| line.contains("chain")).collect();
    let expected =
        ["in { # handle 2 # not ours", "out { # handle 2", "f { # handle 2", "plain { # handle 2"];
    assert_eq!(chains, expected.map(|it| format!("\tchain {it}")));
}

#[test]
fn comments_intervals_and_policies_are_listed_as_nft_does() {
    let document = json!({"nftables": [
        {"table": {"family": "ip", "name": "t", "comment": "of table"}},
        {"counter": {"family": "ip", "table": "t", "name": "web", "comment": "of counter",
            "packets": 1, "bytes": 2}},
        {"set": {"family": "ip", "table": "t", "name": "s", "type": "ipv4_addr", "timeout": 300,
            "gc-interval": 60, "policy": "memory", "comment": "of set"}},
        {"chain": {"family": "ip", "table": "t", "name": "c", "comment": "of chain"}},
    ]});
    let expected = "table ip t {\n\tcomment \"of table\"\n\
        \tcounter web {\n\t\tcomment \"of counter\"\n\t\tpackets 1 bytes 2\n\t}\n\n\
        \tset s {\n\t\ttype ipv4_addr\n\t\ttimeout 5m\n\t\tgc-interval 1m\n\t\tpolicy memory\n\
        \t\tcomment \"of set\"\n\t}\n\n\tchain c {\n\t\tcomment \"of chain\"\n\t}\n}\n";
    assert_eq!(text(&document, false, BARE), expected);
}

#[test]
fn elements_that_rules_fill_are_listed_with_their_limits() {
    let limit = json!({"limit": {"rate": 10, "burst": 7, "per": "minute", "inv": true}});
    let document = json!({"nftables": [
        {"table": {"family": "ip", "name": "t"}},
        {"set": {"family": "ip", "table": "t", "name": "s", "type": "ipv4_addr", "size": 9,
            "stmt": [limit, {"quota": {"val": 5, "val_unit": "bytes"}}, {"ct count": {"val": 3}}]}},
    ]});
    let imported = crate::import_value(&document, crate::Options::default()).expect("it is right");
    let options = crate::CompileOptions { index: true, seed: 1 };
    let program = crate::Program::compile(imported.ruleset, options).expect("it is small");
    let element = LiveElement {
        set: crate::model::SetId(0),
        key: vec![0xc000_0201],
        timeout: None,
        expires: None,
        counted: None,
        is_bare: false,
        comment: None,
    };
    let live = Live { elements: vec![element], ..Live::default() };
    let listed = text(&with_live(document, &program, &live), false, BARE);
    let expected = "elements = { 192.0.2.1 limit rate over 10/minute burst 7 packets quota 5 bytes \
                    ct count 3 }";
    assert!(listed.contains(expected), "{listed}");
}

#[test]
fn a_name_that_nft_does_not_read_is_told() {
    let document = json!({"nftables": [
        {"table": {"family": "ip", "name": "t"}},
        {"chain": {"family": "ip", "table": "t", "name": "accept"}},
        {"chain": {"family": "ip", "table": "t", "name": "accepted"}},
    ]});
    let remark =
        "\t# nft does not read this name here, only in JSON: `stateway rules list --json`\n";
    let expected = format!(
        "table ip t {{\n{remark}\tchain accept {{\n\t}}\n\n\tchain accepted {{\n\t}}\n}}\n"
    );
    assert_eq!(text(&document, false, BARE), expected);
}

#[test]
fn damaged_rulesets_are_listed_without_a_panic() {
    for rule in [
        json!({"expr": [{"match": {}}, {"vmap": 3}, {"set": null}, {"reject": null}, 7, null]}),
        json!({"expr": [{"match": {"left": {"&": []}, "right": {"set": [[1], [1, 2, 3]]}}}]}),
        json!({"expr": [{"mangle": {"key": {"meta": 1}, "value": {"map": {}}}}, {"snat": []}]}),
        json!({"expr": {}}),
        json!(null),
    ] {
        rule_text(&rule);
    }
    for document in [json!(null), json!({"nftables": 3}), json!({"nftables": [1, {"table": 1}]})] {
        text(&document, true, BARE);
    }
}

#[test]
fn priorities_have_names_near_them() {
    let named = [
        ("prerouting", -300, "raw"),
        ("prerouting", -290, "raw + 10"),
        ("prerouting", -289, "-289"),
        ("prerouting", -100, "dstnat"),
        ("output", -100, "-100"),
        ("forward", 0, "filter"),
        ("forward", 5, "filter + 5"),
        ("forward", -5, "filter - 5"),
        ("postrouting", 90, "srcnat - 10"),
        ("forward", 1000, "1000"),
    ];
    for (hook, priority, name) in named {
        assert_eq!(priority_name("inet", hook, priority), name);
    }
}

#[test]
fn maps_to_ranges_are_listed_as_such() {
    let map = |elements: Value| {
        json!({"nftables": [{"table": {"family": "ip", "name": "t"}}, {"map": {"family": "ip",
            "table": "t", "name": "m", "type": "ipv4_addr", "map": "ipv4_addr", "elem": elements}}]})
    };
    let net = json!({"prefix": {"addr": "198.51.100.0", "len": 24}});
    for (datum, kind) in [(json!("198.51.100.1"), "ipv4_addr"), (net, "interval ipv4_addr")] {
        let listed = text(&map(json!([["192.0.2.1", datum]])), false, BARE);
        assert!(listed.contains(&format!("type ipv4_addr : {kind}\n")), "{listed}");
    }
}

#[test]
fn operators_are_listed_in_the_order_in_which_they_work() {
    let flags = json!({"payload": {"protocol": "tcp", "field": "flags"}});
    let mark = json!({"meta": {"key": "mark"}});
    for (expression, text) in [
        (json!({"&": [flags, {"|": ["syn", "ack"]}]}), "tcp flags & (syn | ack)"),
        (json!({"|": [{"&": [mark, 15]}, 16]}), "meta mark & 0x0000000f | 0x00000010"),
        (json!({"&": [{"|": [mark, 15]}, 16]}), "(meta mark | 0x0000000f) & 0x00000010"),
        (json!({"^": [{"&": [mark, 15]}, 16]}), "meta mark & 0x0000000f ^ 0x00000010"),
    ] {
        assert_eq!(expression_text(&expression), text);
    }
}

#[test]
fn a_set_that_no_rule_asks_is_listed_as_it_was_loaded() {
    let counted =
        |address: &str| json!({"elem": {"val": address, "counter": {"packets": 7, "bytes": 700}}});
    let document = json!({"nftables": [
        {"table": {"family": "ip", "name": "t", "handle": 1}},
        {"set": {"family": "ip", "table": "t", "name": "s", "handle": 2, "type": "ipv4_addr",
            "stmt": [{"counter": null}], "elem": [counted("192.0.2.1"), counted("192.0.2.2")]}},
    ]});
    let imported = crate::import_value(&document, crate::Options::default()).expect("it is right");
    let options = crate::CompileOptions { index: true, seed: 1 };
    let program = crate::Program::compile(imported.ruleset, options).expect("it is small");
    assert_eq!(with_live(document.clone(), &program, &Live::default()), document);
}

#[test]
fn a_quotation_mark_inside_a_text_does_not_end_it() {
    // iptables-translate makes such comments, and nft has no notation for them.
    let rule = json!({"expr": [{"log": {"prefix": "a \"b\""}}], "comment": "say \"hi\""});
    assert_eq!(rule_text(&rule), "log prefix \"a 'b'\" comment \"say 'hi'\"");
}

/// Every kind of object and of text that a listing has, each with `text` in it.
fn with_text(text: &str) -> Value {
    let rule = json!([
        {"match": {"op": "==", "left": {"meta": {"key": "iifname"}}, "right": text}},
        {"match": {"op": "in", "left": {"ct": {"key": text}}, "right": {"set": [text, text]}}},
        {"match": {"op": text, "left": {"payload": {"protocol": text, "field": text}},
            "right": {"prefix": {"addr": text, "len": 8}}}},
        {"log": {"prefix": text, "level": text, "flags": [text, "tcp options"]}},
        {"set": {"op": text, "elem": {"elem": {"val": text, "comment": text}}, "set": text}},
        {"vmap": {"key": text, "data": {"set": [[text, {"jump": {"target": text}}]]}}},
        {"jump": {"target": text}}, {"ct helper": text}, {"counter": text}, {text: text}, text
    ]);
    let of = |more: Value| {
        let mut object = json!({"family": "inet", "table": text, "name": text, "handle": 7});
        let fields = object.as_object_mut().expect("an object");
        fields.extend(more.as_object().expect("an object").clone());
        object
    };
    json!({"nftables": [
        {"table": {"family": "inet", "name": text, "handle": 1, "flags": text}},
        {"chain": of(json!({"type": text, "hook": text, "dev": text, "policy": text, "prio": 0}))},
        {"rule": of(json!({"chain": text, "expr": rule, "comment": text}))},
        {"set": of(json!({"type": text, "flags": [text], "comment": text, "elem": [text, text]}))},
        {"map": of(json!({"type": [text], "map": text, "elem": [[text, text]]}))},
        {"ct helper": of(json!({"type": text, "protocol": text, "l3proto": text}))},
        {"ct timeout": of(json!({"protocol": text, "policy": {text: 3}}))},
        {"flowtable": of(json!({"dev": text, text: text}))},
    ]})
}

proptest! {
    /// A listing of hostile texts has the same lines as one of harmless texts, with the escaped
    /// texts in them.
    #[test]
    fn no_text_of_a_ruleset_forges_a_line(
        characters in proptest::collection::vec(prop_oneof![
            Just('\n'), Just('\r'), Just('\u{1b}'), Just('\u{9b}'), Just('\u{202e}'), Just('{'), Just('x'),
        ], 0..6)
    ) {
        let hostile = format!("text{}", String::from_iter(characters));
        let shown = flow::Shown(&hostile).to_string();
        let listed = text(&with_text(&hostile), true, BARE);
        prop_assert_eq!(&listed, &text(&with_text(&shown), true, BARE));
        // A hostile name is one that nft does not read.
        let lines = |listed: &str| listed.lines().filter(|it| !it.contains("does not read")).count();
        prop_assert_eq!(lines(&listed), lines(&text(&with_text("text"), true, BARE)));
        prop_assert!(listed.lines().all(flow::is_harmless), "{}", listed);
        let rule = rule_text(&with_text(&hostile)["nftables"][2]["rule"]);
        prop_assert!(flow::is_harmless(&rule), "{}", rule);
    }
}
