//! The kernel reports more changes of routes than its queue holds, while the gateway is stopped.

use std::fmt::Write;
use std::process::Command;

use lab::{Lab, Result};

use crate::scenario::{beside_others, router, soon, stateway, stop_cleanly};

/// The number of other routes that are added and deleted. The 8 MiB that a mirror asks for hold
/// some 10,000 notifications.
const OTHERS: usize = 20_000;
/// Hosts behind the server. While the gateway is stopped, the route of one stays, and those of the
/// others are added, are deleted, become unreachable, and lead elsewhere.
const STAYS: &str = "203.0.113.1";
const COMES: &str = "203.0.113.2";
const GOES: &str = "203.0.113.3";
const ENDS: &str = "203.0.113.4";
const ELSEWHERE: &str = "203.0.113.5";

/// A gateway that is stopped, like one that gets no CPU time on a busy machine, until this is
/// dropped.
struct Stopped {
    /// The gateway, and the nsenter(1) that started it and that stops together with it.
    processes: [String; 2],
}

impl Stopped {
    fn new(lab: &Lab) -> Self {
        let here = format!("pgrep -xn --ns {} --nslist net stateway", lab.gateway().resident());
        let found = Command::new("sh").args(["-c", &here]).output().unwrap().stdout;
        let process = String::from_utf8(found).unwrap().trim().to_owned();
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
        // The parent is field 4 of proc(5); field 2 is the name in parentheses.
        let parent = stat.rsplit_once(") ").unwrap().1.split(' ').nth(1).unwrap();
        send("-STOP", &process);
        Self { processes: [process, parent.to_owned()] }
    }
}

fn send(signal: &str, process: &str) {
    assert!(Command::new("kill").args([signal, process]).status().unwrap().success());
}

impl Drop for Stopped {
    fn drop(&mut self) {
        self.processes.iter().for_each(|process| send("-CONT", process));
    }
}

/// Makes all changes in one go.
fn storm(lab: &Lab, verb: &str, changes: &[String]) -> Result<()> {
    let mut orders = String::new();
    for number in 0..OTHERS {
        let (high, low) = (number / 256, number % 256);
        writeln!(orders, "route {verb} 198.18.{high}.{low}/32 via 198.51.100.2").unwrap();
    }
    let orders = orders.lines().chain(changes.iter().map(String::as_str)).collect::<Vec<_>>();
    let _stopped = Stopped::new(lab);
    lab.gateway().ip(&orders)
}

fn overruns(lab: &Lab) -> Result<u64> {
    let status = stateway(lab).query(&["status"])?;
    Ok(status["route_overruns"].as_u64().expect("a number"))
}

#[test]
fn a_router_that_has_missed_thousands_of_changes_routes_as_the_kernel_does() {
    beside_others(|| {
        let mut lab = router(2)?;
        let hosts = [STAYS, COMES, GOES, ENDS, ELSEWHERE];
        let addresses = hosts.map(|host| format!("addr add {host}/32 dev lo"));
        lab.server().ip(&addresses.each_ref().map(String::as_str))?;
        lab.server().ip(&["route add local 198.18.0.0/16 dev lo"])?;
        let via = |host: &str| format!("{host}/32 via 198.51.100.2");
        // Without these routes the default route leads there as well.
        lab.gateway()
            .ip(&["route add unreachable 203.0.113.0/24", "route add unreachable 198.18.0.0/16"])?;
        let routes = [STAYS, GOES, ENDS, ELSEWHERE].map(|host| format!("route add {}", via(host)));
        lab.gateway().ip(&routes.each_ref().map(String::as_str))?;
        let answers = |host: &str| {
            let ping = lab.on_client("ping").args(["-q", "-c", "1", "-W", "1", host]);
            Ok(ping.run()?.code == Some(0))
        };
        for host in [STAYS, GOES, ENDS, ELSEWHERE] {
            soon(host, || answers(host))?;
        }
        assert_eq!(overruns(&lab)?, 0);
        let changes = [
            format!("route add {}", via(COMES)),
            format!("route del {}", via(GOES)),
            format!("route replace prohibit {ENDS}/32"),
            format!("route replace {ELSEWHERE}/32 via 192.0.2.77"),
        ];
        storm(&lab, "add", &changes)?;
        soon("the new route is followed", || answers(COMES))?;
        for (host, is_there) in [(STAYS, true), (GOES, false), (ENDS, false), (ELSEWHERE, false)] {
            assert_eq!(answers(host)?, is_there, "{host}");
        }
        assert!(answers("198.18.0.0")? && answers("198.18.78.31")?, "the first and the last");
        let first = overruns(&lab)?;
        assert!(first > 0);

        let back = [
            format!("route del {}", via(COMES)),
            format!("route replace {}", via(ENDS)),
            format!("route replace {}", via(ELSEWHERE)),
        ];
        storm(&lab, "del", &back)?;
        soon("the old way is followed", || answers(ENDS))?;
        for (host, is_there) in [(STAYS, true), (COMES, false), (ELSEWHERE, true)] {
            assert_eq!(answers(host)?, is_there, "{host}");
        }
        assert!(!answers("198.18.0.0")? && !answers("198.18.78.31")?);
        assert!(overruns(&lab)? > first);
        let log = stateway(&lab).log();
        assert_eq!(log.matches("too much changed at once").count(), 1, "told once: {log}");
        stop_cleanly(&mut lab)
    });
}
