//! The examples are right: a copy of one runs.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "helpers of tests are tests too")]

use std::fs;
use std::process::{Command, Output};

use tempfile::TempDir;

const STATEWAY: &str = env!("CARGO_BIN_EXE_stateway");
/// A ruleset for a router.
const HOME_ROUTER: &str = include_str!("rules/home-router.json");
/// The same without translation.
const FILTER: &str = r#"{"nftables": [{"table": {"family": "inet", "name": "t", "handle": 1}},
    {"chain": {"family": "inet", "table": "t", "name": "f", "handle": 2, "type": "filter",
        "hook": "forward", "prio": 0, "policy": "drop"}}]}"#;

fn check(configuration: &str, ruleset: &str, more: &[&str]) -> Output {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("gateway.toml");
    fs::write(&file, configuration).unwrap();
    fs::write(directory.path().join("rules.nft"), ruleset).unwrap();
    let mut command = Command::new(STATEWAY);
    command.args(["check", "-c", file.to_str().unwrap()]).args(more).output().unwrap()
}

/// The answer about a configuration that is to run on another machine.
fn right_elsewhere(configuration: &str, ruleset: &str) -> String {
    let output = check(configuration, ruleset, &["--elsewhere"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let problems = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{problems}");
    text
}

#[test]
fn the_bridge_and_the_router_are_in_order() {
    let bridge = include_str!("../../../examples/bridge.toml");
    assert!(right_elsewhere(bridge, FILTER).contains("interface  wan0: "));
    let router = include_str!("../../../examples/router.toml");
    assert!(right_elsewhere(router, HOME_ROUTER).contains("interface  wan0: "));
}

#[test]
fn the_configuration_of_the_readme_is_right_in_both_modes() {
    let readme = include_str!("../../../README.md");
    let example = readme.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    right_elsewhere(example, FILTER);
    // As it says beside the mode.
    let (bridge, routed) = ("mode = \"bridge\"", "mode = \"routed\"");
    assert!(example.contains(bridge) && example.contains("\"routed\": "), "{example}");
    assert!(example.contains("without `pass`"), "{example}");
    let lines = example.lines().filter(|line| !line.starts_with("pass"));
    let router: String = lines.map(|line| format!("{line}\n")).collect();
    right_elsewhere(&router.replace(bridge, routed), HOME_ROUTER);
}

#[test]
fn elsewhere_there_may_be_what_is_not_here_and_what_is_wrong_is_told() {
    let text = |name: &str, key: &str| {
        format!(
            "[[interface]]\nname = \"none0\"\n{key}\n[[interface]]\nname = \"{name}\"\n\
             [control]\nsocket = \"/nonexistent/stateway.sock\"\n"
        )
    };
    let here = check(&text("none1", ""), FILTER, &[]);
    let message = String::from_utf8(here.stderr).unwrap();
    assert!(
        message.contains("there is no interface") && message.contains("no directory"),
        "{message}"
    );
    right_elsewhere(&text("none1", "rps_cpus = \"1000\""), FILTER);
    for (name, key, wrong) in [("none0", "", "none0"), ("none1", "bogus = 1", "bogus")] {
        let output = check(&text(name, key), FILTER, &["--elsewhere"]);
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && message.contains(wrong), "{message}");
    }
}

#[test]
fn the_unit_is_one_that_systemd_takes_and_waits_for() {
    let unit = include_str!("../../../examples/stateway.service");
    for line in
        ["Type=notify", "ExecStart=/usr/local/bin/stateway run -c /etc/stateway/gateway.toml"]
    {
        assert!(unit.lines().any(|it| it == line), "no {line}");
    }
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("stateway.service");
    fs::write(&file, unit.replace("/usr/local/bin/stateway", STATEWAY)).unwrap();
    let verify = Command::new("systemd-analyze").args(["verify", file.to_str().unwrap()]).output();
    match verify {
        Ok(verified) => {
            let message = String::from_utf8_lossy(&verified.stderr);
            assert!(!message.contains("stateway.service"), "{message}");
        }
        Err(_) => println!("SKIPPED: there is no systemd-analyze(1)"),
    }
}

#[test]
fn a_mistyped_option_gets_advice_that_helps_or_none() {
    let refusal = |words: &[&str]| {
        let output = Command::new(STATEWAY).args(words).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).unwrap()
    };
    for command in [&["rules", "check"][..], &["rules", "explain"], &["conntrack", "list"]] {
        let message = refusal(&[command, &["--bogus"]].concat());
        assert!(message.contains("unexpected argument '--bogus'"), "{message}");
        assert!(!message.contains("as a value"), "{message}");
    }
    assert!(refusal(&["check", "--confg", "x"]).contains("'--config'"));
}

#[test]
fn an_option_in_the_wrong_place_and_one_of_the_kernels_tool_get_advice() {
    for (words, code_and_advice) in [
        (
            &["--socket", "/run/gw.sock", "status"][..],
            "behind the command: stateway status --socket PATH",
        ),
        (&["--json", "status"], "behind the command: stateway status --json"),
        (&["conntrack", "-I", "-s", "192.0.2.7"], "docs/conntrack.md"),
        (&["conntrack", "-G", "-s", "192.0.2.7"], "docs/conntrack.md"),
        (&["conntrack", "--create"], "docs/conntrack.md"),
    ] {
        let output = Command::new(STATEWAY).args(words).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(message.contains(code_and_advice), "{words:?}: {message}");
    }
    let output = Command::new(STATEWAY).args(["conntrack", "-L", "-I"]).output().unwrap();
    assert!(!String::from_utf8(output.stderr).unwrap().contains("docs/conntrack.md"));
}

#[test]
fn the_readme_shows_what_explain_says() {
    let readme = include_str!("../../../README.md");
    let shown = readme.split("```\n$ stateway rules explain ").nth(1).unwrap();
    let (question, rest) = shown.split_once('\n').unwrap();
    let expected = rest.split("```").next().unwrap();
    let directory = TempDir::new().unwrap();
    fs::write(directory.path().join("rules.nft"), HOME_ROUTER).unwrap();
    let mut command = Command::new(STATEWAY);
    command.current_dir(&directory).args(["rules", "explain"]).args(question.split(' '));
    let output = command.output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
}
