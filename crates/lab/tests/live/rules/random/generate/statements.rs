//! The statements of random rules.

use lab::Random;

use super::Traffic;

/// The position of a rule.
#[derive(Clone, Copy, Debug)]
pub struct RulePosition {
    pub traffic: Traffic,
    /// The depth among the chains that jump to each other.
    pub depth: Option<usize>,
    /// True if the packet has been tracked before.
    pub is_tracked: bool,
    /// True if the output interface is known.
    pub has_output: bool,
    /// True if rules may reject packets.
    pub refuses: bool,
    /// True if rules may drop translated packets.
    pub drops: bool,
}

pub fn statement(random: &mut Random, place: RulePosition) -> String {
    let is_tracked = place.traffic == Traffic::Tracked && place.is_tracked;
    match random.between(0, 41) {
        0 => format!("meta mark set {}", random.between(0, 32)),
        1 => random
            .one_of(&[
                "meta mark set meta mark & 0xf0 | 0x1",
                "meta mark set meta mark ^ 0x3",
                "meta mark set meta mark | 0x10",
                "meta mark set meta mark & 0xfffffffe",
            ])
            .into(),
        2 => "add @seen { ip saddr }".into(),
        3 => "update @seen { ip daddr }".into(),
        4 => "meta mark set tcp dport map { 22 : 0x11, 80-90 : 0x12 }".into(),
        5 => "counter name shared".into(),
        6 => format!(
            "quota {} {} bytes",
            random.one_of(&["over", "until"]),
            random.between(100, 2000)
        ),
        7 if is_tracked => format!("ct mark set {}", random.between(0, 4)),
        8 if is_tracked => random
            .one_of(&[
                "ct mark set meta mark",
                "ct mark set meta mark & 0x7",
                "ct mark set ip saddr map @marked",
            ])
            .into(),
        9 if is_tracked => random
            .one_of(&[
                "meta mark set ct mark",
                "meta mark set ct mark | 0x10",
                "ct mark set ct mark | 0x2",
            ])
            .into(),
        10 if random.once_in(2) => {
            format!("delete @seen {{ ip {} }}", random.one_of(&["saddr", "daddr"]))
        }
        11 => "counter name begun".into(),
        12 => "quota name some".into(),
        13 => "limit name slow".into(),
        14 => format!(
            "limit rate {}{}/hour burst {} packets",
            random.one_of(&["", "over "]),
            random.between(1, 5),
            random.between(1, 12)
        ),
        15 => format!(
            "limit rate {}{} bytes/hour burst {} bytes",
            random.one_of(&["", "over "]),
            random.between(1, 500),
            random.between(100, 2000)
        ),
        16 => "meta mark set ip saddr map @marked".into(),
        number @ (17..=20 | 27) => fills(random, number),
        21 => format!(
            "meta mark set ip saddr . meta l4proto map {{ 192.0.2.{} . tcp : 0x1, 192.0.2.0/29 . udp : 0x2 }}",
            random.between(8, 12)
        ),
        22 => format!("log prefix \"some \" {}", random.one_of(&["group 5", "level info"])),
        23 if place.depth.is_some() => format!(
            "tcp flags syn tcp option maxseg size set {}",
            random.one_of(&[1200, 1400, 1500, 536])
        ),
        24 => "ip saddr @measured".into(),
        25 if place.traffic == Traffic::Tracked && !place.is_tracked => "notrack".into(),
        26 => "ip6 saddr @counted".into(),
        number @ 28..=30 => numbers(random, number),
        31..=34 => writes(random, place),
        35..=37 => by_map(random),
        _ => String::new(),
    }
}

/// A statement with an object that a map holds.
fn by_map(random: &mut Random) -> String {
    random
        .one_of(&[
            "counter name tcp dport map @counters",
            "counter name ip protocol map { tcp : \"begun\", udp : \"shared\" }",
            "counter name ip daddr . tcp dport map { 198.51.100.1 . 22 : \"shared\" }",
            "limit name ip saddr map @limits",
            "quota name udp dport map { 53 : \"some\", 1024 : \"some\" }",
        ])
        .into()
}

/// A statement that sets a field of a header.
fn writes(random: &mut Random, place: RulePosition) -> String {
    // A reset is known by the ends of the packet that it answers. The kernel's translation gives a
    // packet the ends that its connection has, not those that it had before.
    let ends = !place.refuses && place.traffic != Traffic::Translated;
    let last = random.between(1, 12);
    match random.between(0, 14) {
        0 if ends => format!("ip daddr 198.51.100.0/24 ip daddr set 198.51.100.{last}"),
        1 if ends => format!("ip saddr 192.0.2.0/24 ip saddr set 192.0.2.{last}"),
        2 if ends => format!("ip6 daddr 2001:db8:2::/64 ip6 daddr set 2001:db8:2::{last:x}"),
        3 if ends => format!("ip6 saddr 2001:db8:1::/64 ip6 saddr set 2001:db8:1::{last:x}"),
        4 | 5 if ends => random
            .one_of(&[
                "tcp dport set 80",
                "tcp sport set 1024",
                "udp dport set 53",
                "udp sport set 5000",
                "tcp dport set tcp dport map { 22 : 80, 80 : 443, 443 : 22 }",
                "udp dport 1024 udp dport set 81 udp sport set 443",
                "icmp id set 7",
                "icmpv6 id set 9",
            ])
            .into(),
        6 | 7 => format!("ip dscp set {}", random.one_of(&["cs1", "ef", "af11", "0"])),
        8 => format!("ip6 dscp set {}", random.one_of(&["cs1", "ef", "af11", "0"])),
        9 => format!("ip ecn set {}", random.one_of(&["ce", "ect0", "not-ect"])),
        10 => format!("ip6 ecn set {}", random.one_of(&["ce", "ect0", "not-ect"])),
        11 => format!("ip ttl set {}", random.one_of(&["41", "64", "200", "255"])),
        12 => format!("ip6 hoplimit set {}", random.one_of(&["41", "64", "200", "255"])),
        13 => format!("ip6 flowlabel set {}", random.one_of(&["0", "7", "0xfffff"])),
        _ => random
            .one_of(&[
                "ip id set 99",
                "icmp sequence set 1",
                "icmpv6 sequence set 5",
                "tcp window set 5000",
                "tcp urgptr set 9",
                // nft 1.0.6 takes a map only for a field of whole words.
                "ip id set ip protocol map { tcp : 70, udp : 80 }",
            ])
            .into(),
    }
}

/// A statement with a number that the rule makes, or a priority.
fn numbers(random: &mut Random, number: usize) -> String {
    match number {
        28 => "meta mark set numgen inc mod 3 map { 0 : 0x1, 1 : 0x2, 2 : 0x11 }".into(),
        // Forwarding gives packets of IPv4 another priority, so the rule asks for the one it sets.
        29 => "meta mark set jhash ip saddr . tcp sport mod 16 seed 0x7 offset 1".into(),
        _ => random
            .one_of(&[
                "meta priority set 1:2 meta priority 1:2",
                "meta priority set none meta priority none",
                "meta priority set root meta priority { root, 1:3 }",
                "meta priority set 1:2 meta priority root",
            ])
            .into(),
    }
}

/// A statement that adds elements to sets.
fn fills(random: &mut Random, number: usize) -> String {
    match number {
        17 => format!(
            "{} @passing {{ ip saddr . th dport }}",
            random.one_of(&["add", "update", "delete"])
        ),
        18 => {
            format!("update @passing {{ ip daddr . th dport timeout {}h }}", random.between(1, 3))
        }
        19 => "add @counted { ip6 saddr }".into(),
        20 => format!(
            "{} @measured {{ ip saddr limit rate 3/hour burst 2 packets }}",
            random.one_of(&["add", "update"])
        ),
        _ => format!(
            "{} @exceeding {{ ip saddr . ip daddr limit rate over 3/hour burst 1 packets }}",
            random.one_of(&["add", "update"])
        ),
    }
}

pub fn verdict(random: &mut Random, place: RulePosition) -> String {
    if place.traffic == Traffic::Translated {
        // Few packets are dropped, because a dropped packet does not show its translation.
        let drops = place.drops && random.once_in(6);
        return if drops { "drop" } else { random.one_of(&["accept", "", "", "continue"]) }.into();
    }
    if let Some(depth) = place.depth
        && depth < 2
        && random.once_in(4)
    {
        return jump(random, depth + 1);
    }
    match random.between(0, 14) {
        0 | 1 => "accept".into(),
        2 | 3 => "drop".into(),
        4 => "return".into(),
        5 | 6 if place.refuses => refusal(random, place),
        7 => "continue".into(),
        8 => random
            .one_of(&[
                "tcp dport vmap { 22 : accept, 53 : drop, 80-90 : continue }",
                "udp dport vmap @counted_verdicts",
                "tcp dport vmap @counted_verdicts",
            ])
            .into(),
        9 => format!("ip {} vmap @verdicts", random.one_of(&["saddr", "daddr"])),
        10 => "ip saddr . th dport vmap @pairs_verdicts".into(),
        11 => "meta mark vmap { 0x1 : drop, 0x10-0x1f : accept }".into(),
        12 if place.traffic == Traffic::Tracked && place.is_tracked => {
            "ct state vmap { established : accept, invalid : drop, new : continue }".into()
        }
        13 => "numgen inc mod 4 vmap { 0 : continue, 1 : drop, 2 : accept }".into(),
        _ => String::new(),
    }
}

fn jump(random: &mut Random, below: usize) -> String {
    match random.between(0, 6) {
        0..=2 => format!("jump c{below}"),
        3 => format!("goto c{below}"),
        4 => format!("meta l4proto vmap {{ tcp : jump c{below}, udp : goto c{below} }}"),
        5 => format!("ip ttl vmap {{ 41 : jump c{below}, 60-70 : return, 200 : goto c{below} }}"),
        _ => format!("iifname vmap {{ \"client0\" : jump c{below}, \"server0\" : goto c2 }}"),
    }
}

fn refusal(random: &mut Random, place: RulePosition) -> String {
    // The kernel also closes a connection that it resets. In our gateway the rules do not do that,
    // so tracked traffic gets no resets here.
    if place.traffic == Traffic::Stateless && random.once_in(4) {
        return "reject with tcp reset".into();
    }
    let codes = ["no-route", "port-unreachable", "host-unreachable", "admin-prohibited"];
    let v4 = [
        "net-unreachable",
        "host-unreachable",
        "prot-unreachable",
        "port-unreachable",
        "net-prohibited",
        "host-prohibited",
        "admin-prohibited",
    ];
    let v6 = [
        "no-route",
        "admin-prohibited",
        "addr-unreachable",
        "port-unreachable",
        "policy-fail",
        "reject-route",
    ];
    match random.between(0, 3) {
        0 => "reject".into(),
        1 => format!("reject with icmpx type {}", random.one_of(&codes)),
        2 => format!("reject with icmp type {}", random.one_of(&v4)),
        _ => format!("reject with icmpv6 type {}", random.one_of(&v6)),
    }
}
