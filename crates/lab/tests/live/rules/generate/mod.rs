//! Random rulesets in nft's own syntax, and packets that meet their rules.

use std::fmt::Write;

use lab::Random;
use wire::TcpFlags;
use wire::build::{PacketBuilder, Tcp};

/// A frame and the side that it comes from.
#[derive(Clone, Debug)]
pub struct Packet {
    pub side: &'static str,
    pub frame: Vec<u8>,
}

/// A ruleset and packets.
#[derive(Clone, Debug)]
pub struct Case {
    pub rules: String,
    pub packets: Vec<Packet>,
}

const PORTS: [u16; 8] = [21, 22, 53, 80, 81, 443, 1024, 5000];
/// Packets of a case.
const PACKETS: usize = 60;

/// Some of few things, so that rules and packets meet.
fn host(random: &mut Random) -> usize {
    random.between(1, 12)
}

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
    match random.between(0, 3) {
        0 | 1 => format!("{net}::{host:x}"),
        2 => format!("{net}::/126"),
        _ => format!("{{ {net}::{host:x}, {net}::20-{net}::30 }}"),
    }
}

fn port(random: &mut Random) -> String {
    let port = random.one_of(&PORTS);
    match random.between(0, 4) {
        0 | 1 => port.to_string(),
        2 => format!("{port}-{}", port + 30),
        _ => format!("{{ {port}, 1000-2000, 6000 }}"),
    }
}

/// What a rule asks of a packet without tracking.
fn stateless(random: &mut Random) -> String {
    let not = if random.once_in(5) { "!= " } else { "" };
    let side = random.one_of(&["saddr", "daddr"]);
    let end = random.one_of(&["sport", "dport"]);
    match random.between(0, 30) {
        0..=3 => format!("ip {side} {not}{}", address(random)),
        4..=5 => format!("ip6 {side} {not}{}", address6(random)),
        6..=8 => format!("tcp {end} {not}{}", port(random)),
        9..=10 => format!("udp {end} {not}{}", port(random)),
        11 => format!("th {end} {not}{}", port(random)),
        12 => format!("meta l4proto {not}{{ tcp, udp }}"),
        13 => format!("meta l4proto {not}{}", random.one_of(&["icmp", "ipv6-icmp", "sctp", "47"])),
        14 => format!("iifname {not}{}", random.one_of(&["client0", "\"cl*\"", "\"server*\""])),
        15 => format!("oif {not}{}", random.one_of(&["client0", "server0"])),
        16 => format!("tcp flags & (syn | ack | rst) {} syn", random.one_of(&["==", "!="])),
        17 => format!("tcp flags {}", random.one_of(&["syn", "fin,rst", "! syn", "!= syn", "== 0x0"])),
        18 => format!("icmp type {}", random.one_of(&["echo-request", "{ echo-reply, 13 }"])),
        19 => format!("icmpv6 type {}", random.one_of(&["echo-request", "!= echo-reply"])),
        20 => format!("ip dscp {not}{}", random.one_of(&["cs1", "ef", "0"])),
        21 => format!("ip6 dscp {not}{}", random.one_of(&["cs1", "ef", "0"])),
        22 => format!("ip ttl {}", random.one_of(&["< 60", "> 40", "63", "!= 10-63"])),
        23 => format!("meta length {}", random.one_of(&["> 60", "< 80", "48-64"])),
        24 => format!("ip saddr & 0.0.0.3 == 0.0.0.{}", random.between(0, 3)),
        25 => "ip saddr . tcp dport { 192.0.2.1 . 22, 192.0.2.2-192.0.2.6 . 80-90, 198.51.100.0/29 . 443 }".into(),
        26 => format!("ip daddr . meta l4proto {not}@pairs"),
        27 => format!("ip saddr {not}@listed"),
        28 => format!("meta mark {not}{}", random.one_of(&["0", "1", "0x10-0x20"])),
        29 => format!("ip ecn {}", random.one_of(&["ce", "!= 0"])),
        _ => format!("ip6 {}", random.one_of(&["hoplimit > 50", "nexthdr tcp", "nexthdr { udp, icmpv6 }"])),
    }
}

/// What a rule asks of a packet's connection.
fn tracked(random: &mut Random) -> String {
    let not = if random.once_in(4) { "!= " } else { "" };
    match random.between(0, 9) {
        0..=2 => format!(
            "ct state {}",
            random.one_of(&[
                "new",
                "established",
                "established,related",
                "invalid",
                "! new",
                "{ new, untracked }"
            ])
        ),
        3 => format!("ct direction {}", random.one_of(&["original", "reply"])),
        4 => format!("ct mark {not}{}", random.one_of(&["0", "1-3", "{ 2, 16 }"])),
        5 => format!(
            "ct status {}",
            random.one_of(&["seen-reply", "assured", "confirmed", "! seen-reply"])
        ),
        6 => format!("ct original ip saddr {not}192.0.2.{}", host(random)),
        7 => format!("ct reply ip daddr {not}192.0.2.0/29"),
        8 => format!("ct protocol {not}{}", random.one_of(&["tcp", "udp", "icmp"])),
        _ => format!("ct original ip6 daddr {not}2001:db8:2::/126"),
    }
}

fn statement(random: &mut Random, with_tracking: bool) -> String {
    match random.between(0, 11) {
        0 => format!("meta mark set {}", random.between(0, 32)),
        1 => "meta mark set meta mark & 0xf0 | 0x1".into(),
        2 => "add @seen { ip saddr }".into(),
        3 => "update @seen { ip daddr }".into(),
        4 => "meta mark set tcp dport map { 22 : 0x11, 80-90 : 0x12 }".into(),
        5 => "counter name shared".into(),
        6 => format!("quota {} 700 bytes", random.one_of(&["over", "until"])),
        7 if with_tracking => format!("ct mark set {}", random.between(0, 4)),
        8 if with_tracking => "ct mark set meta mark".into(),
        9 if with_tracking => "meta mark set ct mark".into(),
        10 if random.once_in(2) => {
            format!("delete @seen {{ ip {} }}", random.one_of(&["saddr", "daddr"]))
        }
        _ => String::new(),
    }
}

fn verdict(random: &mut Random, depth: usize, with_tracking: bool) -> String {
    let below = depth + 1;
    match random.between(0, 15) {
        0 | 1 => "accept".into(),
        2 | 3 => "drop".into(),
        4 => "return".into(),
        // The kernel closes the connection that it resets: a gateway's work, not that of rules.
        5 if !with_tracking && random.once_in(3) => "reject with tcp reset".into(),
        5 => random.one_of(&["reject", "reject with icmp type host-unreachable"]).into(),
        6 | 7 if depth < 2 => format!("jump c{below}"),
        8 if depth < 2 => format!("goto c{below}"),
        9 => "continue".into(),
        10 => "tcp dport vmap { 22 : accept, 53 : drop, 80-90 : continue }".into(),
        11 if depth < 2 => {
            format!("meta l4proto vmap {{ tcp : jump c{below}, udp : goto c{below} }}")
        }
        12 => "ip daddr vmap @verdicts".into(),
        13 => "ip saddr . th dport vmap @pairs_verdicts".into(),
        _ => String::new(),
    }
}

fn chain(random: &mut Random, rules: &mut String, depth: usize, with_tracking: bool) {
    // Some long enough for an index.
    let count = if random.once_in(3) { random.between(20, 60) } else { random.between(0, 8) };
    for _ in 0..count {
        let mut parts = Vec::new();
        if random.once_in(3) {
            parts.push("counter".to_owned());
        }
        for _ in 0..random.between(0, 3) {
            let asks = with_tracking && random.once_in(2);
            parts.push(if asks { tracked(random) } else { stateless(random) });
        }
        if random.once_in(2) {
            parts.push(statement(random, with_tracking));
        }
        parts.push("counter".to_owned());
        // Rules of long chains decide less, or nothing came far.
        if count < 20 || random.once_in(3) {
            parts.push(verdict(random, depth, with_tracking));
        }
        // nft takes a protocol for granted when it prints ports of any transport behind it.
        if parts.iter().any(|part| part.contains("th ")) {
            parts.retain(|part| !part.starts_with("meta l4proto") || part.contains('{'));
        }
        writeln!(rules, "\t\t{}", parts.join(" ")).unwrap();
    }
}

/// The case of a seed.
pub fn case(seed: u64, with_tracking: bool) -> Case {
    let mut random = Random::new(seed);
    let random = &mut random;
    let (h, i) = (host(random), host(random));
    let mut rules = format!(
        "table inet t {{
\tcounter shared {{ }}
\tset seen {{ type ipv4_addr; size SIZE; flags dynamic; }}
\tset listed {{ type ipv4_addr; flags interval; counter; elements = {{ 192.0.2.{h}, 198.51.100.{i}-198.51.100.20 }} }}
\tset pairs {{ type ipv4_addr . inet_proto; elements = {{ 198.51.100.{i} . tcp, 192.0.2.{h} . udp, 198.51.100.2 . icmp }} }}
\tmap verdicts {{ type ipv4_addr : verdict; flags interval; elements = {{ 198.51.100.{i} : accept, 192.0.2.0/30 : drop }} }}
\tmap pairs_verdicts {{ type ipv4_addr . inet_service : verdict; flags interval; elements = {{ 192.0.2.0/29 . 20-60 : drop, 198.51.100.0/28 . 1024-65535 : accept }} }}
"
    );
    for depth in (0..3).rev() {
        writeln!(rules, "\tchain c{depth} {{").unwrap();
        if depth == 0 {
            let policy = random.one_of(&["accept", "accept", "drop"]);
            writeln!(rules, "\t\ttype filter hook forward priority 0; policy {policy};").unwrap();
        }
        chain(random, &mut rules, depth, with_tracking);
        rules.push_str("\t}\n");
    }
    // A second base chain, before or behind or at the same priority, and one of one family.
    if random.once_in(2) {
        let priority = random.one_of(&["-5", "0", "5"]);
        writeln!(rules, "\tchain second {{\n\t\ttype filter hook forward priority {priority};")
            .unwrap();
        chain(random, &mut rules, 2, with_tracking);
        rules.push_str("\t}\n");
    }
    rules.push_str("}\n");
    if random.once_in(3) {
        let family = random.one_of(&["ip", "ip6"]);
        writeln!(rules, "table {family} other {{\n\tchain f {{\n\t\ttype filter hook forward priority 0;\n\t\tmeta mark 1-9 counter drop\n\t}}\n}}").unwrap();
    }
    // The kernel gives back the room of what was deleted later, and so refuses what we
    // take: a set is small, or has elements deleted, not both.
    let size = if rules.contains("delete @seen") { "64" } else { "6" };
    let rules = rules.replace("SIZE", size);
    let packets = packets(random, with_tracking);
    Case { rules, packets }
}

fn packets(random: &mut Random, with_tracking: bool) -> Vec<Packet> {
    let flows: Vec<[usize; 4]> = (0..12)
        .map(|_| [host(random), host(random), random.between(0, 7), random.between(0, 7)])
        .collect();
    let mut sent = [0; 12];
    (0..PACKETS as u64)
        .map(|number| {
            // Packets of few flows, so that some are answered.
            if !with_tracking {
                let ends = [host(random), host(random), random.between(0, 7), random.between(0, 7)];
                return packet(random, ends, number, None);
            }
            let flow = random.between(0, flows.len() - 1);
            sent[flow] += 1;
            packet(random, flows[flow], number, Some(sent[flow]))
        })
        .collect()
}

fn packet(
    random: &mut Random,
    [client, server, from, to]: [usize; 4],
    number: u64,
    of_flow: Option<usize>,
) -> Packet {
    // Trackers are compared elsewhere: connections that are tracked here open as they should.
    let side = match of_flow {
        Some(1) => "client",
        Some(2) => "server",
        _ => random.one_of(&["client", "client", "server"]),
    };
    let v6 = (client + server).is_multiple_of(3);
    let kind = (client + from) % 4;
    let mut ports = [PORTS[from], PORTS[to]];
    if side == "server" {
        ports.reverse();
    }
    let builder = if v6 {
        let mut ends = [(1, client), (2, server)].map(|(net, host)| {
            let mut address = [0x20, 1, 0x0d, 0xb8, 0, net, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            address[15] = host as u8;
            address
        });
        if side == "server" {
            ends.reverse();
        }
        PacketBuilder::v6(ends[0], ends[1])
    } else {
        let mut ends = [[192, 0, 2, client as u8], [198, 51, 100, server as u8]];
        if side == "server" {
            ends.reverse();
        }
        PacketBuilder::v4(ends[0], ends[1])
    };
    let builder = builder
        .ttl(random.one_of(&[64, 64, 63, 41, 200]))
        .traffic_class(random.one_of(&[0, 0, 0x20, 0xb8, 3, 2]));
    // The number comes last, so that it can be found in what comes out.
    let mut payload = random.bytes(random.clone().between(0, 40));
    payload.extend(number.to_be_bytes());
    let mut frame = Vec::new();
    match kind {
        0 | 1 => {
            let flags = match of_flow {
                None => random.one_of(&[0x02, 0x02, 0x12, 0x10, 0x18, 0x11, 0x04, 0x14, 0, 0x29]),
                Some(1) => 0x02,
                Some(2) => 0x12,
                Some(_) => 0x10,
            };
            let has = |bit| flags & bit != 0;
            let tcp = Tcp {
                source_port: ports[0],
                destination_port: ports[1],
                sequence: if has(0x02) { 1000 } else { 1001 },
                acknowledgment: if has(0x10) { 1001 } else { 0 },
                flags: TcpFlags(flags),
                window: 5000,
                // An option for experiments (RFC 4727) whose end is the number.
                options: &[&[254, 8][..], &number.to_be_bytes()[2..]].concat(),
            };
            // What opens a tracked connection carries no data, as with most senders.
            let is_bare = of_flow.is_some() && has(0x02);
            builder.tcp(&tcp, if is_bare { &[] } else { &payload }, &mut frame);
        }
        2 => builder.udp(ports[0], ports[1], &payload, &mut frame),
        _ if random.once_in(4) => builder.transport(253, &payload, &mut frame),
        _ => builder.echo(side == "server", 7, 1, &payload, &mut frame),
    }
    Packet { side, frame }
}
