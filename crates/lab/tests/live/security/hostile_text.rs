//! Untrusted text in the log of a running gateway and in the output of its commands.

use lab::{Family, Result, ping};
use serde_json::{Value, json};

use crate::scenario::{beside_others, bridge, stateway, stop_cleanly};

/// A forged line and control characters that terminals obey: CSI in seven and in eight bits, and a
/// right-to-left override.
const HOSTILE: &str = "x\nFORGED\r\u{1b}[2J\u{9b}31m\u{7f}\u{202e}";

/// Logs echo requests and refuses them.
fn ruleset() -> Value {
    let of = |more: Value| {
        let mut object = json!({"family": "inet", "table": HOSTILE, "name": HOSTILE});
        object.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        object
    };
    let echo = json!({"match": {"op": "==", "right": "echo-request",
        "left": {"payload": {"protocol": "icmp", "field": "type"}}}});
    json!({"nftables": [
        {"table": {"family": "inet", "name": HOSTILE, "handle": 1}},
        {"chain": of(json!({"handle": 2, "type": "filter", "hook": "forward", "prio": 0,
            "policy": "accept"}))},
        {"set": of(json!({"handle": 3, "type": "ifname", "elem": ["lan0", "z\u{1b}[m"],
            "comment": HOSTILE}))},
        {"rule": of(json!({"handle": 4, "chain": HOSTILE, "comment": HOSTILE,
            "expr": [echo, {"log": {"prefix": HOSTILE}}, {"counter": {"packets": 0, "bytes": 0}},
                {"drop": null}]}))},
    ]})
}

fn is_harmless(text: &str) -> bool {
    let obeyed = |c: char| (c.is_control() && c != '\t' && c != '\n') || c == '\u{202e}';
    !text.contains(obeyed) && !text.lines().any(|line| line.starts_with("FORGED"))
}

#[test]
fn text_of_a_ruleset_forges_no_line_of_the_log_or_of_commands() {
    beside_others(|| {
        let mut lab = bridge(1)?;
        let file = lab.gateway().write_file("hostile.json", ruleset().to_string().as_bytes())?;
        let stateway = stateway(&lab);
        let asked = |args: &[&str]| -> Result<String> {
            let output = stateway.command(args).run()?;
            let text = output.stdout + &output.stderr;
            assert_eq!(output.code, Some(0), "{args:?}: {text}");
            assert!(is_harmless(&text), "{args:?}: {text:?}");
            Ok(text)
        };
        asked(&["rules", "load", &file])?;
        ping(lab.on_client("ping"), lab.server_address(Family::V4), 3)?;
        let listed = asked(&["rules", "list", "-a"])?;
        assert!(listed.contains("log prefix \"x\\nFORGED\\r\\u001b[2J\\u009b31m"), "{listed}");
        for args in [&["status"][..], &["rules", "explain", "icmp 192.0.2.1 198.51.100.2"]] {
            asked(args)?;
        }
        let drops = asked(&["drops", "--recent"])?;
        assert!(drops.contains("\\nFORGED"), "{drops}");
        let listed = asked(&["rules", "list", "--json"])?;
        let listed: Value = serde_json::from_str(&listed).expect("it is JSON");
        assert_eq!(listed["nftables"][1]["chain"]["name"], HOSTILE);
        let log = stateway.log();
        let lines: Vec<&str> = log.lines().filter(|line| line.contains("FORGED")).collect();
        assert!(is_harmless(&log) && lines.len() == 3, "{log:?}");
        let line =
            |line: &&str| line.contains("rules: x\\nFORGED") && line.contains("in=lan0 out=wan0 ");
        assert!(lines.iter().all(line), "{lines:?}");
        stop_cleanly(&mut lab)
    });
}
