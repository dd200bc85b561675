use std::time::Duration;

use crate::Verdict;
use crate::capacity::Shortage;
use flow::{Class, DropReason};
use wire::{Family, FragmentInfo, IcmpError, Network, Quoted, QuotedTransport, TcpFlags, protocol};

use super::*;
use crate::class_without_flow;
use crate::syn_proxy::Screening;
use crate::testing::{Lab, SECRET, address, keyed, network, tcp, udp};

#[test]
fn a_flow_is_new_until_a_reply_and_established_after() {
    let mut lab = Lab::new();
    let there = udp(Family::V4, (1, 1000), (2, 53));
    let back = udp(Family::V4, (2, 53), (1, 1000));
    let mut classes = Vec::new();
    for packet in [&there, &there, &back, &there, &back] {
        let tracked = lab.track(packet);
        classes.push((tracked.class, tracked.direction.unwrap()));
    }
    assert_eq!(
        classes,
        [
            (Class::New, Direction::Original),
            (Class::New, Direction::Original),
            (Class::Established, Direction::Reply),
            (Class::Established, Direction::Original),
            (Class::Established, Direction::Reply),
        ]
    );
    assert_eq!(lab.kinds(), [EventKind::New, EventKind::Update]);
}

/// Many flows between different ends.
fn flow_number(i: u32) -> Network {
    let mut packet = udp(Family::V4, (1, (i >> 16) as u16), (2, (i & 0xffff) as u16));
    packet.source[12] = 10;
    packet
}

fn answer(packet: &Network) -> Network {
    let Transport::Udp { source_port, destination_port, length } = packet.transport else {
        panic!("a UDP packet")
    };
    Network {
        source: packet.destination,
        destination: packet.source,
        transport: Transport::Udp {
            source_port: destination_port,
            destination_port: source_port,
            length,
        },
        ..*packet
    }
}

/// An ICMP error about `quoted`, sent by a router to `to`.
fn error_about(quoted: &Network, to: [u8; 16]) -> Network {
    let Transport::Udp { source_port, destination_port, .. } = quoted.transport else {
        panic!("a UDP packet")
    };
    let error = IcmpError {
        kind: 3,
        code: 3,
        quoted: Some(Quoted {
            source: quoted.source,
            destination: quoted.destination,
            offset: 42,
            transport_offset: 62,
            protocol: quoted.protocol,
            transport: QuotedTransport::Ports {
                source: source_port,
                destination: destination_port,
            },
        }),
    };
    let router = network(quoted.family, 200, 0, protocol::ICMP, Transport::IcmpError(error));
    Network { destination: to, ..router }
}

#[test]
fn expiry_is_exact() {
    let mut lab = Lab::new();
    let packet = udp(Family::V6, (1, 1000), (2, 53));
    lab.track(&packet);
    lab.wait(Duration::from_nanos(30_000_000_000 - 1));
    assert_eq!(lab.track(&answer(&packet)).class, Class::Established);
    lab.wait(Duration::from_secs(30));
    let opened = lab.track(&answer(&packet));
    assert_eq!((opened.class, opened.direction), (Class::New, Some(Direction::Original)));
    assert_eq!(
        lab.kinds(),
        [EventKind::New, EventKind::Update, EventKind::Destroy, EventKind::New]
    );
    assert_eq!((lab.table.len(), lab.limits.used()), (1, 1));
}

#[test]
fn growth_keeps_every_entry_and_all_memory_comes_back() {
    const FLOWS: u32 = 20_000;
    let mut lab = Lab::new();
    lab.settings.set("nf_conntrack_events", 0).unwrap();
    let empty = lab.table.memory_bytes();
    for i in 0..FLOWS {
        assert_eq!(lab.track(&flow_number(i)).class, Class::New);
        // An earlier connection is found at every stage of growth.
        let other = flow_number(i.wrapping_mul(7919) % (i + 1));
        assert_ne!(lab.track(&answer(&other)).class, Class::New);
    }
    for i in 0..FLOWS {
        assert_eq!(lab.track(&answer(&flow_number(i))).class, Class::Established);
    }
    assert_eq!(lab.table.len(), FLOWS as usize);
    let each = lab.table.memory_bytes() / FLOWS as usize;
    assert!(each <= 200, "{each} bytes for each connection");
    lab.wait(Duration::from_secs(1000));
    while lab.run(|table, context| table.expire(100, context)) > 0 {}
    for _ in 0..1000 {
        lab.run(|table, context| table.expire(100, context));
    }
    assert_eq!((lab.table.len(), lab.limits.used()), (0, 0));
    // The wheel and the lists of chunks keep their capacity.
    let kept = lab.table.memory_bytes() - empty;
    assert!(kept <= 24 * FLOWS as usize, "{kept} bytes");
    assert!(lab.events.is_empty());
}

#[test]
fn a_shorter_timeout_brings_the_memory_back_earlier() {
    let mut lab = Lab::new();
    let packet = udp(Family::V4, (1, 1), (2, 2));
    lab.track(&packet);
    let keyed = keyed(&packet);
    let hash = keyed.key.hash(SECRET);
    for timeout_s in [400_000, 10] {
        let changes =
            Changes { mark: Some((7, u32::MAX)), timeout_s: Some(timeout_s), ..Changes::default() };
        assert!(lab.run(|table, context| table.update(&keyed.key, hash, changes, context)));
    }
    assert_eq!(lab.track(&packet).mark, 7);
    lab.wait(Duration::from_secs(40));
    lab.run(|table, context| table.expire(10, context));
    assert!(lab.table.is_empty());
}

#[test]
fn a_full_table_drops_early_what_is_not_assured() {
    let mut lab = Lab::with_room_for(4);
    let flows: Vec<_> = (0..6).map(flow_number).collect();
    for _ in 0..3 {
        for packet in &flows[..4] {
            lab.track(packet);
            lab.track(&answer(packet));
        }
        lab.wait(Duration::from_secs(3));
    }
    let refused = lab.track(&flows[4]);
    assert_eq!(refused.verdict, Verdict::NoRoom(Shortage::Table));
    assert_eq!(lab.counters.early_drop, 0);
    let gone = keyed(&flows[0]).key;
    assert!(lab.run(|table, context| table.delete(&gone, gone.hash(SECRET), context)));
    assert_eq!(lab.track(&flows[4]).verdict, Verdict::Accept);
    assert_eq!(lab.track(&flows[5]).verdict, Verdict::Accept, "in place of the one before");
    assert_eq!(lab.counters.early_drop, 1);
    assert_eq!(lab.limits.used(), 4);
    for packet in &flows[1..4] {
        assert_eq!(lab.track(packet).class, Class::Established);
    }
}

#[test]
fn a_full_table_drops_early_what_is_closing() {
    const ACK: u8 = TcpFlags::ACK.0;
    let mut lab = Lab::with_room_for(1);
    let (client, server) = ((1, 1000), (2, 80));
    let there = |flags, numbers| tcp(Family::V4, client, server, flags, numbers);
    let back = |flags, numbers| tcp(Family::V4, server, client, flags, numbers);
    lab.track(&there(TcpFlags::SYN.0, (0, 0)));
    lab.track(&back(TcpFlags::SYN.0 | ACK, (0, 9)));
    lab.track(&there(ACK, (9, 9)));
    let other = flow_number(1);
    assert!(lab.listed()[0].assured);
    assert_eq!(lab.track(&other).verdict, Verdict::NoRoom(Shortage::Table));
    lab.track(&there(TcpFlags::FIN.0 | ACK, (17, 9)));
    assert_eq!(lab.listed()[0].state, Some("FIN_WAIT"));
    assert_eq!(lab.track(&other).verdict, Verdict::Accept);
    assert_eq!((lab.counters.early_drop, lab.table.len(), lab.limits.used()), (1, 1, 1));
}

#[test]
fn icmp_errors_are_related_to_the_flow_they_quote() {
    for family in [Family::V4, Family::V6] {
        let mut lab = Lab::new();
        let there = udp(family, (1, 1000), (2, 53));
        let unknown = error_about(&there, there.source);
        let class = lab.track(&unknown).class;
        assert_eq!(class, Class::Invalid(DropReason::IcmpErrorUnknown));
        lab.track(&there);
        let about_there = lab.track(&error_about(&there, there.source));
        assert_eq!(about_there.class, Class::Related);
        assert_eq!(about_there.direction, Some(Direction::Reply));
        let about_back = lab.track(&error_about(&answer(&there), there.destination));
        assert_eq!(about_back.class, Class::Related);
        assert_eq!(about_back.direction, Some(Direction::Original));
        let misled = lab.track(&error_about(&there, address(family, 77)));
        assert_eq!(misled.class, Class::Invalid(DropReason::IcmpErrorDirection));
        assert_eq!(lab.track(&there).class, Class::New, "an error is no reply");
        assert_eq!(lab.counters.error, 2);
    }
}

#[test]
fn packets_without_a_flow_are_untracked_or_invalid() {
    let class =
        |family, transport| class_without_flow(&network(family, 1, 2, protocol::ICMP, transport));
    let other = |kind| Transport::IcmpOther { kind, code: 0 };
    for kind in [130, 131, 132, 133, 134, 135, 136, 143, 151, 152, 153] {
        assert_eq!(class(Family::V6, other(kind)), Class::Untracked, "type {kind}");
        assert_eq!(class(Family::V4, other(kind)), Class::Invalid(DropReason::IcmpNotQuery));
    }
    assert_eq!(class(Family::V6, other(137)), Class::Invalid(DropReason::IcmpNotQuery));
    let unreadable = Transport::IcmpError(IcmpError { kind: 3, code: 3, quoted: None });
    assert_eq!(class(Family::V4, unreadable), Class::Invalid(DropReason::IcmpErrorQuote));
    assert_eq!(class(Family::V4, Transport::LaterFragment), Class::Untracked);
    let mut first = udp(Family::V4, (1, 1), (2, 2));
    first.fragment = Some(FragmentInfo { id: 1, offset: 0, more: true, payload_offset: 34 });
    assert_eq!(class_without_flow(&first), Class::Untracked);
    assert_eq!(Lab::new().track(&first).class, Class::Untracked);
}

#[test]
fn accounting_and_timestamps_are_kept_on_demand() {
    let mut lab = Lab::new();
    let (plain, counted) = (flow_number(1), flow_number(2));
    lab.track(&plain);
    lab.settings.set("nf_conntrack_acct", 1).unwrap();
    lab.settings.set("nf_conntrack_timestamp", 1).unwrap();
    lab.track(&counted);
    lab.wait(Duration::from_secs(5));
    for packet in [&plain, &counted, &answer(&counted)] {
        lab.track(packet);
    }
    let view = |packet: &Network| {
        let key = keyed(packet).key;
        lab.table.get(&key, key.hash(SECRET), lab.now).unwrap()
    };
    assert_eq!((view(&plain).counters, view(&plain).age_s), (None, None));
    let counts = |packets| crate::Counts { packets, bytes: packets * 48 };
    assert_eq!(view(&counted).counters, Some([counts(2), counts(1)]));
    assert_eq!(view(&counted).age_s, Some(5));
}

#[test]
fn the_last_counters_include_the_packet_that_ends_a_connection() {
    let mut lab = Lab::new();
    lab.settings.set("nf_conntrack_acct", 1).unwrap();
    const SYN: u8 = TcpFlags::SYN.0;
    const RST_ACK: u8 = TcpFlags::RST.0 | TcpFlags::ACK.0;
    lab.track(&tcp(Family::V4, (1, 1000), (2, 81), SYN, (10, 0)));
    lab.track(&tcp(Family::V4, (2, 81), (1, 1000), RST_ACK, (0, 11)));
    let ended = lab.events.iter().find(|event| event.kind == EventKind::Destroy).unwrap();
    let counts = ended.connection.counters.unwrap();
    assert_eq!((counts[0].packets, counts[1].packets), (1, 1));
}

#[test]
fn a_flush_ends_what_the_filter_picks_in_pieces() {
    let mut lab = Lab::new();
    for i in 0..1000 {
        lab.track(&flow_number(i));
    }
    let (mut cursor, mut ended, mut pieces) = (Some(Cursor::default()), 0, 0);
    while let Some(from) = cursor {
        let odd = |connection: &Connection| {
            matches!(
                connection.original.transport,
                crate::TupleTransport::Ports { destination, .. } if destination % 2 == 1
            )
        };
        let (some, next) = lab.run(|table, context| table.flush(from, 100, odd, context));
        assert!(some <= 100);
        (cursor, ended, pieces) = (next, ended + some, pieces + 1);
    }
    assert_eq!((ended, lab.table.len(), lab.limits.used()), (500, 500, 500));
    assert!(pieces >= 10);
}

#[test]
fn a_wrong_checksum_is_invalid_unless_told_otherwise() {
    // UDP over IPv6 behind 14 + 40 bytes.
    let mut frame = vec![0; 62];
    frame[6 + 14] = protocol::UDP;
    frame[59] = 8;
    frame[61] = 1;
    let mut packet = udp(Family::V6, (1, 0), (2, 0));
    packet.transport_offset = 54;
    let keyed = keyed(&packet);
    let class = |lab: &mut Lab, checksum| {
        let hash = keyed.key.hash(SECRET);
        let (network, keyed) = (&packet, &keyed);
        let (segments, may_open, screening) = (1, true, Screening::Off);
        let packet = TrackedPacket {
            network,
            frame: &frame,
            keyed,
            hash,
            guess: crate::Guess::NONE,
            checksum,
            segments,
            may_open,
            screening,
            map_epoch: 0,
            zones: None,
        };
        lab.run(|table, context| table.track_and_accept(&packet, context)).class
    };
    let mut lab = Lab::new();
    let wrong = Class::Invalid(DropReason::BadChecksum);
    assert_eq!(class(&mut lab, Checksum::Verify), wrong);
    assert_eq!((lab.table.len(), lab.counters.error, lab.counters.invalid), (0, 1, 1));
    assert_eq!(class(&mut lab, Checksum::Trust), Class::New);
    assert_eq!(class(&mut lab, Checksum::Verify), wrong);
    lab.settings.set("nf_conntrack_checksum", 0).unwrap();
    assert_eq!(class(&mut lab, Checksum::Verify), Class::New);
}

/// A segment as [`tcp`] makes it, with its numbers moved by `by`.
fn further(mut packet: Network, by: u32) -> Network {
    if let Transport::Tcp(tcp) = &mut packet.transport {
        tcp.sequence += by;
        tcp.acknowledgment += by;
    }
    packet
}

/// The connection has moved on by many bytes since its entry was last updated, in either
/// direction.
#[test]
fn a_connection_that_went_on_in_another_zone_is_picked_up_where_it_is_now() {
    const SYN: u8 = TcpFlags::SYN.0;
    const ACK: u8 = TcpFlags::ACK.0;
    const FIN: u8 = TcpFlags::FIN.0;
    const RST: u8 = TcpFlags::RST.0;
    let (client, server) = ((1, 1000), (2, 80));
    let segment = |from, to, flags, numbers| tcp(Family::V4, from, to, flags, numbers);
    let opened = || {
        let mut lab = Lab::new();
        lab.track(&segment(client, server, SYN, (10, 0)));
        lab.track(&segment(server, client, SYN | ACK, (50, 19)));
        lab.track(&segment(client, server, ACK, (19, 59)));
        assert!(lab.listed()[0].assured);
        lab
    };
    let there = segment(client, server, ACK, (27, 59));
    let back = segment(server, client, ACK, (59, 35));
    for (first, second) in [(there, back), (back, there)] {
        let (first, second) = (further(first, 1 << 20), further(second, 1 << 20));
        let mut lab = opened();
        let started = lab.listed()[0].original;
        assert!(matches!(lab.track(&first).class, Class::Invalid(_)), "the zone is the same");
        lab.map_epoch = 1;
        for packet in [&first, &second, &first] {
            assert_eq!(lab.track(packet).class, Class::Established);
        }
        assert_eq!(lab.listed()[0].original, started, "it is the same connection");
        assert_eq!(lab.table.len(), 1);

        // Its opening was seen, so `nf_conntrack_tcp_loose` says nothing about it.
        let mut lab = opened();
        lab.settings.set("nf_conntrack_tcp_loose", 0).unwrap();
        lab.map_epoch = 1;
        assert_eq!(lab.track(&first).class, Class::Established);

        // A connection that has continued here for a round trip has not continued elsewhere,
        // whatever an attacker sends.
        let mut lab = opened();
        lab.map_epoch = u16::MAX;
        assert!(matches!(lab.track(&first).class, Class::Invalid(_)), "a map before");
        lab.map_epoch = 1;
        for packet in [&there, &back, &there] {
            assert_eq!(lab.track(packet).class, Class::Established);
        }
        assert!(matches!(lab.track(&first).class, Class::Invalid(_)));
        assert!(matches!(lab.track(&second).class, Class::Invalid(_)));
    }
    // A reset does not tell the numbers of a connection, and neither does a FIN.
    for flags in [RST, RST | ACK, SYN | ACK, FIN | ACK] {
        let mut lab = opened();
        lab.map_epoch = 1;
        let tracked = lab.track(&further(segment(client, server, flags, (27, 59)), 1 << 20));
        assert_ne!(tracked.class, Class::New);
        assert_eq!(lab.listed()[0].state, Some("ESTABLISHED"));
    }
}
