//! The expressions of random rules.

use lab::Random;

use super::statements::RulePosition;
use super::{PORTS, host};

fn net(random: &mut Random) -> &'static str {
    random.one_of(&["192.0.2", "198.51.100"])
}

fn net6(random: &mut Random) -> &'static str {
    random.one_of(&["2001:db8:1", "2001:db8:2"])
}

fn address(random: &mut Random) -> String {
    let (net, host) = (net(random), host(random));
    match random.between(0, 4) {
        0 | 1 => format!("{net}.{host}"),
        2 => format!("{net}.{host}-{net}.{}", host + random.between(1, 6)),
        3 => format!("{net}.{}/30", host & 0xfc),
        _ => format!("{{ {net}.{host}, {net}.{}/31, {net}.20-{net}.30 }}", 32 + 2 * host),
    }
}

fn address6(random: &mut Random) -> String {
    let (net, host) = (net6(random), host(random));
    match random.between(0, 4) {
        0 | 1 => format!("{net}::{host:x}"),
        2 => format!("{net}::/126"),
        3 => format!("{net}::{host:x}-{net}::{:x}", host + random.between(1, 6)),
        _ => format!("{{ {net}::{host:x}, {net}::20-{net}::30 }}"),
    }
}

fn port(random: &mut Random) -> String {
    let port = random.one_of(&PORTS);
    match random.between(0, 5) {
        0 | 1 => port.to_string(),
        2 => format!("{port}-{}", port + 30),
        3 => format!("{} {port}", random.one_of(&["<", "<=", ">", ">="])),
        _ => format!("{{ {port}, 1000-2000, 6000 }}"),
    }
}

/// An expression about a packet, without tracking.
pub fn stateless(random: &mut Random, place: RulePosition) -> String {
    match random.between(0, 12) {
        0..=5 => network(random),
        6..=8 => transport(random),
        9 => surroundings(random, place),
        10 => combined(random, place),
        11 => generated(random),
        _ => bits(random),
    }
}

fn not(random: &mut Random) -> &'static str {
    if random.once_in(5) { "!= " } else { "" }
}

fn network(random: &mut Random) -> String {
    let not = not(random);
    let side = random.one_of(&["saddr", "daddr"]);
    match random.between(0, 27) {
        0..=4 => format!("ip {side} {not}{}", address(random)),
        5..=7 => format!("ip6 {side} {not}{}", address6(random)),
        8 => format!("meta l4proto {not}{{ tcp, udp }}"),
        9 => format!("meta l4proto {not}{}", random.one_of(&["icmp", "ipv6-icmp", "sctp", "47"])),
        10 => format!("ip dscp {not}{}", random.one_of(&["cs1", "ef", "0", "{ cs1, af11 }"])),
        11 => format!("ip6 dscp {not}{}", random.one_of(&["cs1", "ef", "0"])),
        12 => {
            format!("ip ttl {}", random.one_of(&["< 60", "> 40", "63", "!= 10-63", "{ 40, 41 }"]))
        }
        13 => format!("meta length {}", random.one_of(&["> 60", "< 80", "48-64", "!= 60-100"])),
        14 => format!(
            "ip saddr & 0.0.0.3 {} 0.0.0.{}",
            random.one_of(&["==", "!="]),
            random.between(0, 3)
        ),
        15 => format!("ip {side} {not}@{}", random.one_of(&["listed", "ends", "seen"])),
        16 => format!("ip ecn {}", random.one_of(&["ce", "!= 0", "ect0"])),
        17 => format!("ip6 ecn {}", random.one_of(&["ce", "!= 0", "ect0"])),
        18 => format!(
            "ip6 {}",
            random.one_of(&[
                "hoplimit > 50",
                "nexthdr tcp",
                "nexthdr { udp, icmpv6 }",
                "nexthdr != udp"
            ])
        ),
        19 => {
            format!("ip protocol {not}{}", random.one_of(&["tcp", "udp", "{ icmp, udp }", "253"]))
        }
        20 => format!("ip length {}", random.one_of(&["> 60", "<= 48", "40-70"])),
        21 => format!(
            "ip {}",
            random.one_of(&[
                "id 0",
                "id > 100",
                "version 4",
                "hdrlength 5",
                "frag-off & 0x1fff == 0",
                "frag-off & 0x4000 != 0"
            ])
        ),
        22 => format!(
            "ip6 {}",
            random.one_of(&["length > 40", "length 20-60", "flowlabel 0", "version 6"])
        ),
        23 => format!("ip6 {side} {not}@nets"),
        24..=26 => extended(random),
        _ => format!("meta nfproto {not}{}", random.one_of(&["ipv4", "ipv6"])),
    }
}

/// A question about extension headers or options.
fn extended(random: &mut Random) -> String {
    match random.between(0, 2) {
        0 => format!(
            "exthdr {} {}",
            random.one_of(&["hbh", "dst", "rt", "frag", "mh"]),
            random.one_of(&["exists", "missing"])
        ),
        1 => random
            .one_of(&[
                "hbh nexthdr udp",
                "dst nexthdr != udp",
                "dst hdrlength 0",
                "hbh hdrlength > 0",
                "rt type 4",
                "rt seg-left 0",
                "rt nexthdr { udp, tcp }",
                "frag id 7",
            ])
            .into(),
        // The kernel reads fields of options in the wrong place.
        _ => format!(
            "ip option {} {}",
            random.one_of(&["rr", "ra", "lsrr", "ssrr"]),
            random.one_of(&["exists", "missing"])
        ),
    }
}

fn transport(random: &mut Random) -> String {
    let not = not(random);
    let end = random.one_of(&["sport", "dport"]);
    match random.between(0, 21) {
        0..=3 => format!("tcp {end} {}", port(random)),
        4 => format!("tcp {end} {not}{}", random.one_of(&PORTS)),
        5..=6 => format!("udp {end} {}", port(random)),
        7 => format!("th {end} {}", port(random)),
        8 => format!("tcp flags & (syn | ack | rst) {} syn", random.one_of(&["==", "!="])),
        9 => format!(
            "tcp flags & (fin | syn | rst | psh | ack) {} {}",
            random.one_of(&["==", "!="]),
            random.one_of(&["ack", "(psh | ack)", "0x0", "(syn | ack)"])
        ),
        10 => format!(
            "tcp flags {}",
            random.one_of(&[
                "syn",
                "fin,rst",
                "! syn",
                "! fin,rst",
                "!= syn",
                "== 0x0",
                "{ syn, ack, syn|ack }",
                "syn / syn,ack",
                "!= syn / syn,ack,rst"
            ])
        ),
        11 => format!(
            "icmp type {}",
            random
                .one_of(&[
                    "echo-request",
                    "{ echo-reply, 13 }",
                    "!= echo-reply",
                    "timestamp-request-14"
                ])
                .replace("timestamp-request-14", "{ timestamp-request, timestamp-reply }")
        ),
        12 => format!(
            "icmpv6 type {}",
            random.one_of(&[
                "echo-request",
                "!= echo-reply",
                "{ echo-request, nd-neighbor-solicit }"
            ])
        ),
        13 => format!(
            "icmp {}",
            random.one_of(&["code 0", "id 7", "sequence 1", "code != 0", "id { 7, 2000-2030 }"])
        ),
        14 => format!("icmpv6 {}", random.one_of(&["code 0", "id 7", "sequence 1", "id != 7"])),
        15 => format!(
            "tcp {}",
            random.one_of(&[
                "window 5000",
                "window < 5000",
                "sequence 0-2000",
                "doff 7",
                "doff > 7",
                "urgptr 0",
                "ackseq 0",
                "ackseq != 0"
            ])
        ),
        17..=20 => inside_transport(random),
        16 => format!("udp length {}", random.one_of(&["> 30", "16-40", "!= 16"])),
        _ => format!(
            "tcp option maxseg size {}",
            random.one_of(&["> 1400", "1460", "!= 1460", "500-1300"])
        ),
    }
}

/// A question about options of TCP or chunks of SCTP.
fn inside_transport(random: &mut Random) -> String {
    if random.once_in(4) {
        return random
            .one_of(&[
                "sctp chunk data exists",
                "sctp chunk data missing",
                "sctp chunk sack missing",
                "sctp chunk init exists",
                "sctp chunk data tsn 7",
                "sctp chunk data ppid != 9",
                "sctp chunk sack a-rwnd > 100",
                "sctp chunk data flags 3",
                "sctp dport 22",
            ])
            .into();
    }
    random
        .one_of(&[
            "tcp option sack-perm exists",
            "tcp option sack-perm missing",
            "tcp option timestamp tsval 7",
            "tcp option timestamp exists",
            "tcp option timestamp tsecr != 9",
            "tcp option window count > 3",
            "tcp option window missing",
            "tcp option maxseg exists",
            "tcp option sack left 5",
            "tcp option sack right 9",
            "tcp option sack1 left 5",
            "tcp option @254,16,8 0",
            "tcp option 254 exists",
            "tcp option 254 missing",
            "tcp option nop exists",
        ])
        .into()
}

fn surroundings(random: &mut Random, place: RulePosition) -> String {
    let not = not(random);
    match random.between(0, 12) {
        8 | 9 => random
            .one_of(&[
                // No hour or date begins while a case runs, but for one run in a million.
                "meta hour \"00:00:17\"-\"08:00:17\"",
                "meta hour \"08:00:17\"-\"16:00:17\"",
                "meta hour != \"06:30:41\"-\"18:30:41\"",
                "meta hour \"22:00:17\"-\"23:59:41\"",
                "meta hour < \"12:00:17\"",
                "meta day { \"Monday\", \"Wednesday\", \"Friday\" }",
                "meta day != \"Sunday\"",
                "meta day \"Thursday\"",
                "meta time > \"2024-01-01 00:00:00\"",
                "meta time < \"2024-01-01 00:00:00\"",
                "meta time \"2020-02-29 12:00:00\"-\"2069-01-01 00:00:00\"",
            ])
            .into(),
        0 | 1 => format!(
            "iifname {not}{}",
            random.one_of(&[
                "client0",
                "\"cl*\"",
                "\"server*\"",
                "{ client0, lan0 }",
                "{ \"serv*\", lan0 }",
                "@names"
            ])
        ),
        2 if place.has_output => {
            format!("oif {not}{}", random.one_of(&["client0", "server0", "{ client0, lo }"]))
        }
        3 if place.has_output => format!(
            "oifname {not}{}",
            random.one_of(&["client0", "\"se*\"", "{ client0, lan0 }", "@names"])
        ),
        4 | 5 => format!(
            "meta mark {not}{}",
            random.one_of(&["0", "1", "0x10-0x20", "{ 1, 2, 0x11 }", "@marks"])
        ),
        6 => format!(
            "meta mark & 0x3 {} {}",
            random.one_of(&["==", "!=", ">"]),
            random.between(0, 2)
        ),
        7 => format!(
            "ether saddr {not}{}",
            random.one_of(&[
                "00:00:5e:00:53:01",
                "{ 00:00:5e:00:53:01, 00:00:5e:00:53:77 }",
                "00:00:5e:00:53:00-00:00:5e:00:53:02"
            ])
        ),
        10 if place.has_output => {
            format!("oifgroup {not}{}", random.one_of(&["7", "5", "default", "{ 5-6, 9 }", "0-6"]))
        }
        10 => format!(
            "iifgroup {not}{}",
            random.one_of(&["7", "5", "default", "{ default, 6-7 }", "5-6"])
        ),
        _ => format!(
            "meta {}",
            random.one_of(&[
                "pkttype host",
                "pkttype != { broadcast, multicast }",
                "protocol ip",
                "protocol != ip6",
                "protocol { ip, ip6 }",
                "iiftype != loopback",
                "iiftype { ether, ppp }",
                "iiftype { ppp, 65534 }",
                "cpu 0",
                "cpu != 0",
                "cpu { 1, 3-8 }",
                "cpu > 0"
            ])
        ),
    }
}

/// An expression with concatenations.
fn combined(random: &mut Random, place: RulePosition) -> String {
    let not = not(random);
    match random.between(0, 7) {
        0 => "ip saddr . tcp dport { 192.0.2.1 . 22, 192.0.2.2-192.0.2.6 . 80-90, 198.51.100.0/29 . 443 }".into(),
        1 => format!("ip daddr . meta l4proto {not}@pairs"),
        2 => format!("ip saddr . ip daddr . th dport {not}@triples"),
        3 => format!("iifname . meta l4proto {not}@ways"),
        4 if place.has_output => format!("iifname . oifname {not}{{ \"client0\" . \"server0\", \"lan0\" . \"client0\" }}"),
        5 => format!("ip6 saddr . udp dport {not}{{ 2001:db8:1::/126 . 53, 2001:db8:2::1-2001:db8:2::9 . 1000-6000 }}"),
        6 => format!("ip ttl . ip protocol {not}{{ 64 . tcp, 41 . udp, 200 . icmp }}"),
        _ => format!("meta mark . tcp dport {not}{{ 0x1 . 22, 0x11 . 80, 0x0 . 443 }}"),
    }
}

/// A number that a rule makes. The kernel's random numbers and symmetric hashes are its own, so the
/// rules ask only for their range.
fn generated(random: &mut Random) -> String {
    // nft refuses numbers that do not come.
    let below = random.between(3, 5);
    let number = random.between(0, 2);
    let hashed = random.one_of(&[
        "ip saddr",
        "ip6 saddr",
        "ip saddr . tcp dport",
        "ip saddr . ip daddr . meta l4proto . th sport . th dport",
        "ip6 saddr . ip6 daddr . udp sport",
        "tcp dport",
        "iifname",
        "meta mark . ip protocol",
        "meta l4proto",
        "ether saddr . ip saddr",
        "meta length . meta nfproto",
    ]);
    match random.between(0, 9) {
        0..=2 => format!("numgen inc mod {below} {number}"),
        3 => format!("numgen inc mod {below} offset 7 > {}", 7 + number),
        4 => format!("numgen random mod {below} offset 5 5-{}", 4 + below),
        5 => format!("symhash mod {below} offset 5 5-{}", 4 + below),
        6 => format!("jhash {hashed} mod 1000 seed {} < 500", random.between(0, 3)),
        7 => format!("jhash {hashed} mod {below} seed 0xdeadbeef offset 7 {}", 7 + number),
        8 => "jhash ip saddr mod 3 offset 1".to_owned() + " 1-3",
        _ => format!("jhash {hashed} mod {below} seed 0x1 {{ 0, 2 }}"),
    }
}

fn bits(random: &mut Random) -> String {
    let not = not(random);
    // Raw bits are left out: nft 1.0.6 prints them as the fields that it takes them for.
    match random.between(0, 2) {
        0 => format!("ip saddr & 0.0.0.240 {not}0.0.0.0"),
        1 => format!("ip daddr & 255.255.255.240 {} 198.51.100.0", random.one_of(&["==", "!="])),
        _ => format!("tcp dport & 0x1 {} 0x1", random.one_of(&["==", "!="])),
    }
}

/// An expression about a packet's connection.
pub fn tracked(random: &mut Random) -> String {
    let not = if random.once_in(4) { "!= " } else { "" };
    match random.between(0, 15) {
        0..=3 => format!(
            "ct state {}",
            random.one_of(&[
                "new",
                "established",
                "established,related",
                "invalid",
                "! new",
                "!= new",
                "{ new, untracked }",
                "untracked"
            ])
        ),
        4 => format!("ct direction {}", random.one_of(&["original", "reply", "!= reply"])),
        5 => format!("ct mark {not}{}", random.one_of(&["0", "1-3", "{ 2, 16 }", "@marks"])),
        6 => format!(
            "ct status {}",
            random.one_of(&[
                "seen-reply",
                "assured",
                "confirmed",
                "! seen-reply",
                "!= confirmed",
                "seen-reply,assured",
                "dnat",
                "snat",
                "! dnat",
                "snat,dnat"
            ])
        ),
        7 => format!("ct original ip saddr {not}192.0.2.{}", host(random)),
        8 => format!("ct reply ip daddr {not}192.0.2.0/29"),
        9 => format!("ct protocol {}", random.one_of(&["!= tcp", "!= icmp", "{ tcp, udp }"])),
        10 => format!("ct original ip6 daddr {not}2001:db8:2::/126"),
        // nft 1.0.6 leaves out a comparison with a protocol if a later expression implies it.
        11 => format!("ct l3proto != {}", random.one_of(&["ipv4", "ipv6"])),
        12 => format!(
            "meta l4proto {{ tcp, udp }} ct original proto-dst {not}{}",
            random.one_of(&["22", "80-443", "{ 53, 5000 }"])
        ),
        13 => format!(
            "ct reply ip saddr {not}{}",
            random.one_of(&["198.51.100.0/29", "198.51.100.200", "203.0.113.0/24"])
        ),
        14 => format!("ct mark & 0x3 {} {}", random.one_of(&["==", "!="]), random.between(0, 2)),
        _ => format!(
            "meta l4proto {{ tcp, udp }} ct reply proto-src {not}{}",
            random.one_of(&["22", "80-443", "8080"])
        ),
    }
}
