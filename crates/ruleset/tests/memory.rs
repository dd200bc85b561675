//! Measures how much memory loading takes for each byte of the document: the most at once that the
//! allocator counts, including the document itself.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

use std::alloc::System;
use std::env;
use std::fmt::Write;
use std::process::Command;

use cap::Cap;
use ruleset::{CompileOptions, Document, Options, Program, import_document};

#[global_allocator]
static MEMORY: Cap<System> = Cap::new(System, usize::MAX);

/// Environment variable that names the document for a child process.
const KIND: &str = "STATEWAY_TEST_KIND";
/// The most that loading may take for each byte of a document.
const MOST: f64 = 6.0;
/// Least length of the documents.
const BYTES: usize = 4 << 20;

/// Rules of a chain where there are many chains.
const CHAIN: u32 = 256;

/// Documents as nft prints them. Each repeats one kind of part.
const KINDS: [&str; 8] = [
    "addresses",
    "networks",
    "counted",
    "concatenations",
    "verdicts",
    "translations",
    "chains",
    "one chain",
];

const SADDR: &str = r#"{"payload": {"protocol": "ip", "field": "saddr"}}"#;
const DPORT: &str = r#"{"payload": {"protocol": "tcp", "field": "dport"}}"#;

/// A document of at least `bytes` bytes.
fn document(kind: &str, bytes: usize) -> String {
    let begin = r#"{"nftables": [{"metainfo": {"version": "1.0.9", "release_name": "Old", "json_schema_version": 1}}, {"table": {"family": "inet", "name": "t", "handle": 1}}, {"chain": {"family": "inet", "table": "t", "name": "f", "handle": 2, "type": "filter", "hook": "forward", "prio": 0, "policy": "drop"}}, {"chain": {"family": "inet", "table": "t", "name": "n", "handle": 3, "type": "nat", "hook": "prerouting", "prio": -100, "policy": "accept"}}"#;
    // One allocation for the whole text: building it must not take more than loading it.
    let mut text = String::with_capacity(bytes + (4 << 10));
    text.push_str(begin);
    let [saddr, dport] = [SADDR, DPORT];
    let member = |key: &str| {
        format!(r#"{{"match": {{"op": "==", "left": {key}, "right": "@s"}}}}, {{"accept": null}}"#)
    };
    let both = format!(r#"{{"concat": [{saddr}, {dport}]}}"#);
    let (chain, begin, uses) = match kind {
        "addresses" => ("f", r#""type": "ipv4_addr""#, member(saddr)),
        "networks" => ("f", r#""type": "ipv4_addr", "flags": ["interval"]"#, member(saddr)),
        "counted" => ("f", r#""type": "ipv4_addr", "stmt": [{"counter": null}]"#, member(saddr)),
        "concatenations" => ("f", r#""type": ["ipv4_addr", "inet_service"]"#, member(&both)),
        "verdicts" => (
            "f",
            r#""type": "ipv4_addr", "map": "verdict""#,
            format!(r#"{{"vmap": {{"key": {saddr}, "data": "@s"}}}}"#),
        ),
        "translations" => (
            "n",
            r#""type": ["ipv4_addr", "inet_service"], "map": ["ipv4_addr", "inet_service"]"#,
            format!(
                r#"{{"dnat": {{"family": "ip", "addr": {{"map": {{"key": {both}, "data": "@s"}}}}}}}}"#
            ),
        ),
        _ => ("f", "", String::new()),
    };
    if kind.contains("chain") {
        add_rules(&mut text, bytes, if kind == "chains" { CHAIN } else { u32::MAX });
        return text + "]}";
    }
    let word = if begin.contains("\"map\"") { "map" } else { "set" };
    write!(text, r#", {{"{word}": {{"family": "inet", "name": "s", "table": "t", {begin}, "handle": 5, "elem": ["#).unwrap();
    for number in 0_u32.. {
        if text.len() >= bytes {
            break;
        }
        let element = element(kind, number);
        let between = if number == 0 { "" } else { ", " };
        write!(text, "{between}{element}").unwrap();
    }
    write!(text, r#"]}}}}, {{"rule": {{"family": "inet", "table": "t", "chain": "{chain}", "handle": 6, "expr": [{uses}]}}}}]}}"#).unwrap();
    text
}

/// An element of the set of a document.
fn element(kind: &str, number: u32) -> String {
    let (address, port) = (address(number), number % 60_000);
    let concat = format!(r#"{{"concat": ["{address}", {port}]}}"#);
    match kind {
        "addresses" => format!(r#""{address}""#),
        "networks" => {
            format!(r#"{{"prefix": {{"addr": "{address}", "len": {}}}}}"#, 32 - number % 2)
        }
        "counted" => format!(
            r#"{{"elem": {{"val": "{address}", "counter": {{"packets": 0, "bytes": 0}}}}}}"#
        ),
        "verdicts" => format!(r#"["{address}", {{"accept": null}}]"#),
        "translations" => format!(r#"[{concat}, {{"concat": ["192.0.2.1", {port}]}}]"#),
        _ => concat,
    }
}

/// Rules in chains of this length, up to this many bytes.
fn add_rules(text: &mut String, bytes: usize, length: u32) {
    let [saddr, dport] = [SADDR, DPORT];
    for number in 0_u32.. {
        if text.len() >= bytes {
            break;
        }
        let (address, port) = (address(number), number % 60_000);
        let chain = number / length;
        if number % length == 0 {
            write!(
                text,
                r#", {{"chain": {{"family": "inet", "table": "t", "name": "c{chain}", "handle": 7}}}}, {{"rule": {{"family": "inet", "table": "t", "chain": "f", "handle": 8, "expr": [{{"jump": {{"target": "c{chain}"}}}}]}}}}"#
            )
            .unwrap();
        }
        write!(
            text,
            r#", {{"rule": {{"family": "inet", "table": "t", "chain": "c{chain}", "handle": {}, "expr": [{{"match": {{"op": "==", "left": {saddr}, "right": "{address}"}}}}, {{"match": {{"op": "==", "left": {dport}, "right": {port}}}}}, {{"counter": {{"packets": 0, "bytes": 0}}}}, {{"accept": null}}]}}}}"#,
            number + 9
        )
        .unwrap();
    }
}

/// Addresses far apart, each once.
fn address(number: u32) -> std::net::Ipv4Addr {
    number.wrapping_mul(0x9e37_79b1).into()
}

/// Loads one document and prints the memory that this takes. Runs in a child process that names the
/// document.
#[test]
fn load_one() {
    let Ok(kind) = env::var(KIND) else { return };
    let before = MEMORY.allocated();
    let mut text = document(&kind, BYTES).into_bytes();
    text.shrink_to_fit();
    let (length, built) = (text.len(), MEMORY.max_allocated());
    let document = Document::read(text).unwrap();
    let ruleset = import_document(&document, Options::default()).unwrap().ruleset;
    let program = Program::compile(ruleset, CompileOptions { index: true, seed: 7 }).unwrap();
    let taken = MEMORY.max_allocated();
    assert!(taken > built, "building the document took more than loading it");
    let per_byte = |taken: usize| (taken - before) as f64 / length as f64;
    println!("{KIND}={} {}", per_byte(taken), per_byte(MEMORY.allocated()));
    drop((document, program));
}

#[test]
fn loading_takes_at_most_six_times_the_document() {
    let figures: Vec<(&str, f64, f64)> = KINDS
        .map(|kind| {
            let mut child = Command::new(env::current_exe().unwrap());
            child.args(["--exact", "load_one", "--nocapture"]).env(KIND, kind);
            let output = child.output().unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            let parts = text.lines().find_map(|line| line.split_once(&format!("{KIND}=")));
            let (_, figures) = parts.unwrap_or_else(|| {
                panic!("{kind}: {text}{}", String::from_utf8_lossy(&output.stderr))
            });
            let (most, kept) = figures.split_once(' ').unwrap();
            (kind, most.parse().unwrap(), kept.parse().unwrap())
        })
        .to_vec();
    println!("kind, most and kept bytes for each byte: {figures:.1?}");
    assert!(figures.iter().all(|(_, most, _)| *most <= MOST), "{figures:.1?}");
}
