use super::*;
use serde_json::Value;

#[test]
fn a_quick_run_fills_the_contract() {
    let report = run(Options { quick: true, json: true }).unwrap();
    let json = serde_json::to_value(&report).unwrap();
    let number = |path: &str| json.pointer(path).and_then(Value::as_f64).unwrap_or_default();
    assert_eq!(json["schema"], 1);
    for path in [
        "/established_mpps/flows_1k",
        "/established_mpps/flows_100k",
        "/established_mpps/flows_1m",
        "/established_mpps/flows_4m",
        "/invalid_per_s",
        "/resize_worst_stall_us",
        "/growth/delete_one_us",
        "/growth/flush_source_ms",
        "/designs/central_lock/workers_1",
        "/designs/hashed_locks/workers_1",
        "/designs/owned_buckets/workers_1",
        "/new_delete_per_s/live_0",
        "/new_delete_per_s/live_1m",
    ] {
        assert!(number(path) > 0.0, "{path}: {json}");
    }
    assert!(number("/bytes_per_connection") > 128.0, "two lines at least");
    for workers in 1..=report.machine.cpus.min(2) {
        let live = format!("/resize_live/workers_{workers}");
        assert_eq!(json.pointer(&format!("{live}/lost")), Some(&Value::from(0)));
        assert!(number(&format!("{live}/worst_stall_us")) > 0.0, "{json}");
    }
    if report.machine.cpus > 1 {
        assert!(number("/scaling_2_workers") > 0.0);
        assert!(number("/designs/owned_buckets/workers_2") > 0.0);
    }
    let text = report.to_string();
    assert!(text.contains("hashed locks, 1 thread") && text.contains("central lock"), "{text}");
}

#[test]
fn flows_are_split_by_the_owner_of_their_bucket() {
    let split = split(0..10_000, 2);
    assert_eq!(split[0].len() + split[1].len(), 10_000);
    assert!(split.iter().all(|flows| flows.len() > 4_000));
}
