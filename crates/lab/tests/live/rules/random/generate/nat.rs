//! Rules that translate.

use std::fmt::Write;

use lab::Random;

use super::statements::RulePosition;
use super::{line, matches};

pub fn chains(random: &mut Random, rules: &mut String, place: RulePosition) {
    for (name, hook, priority) in
        [("target", "prerouting", "dstnat"), ("source", "postrouting", "srcnat")]
    {
        for part in 0..random.between(1, 2) {
            let sign = random.one_of(&["+", "-"]);
            let nudge = random.between(0, 2);
            writeln!(
                rules,
                "\tchain {name}{part} {{\n\t\ttype nat hook {hook} priority {priority} {sign} {nudge}; policy accept;"
            )
            .unwrap();
            let place = RulePosition { has_output: hook == "postrouting", ..place };
            for _ in 0..random.between(1, 10) {
                rule(random, rules, place);
            }
            rules.push_str("\t}\n");
        }
    }
}

fn rule(random: &mut Random, rules: &mut String, place: RulePosition) {
    let mut parts = Vec::new();
    for _ in 0..random.between(0, 2) {
        let tracked = random.once_in(4);
        parts.push(if tracked {
            matches::tracked(random)
        } else {
            matches::stateless(random, place)
        });
    }
    parts.push("counter".to_owned());
    parts.push(match random.between(0, 9) {
        0 => random.one_of(&["accept", "return", "continue"]).to_owned(),
        1 if !place.has_output => "tcp dport 81 drop".to_owned(),
        _ if place.has_output => source(random),
        _ => destination(random),
    });
    line(rules, parts);
}

fn flags(random: &mut Random) -> &'static str {
    random.one_of(&["", "", "", " persistent", " random", " fully-random"])
}

/// A match on protocols that have ports.
fn with_ports(random: &mut Random) -> String {
    random
        .one_of(&["meta l4proto { tcp, udp }", "meta l4proto tcp", "udp dport 1-65535"])
        .to_owned()
}

fn destination(random: &mut Random) -> String {
    let ports = with_ports(random);
    // A random choice would change the identifiers of echo requests, and the sources' choice would
    // change them again.
    let flags = random.one_of(&["", "", " persistent"]);
    let host = 200 + random.between(0, 3);
    match random.between(0, 15) {
        0 | 1 => format!("dnat ip to 198.51.100.{host}{flags}"),
        2 => format!("dnat ip to 198.51.100.{host}-198.51.100.207{flags}"),
        3 => format!("{ports} dnat ip to 198.51.100.{host}:8080{flags}"),
        4 => format!("{ports} dnat ip to 198.51.100.{host}:8000-8010{flags}"),
        5 => "dnat ip to ip daddr map { 198.51.100.1 : 198.51.100.100, 198.51.100.2-198.51.100.6 : 198.51.100.101, 198.51.100.8/30 : 192.0.2.102 }".into(),
        6 => "dnat ip to tcp dport map { 22 : 198.51.100.50 . 2222, 80 : 198.51.100.51 . 8080, 443 : 198.51.100.52 . 8443 }".into(),
        7 => "dnat ip prefix to ip daddr map { 198.51.100.0/29 : 198.51.100.192/29, 198.51.100.8/30 : 198.51.100.240/30 }".into(),
        8 => format!("dnat ip6 to 2001:db8:2::{host}{flags}"),
        9 => format!("{ports} dnat ip6 to [2001:db8:2::{host}]:8080{flags}"),
        10 => format!("dnat ip6 to 2001:db8:2::{host}-2001:db8:2::20f{flags}"),
        11 => "dnat ip6 to ip6 daddr map { 2001:db8:2::1 : 2001:db8:2::101, 2001:db8:2::2 : 2001:db8:2::102 }".into(),
        12 => "dnat ip to ip daddr . tcp dport map { 198.51.100.1 . 22 : 198.51.100.61 . 22, 198.51.100.2 . 80 : 198.51.100.62 . 8080 }".into(),
        13 => "dnat ip to numgen inc mod 3 map { 0 : 198.51.100.120, 1 : 198.51.100.121 }".into(),
        14 => "dnat ip to jhash ip saddr . tcp dport mod 2 seed 0x5 map { 0 : 198.51.100.122 . 8080, 1 : 198.51.100.123 . 8081 }".into(),
        _ => format!("{ports} dnat to :{}", random.one_of(&["8080", "9000-9010"])),
    }
}

fn source(random: &mut Random) -> String {
    let ports = with_ports(random);
    let flags = flags(random);
    let host = random.between(1, 4);
    match random.between(0, 14) {
        0 | 1 => format!("snat ip to 203.0.113.{host}{flags}"),
        2 => format!("snat ip to 203.0.113.{host}-203.0.113.5{flags}"),
        3 => format!("{ports} snat ip to 203.0.113.{host}:20000-30000{flags}"),
        4 => format!("{ports} snat ip to 203.0.113.{host}-203.0.113.5:1000-65000{flags}"),
        5 => "snat ip to ip saddr map { 192.0.2.1 : 203.0.113.101, 192.0.2.2-192.0.2.6 : 203.0.113.102, 192.0.2.8/30 : 203.0.113.103 }".into(),
        6 => "snat ip prefix to ip saddr map { 192.0.2.0/29 : 203.0.113.64/29, 192.0.2.8/30 : 203.0.113.240/30 }".into(),
        7 => format!("snat ip6 to 2001:db8:9::{host}{flags}"),
        8 => format!("snat ip6 to 2001:db8:9::{host}-2001:db8:9::7{flags}"),
        9 => format!("{ports} snat ip6 to [2001:db8:9::{host}]:30000-40000{flags}"),
        10 | 11 => format!("masquerade{}", flags.replace(" persistent", "")),
        12 => format!("{ports} masquerade to :5000-6000{flags}"),
        13 => "snat ip to ip saddr . udp dport map { 192.0.2.1 . 53 : 203.0.113.1 . 4000-5000, 192.0.2.2 . 53 : 203.0.113.2 . 53 }".replace("4000-5000", "4000"),
        _ => "masquerade fully-random".into(),
    }
}
