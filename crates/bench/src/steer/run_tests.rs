use super::*;

#[test]
fn a_quick_run_fills_the_contract_and_keeps_every_flow_in_order() {
    let report = run(Options { quick: true, json: true }).unwrap();
    assert_eq!((report.reordered, report.lost), (0, 0));
    let json = serde_json::to_value(&report).unwrap();
    let number = |path: &str| json.pointer(path).and_then(serde_json::Value::as_f64);
    assert_eq!(json["schema"], 1);
    for path in [
        "/transactions_per_s/one_worker",
        "/transactions_per_s/one_queue_steered",
        "/transactions_per_s/queue_per_worker",
        "/ratio_steered",
        "/ratio_multiqueue",
        "/tps_per_cpu_percent/one_worker",
        "/tps_per_cpu_percent/one_queue_steered",
        "/tps_per_cpu_percent/queue_per_worker",
    ] {
        assert!(number(path).is_some_and(|value| value >= 0.0), "{path}: {json}");
    }
    assert!(json.get("handoff_ns").is_some());
    assert!(report.to_string().contains("reordered: 0, lost: 0"), "{report}");
}
