use serde_json::Value;

use super::*;

#[test]
fn a_quick_run_fills_the_contract() {
    let report = run(Options { quick: true, json: true }).unwrap();
    let json = serde_json::to_value(&report).unwrap();
    let number = |path: &str| json.pointer(path).and_then(Value::as_f64).unwrap_or_default();
    for design in ALL {
        let path = format!("/mpps/{}", design.name());
        assert!(number(&path) > 0.0, "{path}: {json}");
    }
    for load in ["established", "established_1s", "new", "zipf", "dead_peer"] {
        let path = format!("/ratio_on_off/{load}");
        assert!(number(&path) > 0.0, "{path}: {json}");
    }
    for path in ["/bytes_per_connection/off", "/bytes_per_connection/on", "/join/seconds"] {
        assert!(number(path) > 0.0, "{path}: {json}");
    }
    assert!(report.join.records >= 20_000, "{json}");
    assert_eq!(report.staleness.missing, 0, "{json}");
    assert_eq!(json["conntrackd"], Value::Null);
    assert!(report.to_string().contains("locked_buckets"), "{report}");
}
