//! Translated connections and the host after processes are killed and descriptors run out.

use std::thread;
use std::time::Duration;

use lab::{Family, ping};

use crate::scenario::{
    FAMILIES, TALKS, answers_of_host, beside_others, echo, gateway_and_children, kill,
    masquerading_router, router, soon, stateway, stop_cleanly, wait_for_pings,
};

/// The number of connections that carry data meanwhile, half of each family.
const CONNECTIONS: usize = 50;

#[test]
fn translated_connections_outlive_every_process_but_the_gateway() {
    beside_others(|| {
        let mut lab = masquerading_router(2)?;
        let _server = echo(lab.server(), 7000)?;
        let [v4, v6] = FAMILIES.map(|family| lab.server_address(family).to_string());
        let end = format!("{}/end", lab::Namespace::SCRATCH);
        let half = (CONNECTIONS / 2).to_string();
        let talks = lab.on_client("python3").args(["-c", TALKS, &end, &half, &v4, &v6]);
        let mut talks = talks.spawn()?;
        talks.wait_for_text("talking")?;
        let mut killed = 0;
        for _ in 0..5 {
            for process in gateway_and_children(&lab)?.1 {
                kill(process);
                killed += 1;
                thread::sleep(Duration::from_millis(500));
            }
        }
        thread::sleep(Duration::from_secs(1));
        lab.client().write_file("end", b"")?;
        let said = talks.finish()?.stdout;
        let well = format!("well: {CONNECTIONS}");
        assert_eq!(said.lines().last(), Some(&*well), "{killed} were killed: {said}");
        assert_eq!(answers_of_host(&lab)?, [0, 0], "the host has refused what is not its own");
        assert_eq!(killed, 0, "nothing depends on another process");
        stop_cleanly(&mut lab)
    });
}

#[test]
fn a_gateway_that_is_killed_leaves_the_host_as_it_was() {
    beside_others(|| {
        let mut lab = router(2)?;
        let (gateway, _) = gateway_and_children(&lab)?;
        kill(gateway);
        let stateway = lab.take_stateway().expect("the lab has a Stateway");
        assert_ne!(stateway.stop()?.code, Some(0), "it was killed");
        let listed = lab.gateway().program("nft").args(["list", "ruleset"]);
        soon("no table", || Ok(listed.clone().check()?.is_empty()))?;
        let report = ping(lab.on_client("ping"), lab.server_address(Family::V4), 3)?;
        assert_eq!((report.received, report.duplicates), (3, 0), "the kernel routes as before");
        Ok(())
    });
}

fn send(signal: &str, process: u32) {
    let mut kill = std::process::Command::new("kill");
    let sent = kill.args([signal, &process.to_string()]).status();
    assert!(sent.expect("there is kill(1)").success(), "{signal}");
}

/// True if programs that the tests start ignore SIGHUP, as under nohup(1).
fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|it| it & 1 == 1)
}

#[test]
fn a_signal_ends_the_gateway_cleanly_or_is_told_and_ignored() {
    beside_others(|| {
        for (ends, name) in [("-HUP", "SIGHUP"), ("-INT", "SIGINT"), ("-TERM", "SIGTERM")] {
            if ends == "-HUP" && ignores_hangup() {
                println!("SKIPPED SIGHUP: the tests were started with it ignored (nohup)");
                continue;
            }
            let mut lab = router(2)?;
            let (gateway, _) = gateway_and_children(&lab)?;
            for (ignored, name) in [("-USR1", "SIGUSR1"), ("-USR2", "SIGUSR2")] {
                send(ignored, gateway);
                let message = format!("{name} is ignored");
                soon(&message, || Ok(stateway(&lab).log().contains(&message)))?;
            }
            wait_for_pings(&lab)?;
            let mut stateway = lab.take_stateway().expect("the lab has a Stateway");
            send(ends, gateway);
            soon("the end", || Ok(!stateway.is_running()))?;
            let ended = stateway.stop()?;
            assert_eq!(ended.code, Some(0), "{ended:?}");
            for said in [format!("{name}: stopping"), "stopped after".to_owned()] {
                assert!(ended.stdout.contains(&said), "no {said:?} in {}", ended.stdout);
            }
        }
        Ok(())
    });
}

/// Keeps one thread from running until it has ended, as a debugger does.
const HANGS: &str = "
import ctypes, os, sys
thread = int(sys.argv[1])
ptrace = ctypes.CDLL(None, use_errno=True).ptrace
SEIZE, INTERRUPT, WALL = 0x4206, 0x4207, 0x40000000
for request in (SEIZE, INTERRUPT):
    if ptrace(request, thread, None, None): sys.exit(os.strerror(ctypes.get_errno()))
os.waitpid(thread, WALL)
print('hangs', flush=True)
# Its end.
os.waitpid(thread, WALL)
";

/// The first worker of a gateway, by its number in the lab.
fn worker_inside(gateway: u32) -> Option<String> {
    let mut tasks = std::fs::read_dir(format!("/proc/{gateway}/task")).ok()?.flatten();
    tasks.find_map(|task| {
        let status = std::fs::read_to_string(task.path().join("status")).ok()?;
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
        let number = field("NSpid:")?.rsplit('\t').next()?;
        (field("Name:\t")? == "worker-0").then(|| number.to_owned())
    })
}

#[test]
fn a_worker_that_hangs_does_not_keep_the_gateway_from_ending() {
    beside_others(|| {
        let mut lab = router(2)?;
        let (gateway, _) = gateway_and_children(&lab)?;
        let worker = worker_inside(gateway).expect("it has a worker");
        let debugger = lab.gateway().program("python3").args(["-c", HANGS, &worker]);
        let mut debugger = debugger.spawn()?;
        debugger.wait_for_text("hangs")?;
        let mut stateway = lab.take_stateway().expect("the lab has a Stateway");
        send("-TERM", gateway);
        soon("the end", || Ok(!stateway.is_running()))?;
        assert_eq!(debugger.finish()?.code, Some(0), "it ends with the worker");
        let ended = stateway.stop()?;
        assert_eq!(ended.code, Some(1), "{ended:?}");
        assert!(ended.stdout.contains("since a thread hangs"), "{}", ended.stdout);
        let listed = lab.gateway().program("nft").args(["list", "ruleset"]);
        soon("no table", || Ok(listed.clone().check()?.is_empty()))
    });
}

/// Limits a process to the descriptors that it has open, or to this number.
fn limit_descriptors(process: u32, limit: Option<u64>) {
    let open = std::fs::read_dir(format!("/proc/{process}/fd")).expect("it runs").flatten();
    let open: Vec<u64> = open.filter_map(|it| it.file_name().to_str()?.parse().ok()).collect();
    let limit = limit.or_else(|| (0..).find(|number| !open.contains(number)));
    let limit = format!("--nofile={}:", limit.expect("one is free"));
    let mut prlimit = std::process::Command::new("prlimit");
    let set = prlimit.args(["--pid", &process.to_string(), &limit]).status();
    assert!(set.expect("there is prlimit(1)").success(), "{limit}");
}

#[test]
fn the_host_is_kept_from_a_new_address_with_all_descriptors_in_use() {
    beside_others(|| {
        let mut lab = masquerading_router(2)?;
        let _server = echo(lab.server(), 7000)?;
        let (gateway, _) = gateway_and_children(&lab)?;
        limit_descriptors(gateway, None);
        let change = ["addr del 198.51.100.254/24 dev wan0", "addr add 198.51.100.77/24 dev wan0"];
        lab.gateway().ip(&change)?;
        let list = lab.gateway().program("nft").args(["list", "ruleset"]);
        soon("the table has it", || Ok(list.clone().check()?.contains("198.51.100.77")))?;
        let server_address = lab.server_address(Family::V4).to_string();
        let end = lab.client().write_file("end", b"")?;
        let talks = lab.on_client("python3").args(["-c", TALKS, &end, "10", &server_address]);
        let said = talks.check()?;
        assert_eq!(said.lines().last(), Some("well: 10"), "{said}");
        assert_eq!(answers_of_host(&lab)?, [0, 0], "the host has refused what is not its own");
        limit_descriptors(gateway, Some(1024));
        stop_cleanly(&mut lab)
    });
}

#[test]
fn a_lack_of_descriptors_is_told_once_and_not_whenever_one_is_free() {
    beside_others(|| {
        let mut lab = router(1)?;
        let (gateway, _) = gateway_and_children(&lab)?;
        for _ in 0..3 {
            limit_descriptors(gateway, None);
            let asks = stateway(&lab).command(&["status"]).spawn()?;
            thread::sleep(Duration::from_millis(500));
            limit_descriptors(gateway, Some(1024));
            assert_eq!(asks.finish()?.code, Some(0), "it is answered as soon as that can be");
        }
        let log = stateway(&lab).log();
        assert_eq!(log.matches("accepts no connection").count(), 1, "{log}");
        stop_cleanly(&mut lab)
    });
}
