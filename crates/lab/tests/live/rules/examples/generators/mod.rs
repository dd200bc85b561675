//! Rulesets as generators write them. Those of firewalld and iptables-nft come from the programs
//! themselves; the others have the layout of theirs. Each goes through the kernel and through a
//! gateway of ours, which takes it whole, and hosts have to get the same packets with the same
//! addresses and the same answers.

use std::path::Path;

use lab::{Error, Namespace, Result};
use serde_json::{Value, json};

use super::gateways::{kernel_with, ours_with};
use super::sites::{Cable, Choice, Site, Source, Target};
use super::talks::talks;
use super::{differences, is_nothing, moved};
use crate::scenario::{beside_others, stateway_binary};

/// The number of exchanges of each family.
const PROBES: usize = 200;
/// The source port of the first.
const FIRST_PORT: u16 = 10_000;

/// A router with three interfaces of these names: hosts, other hosts, and the uplink.
fn site([lan, guest, wan]: [&'static str; 3]) -> Site {
    let cables = [
        Cable {
            name: lan,
            addresses: &["198.51.100.1/24", "2001:db8:2::1/64"],
            hosts: &[
                "198.51.100.10",
                "198.51.100.11",
                "198.51.100.20",
                "2001:db8:2::10",
                "2001:db8:2::11",
                "2001:db8:2::20",
            ],
        },
        Cable {
            name: guest,
            addresses: &["203.0.113.129/25", "2001:db8:3::1/64"],
            hosts: &["203.0.113.140", "203.0.113.141", "2001:db8:3::140", "2001:db8:3::141"],
        },
        Cable {
            name: wan,
            addresses: &["192.0.2.65/26", "2001:db8:1::1/64"],
            hosts: &["192.0.2.66", "2001:db8:1::2"],
        },
    ];
    let routes = [
        format!("default via 192.0.2.66 dev {wan}"),
        format!("default via 2001:db8:1::2 dev {wan}"),
    ];
    let sources = [
        (lan, ["198.51.100.10", "2001:db8:2::10"]),
        (lan, ["198.51.100.20", "2001:db8:2::20"]),
        (guest, ["203.0.113.140", "2001:db8:3::140"]),
        (wan, ["203.0.113.9", "2001:db8:9::9"]),
        (wan, ["203.0.113.11", "2001:db8:9::11"]),
    ];
    let sources =
        sources.iter().flat_map(|(at, addresses)| addresses.map(|address| Source { at, address }));
    let host = |at, addresses: [&'static str; 2], tcp, udp| {
        addresses.map(|address| Target { at, address, tcp, udp })
    };
    let targets = [
        host(Some(lan), ["198.51.100.20", "2001:db8:2::20"], &[22, 80, 8080][..], &[53, 500][..]),
        host(Some(lan), ["198.51.100.10", "2001:db8:2::10"], &[80, 8080, 443], &[53]),
        host(Some(guest), ["203.0.113.140", "2001:db8:3::140"], &[22, 80, 443], &[53, 5000]),
        host(Some(wan), ["203.0.113.9", "2001:db8:9::9"], &[22, 80, 443], &[53, 123]),
        // The gateway's own addresses, those of services, and one that nobody has.
        host(None, ["192.0.2.65", "2001:db8:1::1"], &[8080, 8443, 30080, 81], &[5000, 30053]),
        host(None, ["192.0.2.130", "2001:db8:5::130"], &[80, 81], &[53]),
        host(None, ["192.0.2.131", "2001:db8:5::131"], &[443], &[443]),
        host(None, ["192.0.2.132", "2001:db8:5::132"], &[80], &[53]),
    ];
    let own = [
        "192.0.2.65",
        "198.51.100.1",
        "203.0.113.129",
        "2001:db8:1::1",
        "2001:db8:2::1",
        "2001:db8:3::1",
    ];
    let masqueraded = own.map(|own| Choice { first: own, last: own, ports: Some((1, 65_535)) });
    let endpoints = [["198.51.100.10", "198.51.100.11"], ["2001:db8:2::10", "2001:db8:2::11"]];
    let endpoints = endpoints.map(|[first, last]| Choice { first, last, ports: None });
    let ports = ["198.51.100.11", "2001:db8:2::11"];
    let ports = ports.map(|it| Choice { first: it, last: it, ports: Some((8080, 8081)) });
    Site {
        cables: Box::leak(Box::new(cables)),
        routes: Box::leak(Box::new(routes.map(|route| &*route.leak()))),
        sources: sources.collect::<Vec<_>>().leak(),
        targets: targets.into_iter().flatten().collect::<Vec<_>>().leak(),
        choices: masqueraded.into_iter().chain(endpoints).chain(ports).collect::<Vec<_>>().leak(),
        forwarded: &["192.0.2.65", "2001:db8:1::1"],
    }
}

/// As many exchanges of each family.
fn probes(site: &Site, seed: u64) -> Vec<Value> {
    let all = talks(site, seed, usize::MAX);
    let is_v6 = |talk: &&Value| talk["from"].as_str().is_some_and(|from| from.contains(':'));
    let mut probes = Vec::new();
    for v6 in [false, true] {
        probes.extend(all.iter().filter(|talk| is_v6(talk) == v6).take(PROBES).cloned());
    }
    assert_eq!(probes.len(), 2 * PROBES, "there are enough hosts and ports");
    for (talk, port) in probes.iter_mut().zip(FIRST_PORT..) {
        talk["sport"] = json!(port);
    }
    probes
}

/// Sends the probes through the kernel, which has the rules from `load`, and through ours, which
/// has this text of them, or what nft prints of the kernel's.
fn are_the_same(
    site: &Site,
    load: impl Fn(&Namespace) -> Result<()>,
    text: Option<&str>,
    seed: u64,
) -> Result<()> {
    stateway_binary()?;
    let probes = probes(site, seed);
    let theirs = kernel_with(site, &load, &probes)?;
    let text = text.unwrap_or(&theirs.before);
    let ours = ours_with(site, &load, text, &probes, &theirs.talks)?;
    let steps = theirs.talks.iter().flatten();
    let passed = steps.clone().filter(|frames| !frames.is_empty()).count();
    println!("{} probes of {} packets, {passed} of them passed", probes.len(), steps.count());
    assert!(passed > probes.len() / 4, "{passed} packets passed");
    let mut found = differences(site, &probes, &theirs, &ours);
    found.extend(moved(&probes, &ours));
    is_nothing(&found);
    Ok(())
}

/// The same rules for the other family.
fn for_v6(rules: &str) -> String {
    const WORDS: [(&str, &str); 14] = [
        ("table ip ", "table ip6 "),
        ("ipv4_addr", "ipv6_addr"),
        ("ip saddr", "ip6 saddr"),
        ("ip daddr", "ip6 daddr"),
        ("127.0.0.0/8", "::1"),
        ("224.0.0.0/24", "ff02::/16"),
        ("192.0.2.65", "2001:db8:1::1"),
        ("192.0.2.128/26", "2001:db8:5::/64"),
        ("192.0.2.", "2001:db8:5::"),
        ("198.51.100.0/24", "2001:db8:2::/64"),
        ("198.51.100.", "2001:db8:2::"),
        ("203.0.113.128/25", "2001:db8:3::/64"),
        ("203.0.113.0/24", "2001:db8:9::/64"),
        ("203.0.113.", "2001:db8:3::"),
    ];
    let mut text = String::new();
    // There is no broadcast.
    for line in rules.lines().filter(|line| !line.contains("255.255.255.255")) {
        let line = match line.split_once("dnat to ") {
            Some((before, to)) => {
                let (address, port) = to.split_once(':').expect("an address and a port");
                format!("{before}dnat to [{address}]:{port}")
            }
            None => line.to_owned(),
        };
        text += &WORDS.iter().fold(line, |line, (v4, v6)| line.replace(v4, v6));
        text.push('\n');
    }
    text
}

fn text_is_the_same(site: &Site, rules: &str, seed: u64) -> Result<()> {
    are_the_same(site, |namespace| namespace.load_rules(rules), None, seed)
}

#[test]
fn firewalld_is_one_with_the_kernels() {
    beside_others(|| {
        if !Path::new("/usr/sbin/firewalld").exists() {
            return Err(Error::Unavailable { why: "no firewalld".into() });
        }
        let generator = Namespace::new("firewalld")?;
        let script = generator.write_file("firewalld.py", include_bytes!("firewalld.py"))?;
        generator.program("/usr/bin/python3").args([script]).check()?;
        let rules = generator.program("nft").args(["list", "ruleset"]).check()?;
        text_is_the_same(&site(["lan0", "guest0", "wan0"]), &rules, 21)
    });
}

/// The same rules of iptables-save for the other family.
fn save_for_v6(save: &str) -> String {
    const WORDS: [(&str, &str); 13] = [
        ("127.0.0.0/8", "::1/128"),
        ("127.0.0.1/32", "::1/128"),
        ("192.0.2.65", "2001:db8:1::1"),
        ("192.0.2.", "2001:db8:5::"),
        ("198.51.100.0/24", "2001:db8:2::/64"),
        ("198.51.100.", "2001:db8:2::"),
        ("203.0.113.128/25", "2001:db8:3::/64"),
        ("203.0.113.11/", "2001:db8:9::11/"),
        ("203.0.113.", "2001:db8:3::"),
        ("/32", "/128"),
        ("icmp-port", "icmp6-port"),
        ("-p icmp -m icmp", "-p ipv6-icmp -m icmp6"),
        ("--icmp-type", "--icmpv6-type"),
    ];
    let mut text = String::new();
    for line in save.lines() {
        let line = match line.split_once("--to-destination ") {
            Some((before, to)) => {
                let (address, port) = to.split_once(':').expect("an address and a port");
                format!("{before}--to-destination [{address}]:{port}")
            }
            None => line.to_owned(),
        };
        text += &WORDS.iter().fold(line, |line, (v4, v6)| line.replace(v4, v6));
        text.push('\n');
    }
    text
}

/// The same for rules that both programs of iptables have, of IPv4 and of IPv6.
fn saves_are_the_same(site: &Site, saves: [&str; 2], seed: u64) -> Result<()> {
    let programs = ["iptables-nft", "ip6tables-nft"];
    let load = |namespace: &Namespace| {
        for (program, save) in programs.iter().zip(saves) {
            let restore = namespace.program(&format!("{program}-restore"));
            restore.input(save.to_owned()).check()?;
        }
        Ok(())
    };
    // The programs save their own rules, in one file.
    let generator = Namespace::new("iptables")?;
    load(&generator)?;
    let mut saved = String::new();
    for program in programs {
        saved += &generator.program(&format!("{program}-save")).check()?;
    }
    are_the_same(site, load, Some(&saved), seed)
}

#[test]
fn rules_of_iptables_nft_are_one_with_the_kernels() {
    beside_others(|| {
        let saves = [include_str!("iptables.save"), include_str!("ip6tables.save")];
        saves_are_the_same(&site(["lan0", "guest0", "wan0"]), saves, 22)
    });
}

#[test]
fn rules_of_iptables_like_those_of_kube_proxy_are_one_with_the_kernels() {
    beside_others(|| {
        let save = include_str!("kube-proxy.save");
        saves_are_the_same(&site(["cni0", "guest0", "wan0"]), [save, &save_for_v6(save)], 27)
    });
}

#[test]
fn rules_of_iptables_like_those_of_docker_are_one_with_the_kernels() {
    beside_others(|| {
        let save = include_str!("docker.save");
        saves_are_the_same(&site(["docker0", "br-app", "wan0"]), [save, &save_for_v6(save)], 28)
    });
}

#[test]
fn a_ruleset_like_that_of_fw4_is_one_with_the_kernels() {
    beside_others(|| {
        text_is_the_same(&site(["lan0", "guest0", "wan0"]), include_str!("fw4.nft"), 23)
    });
}

#[test]
fn a_ruleset_like_that_of_libvirt_is_one_with_the_kernels() {
    beside_others(|| {
        let rules = include_str!("libvirt.nft");
        let rules = format!("{rules}{}", for_v6(rules));
        text_is_the_same(&site(["virbr0", "guest0", "wan0"]), &rules, 24)
    });
}

#[test]
fn a_ruleset_like_that_of_docker_is_one_with_the_kernels() {
    beside_others(|| {
        let rules = include_str!("docker.nft");
        let rules = format!("{rules}{}", for_v6(rules));
        text_is_the_same(&site(["docker0", "br-app", "wan0"]), &rules, 25)
    });
}

#[test]
fn a_ruleset_like_that_of_kube_proxy_is_one_with_the_kernels() {
    beside_others(|| {
        let rules = include_str!("kube-proxy.nft");
        let rules = format!("{rules}{}", for_v6(rules));
        text_is_the_same(&site(["cni0", "guest0", "wan0"]), &rules, 26)
    });
}
