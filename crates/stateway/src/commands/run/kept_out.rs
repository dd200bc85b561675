//! What the kernel keeps from the host because the gateway translates it, as rules of nft.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

use ruleset::{Forwarded, Interval, name_bits};
use steer::{PortRange, Translated};
use wire::Family;

/// Protocols with ports.
const WITH_PORTS: &str = "meta l4proto { tcp, udp, udplite, sctp, dccp }";

/// Drops what no connection of the host has, only a socket that waits for anybody.
const WAITS_FOR_ANYBODY: &str = "socket wildcard 1 drop";
/// Lets through what belongs to a socket. Whether one is transparent is asked because that can
/// be told, either way, of connections that are being opened and of those that are over too.
const BELONGS_TO_HOST: &str = "socket transparent { 0, 1 } accept";

/// Packets for the host's addresses that are not the host's affair.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeptOut {
    /// Addresses that sources are translated to.
    pub addresses: Vec<RangeInclusive<IpAddr>>,
    /// The ports that they get.
    pub ports: Option<PortRange>,
    /// Packets whose destination is translated.
    pub forwarded: Vec<Forwarded>,
}

impl KeptOut {
    /// What is translated.
    pub fn new(translated: &Translated, forwarded: &[Forwarded]) -> Self {
        let address = |bytes: [u8; 16]| Ipv6Addr::from(bytes).to_canonical();
        let addresses =
            translated.addresses().map(|range| address(*range.start())..=address(*range.end()));
        Self {
            addresses: addresses.collect(),
            ports: Some(translated.ports()),
            forwarded: forwarded.to_vec(),
        }
    }

    /// Has a table drop this, for packets that come in by these interfaces. The mark stands in
    /// what nft lists of it.
    pub fn order(&self, table: &str, interfaces: &[String], mark: &str) -> String {
        let mut order = String::new();
        // All on one line: nft carries out a line as a whole.
        let mut add = |command: String| {
            // Writing to a text can not fail.
            let _ = write!(order, "{command}; ");
        };
        for chain in ["translated", "sources"] {
            add(format!("add chain inet {table} {chain}"));
            add(format!("flush chain inet {table} {chain}"));
        }
        add(format!(
            "add chain inet {table} host {{ type filter hook prerouting priority -299; policy \
             accept; }}"
        ));
        add(format!("flush chain inet {table} host"));
        add(format!(
            "add rule inet {table} host iifname {{ {} }} jump translated comment \"{mark}\"",
            interfaces.iter().map(|name| quoted(name)).collect::<Vec<_>>().join(", ")
        ));
        for rule in self.forwarded.iter().flat_map(|packets| rules_of(packets, interfaces)) {
            add(format!("add rule inet {table} translated {rule}"));
        }
        let Some(PortRange { min, max }) = self.ports else { return finish(order) };
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
                     dport {min}-{max} jump sources",
                    texts.join(", ")
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
        finish(order)
    }
}

fn finish(mut order: String) -> String {
    order.push('\n');
    order
}

/// The rules for one kind of packets, behind what they match.
fn rules_of(packets: &Forwarded, interfaces: &[String]) -> Vec<String> {
    let mut matches = String::new();
    if let Some(named) = packets.interfaces {
        let is_named = |name: &&String| name_bits(name).is_some_and(|bits| named.holds(bits));
        let names: Vec<_> = interfaces.iter().filter(is_named).map(|it| quoted(it)).collect();
        if names.is_empty() {
            return Vec::new();
        }
        matches = format!("iifname {{ {} }} ", names.join(", "));
    }
    for (field, addresses) in [("saddr", packets.sources), ("daddr", packets.addresses)] {
        if let Some((family, Interval { low, high })) = addresses {
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
    let protocol = packets.protocol.map(|protocol| format!("meta l4proto {protocol} "));
    match packets.ports {
        Some((low, high)) => {
            let protocol = protocol.unwrap_or_else(|| format!("{WITH_PORTS} "));
            vec![format!("{matches}{protocol}th dport {low}-{high} drop")]
        }
        None => {
            let protocol = protocol.unwrap_or_default();
            // What the host itself has opened is not translated, nor is talk on the link.
            [
                WAITS_FOR_ANYBODY,
                BELONGS_TO_HOST,
                "icmp type != echo-request accept",
                "icmpv6 type != echo-request accept",
                "drop",
            ]
            .map(|rule| format!("{matches}{protocol}{rule}"))
            .to_vec()
        }
    }
}

fn quoted(name: &str) -> String {
    format!("\"{name}\"")
}

fn interval(low: IpAddr, high: IpAddr) -> String {
    if low == high { low.to_string() } else { format!("{low}-{high}") }
}
