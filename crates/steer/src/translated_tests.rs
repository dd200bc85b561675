use flow::{HashKey, Zone};
use proptest::prelude::*;
use wire::{
    FragmentInfo, IcmpError, IcmpQuery, Network, QueryKind, Quoted, QuotedTransport, TcpFlags,
    TcpInfo, Transport,
};

use super::*;
use crate::{FragmentSteering, HashKind, Steered, SteeringConfig, SteeringHasher, TunnelSteering};

const ZONE: Zone = Zone(3);
const PORTS: PortRange = PortRange { min: 1024, max: 32767 };

/// The gateway's own addresses end in 0 to 3.
fn address(family: Family, last: u16) -> [u8; 16] {
    let mut address = match family {
        Family::V4 => [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 198, 51, 0, 0],
        Family::V6 => [0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    };
    address[14..].copy_from_slice(&last.to_be_bytes());
    address
}

fn translated() -> Translated {
    let own = |family| [0, 2, 1].map(|last| address(family, last)..=address(family, last + 1));
    Translated::new([Family::V4, Family::V6].into_iter().flat_map(own), PORTS)
}

fn hasher(kind: HashKind, fragments: FragmentSteering, buckets: u64) -> SteeringHasher {
    let buckets = BucketCount::new(buckets).unwrap();
    let mut hasher = SteeringHasher::new(SteeringConfig {
        kind,
        key: HashKey(1, 2),
        buckets,
        fragments,
        tunnels: TunnelSteering::Inner,
    });
    hasher.set_translated(translated());
    hasher
}

/// A transport of a protocol between two ports. For a query the first is the identifier if the
/// source asks, the second if it answers.
fn transport(protocol: u8, source_port: u16, destination_port: u16, is_reply: bool) -> Transport {
    match protocol {
        protocol::TCP => Transport::Tcp(TcpInfo {
            source_port,
            destination_port,
            sequence: 1,
            acknowledgment: 2,
            window: 3,
            flags: TcpFlags::ACK,
            header_len: 20,
        }),
        protocol::UDP | protocol::UDPLITE => {
            Transport::Udp { source_port, destination_port, length: 8 }
        }
        protocol::SCTP => Transport::Sctp { source_port, destination_port, verification_tag: 1 },
        protocol::DCCP => Transport::Dccp { source_port, destination_port, kind: 1 },
        _ => Transport::IcmpQuery(IcmpQuery {
            kind: QueryKind::Echo,
            icmp_type: 8,
            reply: is_reply,
            id: if is_reply { destination_port } else { source_port },
            code: 0,
        }),
    }
}

fn packet(protocol: u8, source: Endpoint, destination: Endpoint, is_reply: bool) -> Network {
    let family = if source.address[..10] == [0; 10] { Family::V4 } else { Family::V6 };
    Network {
        family,
        source: source.address,
        destination: destination.address,
        offset: 14,
        transport_offset: 54,
        end: 100,
        protocol,
        ttl: 64,
        traffic_class: 0,
        dont_fragment: false,
        fragment: None,
        transport: transport(protocol, source.port, destination.port, is_reply),
    }
}

fn protocol_of(family: Family, number: usize) -> u8 {
    let icmp = if family == Family::V4 { protocol::ICMP } else { protocol::ICMPV6 };
    [protocol::TCP, protocol::UDP, protocol::UDPLITE, protocol::SCTP, protocol::DCCP, icmp][number]
}

/// An error about a packet, from a router on its way.
fn error_about(packet: &Network) -> Network {
    let transport = match packet.transport {
        Transport::IcmpQuery(query) => QuotedTransport::Query(query),
        Transport::Tcp(TcpInfo { source_port, destination_port, .. })
        | Transport::Udp { source_port, destination_port, .. }
        | Transport::Sctp { source_port, destination_port, .. }
        | Transport::Dccp { source_port, destination_port, .. } => {
            QuotedTransport::Ports { source: source_port, destination: destination_port }
        }
        _ => QuotedTransport::Other,
    };
    let quoted = Quoted {
        source: packet.source,
        destination: packet.destination,
        protocol: packet.protocol,
        offset: 62,
        transport_offset: 82,
        transport,
    };
    let is_v4 = packet.family == Family::V4;
    Network {
        source: address(packet.family, 99),
        destination: packet.source,
        protocol: if is_v4 { protocol::ICMP } else { protocol::ICMPV6 },
        transport: Transport::IcmpError(IcmpError { kind: 3, code: 1, quoted: Some(quoted) }),
        ..*packet
    }
}

/// The ports that a bucket gives away.
fn block(ports: PortRange, buckets: BucketCount, bucket: BucketId) -> Vec<u16> {
    let low_bits = (buckets.get() - 1) as u16;
    (ports.min..=ports.max).filter(|port| port & low_bits == bucket.0).collect()
}

proptest! {
    #[test]
    fn a_reply_and_an_error_come_to_the_bucket_that_gave_the_port(
        is_v6 in any::<bool>(), number in 0..6_usize, is_toeplitz in any::<bool>(),
        is_ordered in any::<bool>(), size in 0..13_u32,
        client in any::<(u16, u16)>(), server in any::<(u16, u16)>(), own in 0..4_u16,
        place in any::<u32>(), id in any::<u32>(),
    ) {
        let family = if is_v6 { Family::V6 } else { Family::V4 };
        let protocol = protocol_of(family, number);
        let kind = if is_toeplitz { HashKind::ToeplitzSymmetric } else { HashKind::Sip };
        let fragments =
            if is_ordered { FragmentSteering::Ordered } else { FragmentSteering::Spread };
        let hasher = hasher(kind, fragments, 1 << size);
        let end = |(last, port)| Endpoint { address: address(family, last), port };
        let (client, server) = (end(client), end(server));
        let bucket = hasher.steer(&packet(protocol, client, server, false), ZONE, None).bucket();

        let block = block(PORTS, hasher.config().buckets, bucket);
        let given = end((own, block[place as usize % block.len()]));
        prop_assert!(PORTS.contains(given.port));
        let answered = if protocol_of(family, 5) == protocol { given } else { server };
        let mut reply = packet(protocol, Endpoint { port: answered.port, ..server }, given, true);
        prop_assert_eq!(hasher.steer(&reply, ZONE, None).bucket(), bucket);
        let sent = packet(protocol, given, server, false);
        prop_assert_eq!(hasher.steer(&error_about(&sent), ZONE, None).bucket(), bucket);
        let keyed = FlowKey::of_packet(&reply, ZONE).unwrap();
        let towards = hasher.bucket_towards(&keyed.key, keyed.sender.opposite());
        prop_assert_eq!(towards, bucket);

        // Fragments meet in one bucket first; the whole datagram is then steered by its port.
        let piece = FragmentInfo { id, offset: 0, more: true, payload_offset: 34 };
        reply.fragment = Some(piece);
        let first = hasher.steer(&reply, ZONE, None);
        reply.fragment = Some(FragmentInfo { offset: 1480, more: false, ..piece });
        reply.transport = Transport::LaterFragment;
        prop_assert_eq!(hasher.steer(&reply, ZONE, None), first);
        let is_fragment = matches!(first, Steered::Fragment { .. });
        prop_assert!(is_fragment);
    }

    #[test]
    fn both_directions_of_what_is_not_translated_stay_together(
        is_v6 in any::<bool>(), number in 0..6_usize, a in (4..20_u16, any::<u16>()),
        b in (0..20_u16, any::<u16>()),
    ) {
        let family = if is_v6 { Family::V6 } else { Family::V4 };
        let protocol = protocol_of(family, number);
        let hasher = hasher(HashKind::Sip, FragmentSteering::Spread, 256);
        let end = |(last, port)| Endpoint { address: address(family, last), port };
        let (a, b) = (end(a), end(b));
        let asked = packet(protocol, a, b, false);
        let answer = packet(protocol, Endpoint { port: a.port, ..b }, Endpoint { port: b.port, ..a }, true);
        let answer = if number == 5 {
            Network { transport: transport(protocol, 0, a.port, true), ..answer }
        } else {
            packet(protocol, b, a, true)
        };
        let bucket = hasher.steer(&asked, ZONE, None).bucket();
        prop_assert_eq!(hasher.steer(&answer, ZONE, None).bucket(), bucket);
        prop_assert_eq!(hasher.steer(&error_about(&asked), ZONE, None).bucket(), bucket);
        let key = FlowKey::of_packet(&asked, ZONE).unwrap().key;
        prop_assert_eq!(hasher.bucket_of_key(&key), bucket);
    }

    #[test]
    fn the_ports_of_the_range_are_divided_among_the_buckets(
        min in 1..=8192_u16, max in 16383..=65535_u16, size in 0..13_u32,
    ) {
        let ports = PortRange { min, max };
        let buckets = BucketCount::new(1 << size).unwrap();
        let own = address(Family::V6, 0);
        let translated = Translated::new([own..=own], ports);
        let other = Endpoint { address: address(Family::V6, 9), port: 443 };
        for port in 1..=u16::MAX {
            let end = Endpoint { address: own, port };
            let reply = packet(protocol::TCP, other, end, false);
            let keyed = FlowKey::of_packet(&reply, ZONE).unwrap();
            let found = translated.bucket(&keyed.key, keyed.sender.opposite(), buckets);
            let expected = BucketId(port & (buckets.get() - 1) as u16);
            prop_assert_eq!(found, ports.contains(port).then_some(expected));
        }
    }

    #[test]
    fn an_address_is_found_in_any_ranges(
        ranges in prop::collection::vec((0..60_u16, 0..20_u16), 0..6), asked in 0..90_u16,
    ) {
        let of = |last| address(Family::V6, last);
        let set = Translated::new(ranges.iter().map(|&(from, len)| of(from)..=of(from + len)), PORTS);
        let expected = ranges.iter().any(|&(from, len)| (from..=from + len).contains(&asked));
        prop_assert_eq!(set.contains(of(asked)), expected);
        prop_assert_eq!(set.is_empty(), ranges.is_empty());
        let again = Translated::new(set.addresses(), PORTS);
        prop_assert_eq!(again, set);
    }
}

#[test]
fn ports_outside_the_range_and_protocols_without_ports_are_hashed() {
    let hasher = hasher(HashKind::Sip, FragmentSteering::Spread, 256);
    let mut plain = hasher.clone();
    plain.set_translated(Translated::default());
    let end = |last, port| Endpoint { address: address(Family::V4, last), port };
    for port in [0, 1, 1023, 32768, 65535] {
        let packet = packet(protocol::TCP, end(9, 443), end(0, port), false);
        assert_eq!(hasher.steer(&packet, ZONE, None), plain.steer(&packet, ZONE, None));
    }
    let mut packet = packet(protocol::TCP, end(9, 443), end(0, 1024), false);
    assert_ne!(hasher.steer(&packet, ZONE, None), plain.steer(&packet, ZONE, None));
    packet.protocol = protocol::GRE;
    packet.transport = Transport::Gre { version: 0, key: 1024 };
    assert_eq!(hasher.steer(&packet, ZONE, None), plain.steer(&packet, ZONE, None));
}
