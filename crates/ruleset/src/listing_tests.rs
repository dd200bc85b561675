use serde_json::json;

use super::*;

#[test]
fn what_is_damaged_is_written_somehow() {
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
        text(&document, true);
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
    assert_eq!(with_live(&document, &program, &Live::default()), document);
}
