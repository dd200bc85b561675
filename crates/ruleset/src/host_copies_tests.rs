use std::net::Ipv4Addr;

use wire::build::PacketBuilder;
use wire::{dissect, protocol};

use super::*;
use crate::kind::name_bits;
use crate::translations::EndsAt;

const OWN: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 254);
const OTHER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 9);

fn to_ports(low: u16, high: u16) -> Forwarded {
    Forwarded { protocol: Some(protocol::UDP), ports: Some((low, high)), ..Forwarded::default() }
}

/// True if the kernel of the host `OWN` gets its copy of a datagram that came in by `wan0`.
fn has(copies: &HostCopies, to: Ipv4Addr, port: u16) -> bool {
    let from = Ipv4Addr::new(203, 0, 113, 7);
    let mut frame = Vec::new();
    PacketBuilder::v4(from.octets(), to.octets()).udp(9, port, b"text", &mut frame);
    let network = dissect(&frame).unwrap().network.unwrap();
    let is_host = |family, addresses: Interval| {
        family == Family::V4 && addresses.holds(address_bits(OWN.into()))
    };
    copies.has(&network, name_bits("wan0").unwrap(), is_host)
}

#[test]
fn the_kernel_gets_what_no_rule_may_lead_elsewhere() {
    let translations = Translations {
        destinations: vec![to_ports(81, 81), to_ports(80, 80), to_ports(8000, 8010)],
        ..Translations::default()
    };
    let copies = HostCopies::new(&translations);
    for (port, expected) in
        [(79, true), (80, false), (81, false), (82, true), (8000, false), (8011, true)]
    {
        assert_eq!(has(&copies, OWN, port), expected, "{port}");
        assert!(!has(&copies, OTHER, port), "it is not for the host");
    }
}

#[test]
fn conditions_about_the_way_in_count() {
    let at = |name| Forwarded {
        interfaces: Some(Interval::one(name_bits(name).unwrap())),
        ..to_ports(80, 80)
    };
    for (name, expected) in [("wan0", false), ("lan0", true)] {
        let destinations = vec![at(name)];
        let copies = HostCopies::new(&Translations { destinations, ..Translations::default() });
        assert_eq!(has(&copies, OWN, 80), expected, "{name}");
    }
}

#[test]
fn the_kernel_gets_what_a_rule_may_lead_to_the_host() {
    let own = (Family::V4, Interval::one(address_bits(OWN.into())));
    let other = (Family::V4, Interval::one(address_bits(OTHER.into())));
    let cases = [
        (EndsAt::Host, true),
        (EndsAt::Addresses(vec![other]), false),
        (EndsAt::Addresses(vec![other, own]), true),
    ];
    for (at, expected) in cases {
        let packets = vec![to_ports(80, 80)];
        let translations = Translations {
            destinations: packets.clone(),
            ends: vec![Ending { rule: 0, packets, at }],
            ..Translations::default()
        };
        assert_eq!(has(&HostCopies::new(&translations), OWN, 80), expected);
    }
}
