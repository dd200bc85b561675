//! Policies of the gateway's own devices: how workers wait for packets.

use std::thread::sleep;
use std::time::{Duration, Instant};

use lab::{Family, Lab, Result, StatewaySpec, iperf_tcp, iperf_udp, ping};

use crate::scenario::{beside_others, bridge, bridge_spec, start, stateway, stop_cleanly};

const POLICIES: [&str; 5] = ["none", "bulk", "cpu", "latency", "mix"];

fn policy_of(lab: &Lab, device: &str) -> Result<String> {
    let answer = stateway(lab).query(&["policy", "show", device])?;
    Ok(answer["devices"][0]["policy"].as_str().unwrap_or_default().to_owned())
}

fn set(lab: &Lab, device: &str, policy: &str) -> Result<()> {
    stateway(lab).command(&["policy", "set", device, policy]).check().map(drop)
}

#[test]
fn every_policy_of_the_configuration_carries_traffic() {
    beside_others(|| {
        for policy in POLICIES {
            let interface = format!("policy = \"{policy}\"\n");
            let mut lab = start(StatewaySpec { interface, ..bridge_spec(2)? })?;
            for family in [Family::V4, Family::V6] {
                let report = ping(lab.on_client("ping"), lab.server_address(family), 5)?;
                assert_eq!((report.received, report.duplicates), (5, 0), "{policy}, {family:?}");
            }
            let stream = iperf_tcp(&lab, Family::V4, Duration::from_secs(1), 4)?;
            assert!(stream.bytes > 1_000_000, "{policy}: {stream:?}");
            let status = stateway(&lab).query(&["status"])?;
            for port in status["ports"].as_array().unwrap() {
                assert_eq!(port["policy"], policy);
            }
            for worker in status["workers"].as_array().unwrap() {
                let waiting = &worker["waiting"];
                assert_eq!(waiting["policy"], policy);
                let [time, asleep] = ["time_ns", "asleep_ns"].map(|it| waiting[it].as_u64());
                assert!(0 < asleep.unwrap() && asleep < time, "{policy}: {waiting}");
            }
            stop_cleanly(&mut lab)?;
        }
        Ok(())
    });
}

/// Time of the test's own process counts for nothing, and neither does that of other programs.
#[test]
fn a_silent_worker_under_latency_costs_less_than_two_percent_of_a_cpu() {
    beside_others(|| {
        let interface = "policy = \"latency\"\n".to_owned();
        let mut lab = start(StatewaySpec { interface, ..bridge_spec(1)? })?;
        let server = lab.server_address(Family::V4);
        assert_eq!(ping(lab.on_client("ping"), server, 5)?.received, 5);
        // The kernels of the ends still send something of their own at first. A second without any
        // of it comes soon.
        for _ in 0..10 {
            sleep(Duration::from_secs(1));
            let (before, began) = (stateway(&lab).cpu_time()?, Instant::now());
            sleep(Duration::from_secs(2));
            if stateway(&lab).cpu_time()?.saturating_sub(before) < began.elapsed() / 50 {
                return stop_cleanly(&mut lab);
            }
        }
        panic!("a silent worker takes 2 % of a CPU or more")
    });
}

#[test]
fn policies_change_while_datagrams_stay_in_order() {
    beside_others(|| {
        let lab = bridge(2)?;
        std::thread::scope(|scope| {
            let changing = scope.spawn(|| -> Result<()> {
                for turn in 0..20 {
                    set(&lab, ["lan0", "wan0"][turn % 2], POLICIES[turn % POLICIES.len()])?;
                    sleep(Duration::from_millis(100));
                }
                Ok(())
            });
            let report = iperf_udp(&lab, Family::V4, Duration::from_secs(3), 50_000_000, 1200)?;
            assert_eq!(report.out_of_order, 0, "{report:?}");
            assert!(report.lost * 4 < report.packets, "{report:?}");
            changing.join().expect("the thread has not panicked")
        })
    });
}

#[test]
fn a_policy_is_shown_set_and_refused_in_the_words_of_the_design() {
    beside_others(|| {
        let mut lab = bridge(1)?;
        let show = || stateway(&lab).command(&["policy", "show", "lan0"]).check();
        assert!(show()?.starts_with("lan0: no policy applies; available: bulk, cpu, latency, mix"));
        set(&lab, "lan0", "latency")?;
        assert!(show()?.starts_with("lan0: latency\n"));
        assert_eq!(policy_of(&lab, "wan0")?, "none");
        let workers = stateway(&lab).query(&["status"])?;
        assert_eq!(workers["workers"][0]["waiting"]["policy"], "latency", "the strictest");
        let again = stateway(&lab).query(&["policy", "set", "lan0", "latency"])?;
        assert_eq!(again["affected"], 0);
        for (arguments, what) in [
            (["lan0", "fast"], "the policies are none, bulk, cpu, latency and mix"),
            (["lan7", "bulk"], "its devices are lan0, wan0"),
        ] {
            let refused = stateway(&lab).command(&["policy", "set"]).args(arguments).run()?;
            assert_eq!(refused.code, Some(2), "{arguments:?}");
            assert!(refused.stderr.contains(what), "{}", refused.stderr);
        }
        assert_eq!(policy_of(&lab, "lan0")?, "latency", "nothing has changed");
        stop_cleanly(&mut lab)
    });
}
