//! Changes of the number of workers during traffic.

use std::process::Command;
use std::thread;
use std::time::Duration;

use lab::{Family, iperf_tcp, ping};

use crate::scenario::{
    beside_others, bridge, datagrams_stay_in_order, soon, stateway, stop_cleanly,
    while_workers_change,
};

#[test]
fn streams_go_on_while_workers_change() {
    beside_others(|| {
        let report = while_workers_change(bridge(1)?, |lab| {
            iperf_tcp(lab, Family::V4, Duration::from_secs(4), 4)
        })?;
        assert!(report.bytes > 1_000_000, "{report:?}");
        Ok(())
    });
}

#[test]
fn datagrams_stay_in_order_while_workers_change() {
    beside_others(|| datagrams_stay_in_order(bridge(1)?));
}

/// Only the affinity of the process changes; the CPUs of the machine stay online.
#[test]
fn workers_follow_the_cpus_that_the_process_may_use() {
    beside_others(|| {
        let mut lab = bridge(0)?;
        let cpus = thread::available_parallelism().map_or(1, usize::from);
        if cpus < 2 {
            println!("SKIPPED: this machine has one CPU");
            return stop_cleanly(&mut lab);
        }
        let (all, server) = (format!("0-{}", cpus - 1), lab.server_address(Family::V4));
        for (allowed, workers) in [(all.as_str(), cpus), ("0", 1), (&all, cpus)] {
            // The command runs outside: /proc does not have the lab's own process numbers.
            let here = format!("--ns {} --nslist net", lab.gateway().resident());
            let change = format!("taskset -pc {allowed} $(pgrep -xn {here} stateway)");
            let changed = Command::new("sh").args(["-c", &change]).output().expect("sh runs");
            assert!(changed.status.success(), "{changed:?}");
            soon(&format!("{workers} workers"), || {
                let status = stateway(&lab).query(&["status"])?;
                Ok(status["workers"].as_array().map(Vec::len) == Some(workers))
            })?;
            assert_eq!(ping(lab.on_client("ping"), server, 3)?.received, 3);
        }
        stop_cleanly(&mut lab)
    });
}
