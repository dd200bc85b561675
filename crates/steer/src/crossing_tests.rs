use flow::{HashKey, Zone};
use proptest::prelude::*;
use wire::{
    FragmentInfo, IcmpError, IcmpQuery, Network, QueryKind, Quoted, QuotedTransport, TcpFlags,
    TcpInfo, Transport,
};

use super::*;

const ZONE: Zone = Zone(3);
/// Addresses whose last 16 bits are below this number are inside.
const INSIDE: u16 = 1000;

fn address(family: Family, last: u16) -> [u8; 16] {
    let mut address = match family {
        Family::V4 => [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 198, 51, 0, 0],
        Family::V6 => [0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    };
    address[14..].copy_from_slice(&last.to_be_bytes());
    address
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
    let inside = |family| address(family, 0)..=address(family, INSIDE - 1);
    hasher.set_inside(AddressSet::new([Family::V4, Family::V6].map(inside)));
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

/// The ports of a bucket, in the order of their places.
fn ports_of(ports: BucketPorts) -> Vec<u16> {
    (0..ports.len()).map(|at| ports.nth_round(at)).collect()
}

proptest! {
    #[test]
    fn a_reply_and_an_error_come_to_the_bucket_of_the_connection(
        is_v6 in any::<bool>(), number in 0..6_usize, is_toeplitz in any::<bool>(),
        is_ordered in any::<bool>(), size in 0..13_u32,
        client in (0..INSIDE, any::<u16>()), server in (INSIDE.., any::<u16>()),
        own in 0..INSIDE, place in any::<prop::sample::Index>(), keeps in any::<bool>(),
        id in any::<u32>(),
    ) {
        let family = if is_v6 { Family::V6 } else { Family::V4 };
        let protocol = protocol_of(family, number);
        let kind = if is_toeplitz { HashKind::ToeplitzSymmetric } else { HashKind::Sip };
        let fragments =
            if is_ordered { FragmentSteering::Ordered } else { FragmentSteering::Spread };
        let hasher = hasher(kind, fragments, 1 << size);
        let end = |(last, port)| Endpoint { address: address(family, last), port };
        let (client, server) = (end(client), end(server));
        let asked = packet(protocol, client, server, false);
        let bucket = hasher.steer(&asked, ZONE, None).bucket();

        // Another inside address, and the same port or another one of the bucket.
        let key = FlowKey::of_packet(&asked, ZONE).unwrap().key;
        let others = hasher.local_ports(bucket, &key, server);
        prop_assert_eq!(others.is_none(), is_ordered);
        let port = match others.filter(|_| !keeps) {
            Some(others) => *place.get(&ports_of(others)),
            None => client.port,
        };
        let given = end((own, port));
        let answered = if protocol_of(family, 5) == protocol { given } else { server };
        let mut reply = packet(protocol, Endpoint { port: answered.port, ..server }, given, true);
        prop_assert_eq!(hasher.steer(&reply, ZONE, None).bucket(), bucket);
        let sent = packet(protocol, given, server, false);
        prop_assert_eq!(hasher.steer(&error_about(&sent), ZONE, None).bucket(), bucket);
        let keyed = FlowKey::of_packet(&reply, ZONE).unwrap();
        prop_assert_eq!(hasher.bucket_of_key(&keyed.key), bucket);

        // Fragments meet in one bucket first, and the whole datagram is steered again.
        let piece = FragmentInfo { id, offset: 0, more: true, payload_offset: 34 };
        reply.fragment = Some(piece);
        let first = hasher.steer(&reply, ZONE, None);
        reply.fragment = Some(FragmentInfo { offset: 1480, more: false, ..piece });
        reply.transport = Transport::LaterFragment;
        prop_assert_eq!(hasher.steer(&reply, ZONE, None), first);
        let is_fragment = matches!(first, Steered::Fragment { .. });
        prop_assert!(is_fragment);
        if is_ordered {
            prop_assert_eq!(first.bucket(), bucket);
        }
    }

    #[test]
    fn both_directions_stay_together_wherever_the_ends_are(
        is_v6 in any::<bool>(), number in 0..6_usize, a in any::<(u16, u16)>(),
        b in any::<(u16, u16)>(), is_ordered in any::<bool>(),
    ) {
        let family = if is_v6 { Family::V6 } else { Family::V4 };
        let protocol = protocol_of(family, number);
        let fragments =
            if is_ordered { FragmentSteering::Ordered } else { FragmentSteering::Spread };
        let hasher = hasher(HashKind::Sip, fragments, 256);
        let end = |(last, port)| Endpoint { address: address(family, last % 2000), port };
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
    fn all_ports_towards_an_endpoint_are_divided_evenly_among_the_buckets(
        size in 0..13_u32, server in (INSIDE.., any::<u16>()), is_v6 in any::<bool>(),
    ) {
        let family = if is_v6 { Family::V6 } else { Family::V4 };
        let hasher = hasher(HashKind::Sip, FragmentSteering::Spread, 1 << size);
        let remote = Endpoint { address: address(family, server.0), port: server.1 };
        let end = |port| Endpoint { address: address(family, 1), port };
        let mut ports = vec![Vec::new(); 1 << size];
        for port in 0..=u16::MAX {
            let keyed = FlowKey::of_ports(family, protocol::UDP, ZONE, end(port), remote);
            ports[hasher.bucket_of_key(&keyed.key).index()].push(port);
        }
        let key = FlowKey::of_ports(family, protocol::UDP, ZONE, end(1), remote).key;
        for (bucket, ports) in (0..).map(BucketId).zip(ports) {
            let mut listed = ports_of(hasher.local_ports(bucket, &key, remote).unwrap());
            listed.sort_unstable();
            prop_assert_eq!(listed, ports);
        }
    }
}

/// The least load of a bucket, the mean load, and the largest.
fn loads(hasher: &SteeringHasher, keys: impl Iterator<Item = FlowKey>) -> [usize; 3] {
    let mut loads = vec![0; hasher.config().buckets.get()];
    keys.for_each(|key| loads[hasher.bucket_of_key(&key).index()] += 1);
    let mean = loads.iter().sum::<usize>() / loads.len();
    [*loads.iter().min().unwrap(), mean, *loads.iter().max().unwrap()]
}

#[test]
fn clients_of_one_server_fill_the_buckets_evenly() {
    let hasher = hasher(HashKind::Sip, FragmentSteering::Spread, 256);
    let end = |last, port| Endpoint { address: address(Family::V4, last), port };
    // Each client counts its ports up from a place of its own.
    let keys = (0..100_u16).flat_map(|client| {
        (0..2000_u16).map(move |number| {
            let port = 32_768 + client.wrapping_mul(7919).wrapping_add(number) % 28_232;
            let (from, to) = (end(client, port), end(INSIDE, 443));
            FlowKey::of_ports(Family::V4, protocol::TCP, ZONE, from, to).key
        })
    });
    let [least, mean, most] = loads(&hasher, keys);
    let is_even = least * 100 >= mean * 80 && most * 100 <= mean * 120;
    assert!(is_even, "{least} to {most} where the mean is {mean}");
}

#[test]
fn nobody_fills_one_bucket_by_choosing_ports_and_addresses() {
    let end = |last, port| Endpoint { address: address(Family::V4, last), port };
    let key = |from, to| FlowKey::of_ports(Family::V4, protocol::UDP, ZONE, from, to).key;
    let hasher = hasher(HashKind::Sip, FragmentSteering::Spread, 256);
    // Ports that one bucket had under the low bits, from 10,000 spoofed addresses to a forwarded
    // port; the same from one address; and 10,000 connections of a client to real servers.
    let spoofed = (0..10_000).map(|number| key(end(INSIDE + number, 1024), end(1, 1024)));
    let one = (0..256).map(|number| key(end(INSIDE, number << 8), end(1, 8080)));
    let real = (0..10_000).map(|number| key(end(1, 5060), end(INSIDE + number, 5060)));
    for (keys, mean_of) in
        [(spoofed.collect::<Vec<_>>(), 39), (real.collect(), 39), (one.collect(), 1)]
    {
        let [_, mean, most] = loads(&hasher, keys.into_iter());
        assert_eq!(mean, mean_of);
        // Ten standard deviations of a random choice over the mean.
        let limit = mean + 10 * mean.isqrt();
        assert!(most <= limit, "{most} in one bucket where the mean is {mean}");
    }
}

#[test]
fn protocols_without_ports_and_flows_on_one_side_are_hashed() {
    let hasher = hasher(HashKind::Sip, FragmentSteering::Spread, 256);
    let mut plain = hasher.clone();
    plain.set_inside(AddressSet::default());
    let end = |last, port| Endpoint { address: address(Family::V4, last), port };
    for (a, b) in [(1, 2), (INSIDE, INSIDE + 1)] {
        let packet = packet(protocol::TCP, end(a, 443), end(b, 1024), false);
        assert_eq!(hasher.steer(&packet, ZONE, None), plain.steer(&packet, ZONE, None));
    }
    let mut packet = packet(protocol::TCP, end(INSIDE, 443), end(0, 1024), false);
    assert_ne!(hasher.steer(&packet, ZONE, None), plain.steer(&packet, ZONE, None));
    packet.protocol = protocol::GRE;
    packet.transport = Transport::Gre { version: 0, key: 1024 };
    assert_eq!(hasher.steer(&packet, ZONE, None), plain.steer(&packet, ZONE, None));
}
