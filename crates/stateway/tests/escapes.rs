//! Names, comments and texts from outside never forge a line or command a terminal, whichever
//! command shows them.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests are tests too")]

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Map, Value};
use tempfile::TempDir;

/// `examples/rulesets/home-router.nft` in the JSON of the real nft.
const HOME_ROUTER: &str = include_str!("rules/home-router.json");

/// A forged line, and sequences that terminals obey: CSI in seven and in eight bits, a title, a
/// backspace, text from right to left.
const HOSTILE: &str = "x\nFORGED\r\u{1b}[2J\u{9b}31m\u{1b}]0;title\u{7}\u{8}\u{7f}\u{202e}\u{2066}";

/// Runs a command and checks all that it prints.
fn looked_at(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_stateway")).args(args).output().unwrap();
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    let obeyed = |c: char| {
        (c.is_control() && c != '\t' && c != '\n') || ('\u{202a}'..='\u{2069}').contains(&c)
    };
    assert!(!text.contains(obeyed), "{args:?}: {text:?}");
    assert!(!text.lines().any(|line| line.trim_start().starts_with("FORGED")), "{args:?}: {text}");
    text
}

fn file(directory: &TempDir, name: &str, content: &str) -> PathBuf {
    let path = directory.path().join(name);
    fs::write(&path, content).unwrap();
    path
}

/// Appends hostile text to the text or key with this number, in the order of the document; false if
/// there are fewer.
fn spoil(value: &mut Value, number: &mut usize) -> bool {
    let mut is_its_turn = || {
        *number = number.wrapping_sub(1);
        *number == usize::MAX
    };
    match value {
        Value::String(text) => {
            let its = is_its_turn();
            if its {
                text.push_str(HOSTILE);
            }
            its
        }
        Value::Array(values) => values.iter_mut().any(|value| spoil(value, number)),
        Value::Object(fields) => {
            let mut spoilt = Map::new();
            let mut any = false;
            for (mut key, mut value) in std::mem::take(fields) {
                if !any {
                    *number = number.wrapping_sub(1);
                    if *number == usize::MAX {
                        key.push_str(HOSTILE);
                        any = true;
                    } else {
                        any = spoil(&mut value, number);
                    }
                }
                spoilt.insert(key, value);
            }
            *fields = spoilt;
            any
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

#[test]
fn rulesets_are_shown_escaped_whichever_text_is_hostile() {
    let directory = TempDir::new().unwrap();
    let whole: Value = serde_json::from_str(HOME_ROUTER).unwrap();
    let packet = ["tcp", "192.0.2.1:1", "198.51.100.2:443", "in", "lan0", "out", "wan0"];
    let mut seen = 0;
    // Rules and sets repeat themselves, so the test does not try all 849 places.
    for first in (0..).step_by(3) {
        let (mut document, mut number) = (whole.clone(), first);
        if !spoil(&mut document, &mut number) {
            break;
        }
        let path = file(&directory, "ruleset.json", &document.to_string());
        let path = path.to_str().unwrap();
        let checked = looked_at(&["rules", "check", "--allow-unsupported", path]);
        seen += usize::from(checked.contains("FORGED"));
        // Other commands show the same text.
        if first % 12 == 0 {
            looked_at(&[&["rules", "explain", "--file", path][..], &packet].concat());
            looked_at(&["rules", "check", "--json", path]);
        }
    }
    assert!(seen > 20, "shown {seen} times");
}

#[test]
fn json_says_what_was_said() {
    let directory = TempDir::new().unwrap();
    let document = format!(
        r#"{{"nftables": [{{"table": {{"family": "ip", "name": {name}, "handle": 1}}}},
            {{"chain": {{"family": "ip", "table": {name}, "name": "c", "handle": 2,
            "type": "filter", "hook": "forward", "prio": 0, "policy": "accept"}}}}]}}"#,
        name = Value::from(HOSTILE)
    );
    let path = file(&directory, "ruleset.json", &document);
    let printed = looked_at(&["rules", "check", "--json", path.to_str().unwrap()]);
    let report: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(report["summary"]["tables"][0], format!("ip {HOSTILE}"));
}

#[test]
fn configurations_are_shown_escaped() {
    let directory = TempDir::new().unwrap();
    let hostile = Value::from(HOSTILE);
    let texts = [
        format!("[gateway]\nmode = {hostile}\n{hostile} = 1\n"),
        format!("[[interface]]\nname = {hostile}\nio = {hostile}\nrps_cpus = {hostile}\n"),
        format!(
            "[[interface]]\nname = \"a\"\n[labels]\n{hostile} = 3\n[tunables]\n{hostile} = 1\n"
        ),
        format!("[rules]\nfile = {hostile}\n[control]\nsocket = \"/none/{}\"\n", "x\\nFORGED"),
        format!("[[helper]]\nname = {hostile}\nport = {hostile}\n[[zone]]\nid = {hostile}\n"),
        format!("[gateway]\nmode = {HOSTILE}\n"),
        HOSTILE.to_owned(),
    ];
    for text in texts {
        // JSON and TOML share these escapes.
        let path = file(&directory, "gateway.toml", &text);
        for command in ["check", "run"] {
            let said = looked_at(&[command, "-c", path.to_str().unwrap()]);
            assert!(said.contains("gateway.toml"), "{said}");
        }
    }
}

#[test]
fn names_of_files_are_shown_escaped() {
    let directory = TempDir::new().unwrap();
    let missing = directory.path().join("none").join(HOSTILE);
    let missing = missing.to_str().unwrap();
    let capture = directory.path().join("empty.pcap");
    // Only a header: little endian, version 2.4, Ethernet.
    let header = [0xa1b2_c3d4, 0x0004_0002, 0, 0, 0xffff, 1_u32].map(u32::to_le_bytes).concat();
    fs::write(&capture, header).unwrap();
    for args in [
        &["replay", missing][..],
        &["replay", capture.to_str().unwrap(), "-w", missing],
        &["check", "-c", missing],
        &["run", "-c", missing],
        &["rules", "check", missing],
        &["rules", "explain", "--file", missing, "udp 192.0.2.1 192.0.2.2:53"],
        &["status", "--socket", missing],
        &["conntrack", "-L", "--socket", missing],
    ] {
        let said = looked_at(args);
        assert!(said.contains("x\\nFORGED\\r\\u001b[2J\\u009b31m"), "{args:?}: {said}");
    }
}
