//! Captures whose clock jumps.

use proptest::prelude::*;
use wire::build::PacketBuilder;

use std::sync::Arc;

use netio::FramePool;
use ruleset::ValidRuleset;

use super::*;
use crate::testing::captures::{config, play, with_workers};

const SECOND: u64 = 1_000_000_000;
const HOUR: u64 = 3600 * SECOND;
const BEGIN: u64 = 1_700_000_000 * SECOND;

/// Plays UDP questions of one client and port at these times, with rules if there are any.
fn questions(times: &[u64], rules: Option<ValidRuleset>) -> ReplayReport {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("in.pcapng");
    let mut writer = CaptureWriter::create(&path, &["in"]).unwrap();
    let mut bytes = Vec::new();
    PacketBuilder::v4([192, 0, 2, 1], [198, 51, 100, 2]).udp(4000, 53, b"question", &mut bytes);
    let mut pool = FramePool::new(1, 1);
    for &time in times {
        let mut frame = pool.copy_of(&bytes).unwrap();
        frame.timestamp = time;
        writer.write(&frame, "").unwrap();
        pool.give_back(frame);
    }
    writer.finish().unwrap();
    let config = Config { rules: rules.map(Arc::new), ..config() };
    play(&path, &config, with_workers(1)).0
}

fn flows(report: &ReplayReport) -> u64 {
    report.flows.values().sum()
}

/// A ruleset of one chain with one rule in nft's JSON.
fn rule(expressions: &str) -> ValidRuleset {
    let document = format!(
        r#"{{"nftables": [
            {{"table": {{"family": "inet", "name": "t", "handle": 1}}}},
            {{"chain": {{"family": "inet", "table": "t", "name": "c", "handle": 2,
                "type": "filter", "hook": "forward", "prio": 0, "policy": "drop"}}}},
            {{"rule": {{"family": "inet", "table": "t", "chain": "c", "handle": 3,
                "expr": [{expressions}]}}}}]}}"#
    );
    ruleset::import(document.as_bytes(), ruleset::Options::default()).unwrap().ruleset
}

const LIMIT: &str = r#"{"limit": {"rate": 1, "burst": 5, "per": "second"}}"#;

#[test]
fn connections_end_and_limits_recover_when_the_clock_of_a_capture_was_set_back() {
    // There is a question each minute. Each connection ends after 30 s, before the next one.
    let each = |begin: u64, count: u64| (0..count).map(move |n| begin + n * 60 * SECOND);
    let straight: Vec<u64> = each(BEGIN, 10).collect();
    let set_back: Vec<u64> = each(BEGIN, 5).chain(each(BEGIN - HOUR, 7)).collect();
    assert_eq!(flows(&questions(&straight, None)), 10);
    // The first two packets after the step share the time before it, because the clock has to see
    // the second one to know that it was set back.
    assert_eq!(flows(&questions(&set_back, None)), 10);

    // Four questions come in each of ten seconds. Each second lets one pass, beside a burst.
    // Without a step they take 9.75 s. With it time goes on for 8.5 s of the second half.
    let four = |begin: u64| (0..40).map(move |n| begin + n * SECOND / 4);
    let passed = |times: Vec<u64>| {
        questions(&times, Some(rule(&format!(r#"{LIMIT}, {{"accept": null}}"#)))).passed
    };
    assert_eq!(passed(four(BEGIN).collect()), 5 + 9);
    assert_eq!(passed(four(BEGIN).chain(four(BEGIN - HOUR)).collect()), 5 + 18);
}

#[test]
fn answers_of_the_gateway_are_no_packets_of_the_capture() {
    let reject = r#"{"reject": {"type": "icmp", "expr": "port-unreachable"}}"#;
    let report = questions(&[BEGIN, BEGIN + HOUR], Some(rule(reject)));
    assert_eq!((report.packets, report.passed, report.written), (2, 0, Some(0)));
    assert_eq!(report.counters.dropped_total(), 2);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn no_time_stamp_stops_a_replay(times in proptest::collection::vec(
        prop_oneof![
            any::<u64>(),
            BEGIN..BEGIN + HOUR,
            (u64::MAX - SECOND)..=u64::MAX,
            ((1 << 63) - SECOND)..(1 << 63) + SECOND,
            Just(0),
        ], 1..30)
    ) {
        let rules = rule(&format!(r#"{LIMIT}, {{"log": {{"prefix": "seen"}}}}, {{"accept": null}}"#));
        let report = questions(&times, Some(rules));
        prop_assert_eq!(report.packets, times.len() as u64);
        prop_assert_eq!(report.passed + report.counters.dropped_total(), report.packets);
    }
}
