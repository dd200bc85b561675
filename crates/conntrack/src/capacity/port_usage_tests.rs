use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use flow::{Endpoint, FlowKey};
use wire::{Family, mapped, protocol};

use super::*;

const SHARE: u32 = 94;

fn port_share(pool: u64, source: impl Into<IpAddr>, port: u16, zone: u16) -> PortShare {
    let source = source.into();
    let family = if source.is_ipv4() { Family::V4 } else { Family::V6 };
    let from = Endpoint { address: mapped(source), port };
    let to = Endpoint { address: [0xfe; 16], port: 53 };
    let packet = FlowKey::of_ports(family, protocol::UDP, Zone(zone), from, to);
    PortShare::of(Pool::of(pool), &packet.key, packet.sender)
}

fn host(number: u16) -> Ipv4Addr {
    Ipv4Addr::from(0xc000_0200 + u32::from(number))
}

/// Takes as many ports as a source may have of `ports`; returns their number.
fn take(usage: &mut PortUsage, port_share: &PortShare, ports: u32, share: u32) -> u32 {
    let mut got = 0;
    while usage.count(port_share.pool.number()) < ports && usage.allows(port_share, ports, share) {
        usage.enter(port_share);
        got += 1;
    }
    got
}

#[test]
fn a_source_gets_its_share_and_leaves_the_rest_to_others() {
    let key = |number| port_share(7 << 32, host(number), 1, 0);
    let mut usage = PortUsage::default();
    assert_eq!(take(&mut usage, &key(1), 1000, SHARE), 940);
    // Each further source gets the same share of the remaining ports.
    let others: Vec<u32> =
        (2..8).map(|number| take(&mut usage, &key(number), 1000, SHARE)).collect();
    assert_eq!(others, [60, 0, 0, 0, 0, 0]);
    // The first gives back ports. It can not take them again before as many are free as at
    // first.
    (0..100).for_each(|_| usage.leave(&key(1)));
    assert!(usage.allows(&key(3), 1000, SHARE));
    assert_eq!(take(&mut usage, &key(1), 1000, SHARE), 44);
}

#[test]
fn a_source_that_is_alone_gets_the_share_that_is_set() {
    for (share, most) in [(1, 100), (10, 1000), (50, 5000), (90, 9000), (99, 9900), (100, 10_000)] {
        let mut usage = PortUsage::default();
        assert_eq!(take(&mut usage, &port_share(7 << 32, host(1), 1, 0), 10_000, share), most);
    }
    // In a small pool it gets `ALWAYS` ports, because a count can be too high by that many.
    let mut usage = PortUsage::default();
    assert_eq!(take(&mut usage, &port_share(7 << 32, host(1), 1, 0), 100, 1), ALWAYS as u32);
}

#[test]
fn a_host_that_is_alone_gets_sixty_thousand_ports_of_all() {
    let mut usage = PortUsage::default();
    let got = take(&mut usage, &port_share(1 << 40, host(1), 1, 0), 64_512, SHARE);
    assert!(got > 60_000, "{got}");
    assert_eq!(take(&mut usage, &port_share(2 << 40, host(1), 1, 0), 64_512, 100), 64_512);
}

#[test]
fn two_that_want_all_get_the_same() {
    let [one, other] = [1, 2].map(|number| port_share(7 << 32, host(number), 1, 0));
    let (mut usage, mut got) = (PortUsage::default(), [0; 2]);
    for _ in 0..1000 {
        for (port_share, got) in [&one, &other].into_iter().zip(&mut got) {
            if usage.allows(port_share, 1000, 90) {
                usage.enter(port_share);
                *got += 1;
            }
        }
    }
    // A source may have 9 times the number of free ports: 474 of 1000 each.
    assert_eq!(got, [474, 474]);
}

#[test]
fn hosts_of_one_ipv6_network_are_one_source_and_tenants_are_several() {
    let v6 = |network, host| Ipv6Addr::new(0x2001, 0xdb8, 0, network, 0, 0, 0, host);
    let mut usage = PortUsage::default();
    usage.enter(&port_share(7 << 32, v6(1, 1), 1, 0));
    assert_eq!(usage.held(&port_share(7 << 32, v6(1, 9), 2, 0)), 1);
    assert_eq!(usage.held(&port_share(7 << 32, v6(2, 1), 1, 0)), 0);
    assert_eq!(usage.held(&port_share(7 << 32, v6(1, 1), 1, 5)), 0);
    assert_eq!(usage.held(&port_share(8 << 32, v6(1, 1), 1, 0)), 0);
}

#[test]
fn a_worker_has_the_part_of_its_tables() {
    let mut usage = PortUsage::default();
    assert_eq!(usage.part(1000), 1000);
    usage.set_all_tables(256);
    (0..64).for_each(|_| usage.add_table());
    assert_eq!(usage.part(1000), 250);
    usage.remove_table();
    assert_eq!(usage.part(256), 63);
}

/// Compares the counts with those of a map; returns by how much they are too high on average.
fn compare(seed: u64, connections: u32) -> f64 {
    let mut usage = PortUsage::default();
    let mut model: HashMap<(u64, u16), u32> = HashMap::new();
    let key = |number: u32| {
        let mixed = (u64::from(number) ^ seed).wrapping_mul(FACTOR);
        // Every tenth connection is towards one of few destinations.
        let pool = if number.is_multiple_of(10) { mixed % 8 } else { mixed >> 20 };
        (pool.wrapping_mul(FACTOR), number as u16 % 500)
    };
    for number in 0..connections {
        *model.entry(key(number)).or_default() += 1;
        let (pool, source) = key(number);
        usage.enter(&port_share(pool, host(source), number as u16, 0));
    }
    assert_eq!(usage.total(), connections as usize);
    let mut too_high = 0;
    for (&(pool, source), &count) in &model {
        let held = usage.held(&port_share(pool, host(source), 0, 0));
        assert!(held >= count);
        too_high += held - count;
    }
    for number in 0..connections {
        let (pool, source) = key(number);
        usage.leave(&port_share(pool, host(source), number as u16, 0));
    }
    assert_eq!(usage.total(), 0);
    f64::from(too_high) / model.len() as f64
}

#[test]
fn counts_are_never_too_low_and_those_of_half_a_million_hardly_too_high() {
    for (connections, most) in [(1000, 0.1), (500_000, 8.0)] {
        let too_high = compare(1, connections);
        assert!(too_high < most, "{connections}: {too_high}");
    }
}
