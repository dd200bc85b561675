use proptest::prelude::*;
use wire::{IcmpError, IcmpQuery, QueryKind, Quoted, QuotedTransport, TcpFlags, TcpInfo};

use super::*;
use crate::{Toeplitz, ToeplitzKey};

const ZONE: Zone = Zone(0);

fn hasher(kind: HashKind) -> SteeringHasher {
    SteeringHasher::new(SteeringConfig {
        tunnels: TunnelSteering::Inner,
        kind,
        key: HashKey(1, 2),
        buckets: BucketCount::new(4096).unwrap(),
        fragments: FragmentSteering::default(),
    })
}

fn v4(last: u16) -> [u8; 16] {
    let [high, low] = last.to_be_bytes();
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, high, low]
}

fn v6(last: u16) -> [u8; 16] {
    let [high, low] = last.to_be_bytes();
    [0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, high, low]
}

fn udp(source_port: u16, destination_port: u16) -> Transport {
    Transport::Udp { source_port, destination_port, length: 8 }
}

fn tcp(source_port: u16, destination_port: u16) -> Transport {
    Transport::Tcp(TcpInfo {
        source_port,
        destination_port,
        sequence: 1,
        acknowledgment: 2,
        window: 3,
        flags: TcpFlags::ACK,
        header_len: 20,
    })
}

fn packet(
    family: Family,
    source: [u8; 16],
    destination: [u8; 16],
    protocol: u8,
    transport: Transport,
) -> Network {
    let header = if family == Family::V4 { 20 } else { 40 };
    Network {
        family,
        source,
        destination,
        offset: 14,
        transport_offset: 14 + header,
        end: 100,
        protocol,
        ttl: 64,
        traffic_class: 0,
        dont_fragment: false,
        fragment: None,
        transport,
    }
}

fn udp_packet(a: u16, b: u16, source_port: u16, destination_port: u16) -> Network {
    packet(Family::V4, v4(a), v4(b), protocol::UDP, udp(source_port, destination_port))
}

fn fragment(id: u32, offset: u16, more: bool) -> Option<FragmentInfo> {
    Some(FragmentInfo { id, offset, more, payload_offset: 34 })
}

#[test]
fn sip_takes_the_bucket_from_the_high_half_of_the_table_hash() {
    let hasher = hasher(HashKind::Sip);
    let Steered::Flow { keyed, hash, bucket } = hasher.steer(&udp_packet(1, 2, 3, 4), ZONE, None)
    else {
        panic!("a flow")
    };
    assert_eq!(hash, Some(keyed.key.hash(HashKey(1, 2))));
    assert_eq!(u64::from(bucket.0), hash.unwrap() >> 52);
    assert_eq!(hasher.bucket_of_key(&keyed.key), bucket);
}

#[test]
fn a_supplied_hash_counts_only_for_plain_tcp_and_udp() {
    let supplied = NonZeroU32::new(0xabcd_abcd);
    let toeplitz = hasher(HashKind::ToeplitzSymmetric);
    let used = |network: &Network| {
        toeplitz.steer(network, ZONE, supplied) != toeplitz.steer(network, ZONE, None)
    };
    let plain = udp_packet(1, 2, 3, 4);
    assert!(used(&plain));
    assert!(used(&packet(Family::V6, v6(1), v6(2), protocol::TCP, tcp(3, 4))));

    assert!(!used(&Network { protocol: protocol::UDPLITE, ..plain }), "UDP-Lite");
    assert!(!used(&Network { offset: 18, transport_offset: 38, ..plain }), "tagged");
    assert!(!used(&Network { offset: 38, transport_offset: 58, ..plain }), "tunnelled");
    assert!(!used(&Network { transport_offset: 38, ..plain }), "with options");
    assert!(!used(&Network { fragment: fragment(1, 0, true), ..plain }), "first fragment");
    assert!(!used(&Network { fragment: fragment(1, 0, false), ..plain }), "atomic fragment");
    assert!(!used(&Network { transport: Transport::Other, protocol: 99, ..plain }));

    let sip = hasher(HashKind::Sip);
    assert_eq!(sip.steer(&plain, ZONE, supplied), sip.steer(&plain, ZONE, None));
}

#[test]
fn keyless_packets_stay_with_their_pair_of_addresses() {
    let hasher = hasher(HashKind::Sip);
    let other = |source, destination, kind| {
        let transport = Transport::IcmpOther { kind, code: 0 };
        hasher.steer(
            &packet(Family::V6, v6(source), v6(destination), protocol::ICMPV6, transport),
            ZONE,
            None,
        )
    };
    assert!(matches!(other(1, 2, 135), Steered::Keyless { .. }));
    assert_eq!(other(1, 2, 135), other(2, 1, 136));
    assert_ne!(other(1, 2, 135), other(1, 3, 135));

    let unquoted = Transport::IcmpError(IcmpError { kind: 3, code: 1, quoted: None });
    let network = packet(Family::V4, v4(1), v4(2), protocol::ICMP, unquoted);
    assert!(matches!(hasher.steer(&network, ZONE, None), Steered::Keyless { .. }));
}

#[test]
fn an_echo_and_its_reply_share_a_bucket() {
    let query = |reply| {
        let icmp_type = if reply { 0 } else { 8 };
        Transport::IcmpQuery(IcmpQuery { kind: QueryKind::Echo, reply, icmp_type, code: 0, id: 9 })
    };
    for kind in [HashKind::Sip, HashKind::ToeplitzSymmetric] {
        let hasher = hasher(kind);
        let ask = packet(Family::V4, v4(1), v4(2), protocol::ICMP, query(false));
        let answer = packet(Family::V4, v4(2), v4(1), protocol::ICMP, query(true));
        assert_eq!(
            hasher.steer(&ask, ZONE, None).bucket(),
            hasher.steer(&answer, ZONE, None).bucket()
        );
    }
}

#[test]
fn an_atomic_fragment_is_a_whole_datagram() {
    let hasher = hasher(HashKind::Sip);
    let whole = packet(Family::V6, v6(1), v6(2), protocol::UDP, udp(3, 4));
    let atomic = Network { fragment: fragment(77, 0, false), ..whole };
    assert_eq!(hasher.steer(&atomic, ZONE, None), hasher.steer(&whole, ZONE, None));
}

fn kinds() -> impl Strategy<Value = HashKind> {
    prop_oneof![Just(HashKind::Sip), Just(HashKind::ToeplitzSymmetric)]
}

proptest! {
    #[test]
    fn replies_and_errors_share_the_bucket(
        kind in kinds(),
        (a, b, p, q, zone, other_zone) in any::<(u16, u16, u16, u16, u16, u16)>(),
        is_v6 in any::<bool>(),
        router in any::<u16>(),
    ) {
        let hasher = hasher(kind);
        let zone = Zone(zone);
        let (family, address, icmp): (_, fn(u16) -> [u8; 16], _) =
            if is_v6 { (Family::V6, v6, protocol::ICMPV6) } else { (Family::V4, v4, protocol::ICMP) };
        let there = packet(family, address(a), address(b), protocol::TCP, tcp(p, q));
        let back = packet(family, address(b), address(a), protocol::TCP, tcp(q, p));
        let quoted = Quoted {
            source: address(a),
            destination: address(b),
            offset: 42,
            transport_offset: 62,
            protocol: protocol::TCP,
            transport: QuotedTransport::Ports { source: p, destination: q },
        };
        let error = Transport::IcmpError(IcmpError { kind: 3, code: 1, quoted: Some(quoted) });
        let error = packet(family, address(router), address(a), icmp, error);

        let steered = hasher.steer(&there, zone, None);
        prop_assert_eq!(hasher.steer(&back, zone, None).bucket(), steered.bucket());
        prop_assert_eq!(hasher.steer(&back, Zone(other_zone), None).bucket(), steered.bucket());
        let about = hasher.steer(&error, zone, None);
        prop_assert_eq!(about.bucket(), steered.bucket());
        let (Steered::Flow { keyed, hash, .. }, Steered::Quoted { keyed: quoted, hash: about, .. }) =
            (steered, about)
        else {
            panic!("a flow and an error about it")
        };
        prop_assert_eq!(keyed, quoted);
        prop_assert_eq!(hash, about);
    }

    /// An interface with the symmetric key computes the same hash.
    #[test]
    fn a_supplied_hash_changes_nothing((a, b, p, q) in any::<(u16, u16, u16, u16)>(), is_v6 in any::<bool>()) {
        let hasher = hasher(HashKind::ToeplitzSymmetric);
        let toeplitz = Toeplitz::new(&ToeplitzKey::SYMMETRIC);
        let (network, supplied) = if is_v6 {
            let network = packet(Family::V6, v6(a), v6(b), protocol::UDP, udp(p, q));
            (network, toeplitz.hash_tuple(&v6(a), &v6(b), p, q))
        } else {
            (udp_packet(a, b, p, q), toeplitz.hash_tuple(&v4(a)[12..], &v4(b)[12..], p, q))
        };
        prop_assert_eq!(
            hasher.steer(&network, ZONE, NonZeroU32::new(supplied)),
            hasher.steer(&network, ZONE, None)
        );
    }

    #[test]
    fn all_fragments_of_a_datagram_share_a_bucket(
        kind in kinds(),
        (a, b, id, offset) in any::<(u16, u16, u32, u16)>(),
        is_v6 in any::<bool>(),
        next_header in any::<u8>(),
    ) {
        let hasher = hasher(kind);
        let (family, address): (_, fn(u16) -> [u8; 16]) =
            if is_v6 { (Family::V6, v6) } else { (Family::V4, v4) };
        let first = Network {
            fragment: fragment(id, 0, true),
            ..packet(family, address(a), address(b), protocol::UDP, udp(1, 2))
        };
        let later = Network {
            fragment: fragment(id, offset.max(8), false),
            // Behind the fragment header of IPv6 another header may follow.
            protocol: if is_v6 { next_header } else { protocol::UDP },
            transport: Transport::LaterFragment,
            ..first
        };
        let bucket = hasher.steer(&first, ZONE, None);
        prop_assert_eq!(bucket, Steered::Fragment { bucket: bucket.bucket() });
        prop_assert_eq!(bucket, hasher.steer(&later, ZONE, None));
        prop_assert_eq!(bucket, hasher.steer(&later, Zone(9), None));

    }

    #[test]
    fn ordered_steering_keeps_all_between_two_addresses_together(
        a in 0..4_u16, b in 0..4_u16, ports in any::<(u16, u16)>(), id in any::<u32>(),
    ) {
        for kind in [HashKind::Sip, HashKind::ToeplitzSymmetric] {
            let config = SteeringConfig { fragments: FragmentSteering::Ordered, ..*hasher(kind).config() };
            let ordered = SteeringHasher::new(config);
            let whole = udp_packet(a, b, ports.0, ports.1);
            let answer = Network { transport: tcp(1, 2), protocol: protocol::TCP, ..udp_packet(b, a, 1, 2) };
            let first = Network { fragment: fragment(id, 0, true), ..whole };
            let bucket = ordered.steer(&whole, ZONE, NonZeroU32::new(7)).bucket();
            prop_assert_eq!(ordered.steer(&answer, ZONE, None).bucket(), bucket);
            prop_assert_eq!(ordered.steer(&first, ZONE, None).bucket(), bucket);
            let keyed = FlowKey::of_packet(&whole, Zone(9)).unwrap();
            prop_assert_eq!(ordered.bucket_of_key(&keyed.key), bucket);
        }
    }
}

/// Flows that differ like those of one client network: with a linear hash alone some buckets
/// stay empty.
#[test]
fn flows_of_a_client_network_spread() {
    for kind in [HashKind::Sip, HashKind::ToeplitzSymmetric] {
        let config = SteeringConfig { buckets: BucketCount::DEFAULT, ..*hasher(kind).config() };
        let hasher = SteeringHasher::new(config);
        let mut counts = [0_u32; 256];
        for client in 0..256 {
            for port in 1024..2048 {
                let network = udp_packet(0x0200 + client, 0x0301, port, 53);
                counts[hasher.steer(&network, ZONE, None).bucket().index()] += 1;
            }
        }
        // The Toeplitz hash knows only 1024 different flows here, four per bucket:
        // by chance alone 256 / e^4 = 5 buckets stay empty.
        let empty = counts.iter().filter(|&&count| count == 0).count();
        let most = counts.iter().max().unwrap();
        assert!(empty <= 16 && *most <= 3 * 1024, "{kind:?}: {empty} empty, {most} in the fullest");
    }
}

/// An operator names a call by both ids, a packet by one.
#[test]
fn a_call_is_in_the_bucket_of_its_packets() {
    for kind in [HashKind::Sip, HashKind::ToeplitzSymmetric] {
        let hasher = hasher(kind);
        let gre = |from, to, key| {
            let transport = Transport::Gre { version: 1, key };
            hasher.steer(
                &packet(Family::V4, v4(from), v4(to), protocol::GRE, transport),
                ZONE,
                None,
            )
        };
        let Steered::Flow { keyed, bucket, .. } = gre(1, 2, 7) else { panic!("a flow") };
        for key in [0, 9, 0xffff] {
            assert_eq!(gre(2, 1, key).bucket(), bucket);
            let call = keyed.key.call(keyed.sender, 9, key as u16);
            assert_eq!(hasher.bucket_of_key(&call), bucket);
            assert_eq!(hasher.table_hash(&call), hasher.packet_hash(&keyed.key));
        }
    }
}

/// A packet of GRE between two gateways with these flags and words of options, and a datagram of a
/// flow inside.
fn tunnelled(flags: u8, words: usize, flow: u16, back: bool) -> Vec<u8> {
    let builder = |a: [u8; 4], b: [u8; 4]| {
        let (from, to) = if back { (b, a) } else { (a, b) };
        wire::build::PacketBuilder::v4(from, to)
    };
    let ports = if back { (53, flow) } else { (flow, 53) };
    let (mut inner, mut outer) = (Vec::new(), Vec::new());
    builder([192, 0, 2, 1], [198, 51, 100, 2]).udp(ports.0, ports.1, b"inside", &mut inner);
    let header = [&[flags, 0, 8, 0][..], &vec![0; 4 * words], &inner[14..]].concat();
    builder([203, 0, 113, 1], [203, 0, 113, 2]).raw(protocol::GRE, &header, &mut outer);
    outer
}

#[test]
fn the_inner_flow_of_a_tunnel_chooses_the_bucket_and_not_the_key() {
    const NUMBERED: (u8, usize) = (0x10, 1);
    for kind in [HashKind::Sip, HashKind::ToeplitzSymmetric] {
        let inner = SteeringConfig { buckets: BucketCount::DEFAULT, ..*hasher(kind).config() };
        let outer = SteeringConfig { tunnels: TunnelSteering::Outer, ..inner };
        let ordered = SteeringConfig { fragments: FragmentSteering::Ordered, ..inner };
        for (config, (flags, words), spreads) in [
            (inner, (0, 0), true),
            (inner, NUMBERED, false),
            (outer, (0, 0), false),
            (ordered, (0, 0), false),
        ] {
            let hasher = SteeringHasher::new(config);
            let steer = |flow: u16, back: bool| {
                let frame = tunnelled(flags, words, flow, back);
                let network = wire::dissect(&frame).unwrap().network.unwrap();
                let steered = hasher.steer_frame(&frame, &network, ZONE, None);
                let carrying = SteeringConfig { tunnels: TunnelSteering::Judged, ..config };
                let carried =
                    SteeringHasher::new(carrying).steer_frame(&frame, &network, ZONE, None);
                let Steered::Flow { keyed, hash, bucket } = steered else { panic!("{steered:?}") };
                if config.tunnels == TunnelSteering::Inner {
                    assert_eq!(carried, Steered::Carrying { keyed, hash, bucket });
                }
                (keyed.key, bucket)
            };
            let (tunnel, first) = steer(1000, false);
            assert_eq!(tunnel.protocol, protocol::GRE);
            let mut buckets = std::collections::HashSet::from([first]);
            for flow in 1001..1400 {
                let (key, bucket) = steer(flow, false);
                assert_eq!((key, steer(flow, true)), (tunnel, (tunnel, bucket)));
                buckets.insert(bucket);
            }
            // 400 balls in 256 urns leave a fifth of these empty.
            let expected = if spreads { 180..=230 } else { 1..=1 };
            assert!(expected.contains(&buckets.len()), "{config:?}: {}", buckets.len());
        }
    }
}

#[test]
fn an_error_inside_a_tunnel_comes_to_the_bucket_of_what_it_quotes() {
    let hasher = hasher(HashKind::Sip);
    let bucket = |frame: &[u8]| {
        let network = wire::dissect(frame).unwrap().network.unwrap();
        hasher.steer_frame(frame, &network, ZONE, None).bucket()
    };
    for flow in 1000..1100 {
        let quoted = tunnelled(0, 0, flow, false);
        let inner = &quoted[14 + 20 + 4..];
        let (mut error, mut outer) = (Vec::new(), Vec::new());
        wire::build::PacketBuilder::v4([192, 0, 2, 77], [192, 0, 2, 1])
            .icmp_error(3, 1, [0; 4], inner, &mut error);
        wire::build::PacketBuilder::v4([203, 0, 113, 2], [203, 0, 113, 1]).raw(
            protocol::GRE,
            &[&[0, 0, 8, 0], &error[14..]].concat(),
            &mut outer,
        );
        assert_eq!(bucket(&outer), bucket(&quoted));
    }
}
