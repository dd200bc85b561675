//! Random rulesets in nft's syntax, and packets that match their rules.

mod matches;
mod nat;
mod packets;
mod statements;

use std::fmt::Write;

use lab::{Random, Side};

use self::statements::RulePosition;

/// The kind of traffic, and with it the kind of expressions in rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// Any packets. Rules do not ask for connections.
    Stateless,
    /// A few connections with several packets each.
    Tracked,
    /// Every packet opens a connection, which rules translate.
    Translated,
}

/// A frame and the side that it comes from.
#[derive(Clone, Debug)]
pub struct Packet {
    pub side: Side,
    pub frame: Vec<u8>,
}

/// A ruleset and packets.
#[derive(Clone, Debug)]
pub struct Case {
    pub rules: String,
    pub packets: Vec<Packet>,
}

const PORTS: [u16; 8] = [21, 22, 53, 80, 81, 443, 1024, 5000];

/// A protocol for experiments (RFC 3692).
pub const NUMBERLESS: u8 = 253;

/// One of few hosts, so that rules match packets.
fn host(random: &mut Random) -> usize {
    random.between(1, 12)
}

/// The player's name for the side.
pub fn name(side: Side) -> &'static str {
    match side {
        Side::Client => "client",
        Side::Server => "server",
    }
}

pub fn other(side: Side) -> Side {
    match side {
        Side::Client => Side::Server,
        Side::Server => Side::Client,
    }
}

/// A chain of rules. Rules of long chains decide less often, because otherwise hardly any packet
/// would reach the end.
fn chain(random: &mut Random, rules: &mut String, place: RulePosition) {
    // Some chains are long enough for an index.
    let is_long = place.depth.is_some() && random.once_in(3);
    let count = if is_long { random.between(20, 60) } else { random.between(0, 8) };
    for _ in 0..count {
        let mut parts = Vec::new();
        if random.once_in(3) {
            parts.push("counter".to_owned());
        }
        for _ in 0..random.between(0, 3) {
            let asks = place.traffic != Traffic::Stateless && place.is_tracked;
            let asks = asks && random.once_in(2);
            parts.push(if asks {
                matches::tracked(random)
            } else {
                matches::stateless(random, place)
            });
        }
        if random.once_in(2) {
            parts.push(statements::statement(random, place));
        }
        parts.push("counter".to_owned());
        if count < 20 || random.once_in(3) {
            parts.push(statements::verdict(random, place));
        }
        line(rules, parts);
    }
}

fn line(rules: &mut String, mut parts: Vec<String>) {
    // nft omits a protocol that a later match on transport ports or TCP options implies, so those
    // protocol matches are left out.
    if parts.iter().any(|part| {
        part.contains("th ") || part.contains("tcp option") || part.contains("sctp chunk")
    }) {
        let protocols = ["meta l4proto", "ip protocol", "ct protocol", "ip6 nexthdr"];
        parts.retain(|part| !protocols.iter().any(|it| part.starts_with(it)) || part.contains('{'));
    }
    // Behind a hardware address nft 1.0.6 prints a refusal by ICMP without its code, and the fields
    // behind an extension header or an option as raw bits.
    let of_station = parts.iter().any(|part| part.contains("ether "));
    let extended = ["exthdr ", "ip option ", "hbh ", "dst ", "rt ", "frag "];
    parts.retain(|part| !(of_station && extended.iter().any(|it| part.starts_with(it))));
    // Beside these nft 1.0.6 also leaves out a question for the family.
    let is_extended = parts.iter().any(|part| extended.iter().any(|it| part.starts_with(it)));
    let families = ["meta protocol", "meta nfproto"];
    parts.retain(|part| !(is_extended && families.iter().any(|it| part.starts_with(it))));
    // A statement that sets a field implies such a question too.
    let sets =
        |part: &&String| part.contains(" set ") && !part.contains("meta ") && !part.contains("ct ");
    if parts.iter().any(|part| sets(&part)) {
        let implied =
            ["meta protocol", "meta nfproto", "meta l4proto", "ip protocol", "ip6 nexthdr"];
        parts.retain(|part| !implied.iter().any(|it| part.starts_with(it)));
    }
    let has_code = |part: &str| part.starts_with("reject with icmp") && !part.contains("icmpx");
    for part in parts.iter_mut().filter(|part| of_station && has_code(part)) {
        *part = "reject".to_owned();
    }
    // At most one comparison or negation per rule: nft 1.0.6 merges two if their fields are
    // adjacent.
    let compares =
        |part: &String| [" < ", " > ", "<=", ">=", "!="].iter().any(|it| part.contains(it));
    let mut seen = false;
    parts.retain(|part| !(part.is_empty() || compares(part) && std::mem::replace(&mut seen, true)));
    writeln!(rules, "\t\t{}", parts.join(" ")).unwrap();
}

/// The objects that rules refer to.
fn objects(random: &mut Random) -> String {
    let (h, i) = (host(random), host(random));
    let (rate, burst) = (random.between(1, 9), random.between(1, 9));
    let over = random.one_of(&["", "over "]);
    let used = random.one_of(&["", " used 500 bytes"]);
    // The element for all keys that no other element has.
    let mut draw = Random::new((13 * h + i) as u64);
    let mut others = |element: &'static str| if draw.once_in(4) { element } else { "" };
    let [listed, nets, pairs, triples, names] = [(); 5].map(|()| others(", *"));
    let [verdicts, counted] = [(); 2].map(|()| others(", * : continue"));
    let (pairs_verdicts, marked) = (others(", * : drop"), others(", * : 0x4"));
    format!(
        "\tcounter shared {{ }}
\tcounter begun {{ packets {h} bytes 1000; }}
\tquota some {{ {over}1500 bytes{used} }}
\tlimit slow {{ rate {over}{rate}/hour burst {burst} packets }}
\tset seen {{ type ipv4_addr; size SIZE; flags dynamic; }}
\tset passing {{ type ipv4_addr . inet_service; size 1000; flags dynamic,timeout; timeout 1h; }}
\tset counted {{ type ipv6_addr; size 1000; flags dynamic; counter; }}
\tset measured {{ type ipv4_addr; size 1000; flags dynamic; }}
\tset exceeding {{ type ipv4_addr . ipv4_addr; size 1000; flags dynamic; }}
\tset listed {{ type ipv4_addr; flags interval; counter; elements = {{ 192.0.2.{h}, 198.51.100.{i}-198.51.100.20{listed} }} }}
\tset ends {{ type ipv4_addr; flags interval,timeout; elements = {{ 192.0.2.0/30 timeout 1h, 198.51.100.{i} timeout 2h }} }}
\tset nets {{ type ipv6_addr; flags interval; elements = {{ 2001:db8:1::{h:x}-2001:db8:1::ff, 2001:db8:2::/125{nets} }} }}
\tset pairs {{ type ipv4_addr . inet_proto; elements = {{ 198.51.100.{i} . tcp, 192.0.2.{h} . udp, 198.51.100.2 . icmp{pairs} }} }}
\tset triples {{ typeof ip saddr . ip daddr . th dport; flags interval; elements = {{ 192.0.2.0/29 . 198.51.100.0-198.51.100.9 . 20-100, 192.0.2.8-192.0.2.12 . 198.51.100.{i} . 443{triples} }} }}
\tset ways {{ type ifname . inet_proto; elements = {{ \"client0\" . tcp, \"server0\" . udp }} }}
\tset names {{ type ifname; flags interval; elements = {{ \"client*\", \"lan0\"{names} }} }}
\tset marks {{ type mark; flags interval; elements = {{ 0x1, 0x10-0x20 }} }}
\tmap counters {{ type inet_service : counter; elements = {{ 22 : \"shared\", 80 : \"begun\" }} }}
\tmap limits {{ type ipv4_addr : limit; flags interval; elements = {{ 192.0.2.0/29 : \"slow\" }} }}
\tmap verdicts {{ type ipv4_addr : verdict; flags interval; elements = {{ 198.51.100.{i} : accept, 192.0.2.0/30 : drop{verdicts} }} }}
\tmap pairs_verdicts {{ type ipv4_addr . inet_service : verdict; flags interval; elements = {{ 192.0.2.0/29 . 20-60 : drop, 198.51.100.0/28 . 1024-65535 : accept{pairs_verdicts} }} }}
\tmap marked {{ type ipv4_addr : mark; flags interval; elements = {{ 192.0.2.0/30 : 0x1, 192.0.2.{h}0-192.0.2.{h}9 : 0x2, 198.51.100.{i} : 0x13{marked} }} }}
\tmap counted_verdicts {{ type inet_service : verdict; counter; elements = {{ 22 : continue, 80 : drop, 443 : accept{counted} }} }}
"
    )
}

/// The case that this seed determines.
pub fn case(seed: u64, traffic: Traffic) -> Case {
    let mut random = Random::new(seed);
    let random = &mut random;
    let mut rules = format!("table inet t {{\n{}", objects(random));
    // The kernel's answers pass its postrouting chains because its host sends them; ours do not.
    let refuses = random.once_in(2);
    let place = RulePosition {
        traffic,
        depth: None,
        is_tracked: true,
        has_output: true,
        refuses,
        drops: false,
    };
    for depth in (0..3).rev() {
        writeln!(rules, "\tchain c{depth} {{").unwrap();
        if depth == 0 {
            let policy = random.one_of(&["accept", "accept", "drop"]);
            let policy = if traffic == Traffic::Translated { "accept" } else { policy };
            writeln!(rules, "\t\ttype filter hook forward priority 0; policy {policy};").unwrap();
        }
        chain(random, &mut rules, RulePosition { depth: Some(depth), ..place });
        rules.push_str("\t}\n");
    }
    for (name, hook, priorities, often) in [
        ("raw", "prerouting", &["raw", "-301", "-200"][..], 3),
        ("early", "prerouting", &["mangle", "-199", "dstnat - 10"], 3),
        ("late", "prerouting", &["0", "filter + 5", "-99"], 4),
        ("behind", "forward", &["-5", "0", "5", "security"], 2),
        ("leaving", "postrouting", &["-10", "mangle", "srcnat - 1"], 3),
        ("left", "postrouting", &["srcnat + 1", "200"], 4),
    ] {
        if !random.once_in(often) || (refuses && hook == "postrouting") {
            continue;
        }
        let priority = random.one_of(priorities);
        let policy =
            if random.once_in(8) && traffic != Traffic::Translated { "drop" } else { "accept" };
        writeln!(
            rules,
            "\tchain {name} {{\n\t\ttype filter hook {hook} priority {priority}; policy {policy};"
        )
        .unwrap();
        let place =
            RulePosition { is_tracked: name != "raw", has_output: hook != "prerouting", ..place };
        chain(random, &mut rules, place);
        rules.push_str("\t}\n");
    }
    if traffic == Traffic::Translated {
        nat::chains(random, &mut rules, place);
    }
    rules.push_str("}\n");
    if random.once_in(3) {
        let family = random.one_of(&["ip", "ip6"]);
        let verdict = if traffic == Traffic::Translated { "accept" } else { "drop" };
        writeln!(rules, "table {family} other {{\n\tchain f {{\n\t\ttype filter hook forward priority 0;\n\t\tmeta mark 1-9 counter {verdict}\n\t}}\n}}").unwrap();
    }
    // The kernel frees the room of deleted elements later, and so rejects elements that we accept.
    // A set is therefore small or has elements deleted, but not both.
    let size = if rules.contains("delete @seen") { "64" } else { "6" };
    let rules = rules.replace("SIZE", size);
    // The kernel's answers echo the options, and the player would not know them.
    let packets = packets::packets(random, traffic, !refuses);
    Case { rules, packets }
}
