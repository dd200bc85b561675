//! Rulesets as operators write them: those of `examples/rulesets`, and one with ten thousand
//! elements. The same exchanges go through the kernel and through a gateway of ours and must have
//! the same results: the frames that arrive, the answers and the counters.

mod differences;
mod gateways;
mod generators;
mod sites;
mod talks;

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use lab::Result;
use serde_json::{Value, json};

use self::gateways::{Frame, Outcome, kernel, ours};
use self::sites::{CONTAINERS, Choice, HOME_ROUTER, NAT_GATEWAY, SERVER, Site, Source};
use self::talks::talks;
use crate::scenario::{beside_others, different_objects, stateway_binary};

/// The number of exchanges through each ruleset.
const TALKS: usize = 250;
/// The number of differences that a failure lists.
const MOST_LISTED: usize = 8;

fn example(name: &str) -> String {
    let path = format!("{}/../../examples/rulesets/{name}.nft", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The same rules, with a counter in front of the verdict of each rule that has none.
fn counting(rules: &str) -> String {
    const VERDICTS: [&str; 11] = [
        "accept",
        "drop",
        "jump",
        "goto",
        "return",
        "reject",
        "dnat",
        "snat",
        "masquerade",
        "redirect",
        "notrack",
    ];
    let mut counting = String::new();
    let mut is_chain = false;
    for line in rules.lines() {
        let rule = line.trim();
        is_chain = (is_chain || rule.starts_with("chain ")) && rule != "}";
        let is_rule = is_chain && !rule.starts_with("chain ") && !rule.starts_with("type ");
        let mut words: Vec<&str> = rule.split(' ').collect();
        // Verdicts inside maps are not the verdict of the rule.
        let mut depth = 0;
        let verdict = (0..words.len()).find(|at| {
            depth += i32::from(words[*at] == "{") - i32::from(words[*at] == "}");
            // `ct status dnat` is a match.
            let asks = *at > 1 && words[..*at].iter().rev().take(2).any(|word| *word == "status");
            depth == 0 && VERDICTS.contains(&words[*at]) && !asks
        });
        if let Some(at) = verdict.filter(|_| is_rule && !words.contains(&"counter")) {
            words.insert(at, "counter");
        }
        writeln!(counting, "{}", words.join(" ")).expect("text");
    }
    counting
}

/// The differences between the kernel's results and ours.
fn differences(site: &Site, talks: &[Value], theirs: &Outcome, ours: &Outcome) -> Vec<String> {
    let mut found = Vec::new();
    assert_eq!((theirs.talks.len(), ours.talks.len()), (talks.len(), talks.len()));
    for ((talk, theirs), ours) in talks.iter().zip(&theirs.talks).zip(&ours.talks) {
        for step in 0..theirs.len().max(ours.len()) {
            let [theirs, ours] =
                [theirs, ours].map(|steps| steps.get(step).map_or(&[][..], Vec::as_slice));
            let alike = theirs.len() == ours.len()
                && theirs
                    .iter()
                    .zip(ours)
                    .all(|(theirs, ours)| are_alike(site, talk, theirs, ours));
            let is_silent =
                ours.is_empty() && theirs.iter().all(|it| differences::is_left_silent(site, it));
            if !alike && !is_silent {
                found.push(format!("{talk} step {step}:\n  kernel {theirs:?}\n  ours   {ours:?}"));
                break;
            }
        }
    }
    found
}

fn are_alike(site: &Site, talk: &Value, theirs: &Frame, ours: &Frame) -> bool {
    // The host behind ours answers as the kernel does.
    if theirs == ours {
        return true;
    }
    let theirs = &differences::as_ours(site, talk, theirs);
    theirs.at == ours.at
        && theirs.what == ours.what
        && theirs.ends.len() == ours.ends.len()
        && theirs.ends.iter().zip(&ours.ends).all(|(theirs, ours)| {
            theirs == ours
                // An end that a sender addresses directly must be equal in both.
                || !is_named(talk, theirs)
                    && site.choices.iter().any(|choice| are_chosen(choice, theirs, ours))
        })
}

fn is_named(talk: &Value, (address, port): &(String, u16)) -> bool {
    [("from", "sport"), ("to", "dport")].iter().any(|(host, own)| {
        talk[host].as_str() == Some(address) && talk[own].as_u64() == Some(u64::from(*port))
    })
}

impl Choice {
    fn has(&self, address: &str) -> bool {
        let parse = |text: &str| text.parse::<IpAddr>().expect("an address");
        (parse(self.first)..=parse(self.last)).contains(&parse(address))
    }
}

/// True if a rule allows both as a choice.
fn are_chosen(choice: &Choice, theirs: &(String, u16), ours: &(String, u16)) -> bool {
    let is_right = |port| choice.ports.is_some_and(|(first, last)| (first..=last).contains(&port));
    let ports = theirs.1 == ours.1 || is_right(theirs.1) && is_right(ours.1);
    ports && choice.has(&theirs.0) && choice.has(&ours.0)
}

/// Checks that the translated ends of an exchange stay the same.
fn moved(talks: &[Value], outcome: &Outcome) -> Vec<String> {
    let mut found = Vec::new();
    for (talk, steps) in talks.iter().zip(&outcome.talks) {
        let asked: Vec<_> = steps.iter().flatten().filter(|it| it.ends.len() == 2).collect();
        let back = |frame: &Frame| {
            frame.ends[1].0 == talk["from"].as_str().expect("text")
                && frame.at == talk["at"].as_str().expect("text")
        };
        let mut there = asked.iter().filter(|it| !back(it) && it.ends[0].1 != 0).map(|it| &it.ends);
        if let Some(first) = there.next()
            && let Some(other) = there.find(|ends| *ends != first)
        {
            found.push(format!("{talk}: {first:?}, then {other:?}"));
        }
    }
    found
}

/// The kernel's results for a ruleset at this site, and the differences from ours.
fn compare(site: &Site, rules: &str, talks: &[Value]) -> Result<(Outcome, Vec<String>)> {
    stateway_binary()?;
    let theirs = kernel(site, rules, talks)?;
    let ours = ours(site, rules, &theirs.before, talks, &theirs.talks)?;
    let mut found = differences(site, talks, &theirs, &ours);
    found.extend(moved(talks, &ours));
    let listed = different_objects(&ours.after, &theirs.after);
    if !listed.is_empty() {
        found.push(listed);
    }
    let steps = theirs.talks.iter().flatten();
    let passed = steps.clone().filter(|frames| !frames.is_empty()).count();
    println!("{} talks of {} packets, {passed} of them passed", talks.len(), steps.count());
    Ok((theirs, found))
}

fn is_nothing(found: &[String]) {
    let first: Vec<_> = found.iter().take(MOST_LISTED).map(String::as_str).collect();
    assert!(found.is_empty(), "{} differences:\n{}", found.len(), first.join("\n"));
}

fn are_the_same(site: &Site, rules: &str, talks: &[Value]) -> Result<()> {
    let (_, found) = compare(site, &counting(rules), talks)?;
    is_nothing(&found);
    Ok(())
}

#[test]
fn a_home_router_is_one_with_the_kernels() {
    beside_others(|| {
        are_the_same(&HOME_ROUTER, &example("home-router"), &talks(&HOME_ROUTER, 1, TALKS))
    });
}

#[test]
fn a_servers_firewall_is_one_with_the_kernels() {
    beside_others(|| {
        let mut talks = talks(&SERVER, 2, TALKS);
        for talk in &mut talks {
            if talk["kind"] == "ping" && talk["to"].as_str().is_some_and(|to| to.contains(':')) {
                // Not faster than the rule's limit.
                talk["pause"] = json!(0.03);
            }
        }
        are_the_same(&SERVER, &example("server"), &talks)
    });
}

#[test]
fn a_container_host_is_one_with_the_kernels() {
    beside_others(|| {
        are_the_same(&CONTAINERS, &example("containers"), &talks(&CONTAINERS, 3, TALKS))
    });
}

#[test]
fn a_nat_gateway_is_one_with_the_kernels() {
    beside_others(|| {
        let rules = example("nat-gateway");
        let mut talks = talks(&NAT_GATEWAY, 4, TALKS);
        for talk in &mut talks {
            if talk["dport"] == 2525 && talk["kind"] == "connect" {
                // The host has no listener at this port. It answers the first segment itself, so
                // our rules do not judge a second one; `refused` sends none.
                talk["kind"] = json!("refused");
            }
        }
        // The rule allows three of these at once.
        for port in 0..6 {
            talks.push(json!({
                "kind": "stray", "at": "lan0", "from": "198.51.100.70", "to": "203.0.113.9",
                "sport": 9000 + port, "dport": 25, "flags": 2,
            }));
        }
        are_the_same(&NAT_GATEWAY, &rules, &talks)
    });
}

/// A ruleset with a published list of networks, hosts and ranges. Also returns sources inside the
/// list and next to its entries.
fn blocked() -> (String, Vec<Source>) {
    const ELEMENTS: u32 = 10_000;
    let (mut lists, mut sources) = ([String::new(), String::new()], Vec::new());
    for number in 0..ELEMENTS / 2 {
        // From the network for benchmarks (RFC 2544), and from that for documentation.
        let four = |host: u32| Ipv4Addr::from(0xc612_0000 + 24 * number + host).to_string();
        let six = |host: u128| {
            let network = 0x2001_0db8_0100_u128 << 80;
            Ipv6Addr::from(network | u128::from(number) << 64 | host).to_string()
        };
        let elements = match number % 3 {
            0 => [format!("{}/29", four(0)), format!("{}/66", six(0))],
            1 => [four(7), six(7)],
            _ => [format!("{}-{}", four(1), four(6)), format!("{}-{}", six(1), six(6))],
        };
        for (list, element) in lists.iter_mut().zip(elements) {
            write!(list, "{element}, ").expect("text");
        }
        if number % 389 == 0 {
            // The first and the last address of each kind, and the addresses next to them.
            for host in [0, 1, 6, 7, 8] {
                for address in [four(host), six(u128::from(host))] {
                    sources.push(Source { at: "wan0", address: address.leak() });
                }
            }
        }
    }
    let [four, six] = lists;
    let rules = format!(
        "table inet big {{
    set blocked {{
        type ipv4_addr
        flags interval
        elements = {{ {four} }}
    }}
    set blocked6 {{
        type ipv6_addr
        flags interval
        elements = {{ {six} }}
    }}
    chain forward {{
        type filter hook forward priority filter; policy drop;
        ip saddr @blocked counter drop
        ip6 saddr @blocked6 counter drop
        ct state established,related accept
        tcp dport {{ 22, 25, 80 }} accept
        udp dport 53 accept
        meta l4proto {{ icmp, ipv6-icmp }} accept
    }}
}}
"
    );
    (rules, sources)
}

#[test]
fn a_list_of_ten_thousand_is_one_with_the_kernels() {
    beside_others(|| {
        let (rules, sources) = blocked();
        let site = Site { sources: sources.leak(), ..SERVER };
        are_the_same(&site, &rules, &talks(&site, 6, TALKS))
    });
}

#[test]
fn a_wrong_port_is_seen() {
    beside_others(|| {
        let talks = talks(&HOME_ROUTER, 5, TALKS);
        stateway_binary()?;
        let rules = example("home-router");
        let theirs = kernel(&HOME_ROUTER, &rules, &talks)?;
        let wrong = theirs.before.replace("8443", "8444");
        assert_ne!(wrong, theirs.before);
        let ours = ours(&HOME_ROUTER, &rules, &wrong, &talks, &theirs.talks)?;
        let found = differences(&HOME_ROUTER, &talks, &theirs, &ours);
        assert!(!found.is_empty() && found.iter().all(|it| it.contains("8444")), "{found:#?}");
        assert!(different_objects(&ours.after, &theirs.after).contains("8444"));
        Ok(())
    });
}
