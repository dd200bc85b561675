//! `stateway rules` from outside: a program, files, exit codes.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests are tests too")]

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

/// `examples/rulesets/home-router.nft` in the JSON of the real nft.
const HOME_ROUTER: &str = include_str!("rules/home-router.json");

fn stateway(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_stateway")).args(args).output().unwrap()
}

fn with_input(args: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_stateway"))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that ends early reports the reason itself.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A file that is removed with the test.
struct File {
    directory: TempDir,
    path: PathBuf,
}

impl File {
    fn new(content: &[u8]) -> Self {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("ruleset.json");
        fs::write(&path, content).unwrap();
        Self { directory, path }
    }

    fn run(&self, before: &[&str], after: &[&str]) -> Output {
        let path = self.path.to_str().unwrap();
        stateway(&[before, &[path], after].concat())
    }

    /// The output of a command, without the directory of the file.
    fn said(&self, bytes: &[u8]) -> String {
        text(bytes).replace(&format!("{}/", self.directory.path().display()), "")
    }
}

fn rule(handle: u64, expr: &Value) -> Value {
    let chain =
        json!({"family": "inet", "table": "t", "chain": "f", "handle": handle, "expr": expr});
    json!({ "rule": chain })
}

fn chain(name: &str, handle: u64) -> Value {
    json!({"chain": {"family": "inet", "table": "t", "name": name, "handle": handle}})
}

/// A table with a base chain at forward, and further objects.
fn ruleset(more: &[Value]) -> Vec<u8> {
    let base = json!({"chain": {"family": "inet", "table": "t", "name": "f", "handle": 2,
        "type": "filter", "hook": "forward", "prio": 0, "policy": "drop"}});
    let table = json!({"table": {"family": "inet", "name": "t", "handle": 1}});
    let objects = [&[table, base], more].concat();
    serde_json::to_vec(&json!({ "nftables": objects })).unwrap()
}

#[test]
fn a_ruleset_in_order_is_summed_up() {
    let file = File::new(HOME_ROUTER.as_bytes());
    let output = file.run(&["rules", "check"], &[]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let report = file.said(&output.stdout);
    // This part depends on whether the kernel of this host may be asked.
    let (begin, rest) = report.split_once("only the kernel runs these chains").unwrap();
    let (of_kernel, end) = rest.split_at(rest.find("left to the kernel:").unwrap());
    insta::assert_snapshot!("check", begin.to_owned() + end);
    assert!(of_kernel.contains("\ninet filter chain input: "), "{of_kernel}");
    assert!(of_kernel.contains("\n    hook input, policy drop\n"), "{of_kernel}");
    assert!(!of_kernel.contains("chain output"), "it accepts everything: {of_kernel}");
    let same = with_input(&["rules", "check", "-"], HOME_ROUTER.as_bytes());
    let of_input = text(&same.stdout).replace("standard input", "ruleset.json");
    assert_eq!(of_input, file.said(&output.stdout));
}

#[test]
fn all_unsupported_rules_are_told_at_once() {
    let skgid = json!({"match": {"op": "==", "left": {"meta": {"key": "skgid"}}, "right": 1}});
    let skuid = json!({"match": {"op": "==", "left": {"meta": {"key": "skuid"}}, "right": 0}});
    let kind = json!({"mangle": {"key": {"meta": {"key": "pkttype"}}, "value": "host"}});
    let file = File::new(&ruleset(&[
        rule(5, &json!([skgid, {"drop": null}])),
        rule(6, &json!([skuid, {"accept": null}])),
        rule(7, &json!([kind, {"counter": null}])),
        rule(8, &json!([{"queue": {"num": 3}}])),
        rule(9, &json!([{"accept": null}])),
    ]));
    let output = file.run(&["rules", "check"], &[]);
    assert_eq!(output.status.code(), Some(2));
    insta::assert_snapshot!("unsupported", file.said(&output.stdout) + &file.said(&output.stderr));
    let allowed = file.run(&["rules", "check", "--allow-unsupported"], &[]);
    assert_eq!(allowed.status.code(), Some(0));
    insta::assert_snapshot!("allowed", file.said(&allowed.stdout));
    let report = file.run(&["rules", "check", "--json"], &[]);
    assert_eq!(report.status.code(), Some(2));
    let report: Value = serde_json::from_slice(&report.stdout).unwrap();
    assert_eq!((&report["loadable"], &report["unsupported"]), (&json!(false), &json!(4)));
    assert_eq!(report["problems"][0]["handle"], 5);
    assert_eq!(report["problems"][0]["effect"], "open");
    assert_eq!(report["problems"][0]["rule"], "meta skgid 1 drop");
}

#[test]
fn rules_that_no_gateway_supports_are_told_before_they_are_loaded() {
    let nat = json!({"chain": {"family": "inet", "table": "t", "name": "n", "handle": 3,
        "type": "nat", "hook": "prerouting", "prio": -100, "policy": "accept"}});
    let rule_of = |handle: u64, statement: &Value| {
        json!({"rule": {"family": "inet", "table": "t", "chain": "n", "handle": handle, "expr": [
            {"match": {"op": "==", "right": 80,
                "left": {"payload": {"protocol": "tcp", "field": "dport"}}}}, statement]}})
    };
    let unheard_of = json!({"ct helper": "h"});
    let helper = json!({"ct helper": {"family": "inet", "table": "t", "name": "h", "handle": 9,
        "type": "unheard-of", "protocol": "tcp", "l3proto": "inet"}});
    let forward = json!({"dnat": {"family": "ip", "addr": "192.0.2.10"}});
    let file =
        File::new(&ruleset(&[helper, nat.clone(), rule_of(4, &forward), rule_of(5, &unheard_of)]));
    for (before, after) in [
        (&["rules", "check"][..], &[][..]),
        (&["rules", "check"], &["--allow-unsupported"]),
        // No gateway is asked: there is no such socket.
        (&["rules", "load"], &["--socket", "/nonexistent/stateway.sock"]),
    ] {
        let output = file.run(before, after);
        assert_eq!(output.status.code(), Some(2), "{before:?} {after:?}");
        let said = file.said(&output.stdout) + &file.said(&output.stderr);
        assert_eq!(
            said,
            "inet t chain n rule handle 5: unsupported: there is no helper unheard-of\n    \
             tcp dport 80 ct helper set \"h\"\n\
             stateway: ruleset.json: the ruleset is refused: 1 rule needs something that this \
             gateway does not do, and --allow-unsupported does not leave it out; change the \
             ruleset, or leave it to the kernel\n"
        );
    }
    let report = file.run(&["rules", "check", "--json"], &[]);
    assert_eq!(report.status.code(), Some(2));
    let report: Value = serde_json::from_slice(&report.stdout).unwrap();
    assert_eq!((&report["loadable"], &report["problems"][0]["handle"]), (&json!(false), &json!(5)));
    let file = File::new(&ruleset(&[nat, rule_of(4, &forward)]));
    let check = file.run(&["rules", "check"], &[]);
    assert_eq!(check.status.code(), Some(0));
    let said = file.said(&check.stdout);
    assert!(said.contains("rules       1, 1 of them only with mode = \"routed\"\n"), "{said}");
}

#[test]
fn the_report_for_programs_lists_the_rules_that_the_kernel_carries_out() {
    let nat = json!({"chain": {"family": "inet", "table": "t", "name": "n", "handle": 3,
        "type": "nat", "hook": "prerouting", "prio": -100, "policy": "accept"}});
    let rule_of = |handle: u64, statement: &Value| {
        json!({"rule": {"family": "inet", "table": "t", "chain": "n", "handle": handle, "expr": [
            {"match": {"op": "==", "right": 80,
                "left": {"payload": {"protocol": "tcp", "field": "dport"}}}}, statement]}})
    };
    let to = |address: &str| json!({"dnat": {"family": "ip", "addr": address, "port": 81}});
    let file = File::new(&ruleset(&[
        nat,
        rule_of(4, &json!({"redirect": {"port": 3128}})),
        rule_of(5, &to("127.0.0.1")),
        // No host has this address.
        rule_of(6, &to("192.0.2.77")),
    ]));
    let report = file.run(&["rules", "check", "--json"], &[]);
    assert_eq!(report.status.code(), Some(0));
    let report: Value = serde_json::from_slice(&report.stdout).unwrap();
    let rules = report["kernels_rules"].as_array().unwrap();
    let texts: Vec<_> = rules.iter().map(|rule| rule["text"].as_str().unwrap()).collect();
    assert_eq!(texts, ["tcp dport 80 redirect to :3128", "tcp dport 80 dnat ip to 127.0.0.1:81"]);
    assert_eq!(rules[0]["place"], "inet t chain n rule handle 4");
}

#[test]
fn a_ruleset_that_judges_nothing_that_is_forwarded_says_so() {
    let input = json!({"chain": {"family": "inet", "table": "t", "name": "i", "handle": 2,
        "type": "filter", "hook": "input", "prio": 0, "policy": "drop"}});
    let table = json!({"table": {"family": "inet", "name": "t", "handle": 1}});
    let of_host = json!({"nftables": [table, input]});
    for (document, warns) in [
        (serde_json::to_vec(&of_host).unwrap(), true),
        (br#"{"nftables":[]}"#.to_vec(), true),
        (ruleset(&[]), false),
    ] {
        let output = File::new(&document).run(&["rules", "check"], &[]);
        assert_eq!(output.status.code(), Some(0));
        let report = text(&output.stdout);
        assert_eq!(report.contains("ALL OF THEM PASS"), warns, "{report}");
        let first = report.lines().next().unwrap();
        assert_eq!(first.ends_with(": in order, but it LETS EVERYTHING PASS"), warns, "{report}");
        assert_eq!(first.ends_with(": in order"), !warns, "{report}");
    }
}

#[test]
fn packets_are_explained_rule_by_rule() {
    let file = File::new(HOME_ROUTER.as_bytes());
    let questions = [
        "tcp 203.0.113.9:40000 192.0.2.65:443 in wan0 out lan0",
        "tcp 198.51.100.7:40000 203.0.113.9:443 in lan0 out wan0",
        "tcp 198.51.100.7:40000 203.0.113.9:443 in lan0 out wan0 state established flags ack",
        "udp 198.51.100.200:500 198.51.100.7:53 in guest1 out lan0",
        "icmpv6 2001:db8:1::1 2001:db8:2::1 type packet-too-big in wan0 out lan0",
        "tcp 203.0.113.9 192.0.2.65:23 in wan0 out lan0",
        "udp 203.0.113.9 192.0.2.65:9 in wan0",
    ];
    let mut session = String::new();
    for question in questions {
        let words: Vec<&str> = question.split_whitespace().collect();
        let output = file.run(&["rules", "explain", "--file"], &words);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        session = session + "$ " + question + "\n" + &text(&output.stdout) + "\n";
    }
    insta::assert_snapshot!("explain", session);
    let question = "tcp 203.0.113.9:40000 192.0.2.65:443 in wan0 out lan0";
    let output = file.run(&["rules", "explain", "--json", "--file"], &[question]);
    let explained: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&explained["schema"], &explained["verdict"]), (&json!(1), &json!("accept")));
    assert_eq!(explained["stages"][0]["stage"], "destination translation");
    assert_eq!(explained["stages"][0]["steps"][0]["table"], "nat");
}

#[test]
fn frames_come_as_digits_and_from_captures() {
    let rules = File::new(HOME_ROUTER.as_bytes());
    let mut frame = Vec::new();
    wire::build::PacketBuilder::v4([198, 51, 100, 7], [203, 0, 113, 9]).udp(
        5353,
        53,
        b"question",
        &mut frame,
    );
    let digits: String = frame.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut pcap = Vec::new();
    for word in [0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, 1u32] {
        pcap.extend(word.to_le_bytes());
    }
    for packet in [&[0; 14][..], &frame] {
        let length = packet.len() as u32;
        for word in [1_700_000_000, 0, length, length] {
            pcap.extend(word.to_le_bytes());
        }
        pcap.extend(packet);
    }
    let capture = rules.directory.path().join("traffic.pcap");
    fs::write(&capture, pcap).unwrap();
    let place = |number: u32| format!("@{}:{number}", capture.display());
    let ask = |packet: &str| {
        rules.run(&["rules", "explain", "--file"], &[packet, "in", "lan0", "out", "wan0"])
    };
    let of_digits = ask(&digits);
    assert_eq!(of_digits.status.code(), Some(0), "{}", text(&of_digits.stderr));
    assert!(text(&of_digits.stdout).contains("198.51.100.7:5353 > 203.0.113.9:53 UDP length 16"));
    assert_eq!(ask(&place(2)).stdout, of_digits.stdout);
    for (number, said) in [(0, "write @FILE:NUMBER"), (1, "no IP packet"), (3, "only 2")] {
        let output = ask(&place(number));
        assert_eq!(output.status.code(), Some(2), "{number}");
        assert!(text(&output.stderr).contains(said), "{}", text(&output.stderr));
    }
}

#[test]
fn a_ruleset_that_can_not_be_loaded_is_refused_with_the_place() {
    let jump = |to: &str| json!([{"jump": {"target": to}}]);
    let in_chain = |name: &str, handle: u64, expr: &Value| {
        let mut rule = rule(handle, expr);
        rule["rule"]["chain"] = json!(name);
        rule
    };
    let deep: Vec<Value> = (0..20)
        .flat_map(|depth| {
            let (name, next) = (format!("c{depth}"), format!("c{}", depth + 1));
            [chain(&name, 100 + depth), in_chain(&name, 200 + depth, &jump(&next))]
        })
        .chain([chain("c20", 120), rule(9, &jump("c0"))])
        .collect();
    let nested = format!("{}1{}", "[".repeat(5000), "]".repeat(5000));
    let cases: [(&[u8], &str); 5] = [
        (
            &HOME_ROUTER.as_bytes()[..HOME_ROUTER.len() / 2],
            "document: invalid: it ends in the middle",
        ),
        (nested.as_bytes(), "document: invalid: recursion limit exceeded"),
        (
            &ruleset(&[chain("a", 3), rule(5, &jump("a")), in_chain("a", 6, &jump("a"))]),
            "inet t chain a handle 3: invalid: jumps of this chain lead back to it",
        ),
        (&ruleset(&deep), "inet t chain f handle 2: invalid: jumps more than 16 chains deep"),
        (&ruleset(&[rule(5, &jump("nowhere"))]), "inet t chain f rule handle 5, expr[0].jump"),
    ];
    for (document, said) in cases {
        let file = File::new(document);
        for command in [&["rules", "check"][..], &["rules", "explain", "--file"]] {
            let question: &[&str] =
                if command.len() == 3 { &["udp", "192.0.2.1", "192.0.2.2:5"] } else { &[] };
            let output = file.run(command, question);
            let message = text(&output.stdout) + &text(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{message}");
            assert!(message.contains(said), "{said}: {message}");
            assert!(message.contains("is refused"), "{message}");
        }
    }
}

/// Bytes that are no ruleset, and what is said of them.
const NO_RULESETS: [(&[u8], &str); 12] = [
    (b"", "is empty: "),
    (b" \n\t\r\n", "is empty: "),
    (b"\xef\xbb\xbftable ip t { }\n", "begins with a byte order mark, "),
    (b"\xef\xbb\xbf{\"nftables\": []}", "begins with a byte order mark, "),
    (b"\xef\xbb\xbf*filter\nCOMMIT\n", "begins with a byte order mark, "),
    (b"\xff\xfet\0a\0b\0", "is UTF-16 or no text: "),
    (b"\xfe\xff\0t\0a\0b", "is UTF-16 or no text: "),
    (b"\x7fELF\x02\x01\x01\0\0", "is no text: "),
    (b"\x1f\x8b\x08\xfe\xfd", "is no text: "),
    (b"{\"nftables\": [\"\xfe\"]}", "is no text: "),
    // nft reads nothing behind a zero, without a word about it.
    (b"table ip t { }\n\0table ip u { chain c { drop; }; }\n", "is no text: "),
    (b"*filter\n:FORWARD DROP [0:0]\n\0-A FORWARD -j ACCEPT\nCOMMIT\n", "is no text: "),
];

#[test]
fn a_file_that_is_no_ruleset_is_told_by_name_and_by_what_it_is() {
    let gateway = "[[interface]]\nname = \"lan0\"\n[[interface]]\nname = \"wan0\"\n";
    for (document, said) in NO_RULESETS {
        let file = File::new(document);
        let path = file.path.to_str().unwrap();
        let config = file.directory.path().join("gw.toml");
        fs::write(&config, format!("{gateway}[rules]\nfile = \"{path}\"\n")).unwrap();
        let config = config.to_str().unwrap();
        for words in [
            &["rules", "check", path][..],
            &["rules", "check", "--json", path],
            &["rules", "load", path, "--socket", "/nonexistent/stateway.sock"],
            &["rules", "explain", "--file", path, "udp 192.0.2.1:1 192.0.2.2:5"],
            &["check", "--elsewhere", "-c", config],
        ] {
            let output = stateway(words);
            let message = text(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{words:?}: {message}");
            assert!(message.starts_with(&format!("{path}: {said}")), "{words:?}: {message}");
            assert_eq!(message.lines().count(), 1, "{words:?}: {message}");
            assert_eq!(text(&output.stdout), "", "{words:?}");
        }
    }
}

#[test]
fn a_ruleset_that_is_no_file_or_too_long_is_refused() {
    let file = File::new(b"");
    let huge = fs::File::options().write(true).open(&file.path).unwrap();
    // A hole, which takes no space on disk.
    huge.set_len(ruleset::limits::MAX_DOCUMENT_BYTES as u64 + 1).unwrap();
    let output = file.run(&["rules", "check"], &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("longer than 256 MiB, the limit for a ruleset"));
    let directory = file.directory.path().to_str().unwrap();
    for (path, said) in [("/nowhere/ruleset.json", "No such file"), (directory, "Is a directory")] {
        let output = stateway(&["rules", "check", path]);
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains(said), "{}", text(&output.stderr));
    }
}

/// Numbers that look random, the same in each run (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }
}

#[test]
fn no_damage_makes_the_command_panic() {
    const RUNS: usize = 120;
    let mut random = Random(0x5eed);
    let (mut taken, mut refused) = (0, 0);
    for _ in 0..RUNS {
        let mut document = HOME_ROUTER.as_bytes().to_vec();
        for _ in 0..=random.below(3) {
            let (at, other) = (random.below(document.len()), random.below(document.len()));
            let (at, other) = (at.min(other), at.max(other));
            match random.below(4) {
                0 => document[at] = random.below(256) as u8,
                1 => document.truncate(at.max(1)),
                2 => drop(document.drain(at..other.min(at + 40))),
                // Replaces a digit or letter, which leaves the document JSON.
                _ if document[at].is_ascii_alphanumeric() => document[at] = b'7',
                _ => {}
            }
        }
        let file = File::new(&document);
        let asked = ["tcp", "203.0.113.9:1", "192.0.2.65:443", "in", "wan0", "out", "lan0"];
        for output in [
            file.run(&["rules", "check"], &[]),
            file.run(&["rules", "explain", "--allow-unsupported", "--file"], &asked),
        ] {
            let message = text(&output.stderr);
            assert!(!message.contains("panicked"), "{message}");
            match output.status.code() {
                Some(0) => taken += 1,
                Some(2) => refused += 1,
                other => panic!("{other:?}: {message}"),
            }
        }
    }
    assert!(taken > 0 && refused > taken, "{taken} taken, {refused} refused");
}

#[test]
fn inner_packets_of_tunnels_are_explained_too() {
    let rules = File::new(HOME_ROUTER.as_bytes());
    let wrap = |length: usize| {
        let (mut inner, mut frame) = (Vec::new(), Vec::new());
        wire::build::PacketBuilder::v4([203, 0, 113, 9], [192, 0, 2, 65]).tcp(
            &wire::build::Tcp { destination_port: 443, ..Default::default() },
            b"",
            &mut inner,
        );
        inner.truncate(14 + length);
        wire::build::PacketBuilder::v4([198, 51, 100, 7], [203, 0, 113, 9]).raw(
            wire::protocol::IPIP,
            &inner[14..],
            &mut frame,
        );
        frame.iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    let remark = "with tunnels = \"judged\" the forward chains judge the inner packet too";
    for (length, way, expected) in [
        (40, "in lan0 out wan0", "they accept it"),
        (40, "in wan0 out lan0", "they drop it"),
        (30, "in lan0 out wan0", "which can not be read here"),
    ] {
        let question = wrap(length) + " " + way;
        let output = rules.run(&["rules", "explain", "--file"], &[&question]);
        let explanation = text(&output.stdout);
        assert!(
            explanation.contains(remark) && explanation.contains(expected),
            "{expected}: {explanation}"
        );
    }
}
