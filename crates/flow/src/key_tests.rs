use super::*;
use proptest::prelude::*;

fn network(source: [u8; 16], destination: [u8; 16], protocol: u8, transport: Transport) -> Network {
    Network {
        family: Family::V4,
        source,
        destination,
        offset: 14,
        transport_offset: 34,
        end: 100,
        protocol,
        ttl: 64,
        traffic_class: 0,
        dont_fragment: false,
        fragment: None,
        transport,
    }
}

fn address(last: u8) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[10..].copy_from_slice(&[0xff, 0xff, 192, 0, 2, last]);
    bytes
}

fn echo(from: u8, to: u8, id: u16, reply: bool) -> KeyedPacket {
    let icmp_type = if reply { 0 } else { 8 };
    let query = IcmpQuery { kind: QueryKind::Echo, reply, icmp_type, code: 0, id };
    let packet = network(address(from), address(to), 1, Transport::IcmpQuery(query));
    FlowKey::of_packet(&packet, Zone(0)).unwrap()
}

proptest! {
    #[test]
    fn both_directions_have_one_key_and_opposite_senders(
        a: [u8; 16], b: [u8; 16], source_port: u16, destination_port: u16, zone: u16,
    ) {
        let udp = |source_port, destination_port| Transport::Udp { source_port, destination_port, length: 8 };
        let there = network(a, b, 17, udp(source_port, destination_port));
        let back = network(b, a, 17, udp(destination_port, source_port));
        let there = FlowKey::of_packet(&there, Zone(zone)).unwrap();
        let back = FlowKey::of_packet(&back, Zone(zone)).unwrap();
        prop_assert_eq!(there.key, back.key);
        if (a, source_port) != (b, destination_port) {
            prop_assert_eq!(there.sender, back.sender.opposite());
        }
        prop_assert_eq!(there.key.endpoint(there.sender), Endpoint { address: a, port: source_port });
    }

    /// Compared with the key of a packet that has these ends.
    #[test]
    fn between_other_ends_a_flow_has_the_key_of_its_packets(
        ends: [([u8; 16], u16); 4], choice in 0usize..6, reply: bool, kind in 0usize..6, code: u8,
        gre: u32,
    ) {
        use QueryKind::*;
        let query = |id| IcmpQuery {
            kind: [Echo, Timestamp, Information, AddressMask, EchoV6, NodeInformation][kind],
            reply,
            icmp_type: 0,
            code,
            id,
        };
        let packet = |from: ([u8; 16], u16), to: ([u8; 16], u16)| {
            let ports = (from.1, to.1);
            let (source_port, destination_port) = ports;
            let id = if (choice, kind) == (3, 5) { 77 } else if reply { to.1 } else { from.1 };
            let (number, transport) = match choice {
                0 => (17, Transport::Udp { source_port, destination_port, length: 8 }),
                1 => (132, Transport::Sctp { source_port, destination_port, verification_tag: 0 }),
                2 => (1, Transport::IcmpQuery(query(id))),
                3 => (58, Transport::IcmpQuery(query(id))),
                4 => (47, Transport::Gre { version: 0, key: gre }),
                _ => (99, Transport::Other),
            };
            FlowKey::of_packet(&network(from.0, to.0, number, transport), Zone(3)).unwrap()
        };
        let other_has_none = |(address, port): ([u8; 16], u16)| match choice {
            5 => Endpoint { address, port: 0 },
            _ => Endpoint { address, port },
        };
        let before = packet(ends[0], ends[1]);
        let (source, destination) = (other_has_none(ends[2]), other_has_none(ends[3]));
        let after = before.key.between(before.sender, source, destination);
        prop_assert_eq!(after, packet(ends[2], ends[3]));
        // The ends are enough to get back to the first key.
        let ends = [before.sender, before.sender.opposite()].map(|side| before.key.end(side));
        prop_assert_eq!(after.key.between(after.sender, ends[0], ends[1]), before);
    }

    /// With 64 bits, a collision of these few keys means that a field is left out.
    #[test]
    fn every_field_counts_in_the_hash(a: [u8; 16], b: [u8; 16], p: u16, q: u16, zone: u16, bit in 0u32..16) {
        for family in [Family::V4, Family::V6] {
            let mapped = |mut address: [u8; 16]| {
                if family == Family::V4 {
                    address[..12].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
                }
                address
            };
            let key = FlowKey {
                low: Endpoint { address: mapped(a), port: p },
                high: Endpoint { address: mapped(b), port: q },
                zone: Zone(zone),
                protocol: 6,
                kind: 0,
                family,
            };
            let byte = 12 + (bit / 4) as usize;
            let mut others = [key; 7];
            others[0].low.address[byte] ^= 1 << (bit % 8);
            others[1].high.address[byte] ^= 1 << (bit % 8);
            others[2].low.port ^= 1 << bit;
            others[3].high.port ^= 1 << bit;
            others[4].zone.0 ^= 1 << bit;
            others[5].protocol ^= 1 << (bit % 8);
            others[6].kind ^= 1 << (bit % 8);
            for other in others {
                prop_assert_ne!(key.hash(HashKey(1, 2)), other.hash(HashKey(1, 2)));
            }
            prop_assert_ne!(key.hash(HashKey(1, 2)), key.hash(HashKey(1, 3)));
        }
    }
}

#[test]
fn an_echo_and_its_reply_are_one_flow() {
    let (request, reply) = (echo(1, 2, 77, false), echo(2, 1, 77, true));
    assert_eq!(request.key, reply.key);
    assert_eq!(request.sender, reply.sender.opposite());
}

#[test]
fn echo_requests_both_ways_with_one_identifier_are_two_flows() {
    assert_ne!(echo(1, 2, 77, false).key, echo(2, 1, 77, false).key);
}

#[test]
fn an_echo_to_oneself_has_two_directions() {
    let (request, reply) = (echo(1, 1, 77, false), echo(1, 1, 77, true));
    assert_eq!(request.key, reply.key);
    assert_ne!(request.sender, reply.sender);
}

#[test]
fn zones_keep_flows_apart() {
    let udp = Transport::Udp { source_port: 1, destination_port: 2, length: 8 };
    let packet = network(address(1), address(2), 17, udp);
    let in_zone = |zone| FlowKey::of_packet(&packet, Zone(zone)).unwrap().key;
    assert_ne!(in_zone(0), in_zone(1));
    let secret = HashKey(1, 2);
    assert_ne!(in_zone(0).hash(secret), in_zone(1).hash(secret));
}

proptest! {
    /// The bucket of a flow comes from the high half, its place in the table from the low one.
    #[test]
    fn a_flow_has_the_same_high_half_in_all_zones(
        ports in any::<(u16, u16)>(), zone: u16, other: u16,
    ) {
        let udp = Transport::Udp { source_port: ports.0, destination_port: ports.1, length: 8 };
        let packet = network(address(1), address(2), 17, udp);
        let secret = HashKey(1, 2);
        let in_zone = |zone| {
            let keyed = FlowKey::of_packet(&packet, Zone(zone)).unwrap();
            (keyed, keyed.key.hash(secret))
        };
        let ((keyed, hash), there) = (in_zone(zone), in_zone(other));
        prop_assert_eq!(keyed.moved(hash, Zone(other)), there);
        prop_assert_eq!(hash >> 32, there.1 >> 32);
        prop_assert_eq!(hash as u32 == there.1 as u32, zone == other);
    }
}

proptest! {
    /// A packet names only one call id, so the ids must not decide its bucket.
    #[test]
    fn all_calls_between_two_hosts_have_one_hash(
        a: [u8; 16], b: [u8; 16], ids: (u16, u16), zone: u16, tunnel_key: u32,
    ) {
        let gre = |source, destination, version, key| {
            let packet = network(source, destination, 47, Transport::Gre { version, key });
            FlowKey::of_packet(&packet, Zone(zone)).unwrap()
        };
        let (there, back) = (gre(a, b, 1, ids.1.into()), gre(b, a, 1, ids.0.into()));
        prop_assert_eq!(there.key, back.key);
        prop_assert!(there.key.is_of_calls());
        let ends = |(from, to): (u16, u16)| {
            let [source, destination] = [(a, from), (b, to)]
                .map(|(address, port)| Endpoint { address, port });
            FlowKey::of_call(Family::V4, Zone(zone), source, destination)
        };
        let call = ends(ids);
        prop_assert!(call.is_call());
        prop_assert_eq!(there.key.call(there.sender, ids.0, ids.1), call);
        prop_assert_eq!(call.endpoint(there.sender.opposite()).port, ids.1);
        prop_assert_eq!(call.of_calls(), there.key);
        let secret = HashKey(1, 2);
        prop_assert_eq!(call.hash(secret), there.key.packet_hash(secret));
        prop_assert_eq!(ends((ids.1, 1)).hash(secret), call.hash(secret));
        if a != b {
            let other_way = FlowKey::of_call(
                Family::V4,
                Zone(zone),
                Endpoint { address: b, port: ids.1 },
                Endpoint { address: a, port: ids.0 },
            );
            prop_assert_eq!(other_way, call);
        }
        let tunnel = gre(a, b, 0, tunnel_key).key;
        prop_assert_eq!(FlowKey::of_tunnel(Family::V4, Zone(zone), b, a, tunnel_key), tunnel);
        prop_assert!(!tunnel.is_call() && !tunnel.is_of_calls() && tunnel.of_calls() == tunnel);
        prop_assert_ne!(tunnel, there.key);
    }
}
