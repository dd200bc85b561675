//! Rulesets in nftables' own syntax. The real `nft` loads them into a namespace, and its listing of
//! them is imported.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "helpers of tests are tests too"
)]

mod nft;

use std::fmt::Write as _;

use flow::Timestamp;
use ruleset::probe::Probe;
use ruleset::{
    CompileOptions, Fate, Imported, Options, Problem, Program, Question, Refused, RuleState,
    Severity, SharedState, import, walk,
};
use serde_json::Value;

use nft::output_of;

/// Runs a test on a listing of `nft`, or prints why it is skipped.
fn on(rules: &str, test: impl FnOnce(&[u8])) {
    match output_of(rules, "nft -j list ruleset") {
        Ok(json) => test(&json),
        Err(why) => println!("SKIPPED: {}", why.trim()),
    }
}

fn accepted(json: &[u8]) -> Imported {
    match import(json, Options::default()) {
        Ok(imported) => imported,
        Err(refused) => panic!("{refused}"),
    }
}

/// The number of objects of a kind that `counts` accepts.
fn count(json: &[u8], kind: &str, counts: impl Fn(&Value) -> bool) -> usize {
    let document: Value = serde_json::from_slice(json).expect("JSON");
    let objects = document["nftables"].as_array().expect("a list");
    objects.iter().filter_map(|object| object.get(kind)).filter(|object| counts(object)).count()
}

/// Asserts that the import has all chains, rules, elements and named objects of the listing.
fn all_accounted_for(json: &[u8], left_to_kernel: &[&str]) -> Imported {
    let imported = accepted(json);
    let Imported { ruleset, problems } = &imported;
    let ours = |object: &Value, key: &str| {
        !left_to_kernel.contains(&object[key].as_str().expect("a name"))
    };
    assert_eq!(ruleset.chains().len(), count(json, "chain", |chain| ours(chain, "name")));
    assert_eq!(ruleset.rules().len(), count(json, "rule", |rule| ours(rule, "chain")));
    let named = ruleset.sets().iter().filter(|set| set.name.is_some());
    let of_kernel = count(json, "set", |_| true) + count(json, "map", |_| true);
    assert_eq!(named.clone().count(), of_kernel);
    let document: Value = serde_json::from_slice(json).expect("JSON");
    for object in document["nftables"].as_array().expect("a list") {
        let Some(set) = object.get("set").or_else(|| object.get("map")) else { continue };
        let elements = set.get("elem").and_then(Value::as_array).map_or(0, Vec::len);
        let ours = named.clone().find(|ours| ours.name.as_deref() == set["name"].as_str());
        assert_eq!(ours.map(|ours| ours.element_count()), Some(elements), "{}", set["name"]);
    }
    let counters = ruleset.counters().iter().filter(|counter| counter.name.is_some());
    assert_eq!(counters.count(), count(json, "counter", |_| true));
    let is_bad = |problem: &&Problem| problem.severity < Severity::LeftToKernel;
    assert_eq!(problems.listed().iter().find(is_bad), None);
    imported
}

#[test]
fn a_home_router() {
    on(include_str!("../../../examples/rulesets/home-router.nft"), |json| {
        all_accounted_for(json, &["input", "output"]);
    });
}

#[test]
fn a_server() {
    on(include_str!("../../../examples/rulesets/server.nft"), |json| {
        all_accounted_for(json, &[]);
    });
}

#[test]
fn a_container_host() {
    on(include_str!("../../../examples/rulesets/containers.nft"), |json| {
        all_accounted_for(json, &["output"]);
    });
}

#[test]
fn a_nat_gateway() {
    on(include_str!("../../../examples/rulesets/nat-gateway.nft"), |json| {
        all_accounted_for(json, &[]);
    });
}

/// Packets that an example has to refuse (`false`) or to let pass.
fn safe(rules: &str, packets: &[(&str, bool)]) {
    on(rules, |json| {
        let options = CompileOptions { index: true, seed: 7 };
        let program = Program::compile(accepted(json).ruleset, options).unwrap();
        for (packet, passes) in packets {
            let shared = SharedState::new(&program, Timestamp::ZERO);
            let mut state = RuleState::new(&program, &shared, Timestamp::ZERO);
            let probe = Probe::parse(packet).unwrap();
            let walk = walk(&program, &mut state, Question::alone(&probe), Timestamp::ZERO);
            assert_eq!(walk.fate == Fate::Passes, *passes, "{packet}: {:?}", walk.fate);
        }
    });
}

#[test]
fn guests_of_the_home_router_reach_the_uplink_and_nobody_at_home() {
    let packets = [
        ("tcp 203.0.113.140 203.0.113.9:443 in guest0 out wan0", true),
        ("tcp 2001:db8:3::40 [2001:db8:9::9]:443 in guest0 out wan0", true),
        ("icmpv6 2001:db8:3::40 2001:db8:9::9 type echo-request in guest0 out wan0", true),
        ("tcp 203.0.113.140 198.51.100.20:80 in guest0 out lan0", false),
        ("tcp 2001:db8:3::40 [2001:db8:2::20]:80 in guest0 out lan0", false),
        ("tcp 2001:db8:3::40 [2001:db8:2::20]:443 in guest0 out lan0", false),
        ("icmp 203.0.113.140 198.51.100.20 type echo-request in guest0 out lan0", false),
        ("icmpv6 2001:db8:3::40 2001:db8:2::20 type echo-request in guest0 out lan0", false),
        ("icmp 192.0.2.3 198.51.100.20 type echo-request in wan0 out lan0", false),
    ];
    safe(include_str!("../../../examples/rulesets/home-router.nft"), &packets);
}

#[test]
fn a_server_gets_its_services_and_the_answers_to_its_own_questions_alone() {
    safe(
        include_str!("../../../examples/rulesets/server.nft"),
        &[
            ("tcp 192.0.2.100 198.51.100.10:443 in wan0 out lan0", true),
            ("udp 192.0.2.100 198.51.100.10:53 in wan0 out lan0", true),
            ("udp 198.51.100.10:53 192.0.2.100:40000 in lan0 out wan0", true),
            ("udp 198.51.100.10:40000 192.0.2.100:53 in lan0 out wan0", true),
            ("udp 192.0.2.100:53 198.51.100.10:40000 in wan0 out lan0 state established", true),
            ("udp 192.0.2.100:53 198.51.100.10:40000 in wan0 out lan0", false),
            ("udp 192.0.2.100:53 198.51.100.10:123 in wan0 out lan0", false),
            ("udp 192.0.2.100 198.51.100.10:161 in wan0 out lan0 dscp ef", false),
            ("tcp 192.0.2.100 198.51.100.10:3306 in wan0 out lan0 dscp ef", false),
            ("icmp 192.0.2.100 198.51.100.10 type redirect in wan0 out lan0", false),
        ],
    );
}

#[test]
fn nobody_outside_reaches_a_host_behind_the_nat_gateway_that_no_rule_forwards() {
    safe(
        include_str!("../../../examples/rulesets/nat-gateway.nft"),
        &[
            ("tcp 198.51.100.70 203.0.113.9:80 in lan0 out wan0", true),
            ("tcp 203.0.113.9:80 198.51.100.70:1024 in wan0 out lan0 state established", true),
            ("tcp 203.0.113.9 192.0.2.1:8000 in wan0 out lan0 status dnat", true),
            ("tcp 203.0.113.9 198.51.100.70:22 in wan0 out lan0", false),
            ("udp 203.0.113.9 198.51.100.70:53 in wan0 out lan0", false),
            ("tcp 2001:db8:9::9 [2001:db8:2::90]:22 in wan0 out lan0", false),
            ("tcp 203.0.113.9 198.51.100.70:22 in wan0 out lan0 state invalid", false),
        ],
    );
}

#[test]
fn ten_thousand_elements() {
    let mut rules = String::from(
        "table inet big {\nset blocked {\ntype ipv4_addr\nflags interval\nelements = {\n",
    );
    for number in 0..10_000_u32 {
        let [_, _, c, d] = number.to_be_bytes();
        match number % 3 {
            0 => writeln!(rules, "198.{}.{d}.0/28,", 64 + c).unwrap(),
            1 => writeln!(rules, "203.{}.{d}.1,", 64 + c).unwrap(),
            _ => writeln!(rules, "192.{}.{d}.1-192.{}.{d}.7,", 64 + c, 64 + c).unwrap(),
        }
    }
    rules +=
        "}\n}\nchain f {\ntype filter hook forward priority 0;\nip saddr @blocked drop\n}\n}\n";
    on(&rules, |json| {
        let imported = all_accounted_for(json, &[]);
        assert_eq!(imported.ruleset.sets()[0].element_count(), 10_000);
    });
}

#[test]
fn every_unsupported_part_of_a_ruleset_is_told_at_once() {
    on(include_str!("unsupported.nft"), |json| {
        let Err(Refused { problems }) = import(json, Options::default()) else {
            panic!("it is loaded");
        };
        assert_eq!(problems.count(Severity::Invalid), 0, "{problems}");
        insta::assert_snapshot!("unsupported", problems);
        let allowed = import(json, Options { allow_unsupported: true }).expect("it is allowed");
        assert_eq!(allowed.problems, problems, "they are listed all the same");
        assert!(!allowed.ruleset.rules().is_empty());
    });
}

/// The lines of a listing without what its JSON leaves out: the flag of sets that rules fill, the
/// line breaks in lists of elements, and the time between two listings.
fn lines(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let line = line.replace("dynamic,", "");
        let mut line: Vec<&str> = line.split_whitespace().collect();
        for at in 1..line.len() {
            if line[at - 1] == "expires" {
                line[at] = if line[at].ends_with(',') { "soon," } else { "soon" };
            }
        }
        let line = line.join(" ");
        match lines.last_mut() {
            // nft writes a timeout's flag for sets that rules fill alone.
            _ if ["flags dynamic", "flags timeout", "auto-merge"].contains(&line.as_str()) => {}
            // The device of a chain.
            _ if line.contains(" hook ingress ") => {}
            _ if line.starts_with("typeof ip saddr . tcp dport") => {
                lines.push("type ipv4_addr . inet_service".to_owned());
            }
            Some(before) if before.ends_with(',') => *before = format!("{before} {line}"),
            _ => lines.push(line),
        }
    }
    lines.sort_by_key(|line| line.starts_with("elements"));
    lines
}

#[test]
fn our_text_is_what_nft_prints() {
    let rulesets = [
        include_str!("everything.nft"),
        include_str!("unsupported.nft"),
        include_str!("../../../examples/rulesets/home-router.nft"),
        include_str!("../../../examples/rulesets/server.nft"),
        include_str!("../../../examples/rulesets/containers.nft"),
        include_str!("../../../examples/rulesets/nat-gateway.nft"),
    ];
    for rules in rulesets {
        let both = output_of(rules, "nft list ruleset && echo === && nft -j list ruleset");
        let both = match both {
            Ok(both) => String::from_utf8(both).expect("it is text"),
            Err(why) => return println!("SKIPPED: {}", why.trim()),
        };
        let (theirs, json) = both.split_once("===\n").expect("two listings");
        let json: Value = serde_json::from_str(json).expect("JSON");
        let ours = ruleset::listing::text(&json, false, &|_, _, _, _| "");
        let (ours, theirs) = (lines(&ours), lines(theirs));
        let different: Vec<_> = theirs.iter().filter(|line| !ours.contains(line)).collect();
        let made_up: Vec<_> = ours.iter().filter(|line| !theirs.contains(line)).collect();
        assert!(different.is_empty() && made_up.is_empty(), "{different:#?}\n{made_up:#?}");
    }
}
