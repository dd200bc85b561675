//! Interfaces with other names than in the configuration: alternative names, renames during
//! traffic, names that another link takes, and links that disappear and return. The kernel of these
//! routers would forward every packet that the gateway does not keep from it.

use std::thread;
use std::time::Duration;

use lab::{Family, Lab, Namespace, Output, Result, Stateway, StatewaySpec};
use lab::{Tracking, ping};

use crate::scenario::{
    CLOSED, beside_others, bridge, bridge_spec, closed_router, echos_at_server, kernel_router,
    load, router_spec, ruleset_file, soon, start_in, stateway, stop_cleanly, with_config,
};

/// Forwards connections that the client opens, if they come in by the interface with this name.
fn open_to(name: &str) -> String {
    format!(
        "table inet filter {{
            chain forward {{
                type filter hook forward priority filter; policy drop;
                ct state established accept
                iifname \"{name}\" accept
            }}
        }}"
    )
}

/// Pings the server while `meanwhile` runs. Returns how many requests reached it.
fn forwarded_while(lab: &Lab, meanwhile: impl FnOnce() -> Result<()>) -> Result<u64> {
    let [before, _] = echos_at_server(lab)?;
    thread::scope(|scope| {
        let args = ["-n", "-q", "-i", "0.01", "-c", "300", "-W", "1", "198.51.100.2"];
        let pings = lab.on_client("ping").args(args).limit(Duration::from_secs(60));
        let pings = scope.spawn(|| pings.run());
        meanwhile()?;
        pings.join().expect("a client does not panic").map(drop)
    })?;
    Ok(echos_at_server(lab)?[0] - before)
}

/// Checks that each ping gets exactly one answer.
fn pings_flow(lab: &Lab) -> Result<()> {
    let report = ping(lab.on_client("ping"), lab.server_address(Family::V4), 10)?;
    assert_eq!((report.received, report.duplicates), (10, 0));
    Ok(())
}

/// The names of the interfaces in the gateway's status. Brackets mark those that are down.
fn names(stateway: &Stateway) -> Result<String> {
    let status = stateway.query(&["status"])?;
    let name = |port: &serde_json::Value| {
        let name = port["name"].as_str().expect("a name");
        if port["up"] == true { name.to_owned() } else { format!("[{name}]") }
    };
    let interfaces = status["ports"].as_array().expect("a list");
    Ok(interfaces.iter().map(name).collect::<Vec<_>>().join(" "))
}

fn wait_for_names(lab: &Lab, wanted: &str) -> Result<()> {
    let stateway = stateway(lab);
    soon(wanted, || Ok(names(stateway)? == wanted))
}

#[test]
fn an_alternative_name_keeps_the_kernel_out_as_well() {
    beside_others(|| {
        let lab = kernel_router(Tracking::Off)?;
        lab.gateway().ip(&[
            "link property add dev lan0 altname lan-port",
            "link property add dev wan0 altname wan-port",
        ])?;
        let spec = StatewaySpec {
            interfaces: ["lan-port", "wan-port"].map(str::to_owned).to_vec(),
            ruleset: Some(CLOSED.to_owned()),
            ..router_spec(2)?
        };
        assert_ne!(forwarded_while(&lab, || Ok(()))?, 0, "the kernel would forward");
        let stateway = start_in(lab.gateway(), &spec)?;
        assert_eq!(forwarded_while(&lab, || Ok(()))?, 0, "{}", stateway.log());
        assert_eq!(names(&stateway)?, "lan0 wan0");
        // Rules use the interface's name in the kernel.
        let open = ruleset_file(&lab, "open.json", &open_to("lan0"))?;
        stateway.command(&["rules", "load", &open]).check()?;
        pings_flow(&lab)?;
        assert_eq!(stateway.stop()?.code, Some(0));
        Ok(())
    });
}

#[test]
fn a_rename_keeps_the_kernel_out_and_is_followed() {
    beside_others(|| {
        let mut lab = closed_router()?;
        let forwarded = forwarded_while(&lab, || {
            for round in 0..20 {
                let (from, to) = if round % 2 == 0 { ("lan0", "lan9") } else { ("lan9", "lan0") };
                lab.gateway().ip(&[&format!("link set {from} name {to}")])?;
                // The pause varies, so that a rename meets the gateway in any phase of its work on
                // the one before.
                thread::sleep(Duration::from_millis(13 * round));
            }
            lab.gateway().ip(&["link set lan0 name lan9", "link set wan0 name wan9"])
        })?;
        assert_eq!(forwarded, 0);
        wait_for_names(&lab, "lan9 wan9")?;
        let log = stateway(&lab).log();
        assert!(log.contains("interface lan0 has another name now: lan9"), "{log}");
        let status = stateway(&lab).command(&["status"]).check()?;
        assert!(status.contains("interface lan0 has another name now, lan9, "), "{status}");
        // A name in the rules means the interface that has it now, as in the kernel.
        load(&lab, &open_to("lan0"))?;
        assert_eq!(forwarded_while(&lab, || Ok(()))?, 0);
        load(&lab, &open_to("lan9"))?;
        pings_flow(&lab)?;
        lab.gateway().ip(&["link set lan9 name lan1"])?;
        wait_for_names(&lab, "lan1 wan9")?;
        assert_eq!(forwarded_while(&lab, || Ok(()))?, 0, "rules that run have followed");
        lab.gateway().ip(&["link set lan1 name lan9"])?;
        wait_for_names(&lab, "lan9 wan9")?;
        pings_flow(&lab)?;
        // Another interface may take the old name.
        lab.gateway().ip(&["link add lan0 type veth peer name other", "link set lan0 up"])?;
        thread::sleep(Duration::from_millis(500));
        wait_for_names(&lab, "lan9 wan9")?;
        pings_flow(&lab)?;
        stop_cleanly(&mut lab)
    });
}

#[test]
fn two_interfaces_that_change_names_stay_what_they_are() {
    beside_others(|| {
        let mut lab = closed_router()?;
        let swap = ["link set lan0 name x", "link set wan0 name lan0", "link set x name wan0"];
        assert_eq!(forwarded_while(&lab, || lab.gateway().ip(&swap))?, 0);
        wait_for_names(&lab, "wan0 lan0")?;
        load(&lab, &open_to("wan0"))?;
        pings_flow(&lab)?;
        // An interface that is gone does not return as the other.
        lab.gateway().ip(&["link del wan0"])?;
        wait_for_names(&lab, "[wan0] lan0")?;
        thread::sleep(Duration::from_millis(500));
        wait_for_names(&lab, "[wan0] lan0")?;
        stop_cleanly(&mut lab)
    });
}

#[test]
fn a_bridge_goes_on_while_its_interfaces_are_renamed() {
    beside_others(|| {
        let mut lab = bridge(2)?;
        let report = thread::scope(|scope| {
            let pings = scope.spawn(|| {
                let program = lab.on_client("ping").args(["-i", "0.01"]);
                ping(program, lab.server_address(Family::V4), 300)
            });
            for name in ["lan1", "lan2", "lan3"] {
                let before = if name == "lan1" { "lan0" } else { "$" };
                let before =
                    before.replace('$', &format!("lan{}", name[3..].parse::<u8>().unwrap() - 1));
                lab.gateway().ip(&[&format!("link set {before} name {name}")])?;
                wait_for_names(&lab, &format!("{name} wan0"))?;
            }
            pings.join().expect("a client does not panic")
        })?;
        assert_eq!((report.received, report.duplicates), (300, 0));
        stop_cleanly(&mut lab)
    });
}

#[test]
fn a_link_that_comes_back_is_another_and_the_kernel_stays_out() {
    beside_others(|| {
        let mut lab = closed_router()?;
        let index = |lab: &Lab| -> Result<String> {
            let text = lab.gateway().program("cat").args(["/proc/net/if_inet6"]).check()?;
            let line = text.lines().find(|line| line.ends_with(" lan0")).unwrap_or_default();
            Ok(line.split_whitespace().nth(1).unwrap_or_default().to_owned())
        };
        let before = index(&lab)?;
        let requests = echos_at_server(&lab)?;
        thread::scope(|scope| {
            // The client's end disappears and returns as well.
            let each = "for i in $(seq 100); do ping -n -c 1 -W 0.05 198.51.100.2; done; true";
            let pings = scope.spawn(|| lab.on_client("sh").args(["-c", each]).run());
            for _ in 0..5 {
                lab.unplug(lab::Side::Client)?;
                lab.plug(lab::Side::Client)?;
                wait_for_names(&lab, "lan0 wan0")?;
                thread::sleep(Duration::from_millis(300));
            }
            pings.join().expect("a client does not panic").map(drop)
        })?;
        assert_eq!(echos_at_server(&lab)?, requests);
        assert_ne!(index(&lab)?, before);
        assert_eq!(forwarded_while(&lab, || Ok(()))?, 0);
        load(&lab, &open_to("lan0"))?;
        pings_flow(&lab)?;
        // An interface that moves to another namespace is gone.
        let other = Namespace::new("other")?;
        let move_to = |from: &Namespace, to: &Namespace| {
            let command =
                ["link", "set", "lan0", "netns", &to.resident().to_string()].map(str::to_owned);
            let network = format!("--net=/proc/{}/ns/net", from.resident());
            let moved =
                std::process::Command::new("nsenter").arg(network).arg("ip").args(command).status();
            assert!(moved.is_ok_and(|status| status.success()));
        };
        move_to(lab.gateway(), &other);
        wait_for_names(&lab, "[lan0] wan0")?;
        move_to(&other, lab.gateway());
        lab.gateway().ip(&[
            "link set lan0 up",
            "addr add 192.0.2.254/24 dev lan0",
            "addr add 2001:db8:1::fe/64 dev lan0 nodad",
        ])?;
        wait_for_names(&lab, "lan0 wan0")?;
        soon("the client finds the router", || {
            Ok(ping(lab.on_client("ping"), lab.server_address(Family::V4), 1)?.received == 1)
        })?;
        pings_flow(&lab)?;
        stop_cleanly(&mut lab)
    });
}

/// Runs a second gateway on these interfaces until it ends.
fn second(lab: &Lab, interfaces: [&str; 2]) -> Result<Output> {
    let config = bridge_spec(1)?.config(&interfaces);
    let program = with_config(lab.gateway(), "run", &config)?;
    program.args(["--socket", "/dev/shm/second.sock"]).limit(Duration::from_secs(5)).run()
}

#[test]
fn a_second_gateway_on_a_link_is_refused_by_whatever_name() {
    beside_others(|| {
        let mut lab = bridge(1)?;
        lab.gateway().ip(&[
            "link property add dev lan0 altname lan-port",
            "link add spare type veth peer name other",
            "link set spare up",
        ])?;
        let refused = |name: &str, is_now: &str| -> Result<()> {
            let output = second(&lab, ["spare", name])?;
            let said = &output.stderr;
            assert_eq!(output.code, Some(2), "{name}: {said}");
            let begin = "/dev/shm/tried.toml:10: interface.name: another gateway is running on ";
            assert!(said.contains(&format!("{begin}{is_now}")), "{name}: {said}");
            Ok(())
        };
        refused("lan0", "lan0")?;
        refused("lan-port", "lan0")?;
        lab.gateway().ip(&["link set lan0 name lan9"])?;
        refused("lan9", "lan9")?;
        refused("lan-port", "lan9")?;
        // The interface that has the old name now is free.
        lab.gateway().ip(&["link set spare name lan0"])?;
        wait_for_names(&lab, "lan9 wan0")?;
        stop_cleanly(&mut lab)
    });
}

#[test]
fn a_file_that_names_a_link_twice_is_refused_with_both_lines() {
    beside_others(|| {
        let namespace = Namespace::new("twice")?;
        namespace.ip(&[
            "link add lan0 type veth peer name other",
            "link set lan0 up",
            "link property add dev lan0 altname lan-port",
        ])?;
        let config = bridge_spec(1)?.config(&["lan-port", "lan0"]);
        let output = with_config(&namespace, "check", &config)?.run()?;
        assert_eq!(output.code, Some(2), "{}", output.stderr);
        let said = "tried.toml:10: interface.name: \"lan0\" is the interface of line 6 already, \
                    which is named \"lan-port\" there";
        assert!(output.stderr.contains(said), "{}", output.stderr);
        Ok(())
    });
}

/// Tries in a loop to take every resource that a gateway could need and an unprivileged user may
/// take. Prints what it got.
const TAKES: &str = "
import fcntl, os, socket, sys, time
path, names = sys.argv[1], sys.argv[2:]
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
held, said = [], set()
def took(what):
    if what not in said:
        said.add(what)
        print('took', what, flush=True)
def name(text):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    s.bind('\\0' + text)
    held.append(s)
def lock(flags):
    f = os.open(path + '.lock', flags, 0o666)
    held.append(f)
    fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
def bind():
    # Does not listen, or the test would take it for a gateway.
    s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    s.bind(path)
    held.append(s)
attempts = [(f'name {text}', lambda text=text: name(text)) for text in names]
attempts += [('lock', lambda: lock(os.O_RDONLY)), ('own lock', lambda: lock(os.O_CREAT | os.O_EXCL)),
             ('socket', bind)]
while True:
    for what, attempt in attempts:
        try: attempt()
        except OSError: continue
        took(what)
    time.sleep(0.002)
";

#[test]
fn nobody_without_rights_can_stop_a_restart() {
    beside_others(|| {
        let mut lab = bridge(1)?;
        let spec = bridge_spec(1)?;
        let gateway = lab.gateway().clone();
        if !gateway.is_real_root() {
            return Err(lab::Error::Unavailable { why: "there is no other user here".into() });
        }
        let index = |name: &str| -> Result<String> {
            let text = gateway.program("ip").args(["-o", "link", "show", name]).check()?;
            Ok(text.split(':').next().unwrap().to_owned())
        };
        let numbers = [index("lan0")?, index("wan0")?];
        let names = ["lan0", "wan0", &numbers[0], &numbers[1]];
        let names = names.map(|name| format!("stateway/interface/{name}"));
        let taker = gateway.program("python3").args(["-c", TAKES, Stateway::SOCKET]);
        let mut taker = taker.args(names).spawn()?;
        stop_cleanly(&mut lab)?;
        // The directory is world-writable, and none of the files exist.
        gateway.program("rm").args(["-f", &format!("{}.lock", Stateway::SOCKET)]).check()?;
        taker.wait_for_text("took own lock")?;
        taker.wait_for_text("took socket")?;
        for _ in 0..3 {
            let mut stateway = start_in(&gateway, &spec)?;
            assert!(stateway.is_running(), "{}", stateway.log());
            assert_eq!(stateway.stop()?.code, Some(0));
        }
        // The file that stood in the way was moved aside and not deleted.
        let files = gateway.program("ls").args(["/dev/shm"]).check()?;
        assert!(files.contains("stateway.sock.lock.aside-"), "{files}");
        assert!(!taker.log().contains("took lock"), "{}", taker.log());
        assert!(taker.is_running());
        Ok(())
    });
}
