//! PPTP calls with both ends in labs: a minimal control connection, and GRE from raw sockets,
//! because few machines have PPP.

use std::sync::atomic::Ordering;

use lab::{Background, Family, Lab, Program, Result, Tracking, attach_kernel_helpers};

use crate::scenario::{
    beside_others, conntrack_counter, guarded_bridge, kernel_router, pptp, stateway,
    stateway_binary, stop_cleanly, until_workers_have_changed,
};

const HELPER: &str = "[[helper]]\nname = \"pptp\"\n";

fn serving(lab: &Lab) -> Result<Background> {
    pptp::server(lab.server(), &lab.server_address(Family::V4).to_string())
}

/// The client with these calls.
fn calling(lab: &Lab, calls: &str, limit: &str, cut: &str) -> Result<Program> {
    let ends = [lab.client_address(Family::V4), lab.server_address(Family::V4)];
    let [client, server] = ends.map(|end| end.to_string());
    pptp::client(lab.client(), [&client, &server], calls, limit, cut)
}

/// The expected output if all calls get through and none hears another.
fn all_heard(ids: &[u16]) -> String {
    let call = |id: &u16| format!("{id}: hello {}, echo from {id}", id ^ 1);
    ids.iter().map(call).collect::<Vec<_>>().join("; ")
}

fn calls_get_through(workers: u32) {
    beside_others(|| {
        let mut lab = guarded_bridge(workers, HELPER)?;
        let _server = serving(&lab)?;
        // Two calls share a control connection and use each other's ids; two have their own
        // connections.
        let said = calling(&lab, "6+7,20,21", "3", pptp::CUT)?.input(String::new()).check()?;
        assert_eq!(said.trim(), all_heard(&[6, 7, 20, 21]));
        assert_eq!(conntrack_counter(&lab, "expect_new")?, 4);
        assert_eq!(conntrack_counter(&lab, "expect_create")?, 8);
        // The server opened the GRE flows.
        let [server, client] = [lab.server_address(Family::V4), lab.client_address(Family::V4)];
        let [server, client] = [server, client].map(|address| address.to_string());
        let ends = ["--proto", "gre", "--src", &server, "--dst", &client];
        let listing = [&["conntrack", "-L", "-o", "conntrack"][..], &ends].concat();
        let stateway = stateway(&lab);
        let one = [&listing[..], &["--srckey", "0x7", "--dstkey", "6"]].concat();
        assert!(stateway.command(&one).check()?.contains("srckey=0x7 dstkey=0x6 src="));
        // The control connections have ended, and their entries are still there. The ids are used
        // again. The notice ends one call and no other.
        let said = calling(&lab, "6,30", "3", pptp::CUT)?.input("6\n".to_owned()).check()?;
        assert_eq!(said.trim(), all_heard(&[6, 30]) + "\ncleared 6");
        let calls = || stateway.command(&listing).check();
        let is_listed = |text: &str| text.contains("srckey=0x7 dstkey=0x6 src=");
        assert!(!is_listed(&calls()?), "{}", calls()?);
        for id in ["7", "14", "15", "1e"] {
            assert!(calls()?.contains(&format!("dstkey=0x{id} ")), "{id}: {}", calls()?);
        }
        let delete = ["conntrack", "-D", "--proto", "tcp", "--dport", "1723"];
        stateway.command(&delete).check()?;
        assert!(!calls()?.contains("gre"), "all end with their control connections: {}", calls()?);
        stop_cleanly(&mut lab)
    });
}

#[test]
fn calls_get_through_with_the_helper_and_one_worker() {
    calls_get_through(1);
}

#[test]
fn calls_get_through_with_the_helper_and_two_workers() {
    calls_get_through(2);
}

#[test]
fn calls_do_not_get_through_without_helper() {
    beside_others(|| {
        let mut lab = guarded_bridge(2, "")?;
        let _server = serving(&lab)?;
        let said = calling(&lab, "6", "0.5", pptp::CUT)?.input(String::new()).check()?;
        assert_eq!(said.trim(), "6: nothing");
        assert_eq!(conntrack_counter(&lab, "expect_new")?, 0);
        stop_cleanly(&mut lab)
    });
}

#[test]
fn calls_come_and_go_while_workers_change() {
    beside_others(|| {
        let mut live = guarded_bridge(2, HELPER)?;
        let lab: &Lab = &live;
        let _server = serving(lab)?;
        let calls = until_workers_have_changed(lab, |done| {
            let mut calls = 0;
            while !done.load(Ordering::Relaxed) {
                let program = calling(lab, "6+7,20,21", "3", pptp::CUT)?;
                let said = program.input("6\n7\n20\n21\n".to_owned()).check()?;
                let cleared = "\ncleared 6\ncleared 7\ncleared 20\ncleared 21";
                assert_eq!(said.trim(), all_heard(&[6, 7, 20, 21]) + cleared, "after {calls}");
                calls += 4;
            }
            Ok(calls)
        })?;
        println!("{calls} calls");
        assert!(calls > 8);
        assert_eq!(conntrack_counter(lab, "expect_new")?, calls, "each is a connection of its own");
        stop_cleanly(&mut live)
    });
}

/// The lines that a program lists about GRE. The remaining time is separate.
fn listed(program: Program, lab: &Lab) -> Result<Vec<(String, u64)>> {
    let names = [Family::V4].map(|family| {
        [
            (format!("={} ", lab.client_address(family)), "=CLIENT "),
            (format!("={} ", lab.server_address(family)), "=SERVER "),
        ]
    });
    let line = |line: &str| {
        let names = names.iter().flatten();
        let line = names.fold(line.to_owned(), |line, (from, to)| line.replace(from, to));
        let mut words: Vec<&str> = line.split_whitespace().collect();
        let at = words.iter().position(|word| word.parse::<u64>().is_ok_and(|n| n != 47)).unwrap();
        let time = words.remove(at).parse().unwrap();
        (words.join(" "), time)
    };
    let text = program.check()?;
    let mut lines: Vec<_> = text.lines().filter(|text| text.contains("key=")).map(line).collect();
    lines.sort();
    Ok(lines)
}

#[test]
fn calls_read_like_the_kernels() {
    beside_others(|| {
        stateway_binary()?;
        let kernel = kernel_router(Tracking::Conntrack)?;
        attach_kernel_helpers(kernel.gateway(), &[("pptp", "tcp", 1723)])?;
        let mut lab = guarded_bridge(2, HELPER)?;
        let mut both = Vec::new();
        for lab in [&kernel, &*lab] {
            let _server = serving(lab)?;
            let said = calling(lab, "6,20", "3", pptp::WHOLE)?.input(String::new()).check()?;
            assert_eq!(said.trim(), all_heard(&[6, 20]));
            let list = |table: &str| match lab.stateway() {
                Some(stateway) => {
                    listed(stateway.command(&["conntrack", "-L", table, "-o", "conntrack"]), lab)
                }
                None => listed(lab.gateway().program("conntrack").args(["-L", table]), lab),
            };
            both.push([list("conntrack")?, list("expect")?]);
        }
        let [[theirs, none], [ours, nothing]] = &both[..] else { panic!("two gateways") };
        let lines = |list: &[(String, u64)]| list.iter().map(|it| it.0.clone()).collect::<Vec<_>>();
        assert_eq!(lines(ours), lines(theirs));
        assert_eq!((ours.len(), none.len(), nothing.len()), (2, 0, 0), "{both:?}");
        for (_, left) in ours {
            assert!((17_900..=18_000).contains(left), "{both:?}");
        }
        // The kernel's helper sets the same timeout, but in newer kernels the first packet of a
        // connection resets it.
        for (_, left) in theirs {
            assert!((100..=180).contains(left) || (17_900..=18_000).contains(left), "{both:?}");
        }
        stop_cleanly(&mut lab)
    });
}
