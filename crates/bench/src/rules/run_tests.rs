use super::*;

#[test]
fn a_quick_run_fills_the_contract_and_all_designs_judge_alike() {
    let report = run(Options { quick: true, json: true }).unwrap();
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["schema"], 1);
    for key in ["rules_10", "rules_1000", "set_100k", "verdict_map_10k"] {
        let ns = json["ns_per_packet"][key].as_f64();
        assert!(ns.is_some_and(|ns| ns > 0.0), "{key}: {json}");
    }
    for key in ["nat_new_per_s", "nat_established_mpps"] {
        let figure = json[key].as_f64();
        assert!(figure.is_some_and(|figure| figure > 0.0), "{key}: {json}");
    }
    for case in ["no_rules", "rules", "masquerade"] {
        for size in ["flows_1k", "flows_100k", "flows_1m"] {
            let ns = json["gateway_ns"][case][size].as_f64();
            assert!(ns.is_some_and(|ns| ns > 0.0), "{case}, {size}: {json}");
        }
    }
    for traffic in ["new", "established"] {
        let ratio = json["nat_ratios"][traffic]["to_one_lock"]["median"].as_f64();
        assert!(ratio.is_some_and(|ratio| ratio > 0.0), "{traffic}: {json}");
    }
    assert!(report.to_string().contains("gateway, masquerade, 1 "), "{report}");
    assert!(report.to_string().contains("a set of 100,000 addresses, indexed"), "{report}");
}
