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
    let named = [-300, -290, -289, -100, 0, 5, -5, 90, 1000].map(|it| priority_name("inet", it));
    let names =
        ["raw", "raw + 10", "-289", "dstnat", "filter", "filter + 5", "filter - 5", "srcnat - 10"];
    assert_eq!(named[..8], names);
    assert_eq!(named[8], "1000");
}
