use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::net::{IpAddr, Ipv4Addr};

use flow::{PortPart, PortPermutation, Zone};
use proptest::prelude::*;
use wire::{Family, mapped, protocol};

use super::*;

proptest! {
    /// A search that continues finds the remaining candidates in the same order.
    #[test]
    fn a_continued_search_finds_the_remaining_candidates(
        (own_port, first, count) in (1..u16::MAX, 1..60_000_u16, 1..300_u16),
        (secret, first_place, places) in (any::<u64>(), any::<u16>(), 0..600_u32),
        (has_range, hosts, random) in (any::<bool>(), 0..4_u8, any::<bool>()),
        (seed, known_port) in (any::<u64>(), prop::option::of(1..u16::MAX)),
        stop in any::<prop::sample::Index>(),
    ) {
        let address = |last| IpAddr::V4(Ipv4Addr::new(198, 51, 100, last));
        let end = |last, port| Endpoint { address: mapped(address(last)), port };
        let ends = Ends { source: end(1, own_port), destination: end(200, 53) };
        let (low, high) = (ends.source, ends.destination);
        let key = FlowKey::of_ports(Family::V4, protocol::UDP, Zone(0), low, high).key;
        let request = Request {
            addresses: Addresses::new(address(10), address(10 + hosts)),
            ports: Ports::new(first, first + count).filter(|_| has_range),
            random,
            ..Request::of(TranslatedEnd::Source)
        };
        let own = BucketPorts::new(PortPermutation::new(secret), first_place, places);
        let hash = |key: &FlowKey| u64::from(key.low.port) ^ seed.rotate_left(9);
        let supply = Supply { own, seed, hash: &hash };
        let subject = Subject { key, hash: None, ends, known_port };
        let behind = |places| Candidates::new(places, &request, &subject, supply);
        let all: Vec<_> = behind(0).collect();
        // Every port of the range is tried once, those of the bucket first. With several addresses
        // some of the others are left out.
        let range = request.range(own_port);
        let tried = |address| -> Vec<u16> {
            let ends = all.iter().map(|(_, ends)| ends.source);
            ends.filter(|end| end.address == address).map(|end| end.port).collect()
        };
        let mut addresses: Vec<_> = all.iter().map(|(_, ends)| ends.source.address).collect();
        addresses.dedup();
        prop_assert_eq!(addresses.len(), usize::from(hosts.min(3)) + 1);
        let ports = tried(addresses[0]);
        let kept = !random && (!has_range || range.contains(own_port));
        let at_last = !has_range && own_port < 1024;
        let is_allowed = |port: &u16| range.contains(*port) || at_last && *port >= 1024;
        // The port that the source has already, then its own.
        let known = known_port.filter(is_allowed).into_iter();
        let mut first: Vec<u16> = known.chain(kept.then_some(own_port)).collect();
        first.dedup();
        let others = ports.strip_prefix(&*first).expect("these come first");
        let is_first = |port: &&u16| !random && own.contains(**port) && range.contains(**port);
        let own_count = others.iter().filter(is_first).count();
        prop_assert!(others[..own_count].iter().all(|port| own.contains(*port)));
        let mut sorted = others.to_vec();
        sorted.sort_unstable();
        let unprivileged = (1024..=u16::MAX).filter(|_| at_last);
        let expected: Vec<u16> = (range.first()..=range.last())
            .chain(unprivileged)
            .filter(|port| !first.contains(port))
            .collect();
        let is_whole = sorted == expected;
        if hosts == 0 {
            prop_assert!(is_whole, "{} ports of {}", sorted.len(), expected.len());
        } else {
            sorted.dedup();
            prop_assert_eq!(sorted.len(), others.len(), "none is tried twice");
            prop_assert!(sorted.iter().all(|port| expected.binary_search(port).is_ok()));
        }
        prop_assert!(all.is_sorted_by(|one, next| one.0 < next.0));
        let known = Subject { hash: Some(hash(&key)), ..subject };
        prop_assert!(Candidates::new(0, &request, &known, supply).collect::<Vec<_>>() == all);
        // Two gateways that divide the ports have none in common but those that are kept.
        let [one, other] = [PortPart::First, PortPart::Second].map(|part| {
            let supply = Supply { own: own.in_part(part), ..supply };
            let sources = Candidates::new(0, &request, &subject, supply).map(|(_, it)| it.source);
            sources.collect::<std::collections::BTreeSet<_>>()
        });
        prop_assert!(one.intersection(&other).all(|end| end.port == own_port));
        let is_all = all.iter().all(|(_, it)| one.contains(&it.source) || other.contains(&it.source));
        prop_assert!(is_all);
        if !all.is_empty() {
            let at = stop.index(all.len());
            let rest: Vec<_> = behind(all[at].0).collect();
            let is_rest = rest == all[at + 1..];
            prop_assert!(is_rest, "{} behind {at}", rest.len());
        }
    }
}

/// The first port that a rule with `random` gives to a source, for many connections.
fn drawn(own_port: u16, places: u32) -> std::collections::BTreeSet<u16> {
    let end =
        |last, port| Endpoint { address: mapped(Ipv4Addr::new(198, 51, 100, last).into()), port };
    let ends = Ends { source: end(1, own_port), destination: end(200, 53) };
    let (low, high) = (ends.source, ends.destination);
    let key = FlowKey::of_ports(Family::V4, protocol::UDP, Zone(0), low, high).key;
    let request = Request { random: true, ..Request::of(TranslatedEnd::Source) };
    let subject = Subject { key, hash: None, ends, known_port: None };
    let own = BucketPorts::new(PortPermutation::new(7), 11, places);
    let first = |draw: u64| {
        let seed = BuildHasherDefault::<DefaultHasher>::default().hash_one(draw);
        let supply = Supply { own, seed, hash: &|_| 0 };
        Candidates::new(0, &request, &subject, supply)
            .next()
            .expect("all ports are free")
            .1
            .source
            .port
    };
    (0..2000).map(first).collect()
}

/// An attacker who guesses the port of a resolver's question has to guess among all of them (RFC 5452
/// section 9.2), and not only among those of a bucket.
#[test]
fn a_random_port_is_drawn_from_the_whole_range() {
    // The largest number of buckets, the default, and one.
    for places in [1, 256, 1 << 16] {
        // 2000 draws from 64,512 ports have some 30 in common.
        assert!(drawn(40_000, places).len() > 1900, "{places}");
        let low = drawn(53, places);
        assert!(low.len() > 480 && low.iter().all(|port| (1..512).contains(port)), "{}", low.len());
        let middle = drawn(1000, places);
        assert!(middle.len() > 400 && middle.iter().all(|port| (600..1024).contains(port)));
    }
}
