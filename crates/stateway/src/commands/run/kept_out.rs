//! What the kernel keeps from the host because the gateway translates it, as rules of nft.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

use engine::FromHost;
use ruleset::{Forwarded, Interval, name_bits};
use steer::PortRange;
use wire::Family;

/// Priority of chains that translate destinations.
const DSTNAT: i32 = -100;

/// Matches what is not for the host.
pub const NOT_FOR_HOST: &str = "fib daddr type != { local, broadcast, anycast, multicast }";

/// Protocols with ports.
const WITH_PORTS: &str = "meta l4proto { tcp, udp, udplite, sctp, dccp }";

/// Drops what no connection of the host has, only a socket that waits for anybody.
const WAITS_FOR_ANYBODY: &str = "socket wildcard 1 drop";
/// Lets through what belongs to a socket. Whether one is transparent is asked because that can
/// be told, either way, of connections that are being opened and of those that are over too.
const BELONGS_TO_HOST: &str = "socket transparent { 0, 1 } accept";

/// Lets through what may open a connection of the host, or belongs to a socket of it.
const OPENS_OR_BELONGS_TO_HOST: [&str; 6] = [
    // There is no telling of others, and the host does not refuse what it has no part in.
    "meta l4proto != { tcp, udp } accept",
    "tcp flags & (syn | ack) == syn accept",
    "meta l4proto udp socket wildcard { 0, 1 } accept",
    WAITS_FOR_ANYBODY,
    BELONGS_TO_HOST,
    "drop",
];

/// Packets whose destination rules translated that are gone, which are remembered because
/// connections may live that were: the latest.
const MAX_FORMER: usize = 256;

/// Errors about what the host has answered, which go to whom its receiver takes for the sender.
const ERRORS: [&str; 2] = [
    "icmp type { destination-unreachable, time-exceeded, parameter-problem } accept",
    "icmpv6 type { destination-unreachable, packet-too-big, time-exceeded, parameter-problem } \
     accept",
];

/// What the kernel's own rules have led to the host is the host's if it belongs to a connection
/// that the kernel knows, or to one that it expects. Nothing that goes on may be taken for the
/// beginning of another: the gateway has its connection.
const LED_TO_HOST: [&str; 2] = [
    "ct status & (confirmed | expected) != 0 accept",
    "meta l4proto tcp tcp flags & (syn | ack) != syn drop",
];

/// What the host says of packets of calls and tunnels (GRE, IP in IP) that it has no part in: that
/// it does not know the protocol. It can not be told before whose they are, and the host may have
/// calls and tunnels of its own, so they come to it and only its answer is dropped. What is quoted
/// stands behind the eight bytes of ICMP and has no options.
const ANSWERS_TUNNELS: [&str; 2] = [
    "icmp type destination-unreachable icmp code 2 @th,136,8 { 4, 41, 47 }",
    "icmpv6 type parameter-problem icmpv6 code 1 @th,112,8 { 4, 41, 47 }",
];

/// Packets for the host's addresses that are not the host's affair, and packets for others' that
/// may be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeptOut {
    /// Addresses that sources are translated to.
    pub addresses: Vec<RangeInclusive<IpAddr>>,
    /// The ports that they get or may have got, the first and the last of ranges that are apart,
    /// in their order. Those that a rule has named stay, because connections may.
    pub ports: Vec<(u16, u16)>,
    /// Packets whose destination is translated.
    pub forwarded: Vec<Forwarded>,
    /// Packets whose destination was translated. What opens a connection is the host's, and the
    /// rest may be of a connection that is translated until it ends. The latest last.
    pub former: Vec<Forwarded>,
    /// Packets that the kernel may redirect to the host.
    pub left: Vec<Forwarded>,
    /// Packets that it might redirect before: what belongs to its connections still is. The
    /// latest last.
    pub formerly_left: Vec<Forwarded>,
}

impl KeptOut {
    /// What is translated.
    pub fn new(from_host: &FromHost<'_>) -> Self {
        let FromHost { translated, named_ports, forwarded, left, .. } = *from_host;
        let PortRange { min, max } = translated.ports();
        let address = |bytes: [u8; 16]| Ipv6Addr::from(bytes).to_canonical();
        let addresses =
            translated.addresses().map(|range| address(*range.start())..=address(*range.end()));
        Self {
            addresses: addresses.collect(),
            ports: apart(named_ports.iter().copied().chain([(min, max)])),
            forwarded: forwarded.to_vec(),
            former: Vec::new(),
            left: left.to_vec(),
            formerly_left: Vec::new(),
        }
    }

    /// The same behind what was kept out before.
    pub fn after(mut self, before: &Self) -> Self {
        self.ports = apart(self.ports.iter().chain(&before.ports).copied());
        self.former = latest_gone(&before.former, &before.forwarded, &self.forwarded);
        self.formerly_left = latest_gone(&before.formerly_left, &before.left, &self.left);
        self
    }

    /// Has a new table with a chain `left` drop this, for packets that come in by these
    /// interfaces.
    pub fn order(&self, table: &str, interfaces: &[String]) -> String {
        let mut order = String::new();
        let mut add = |command: String| {
            // Writing to a text can not fail.
            let _ = write!(order, "{command}; ");
        };
        for chain in ["translated", "sources", "former"] {
            add(format!("add chain inet {table} {chain}"));
        }
        add(format!(
            "add chain inet {table} host {{ type filter hook prerouting priority -299; policy \
             accept; }}"
        ));
        let names = interfaces.iter().map(|name| quoted(name)).collect::<Vec<_>>().join(", ");
        add(format!("add rule inet {table} host iifname {{ {names} }} jump left"));
        add(format!("add rule inet {table} host iifname {{ {names} }} jump translated"));
        self.order_left(table, interfaces, &names, &mut add);
        if !self.addresses.is_empty() || !self.forwarded.is_empty() {
            add(format!(
                "add chain inet {table} answers {{ type filter hook output priority 0; policy \
                 accept; }}"
            ));
            for answer in ANSWERS_TUNNELS {
                add(format!("add rule inet {table} answers oifname {{ {names} }} {answer} drop"));
            }
        }
        for rule in self.forwarded.iter().flat_map(|packets| rules_of(packets, interfaces)) {
            add(format!("add rule inet {table} translated {rule}"));
        }
        for packets in &self.former {
            if let Some((matches, _)) = matches_of(packets, interfaces, Seen::Now) {
                add(format!("add rule inet {table} translated {matches}jump former"));
            }
        }
        for rule in OPENS_OR_BELONGS_TO_HOST {
            add(format!("add rule inet {table} former {rule}"));
        }
        let ports: Vec<_> = self.ports.iter().map(|(min, max)| format!("{min}-{max}")).collect();
        for (family, is_v4) in [("ip", true), ("ip6", false)] {
            let texts: Vec<String> = self
                .addresses
                .iter()
                .filter(|range| range.start().is_ipv4() == is_v4)
                .map(|range| interval(*range.start(), *range.end()))
                .collect();
            if !texts.is_empty() {
                add(format!(
                    "add rule inet {table} translated {family} daddr {{ {} }} {WITH_PORTS} th \
                     dport {{ {} }} jump sources",
                    texts.join(", "),
                    ports.join(", ")
                ));
            }
        }
        for rule in [
            "tcp flags & (syn | ack) == syn socket wildcard { 0, 1 } accept",
            "meta l4proto udp socket wildcard { 0, 1 } accept",
            WAITS_FOR_ANYBODY,
            BELONGS_TO_HOST,
            "drop",
        ] {
            add(format!("add rule inet {table} sources {rule}"));
        }
        order
    }

    /// Has a table let through what the kernel may redirect, and behind the kernel's destination
    /// translation nothing of it that is not the host's.
    fn order_left(
        &self,
        table: &str,
        interfaces: &[String],
        names: &str,
        add: &mut impl FnMut(String),
    ) {
        if self.left.is_empty() && self.formerly_left.is_empty() {
            return;
        }
        for packets in self.left.iter().chain(&self.formerly_left) {
            if let Some((matches, _)) = matches_of(packets, interfaces, Seen::Now) {
                add(format!("add rule inet {table} left {matches}accept"));
            }
        }
        for rule in ERRORS {
            add(format!("add rule inet {table} left {rule}"));
        }
        add(format!(
            "add chain inet {table} behind {{ type filter hook prerouting priority {}; policy \
             accept; }}",
            DSTNAT + 1
        ));
        add(format!("add chain inet {table} led"));
        for rule in [&format!("{NOT_FOR_HOST} drop"), "ct status dnat goto led", "jump translated"]
        {
            add(format!("add rule inet {table} behind iifname {{ {names} }} {rule}"));
        }
        for rule in LED_TO_HOST {
            add(format!("add rule inet {table} led {rule}"));
        }
        for packets in &self.left {
            if let Some((matches, _)) = matches_of(packets, interfaces, Seen::Before) {
                add(format!("add rule inet {table} led {matches}accept"));
            }
        }
        add(format!("add rule inet {table} led drop"));
    }
}

/// What was there before and is no more, the latest last.
fn latest_gone(gone: &[Forwarded], before: &[Forwarded], now: &[Forwarded]) -> Vec<Forwarded> {
    let mut latest: Vec<Forwarded> = Vec::new();
    for packets in gone.iter().chain(before).filter(|packets| !now.contains(packets)) {
        latest.retain(|known| known != packets);
        latest.push(*packets);
    }
    let too_many = latest.len().saturating_sub(MAX_FORMER);
    latest.drain(..too_many);
    latest
}

/// The same numbers in ranges that neither meet nor touch, in their order.
fn apart(ranges: impl Iterator<Item = (u16, u16)>) -> Vec<(u16, u16)> {
    let mut ranges: Vec<_> = ranges.collect();
    ranges.sort_unstable();
    let mut apart: Vec<(u16, u16)> = Vec::new();
    for (low, high) in ranges {
        match apart.last_mut() {
            Some(last) if low <= last.1.saturating_add(1) => last.1 = last.1.max(high),
            _ => apart.push((low, high)),
        }
    }
    apart
}

/// Which destination of a packet is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// What it has.
    Now,
    /// What it had before the kernel translated it.
    Before,
}

/// What packets of one kind match, and whether that includes a port; `None` if none of the
/// interfaces is meant.
fn matches_of(packets: &Forwarded, interfaces: &[String], seen: Seen) -> Option<(String, bool)> {
    let mut matches = String::new();
    if let Some(named) = packets.interfaces {
        let is_named = |name: &&String| name_bits(name).is_some_and(|bits| named.holds(bits));
        let names: Vec<_> = interfaces.iter().filter(is_named).map(|it| quoted(it)).collect();
        if names.is_empty() {
            return None;
        }
        matches = format!("iifname {{ {} }} ", names.join(", "));
    }
    for (field, addresses) in [("saddr", packets.sources), ("daddr", packets.addresses)] {
        if let Some((family, Interval { low, high })) = addresses {
            matches += if seen == Seen::Before { "ct original " } else { "" };
            let text = match family {
                Family::V4 => {
                    let address = |number: u128| IpAddr::V4(Ipv4Addr::from_bits(number as u32));
                    format!("ip {field} {} ", interval(address(low), address(high)))
                }
                Family::V6 => {
                    let address = |number: u128| IpAddr::V6(Ipv6Addr::from_bits(number));
                    format!("ip6 {field} {} ", interval(address(low), address(high)))
                }
            };
            matches += &text;
        }
    }
    if let (Some(family), None, None) = (packets.family, packets.sources, packets.addresses) {
        matches += match family {
            Family::V4 => "meta nfproto ipv4 ",
            Family::V6 => "meta nfproto ipv6 ",
        };
    }
    match (packets.protocol, packets.ports) {
        (Some(protocol), _) => matches += &format!("meta l4proto {protocol} "),
        (None, Some(_)) => matches += &format!("{WITH_PORTS} "),
        (None, None) => {}
    }
    if let Some((low, high)) = packets.ports {
        let field = if seen == Seen::Before { "ct original proto-dst" } else { "th dport" };
        matches += &format!("{field} {low}-{high} ");
    }
    Some((matches, packets.ports.is_some()))
}

/// The rules for one kind of packets, behind what they match.
fn rules_of(packets: &Forwarded, interfaces: &[String]) -> Vec<String> {
    match matches_of(packets, interfaces, Seen::Now) {
        None => Vec::new(),
        Some((matches, true)) => vec![format!("{matches}drop")],
        // What the host itself has opened is not translated, nor is talk on the link.
        Some((matches, false)) => [
            WAITS_FOR_ANYBODY,
            BELONGS_TO_HOST,
            "icmp type != echo-request accept",
            "icmpv6 type != echo-request accept",
            "drop",
        ]
        .map(|rule| format!("{matches}{rule}"))
        .to_vec(),
    }
}

fn quoted(name: &str) -> String {
    format!("\"{name}\"")
}

fn interval(low: IpAddr, high: IpAddr) -> String {
    if low == high { low.to_string() } else { format!("{low}-{high}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(port: u16) -> Forwarded {
        Forwarded { protocol: Some(6), ports: Some((port, port)), ..Forwarded::default() }
    }

    fn kept_out(ports: impl IntoIterator<Item = u16>) -> KeptOut {
        KeptOut { forwarded: ports.into_iter().map(port).collect(), ..KeptOut::default() }
    }

    #[test]
    fn what_was_forwarded_is_remembered_until_it_is_again_and_no_longer_than_there_is_room() {
        let first = kept_out([80, 443]);
        let second = kept_out([443]).after(&first);
        assert_eq!(
            (&second.former[..], &second.forwarded[..]),
            (&[port(80)][..], &[port(443)][..])
        );
        let third = kept_out([]).after(&second);
        assert_eq!(third.former, [port(80), port(443)]);
        let fourth = kept_out([80]).after(&third);
        assert_eq!(fourth.former, [port(443)]);
        let order = third.order("t", &["wan0".to_owned()]);
        for port in [80, 443] {
            let rule = format!("add rule inet t translated meta l4proto 6 th dport {port}-{port}");
            assert!(order.contains(&format!("{rule} jump former; ")), "{order}");
        }
        let many = kept_out([]).after(&kept_out(1..=1000));
        let latest: Vec<_> = (1001 - MAX_FORMER as u16..=1000).map(port).collect();
        assert_eq!(many.former, latest);
        // The same again changes nothing, so nft is not bothered.
        assert_eq!(kept_out([443]).after(&second), second);
    }

    #[test]
    fn ports_that_rules_name_are_kept_out_beside_the_range_and_stay_so() {
        assert_eq!(
            apart([(9, 9), (1, 4), (10, 12), (3, 5), (u16::MAX, u16::MAX)].into_iter()),
            [(1, 5), (9, 12), (u16::MAX, u16::MAX)]
        );
        let address = IpAddr::from([198, 51, 100, 1]);
        let ports = |ports: &[(u16, u16)]| KeptOut {
            addresses: vec![address..=address],
            ports: ports.to_vec(),
            ..KeptOut::default()
        };
        let after = ports(&[(1024, 2047)]).after(&ports(&[(1024, 2047), (40_000, 40_000)]));
        let order = after.order("t", &["wan0".to_owned()]);
        assert!(order.contains("th dport { 1024-2047, 40000-40000 } jump sources; "), "{order}");
    }

    #[test]
    fn what_may_be_led_to_the_host_is_let_through_and_looked_at_behind_the_translation() {
        let order = |kept_out: &KeptOut| kept_out.order("t", &["lan0".to_owned()]);
        let is_ordered = |order: &str, rule: &str| order.contains(&format!("{rule}; "));
        assert!(!order(&kept_out([80])).contains("behind"));
        let address = Interval::one(u32::from_be_bytes([198, 51, 100, 1]).into());
        let web = Forwarded { addresses: Some((Family::V4, address)), ..port(80) };
        let before = KeptOut { left: vec![web], ..kept_out([]) };
        let through =
            "add rule inet t left ip daddr 198.51.100.1 meta l4proto 6 th dport 80-80 accept";
        let led = "add rule inet t led ct original ip daddr 198.51.100.1 meta l4proto 6 ct \
                   original proto-dst 80-80 accept";
        let text = order(&before);
        assert!(is_ordered(&text, through) && is_ordered(&text, led), "{text}");
        // What is gone opens nothing there any more.
        let after = kept_out([]).after(&before);
        assert_eq!(after.formerly_left, [web]);
        let text = order(&after);
        assert!(is_ordered(&text, through) && !is_ordered(&text, led), "{text}");
        assert!(is_ordered(&text, "add rule inet t led drop"), "{text}");
        let again = KeptOut { left: vec![web], ..kept_out([]) }.after(&after);
        assert_eq!(order(&again), order(&before));
    }
}
