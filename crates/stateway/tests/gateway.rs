//! Asks a gateway that runs in network namespaces by the commands of its own program. Also tests
//! the messages when there is no gateway.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests are tests too")]

use std::io::{Write, stderr};
use std::path::Path;
use std::process::Command;

use lab::{Error, Family, Gateway, Lab, Namespace, Placement, Stateway, StatewaySpec};
use tempfile::TempDir;

const BINARY: &str = env!("CARGO_BIN_EXE_stateway");

/// Runs a test, or prints why it can not run here.
fn where_allowed(test: impl FnOnce() -> lab::Result<()>) {
    match test() {
        Ok(()) => {}
        // `println!` would show nothing of a test that passes.
        Err(Error::Unavailable { why }) => {
            stderr().write_all(format!("SKIPPED: {why}\n").as_bytes()).unwrap();
        }
        Err(error) => panic!("{error}"),
    }
}

fn code_and_message(args: &[&str], socket: &Path) -> (Option<i32>, String) {
    let output = Command::new(BINARY).args(args).env("STATEWAY_SOCKET", socket).output().unwrap();
    assert!(output.stdout.is_empty());
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn every_command_says_so_when_no_gateway_runs() {
    let directory = TempDir::new().unwrap();
    let socket = directory.path().join("none.sock");
    let commands: [&[&str]; 13] = [
        &["rules", "list"],
        &["rules", "confirm"],
        &["rules", "rollback"],
        &["rules", "explain", "udp 192.0.2.1 192.0.2.2:53"],
        &["status"],
        &["drops"],
        &["conntrack", "-L"],
        &["conntrack", "-C", "--json"],
        &["conntrack", "-E"],
        &["conntrack", "-F"],
        &["steer", "show"],
        &["steer", "set", "--workers", "2"],
        &["tunable", "list"],
    ];
    for command in commands {
        let (code, message) = code_and_message(command, &socket);
        assert_eq!(code, Some(1), "{command:?}");
        assert!(message.contains("none.sock; start one with `stateway run -c FILE`"), "{message}");
    }
}

#[test]
fn a_message_that_can_not_be_written_changes_no_exit_code() {
    let directory = TempDir::new().unwrap();
    let socket = directory.path().join("none.sock");
    for args in [&["status"][..], &["run", "-c", "/dev/null"], &["check", "-c", "/dev/null"]] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let mut command = Command::new(BINARY);
        command.args(args).env("STATEWAY_SOCKET", &socket);
        let said = command.output().unwrap().status.code();
        assert_ne!(said, Some(0), "{args:?} has something to say");
        assert_eq!(command.stderr(full).status().unwrap().code(), said, "{args:?}");
    }
}

#[test]
fn a_path_that_is_no_socket_of_a_gateway_is_named() {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("notes.txt");
    std::fs::write(&file, "precious").unwrap();
    let dead = directory.path().join("dead.sock");
    drop(std::os::unix::net::UnixListener::bind(&dead).unwrap());
    for (socket, code, said) in [
        (directory.path(), 2, "is a directory and not the socket of a gateway"),
        (&file, 2, "is a file and not the socket of a gateway"),
        (&dead, 1, "no gateway is running on"),
    ] {
        let (given, message) = code_and_message(&["status"], socket);
        assert_eq!(given, Some(code), "{message}");
        assert!(message.contains(said) && message.contains("--socket"), "{message}");
    }
}

#[test]
fn wrong_usage_is_told_before_a_gateway_is_asked() {
    let directory = TempDir::new().unwrap();
    let socket = directory.path().join("none.sock");
    let commands: [&[&str]; 28] = [
        &["conntrack", "-U", "-s", "192.0.2.7"],
        &["conntrack", "-U", "-m", "ten"],
        &["conntrack", "-L", "-s", "192.0.2"],
        &["conntrack", "-L", "-p", "tcpp"],
        &["conntrack", "-L", "--state", "NOPE"],
        &["conntrack", "-D", "-p", "udp", "--state", "ESTABLISHED"],
        &["conntrack", "-E", "-e", "BORN"],
        &["conntrack", "-D"],
        &["steer", "set", "--workers", "65"],
        &["steer", "balance", "--every", "0"],
        &["status", "--watch", "0"],
        &["conntrack", "-U", "-s", "192.0.2.7", "-t", "2147484"],
        &["conntrack", "-C", "expect", "-w", "10"],
        &["conntrack", "-U", "-m", "1/"],
        &["conntrack", "-U", "-m", "1/0x100000000"],
        &["conntrack", "-U", "conntrack", "-s", "192.0.2.7"],
        &["conntrack", "-U", "expect", "-m", "1"],
        &["conntrack", "-D", "conntrack"],
        &["conntrack", "-D", "expect", "-s", "192.0.2.7"],
        &["conntrack", "-F", "expect", "-s", "192.0.2.7"],
        &["conntrack", "-F", "nosuch"],
        &["conntrack", "-L", "expect", "-s", "192.0.2.7"],
        &["conntrack", "-E", "expect", "-s", "192.0.2.7"],
        &["conntrack", "-E", "expect", "-e", "BORN"],
        &["conntrack", "-S", "expect"],
        &["zone", "set", "10", "vlans=x"],
        &["zone", "add", "10", "size=5"],
        &["nonsense"],
    ];
    for command in commands {
        let (code, message) = code_and_message(command, &socket);
        assert_eq!(code, Some(2), "{command:?}: {message}");
    }
}

#[test]
fn a_missing_interface_is_told_with_its_line() {
    let directory = TempDir::new().unwrap();
    let config = directory.path().join("gw.toml");
    std::fs::write(&config, "[[interface]]\nname = \"none0\"\n\n[[interface]]\nname = \"none1\"\n")
        .unwrap();
    let socket = directory.path().join("gw.sock");
    for command in ["run", "check"] {
        let (code, message) = code_and_message(&[command, "-c", config.to_str().unwrap()], &socket);
        assert_eq!(code, Some(2));
        assert!(message.contains("gw.toml:2: interface.name: there is no interface \"none0\""));
        assert!(message.contains("gw.toml:5: interface.name: there is no interface \"none1\""));
        assert!(!socket.exists(), "nothing was started");
    }
}

#[test]
fn an_interface_that_does_not_fit_is_told_with_the_ways_out_for_its_mode() {
    let directory = TempDir::new().unwrap();
    let config = directory.path().join("gw.toml");
    let socket = directory.path().join("gw.sock");
    for (mode, advice) in [
        ("bridge", "lo is the loopback interface; a bridge has Ethernet interfaces only, and"),
        ("bridge", ": set `mode = \"routed\"`, name the interface that it runs over, or"),
        ("routed", "lo is the loopback interface; a bridge has Ethernet interfaces only, and"),
        ("routed", ": name the interface that it runs over, or"),
    ] {
        let text = format!("[gateway]\nmode = \"{mode}\"\n[[interface]]\nname = \"lo\"\n");
        std::fs::write(&config, text).unwrap();
        let (code, message) = code_and_message(&["check", "-c", config.to_str().unwrap()], &socket);
        assert_eq!(code, Some(2), "{message}");
        assert!(message.contains("gw.toml:4: interface.name: "), "{message}");
        assert!(message.contains(advice), "{mode}: {message}");
    }
}

#[test]
fn all_errors_of_a_configuration_are_told_in_one_go() {
    let directory = TempDir::new().unwrap();
    let config = directory.path().join("gw.toml");
    let rule = r#"{"rule": {"family": "ip", "table": "t", "chain": "n", "handle": 3,
        "expr": [{"masquerade": null}]}}"#;
    let table = r#"{"table": {"family": "ip", "name": "t", "handle": 1}}"#;
    let chain = r#"{"chain": {"family": "ip", "table": "t", "name": "n", "handle": 2,
        "type": "nat", "hook": "postrouting", "prio": 100, "policy": "accept"}}"#;
    let ruleset = format!(r#"{{"nftables": [{table}, {chain}, {rule}]}}"#);
    std::fs::write(directory.path().join("nat.json"), ruleset).unwrap();
    std::fs::write(directory.path().join("cut.json"), r#"{"nftables": ["#).unwrap();
    let refusal = |command: &str, mode: &str, rules: &str| {
        let text = format!(
            "[gateway]\nwrokers = 2\n{mode}\n[[interface]]\nname = \"none0\"\n\
             [rules]\nfile = \"{rules}\"\n[control]\nsocket = \"/nonexistent/gw.sock\"\n"
        );
        std::fs::write(&config, text).unwrap();
        let socket = directory.path().join("gw.sock");
        let args = [command, "-c", config.to_str().unwrap()];
        let (code, message) = code_and_message(&args, &socket);
        assert_eq!(code, Some(2), "{message}");
        message.replace(&format!("{}/", directory.path().display()), "")
    };
    for command in ["check", "run"] {
        let message = refusal(command, "", "missing.json");
        let begins = [
            "gw.toml:2: gateway.wrokers: unknown key",
            "gw.toml:5: interface.name: there is no interface \"none0\"",
            "gw.toml:7: rules.file: missing.json: can not be read",
            "gw.toml:9: control.socket: there is no directory",
        ];
        assert_eq!(message.lines().count(), begins.len(), "{message}");
        for (line, begin) in message.lines().zip(begins) {
            assert!(line.starts_with(begin), "{message}");
        }
    }
    let message = refusal("check", "", "cut.json");
    assert!(
        message.lines().last().unwrap().starts_with("cut.json: document: invalid"),
        "{message}"
    );
    // The mode itself may be wrong, so no message says what a bridge does not support.
    let message = refusal("check", "mode = \"router\"", "nat.json");
    assert!(message.contains("gw.toml:3: gateway.mode: "), "{message}");
    assert!(!message.contains("bridge translates") && !message.contains("two"), "{message}");
}

fn running(workers: u32) -> lab::Result<Lab> {
    Lab::new(Gateway::Stateway(StatewaySpec::new(BINARY.into(), workers)), Placement::free())
}

fn gateway_of(lab: &Lab) -> &Stateway {
    lab.stateway().expect("the lab was made with it")
}

#[test]
fn a_running_gateway_answers_every_question() {
    where_allowed(|| {
        let mut lab = running(2)?;
        lab::ping(lab.on_client("ping"), lab.server_address(Family::V4), 3)?;
        let gateway = gateway_of(&lab);
        let questions: [&[&str]; 7] = [
            &["status"],
            &["drops"],
            &["conntrack", "-S"],
            &["conntrack", "-C"],
            &["steer", "show"],
            &["steer", "balance", "--dry-run"],
            &["tunable", "get", "net.netfilter.nf_conntrack_max"],
        ];
        for question in questions {
            assert_eq!(gateway.query(question)?["schema"], 1, "{question:?}");
        }
        let listed = gateway.query(&["conntrack", "-L", "-p", "icmp"])?;
        assert_eq!(listed["original"]["source"], "192.0.2.1");
        let text = gateway.command(&["conntrack", "-L", "-o", "conntrack"]).check()?;
        assert!(text.contains("icmp     1 "), "{text}");
        let listing = ["conntrack", "-L", "-p", "icmp", "-o", "conntrack"];
        assert_eq!(gateway.command(&listing).run()?.stderr, "1 connection\n");
        assert_eq!(gateway.query(&["conntrack", "-D", "-p", "icmp"])?["affected"], 1);
        for (option, remark) in [
            (&[][..], "no connection matches the filter\n"),
            (&["-o", "conntrack"], "0 connections\n"),
            (&["--json"], ""),
        ] {
            let listing = [&["conntrack", "-L", "-p", "icmp"][..], option].concat();
            let listed = gateway.command(&listing).run()?;
            assert_eq!((&listed.stdout[..], &listed.stderr[..]), ("", remark));
        }

        for (every, said) in [("0.5s", "balancer every 500ms"), ("off", "balancer off")] {
            gateway.command(&["steer", "balance", "--every", every]).check()?;
            let text = gateway.command(&["steer", "show"]).check()?;
            assert!(text.ends_with(&format!("\n{said}\n")), "{text}");
        }
        assert_eq!(gateway.query(&["steer", "set", "--workers", "1"])?["moves"][0]["to"], 0);
        gateway.command(&["tunable", "set", "nf_conntrack_max", "7"]).check()?;
        assert_eq!(gateway.command(&["tunable", "get", "nf_conntrack_max"]).check()?.trim(), "7");
        let refused = gateway.command(&["tunable", "set", "nf_conntrack_max", "0"]).run()?;
        assert_eq!(refused.code, Some(2), "{}", refused.stderr);
        for value in ["300", "-1"] {
            let set = ["tunable", "set", "nf_conntrack_tcp_max_retrans", value];
            let refused = gateway.command(&set).run()?;
            let said = format!("nf_conntrack_tcp_max_retrans = {value} is out of range: 0 to 255");
            assert_eq!(refused.stderr, format!("stateway: {said}\n"));
        }

        wrong_values_are_wrong_usage(gateway)?;
        second_gateway_is_refused(lab.gateway())?;
        let watch = gateway.command(&["status", "--watch", "0.1"]).spawn()?;
        let events = gateway.command(&["conntrack", "-E"]).spawn()?;
        while !(events.log().contains("new") && watch.log().contains("connections")) {
            gateway.command(&["conntrack", "-F"]).check()?;
            lab::ping(lab.on_client("ping"), lab.server_address(Family::V4), 1)?;
        }
        let stopped = lab.take_stateway().expect("it was running").stop()?;
        assert_eq!(stopped.code, Some(0), "{}", stopped.stderr);
        for (reader, code) in [(events, 0), (watch, 1)] {
            let ended = reader.finish()?;
            assert_eq!(ended.code, Some(code), "{}", ended.stdout);
            assert!(ended.stdout.contains("has stopped"), "{}", ended.stdout);
        }
        let socket = Path::new(Stateway::SOCKET).file_name().expect("it is a file");
        assert!(!lab.gateway().scratch().join(socket).exists(), "the socket goes with it");
        Ok(())
    });
}

/// Wrong values that only the gateway can recognize.
fn wrong_values_are_wrong_usage(gateway: &Stateway) -> lab::Result<()> {
    let wrong: [&[&str]; 14] = [
        &["conntrack", "-L", "-l", "nosuch"],
        &["conntrack", "-E", "-l", "128"],
        &["conntrack", "-D", "-l", "nosuch"],
        &["conntrack", "-F", "-l", "nosuch"],
        &["conntrack", "-U", "-s", "192.0.2.7", "--label-add", "nosuch"],
        &["conntrack", "-U", "-s", "192.0.2.7", "--label-del", "200"],
        &["zone", "add", "0", "vlans=7"],
        &["zone", "add", "9", "vlans=4095"],
        &["zone", "add", "9", "interfaces=nosuch0"],
        &["zone", "add", "9", "timeout_policy=nosuch"],
        &["zone", "add", "9", "nf_conntrack_udp_timeout=2147484"],
        &["zone", "delete", "9"],
        &["zone", "set", "9", "max_connections=5"],
        &["zone", "add", "9", "max_connections=0"],
    ];
    for command in wrong {
        let output = gateway.command(command).run()?;
        assert_eq!((output.code, output.stdout.as_str()), (Some(2), ""), "{command:?}: {output:?}");
    }
    // A request that is impossible now may be possible later.
    for command in [["rules", "confirm"], ["rules", "reset"]] {
        assert_eq!(gateway.command(&command).run()?.code, Some(1), "{command:?}");
    }
    Ok(())
}

fn second_gateway_is_refused(gateway: &Namespace) -> lab::Result<()> {
    let file = format!("{}/stateway.toml", Namespace::SCRATCH);
    let second = gateway.program(BINARY).args(["run", "-c", &file]).run()?;
    assert_eq!(second.code, Some(2), "{}", second.stderr);
    assert!(second.stderr.contains("another gateway is running on"), "{}", second.stderr);
    let apart = format!("{}/second.sock", Namespace::SCRATCH);
    let second = gateway.program(BINARY).args(["run", "-c", &file, "--socket", &apart]).run()?;
    assert_eq!(second.code, Some(2), "{}", second.stderr);
    assert!(second.stderr.contains("another gateway is running on lan0"), "{}", second.stderr);
    assert!(second.stderr.contains("another gateway is running on wan0"), "{}", second.stderr);
    Ok(())
}

#[test]
fn a_check_shows_what_would_run() {
    where_allowed(|| {
        let lab = running(1)?;
        let spec = StatewaySpec {
            more: "[tunables]\nipfrag_time = 7\nipfrag_pieces_per_4k = 512\n".into(),
            ..StatewaySpec::new(BINARY.into(), 1)
        };
        let text = spec.config(&["lan0", "wan0"]);
        let text = text.replace("[gateway]\n", "[gateway]\nfragments = \"ordered\"\n");
        let file = lab.gateway().write_file("checked.toml", text.as_bytes())?;
        let shown = gateway_of(&lab).command(&["check", "-c", &file]).check()?;
        let lines: Vec<&str> = shown.lines().skip(1).collect();
        let expected = [
            "workers    1",
            "buckets    256",
            "balancer   off",
            "fragments  ordered",
            "interface  lan0: 1 queue, any CPU",
            "interface  wan0: 1 queue, any CPU",
            "tunable    ipfrag_time = 7 s (default 30)",
            "tunable    ipfrag_pieces_per_4k = 512 (default 128)",
            "control    /dev/shm/stateway.sock",
        ];
        assert_eq!(lines, expected);
        Ok(())
    });
}
