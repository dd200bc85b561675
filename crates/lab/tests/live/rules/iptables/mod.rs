//! Every match and target of iptables that a gateway takes, beside the kernel. Both have the same
//! rules, one for each form: the kernel from iptables-restore, the gateway from iptables-save. The
//! same packets go through both, and each rule has to count the same.

mod packets;

use std::collections::BTreeMap;
use std::fmt::Write;

use lab::{Error, Family, Result, Side, Stateway, StatewaySpec};
use wire::build::PacketBuilder;
use wire::{TcpFlags, protocol};

use self::packets::{Kind, kinds};
use crate::scenario::cables::{CLIENT, Router, SERVER, Sent};
use crate::scenario::{beside_others, hex, router_spec, start_in, stateway_binary};

/// Kinds of packets that are sent between two readings of the counters. The first is sent once, and
/// each other one twice as often as the one before, so that a count tells which of them a rule has
/// matched.
const KINDS_AT_ONCE: usize = 5;
/// The number of frames of a group that a failure lists.
const MOST_LISTED: usize = 4;
/// The source port of the first packet.
const FIRST_PORT: u16 = 20_000;

/// A rule that takes part in the comparison.
struct Form {
    families: &'static str,
    table: &'static str,
    chain: &'static str,
    rule: &'static str,
}

fn forms() -> Vec<Form> {
    let lines = include_str!("forms.txt").lines();
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    let form = |line: &'static str| {
        let mut words = line.splitn(2, ' ');
        let (families, rest) = (words.next().unwrap(), words.next().unwrap().trim_start());
        let mut words = rest.splitn(3, ' ');
        let mut word = || words.next().expect("families, table, chain, rule");
        Form { families, table: word(), chain: word(), rule: word() }
    };
    lines.map(form).collect()
}

/// The text of a rule for a family. Its comment has the number of its form.
fn rule(form: &Form, number: usize, family: Family) -> String {
    const WORDS: [(&str, &str); 8] = [
        ("192.0.2.0/24", "2001:db8:1::/64"),
        ("198.51.100.0/24", "2001:db8:2::/64"),
        ("198.51.100.254", "2001:db8:2::fe"),
        ("198.51.100.2:", "[2001:db8:2::2]:"),
        ("192.0.2.", "2001:db8:1::"),
        ("198.51.100.", "2001:db8:2::"),
        ("/32", "/128"),
        ("iptables", "ip6tables"),
    ];
    let Form { chain, rule, .. } = form;
    let rule = match family {
        Family::V4 => (*rule).to_owned(),
        Family::V6 => WORDS.iter().fold((*rule).to_owned(), |rule, (v4, v6)| rule.replace(v4, v6)),
    };
    format!("-A {chain} -m comment --comment \"form {number}\" {rule}\n")
}

/// The ruleset of a family.
fn save(forms: &[Form], family: Family) -> String {
    let chains = [
        ("raw", &["PREROUTING", "OUTPUT"][..]),
        ("mangle", &["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"]),
        ("nat", &["PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"]),
        ("filter", &["INPUT", "FORWARD", "OUTPUT"]),
    ];
    let own = if family == Family::V4 { "4" } else { "6" };
    let mut save = String::new();
    for (table, chains) in chains {
        writeln!(save, "*{table}").unwrap();
        for chain in chains {
            writeln!(save, ":{chain} ACCEPT [0:0]").unwrap();
        }
        if table == "filter" {
            save += ":returning - [0:0]\n";
        }
        let of_table = |(_, form): &(usize, &Form)| {
            form.table == table && ["both", own].contains(&form.families)
        };
        for (number, form) in forms.iter().enumerate().filter(of_table) {
            save += &rule(form, number, family);
        }
        save += "COMMIT\n";
    }
    save
}

/// The packets that the rule of each form has counted, of IPv4 and of IPv6.
type Counts = BTreeMap<(bool, usize), u64>;

/// The counters of the kernel, as iptables-save prints them in front of each rule.
fn kernels_counts(router: &Router) -> Result<Counts> {
    let mut counts = Counts::new();
    for (is_v6, program) in [(false, "iptables-nft-save"), (true, "ip6tables-nft-save")] {
        let printed = router.namespace.program(program).args(["-c"]).check()?;
        for line in printed.lines() {
            let Some((_, number)) = line.split_once("form ") else { continue };
            let number: String = number.chars().take_while(char::is_ascii_digit).collect();
            let packets = line.trim_start_matches('[').split(':').next().expect("a counter");
            let packets = packets.parse().expect("a counter of packets");
            let Ok(number) = number.parse() else { continue };
            counts.insert((is_v6, number), packets);
        }
    }
    Ok(counts)
}

/// The counters of the gateway. A form may have become more than one rule.
fn our_counts(gateway: &Stateway) -> Result<Counts> {
    let listed = gateway.query(&["rules", "list"])?;
    let mut counts = Counts::new();
    let rules = listed["nftables"].as_array().expect("a list").iter();
    for rule in rules.map(|object| &object["rule"]) {
        let Some(number) = rule["comment"].as_str().and_then(|it| it.strip_prefix("form ")) else {
            continue;
        };
        let statements = rule["expr"].as_array().expect("a list").iter();
        let counted: u64 =
            statements.filter_map(|statement| statement["counter"]["packets"].as_u64()).sum();
        let number = number.parse().expect("the number of a form");
        *counts.entry((rule["family"] == "ip6", number)).or_default() += counted;
    }
    Ok(counts)
}

/// The frames that came out, and what the rules have counted, behind each group of kinds.
struct Outcome {
    came: Vec<Vec<Seen>>,
    counts: Vec<Counts>,
}

/// The part of a frame that has to be the same: the side where it came out, and its bytes. Gateways choose
/// the identification of IPv4 themselves, and the header of their own errors and resets.
type Seen = (bool, Vec<u8>);

fn seen(Sent { side, frame }: &Sent) -> Seen {
    let mut bytes = frame.clone();
    let (protocol, transport) = if bytes[12..14] == [8, 0] {
        bytes[18..20].fill(0);
        bytes[24..26].fill(0);
        (bytes[23], 34)
    } else {
        (bytes[20], 54)
    };
    let is_reset = protocol == protocol::TCP && bytes[transport + 13] & TcpFlags::RST.0 != 0;
    if is_reset || [protocol::ICMP, protocol::ICMPV6].contains(&protocol) {
        bytes.drain(..transport);
    }
    if is_reset {
        // A cable passes on the checksum that a sender leaves to its hardware.
        bytes[16..18].fill(0);
    }
    (*side == Side::Server, bytes)
}

/// Frames that a gateway forwards, and whose end the player waits for.
#[derive(Default)]
struct Marks(u64);

impl Marks {
    fn from(&mut self, side: Side) -> (Sent, bool) {
        self.0 += 1;
        // Connections with both directions would change by the time that they last.
        let (headers, port) = match side {
            Side::Client => (PacketBuilder::v4(CLIENT, SERVER), 9),
            Side::Server => (PacketBuilder::v4(SERVER, CLIENT), 11),
        };
        let mut frame = Vec::new();
        headers.udp(port, port, &[&[0; 16][..], &self.0.to_be_bytes()].concat(), &mut frame);
        (Sent { side, frame }, true)
    }
}

/// Sends all kinds. Nothing is sent before the packet in front of it has gone its way.
fn play(
    router: &Router,
    groups: &[Vec<Kind>],
    counts: impl Fn() -> Result<Counts>,
) -> Result<Outcome> {
    let mut outcome = Outcome { came: Vec::new(), counts: vec![counts()?] };
    let (mut port, mut marks) = (FIRST_PORT, Marks::default());
    for group in groups {
        let mut sent = Vec::new();
        for (number, kind) in group.iter().enumerate() {
            for _ in 0..1 << (number % KINDS_AT_ONCE) {
                for packet in (kind.packets)(port) {
                    let mark = marks.from(packet.side);
                    sent.extend([(packet, false), mark]);
                }
                port += 1;
            }
        }
        // An answer may be behind the mark of its packet.
        sent.extend([marks.from(Side::Client), marks.from(Side::Server)]);
        let came = router.burst(&sent)?;
        // The kernel tells its neighbours of itself.
        let came = came.iter().filter(|sent| sent.frame[0] & 1 == 0);
        let mut came: Vec<Seen> = came.map(seen).collect();
        came.sort();
        outcome.came.push(came);
        outcome.counts.push(counts()?);
    }
    Ok(outcome)
}

/// The frames of one list that the other has not, in hexadecimal digits.
fn without(of: &[Seen], other: &[Seen]) -> Vec<String> {
    let mut left = other.to_vec();
    let mut missing = Vec::new();
    for seen in of {
        match left.iter().position(|it| it == seen) {
            Some(at) => drop(left.remove(at)),
            None => missing.push(format!("to server: {} {}", seen.0, hex(&seen.1))),
        }
    }
    missing.truncate(MOST_LISTED);
    missing
}

/// A router that takes packets from any source, as the spoofed one.
fn open_router() -> Result<Router> {
    let router = Router::new()?;
    let filters = ["all", "client0", "server0"].map(|it| format!("net.ipv4.conf.{it}.rp_filter=0"));
    router.namespace.sysctl(filters)?;
    Ok(router)
}

/// Keeps the host from refusing datagrams, which a gateway does in its name, but a moment later.
fn silence_host(router: &Router) -> Result<()> {
    for program in ["iptables-nft", "ip6tables-nft"] {
        let rule = ["-A", "INPUT", "-p", "udp", "--dport", "5001", "-j", "DROP"];
        router.namespace.program(program).args(rule).check()?;
    }
    Ok(())
}

#[test]
fn every_form_of_iptables_matches_what_it_matches_in_the_kernel() {
    beside_others(|| {
        stateway_binary()?;
        let forms = forms();
        let saves = [Family::V4, Family::V6].map(|family| save(&forms, family));
        let groups = packets_in_groups();

        let router = open_router()?;
        let mut saved = String::new();
        for (program, save) in ["iptables-nft", "ip6tables-nft"].iter().zip(&saves) {
            let restore = router.namespace.program(&format!("{program}-restore"));
            let output = restore.input(save.clone()).run()?;
            if output.code != Some(0) && output.stderr.contains("No such file") {
                return Err(Error::Unavailable { why: output.stderr });
            }
            assert_eq!(output.code, Some(0), "{}", output.stderr);
            saved += &router.namespace.program(&format!("{program}-save")).check()?;
        }
        silence_host(&router)?;
        let theirs = play(&router, &groups, || kernels_counts(&router))?;
        drop(router);

        let router = open_router()?;
        silence_host(&router)?;
        let file = router.namespace.write_file("rules.save", saved.as_bytes())?;
        let spec = StatewaySpec {
            interfaces: ["client0", "server0"].map(str::to_owned).to_vec(),
            gateway: "buckets = 1\nrp_filter = \"off\"\n".to_owned(),
            more: format!("[rules]\nfile = \"{file}\"\n"),
            ..router_spec(1)?
        };
        let gateway = start_in(&router.namespace, &spec)?;
        let ours = play(&router, &groups, || our_counts(&gateway))?;
        let output = gateway.stop()?;
        assert_eq!(output.code, Some(0), "log of stateway:\n{}", output.stdout);

        let found = differences(&forms, &groups, &theirs, &ours);
        assert!(found.is_empty(), "{} differences:\n{}", found.len(), found.join("\n"));
        Ok(())
    });
}

/// All kinds of packets, in groups. The kinds of both families are in one group.
fn packets_in_groups() -> Vec<Vec<Kind>> {
    let mut groups: Vec<Vec<Kind>> = Vec::new();
    for family in [Family::V4, Family::V6] {
        let mut kinds = kinds(family).into_iter().peekable();
        let mut at = 0;
        while kinds.peek().is_some() {
            if groups.len() == at {
                groups.push(Vec::new());
            }
            groups[at].extend(kinds.by_ref().take(KINDS_AT_ONCE));
            at += 1;
        }
    }
    groups
}

fn differences(
    forms: &[Form],
    groups: &[Vec<Kind>],
    theirs: &Outcome,
    ours: &Outcome,
) -> Vec<String> {
    let mut found = Vec::new();
    // A form that no packet matches shows nothing.
    let unmatched = theirs.counts.last().expect("counts").iter().filter(|(_, count)| **count == 0);
    for ((is_v6, number), _) in unmatched.filter(|((_, number), _)| !is_never(&forms[*number])) {
        found.push(format!("no packet matches (v6: {is_v6}): {}", forms[*number].rule));
    }
    for (at, group) in groups.iter().enumerate() {
        let names: Vec<&str> = group.iter().map(|kind| kind.name.as_str()).collect();
        let grown = |outcome: &Outcome, form: &(bool, usize)| {
            let of = |at: usize| outcome.counts[at].get(form).copied().unwrap_or_default();
            of(at + 1) - of(at)
        };
        for form in theirs.counts[at].keys() {
            let Form { table, chain, rule, .. } = forms[form.1];
            let (kernel, gateway) = (grown(theirs, form), grown(ours, form));
            // A rule that copies bits of marks is a pair of rules for each bit. The rules that match
            // marks show its effect.
            if kernel != gateway && !rule.contains("mask 0x") {
                found.push(format!(
                    "{table} {chain} {rule} (v6: {}): kernel {kernel:#b}, ours {gateway:#b} of \
                     {names:?}",
                    form.0
                ));
            }
        }
        let both = [
            ("kernel", without(&theirs.came[at], &ours.came[at])),
            ("ours", without(&ours.came[at], &theirs.came[at])),
        ];
        for (whose, frames) in both.into_iter().filter(|(_, frames)| !frames.is_empty()) {
            found.push(format!("{whose} alone, of {names:?}:\n  {}", frames.join("\n  ")));
        }
    }
    found
}

/// True for rules that no packet here matches: fragments come reassembled, the player sends to the
/// router's station alone, and nobody announces connections.
fn is_never(form: &Form) -> bool {
    const NEVER: [&str; 7] = [
        "-f",
        "-m conntrack ! --ctstate INVALID,NEW,RELATED,ESTABLISHED,UNTRACKED,DNAT",
        "-m conntrack --ctstatus EXPECTED",
        "-m pkttype ! --pkt-type unicast",
        "-m pkttype --pkt-type broadcast",
        "-m addrtype --src-type LOCAL",
        "-p dccp -m dccp ! --dport 5",
    ];
    NEVER.contains(&form.rule)
}
