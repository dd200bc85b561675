//! Records of every protocol, with all that lies beside a connection.

use std::sync::LazyLock;

use proptest::prelude::*;
use wire::build::sctp::{chunk, init, packet};
use wire::sctp::chunk_type;
use wire::{IcmpQuery, QueryKind, Transport, protocol};

use super::*;
use crate::Direction::{Original as Client, Reply as Server};
use crate::helper::Kind;
use crate::testing::dialogue::Dialogue;
use crate::testing::records::{bytes_of, check_one_form, flip, flips};
use crate::testing::{Lab, network, tcp, udp};

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// Connections of one packet, or of one each way.
fn of_networks() -> Vec<ConnectionRecord> {
    let mut lab = Lab::with_room_for(1000);
    for family in FAMILIES {
        lab.track(&udp(family, (1, 5000), (2, 53)));
        lab.track(&udp(family, (3, 5000), (2, 53)));
        lab.track(&udp(family, (2, 53), (3, 5000)));
        let lite = Transport::Udp { source_port: 7, destination_port: 8, length: 28 };
        lab.track(&network(family, 1, 2, protocol::UDPLITE, lite));
        let (icmp, icmp_type) = match family {
            Family::V4 => (protocol::ICMP, 8),
            Family::V6 => (protocol::ICMPV6, 128),
        };
        let query = IcmpQuery { kind: QueryKind::Echo, reply: false, icmp_type, code: 0, id: 77 };
        lab.track(&network(family, 1, 2, icmp, Transport::IcmpQuery(query)));
        lab.track(&network(family, 2, 1, icmp, Transport::IcmpQuery(query)));
        for version in [0, 1] {
            let gre = Transport::Gre { version, key: 9 };
            lab.track(&network(family, 1, 2, protocol::GRE, gre));
        }
        for generic in [protocol::IPIP, protocol::IPV6, 89] {
            lab.track(&network(family, 1, 2, generic, Transport::Other));
        }
        lab.track(&tcp(family, (1, 4000), (2, 80), 2, (1, 0)));
    }
    lab.records()
}

/// Associations of SCTP and connections of DCCP, in each of the states of their beginning.
fn of_dialogues() -> Vec<ConnectionRecord> {
    let mut records = Vec::new();
    let mut play = |protocol, packets: &[(crate::Direction, Vec<u8>)]| {
        let mut dialogue = Dialogue::of(protocol);
        for (from, bytes) in packets {
            dialogue.says(*from, bytes);
            records.extend(dialogue.records());
        }
    };
    let one = |tag, kind| packet(tag, &[chunk(kind, 0, b"value")]);
    play(
        protocol::SCTP,
        &[
            (Client, init(0, chunk_type::INIT, 0xc1)),
            (Server, init(0xc1, chunk_type::INIT_ACK, 0x5e)),
            (Client, one(0x5e, chunk_type::COOKIE_ECHO)),
            (Server, one(0xc1, chunk_type::COOKIE_ACK)),
            (Client, one(0x5e, chunk_type::HEARTBEAT)),
        ],
    );
    // RFC 4340 section 5.1: long sequence numbers; request, response, acknowledgment, data.
    let dccp = |kind: u8, words: u8, rest: &[u64]| {
        let mut bytes = vec![0, 0, 0, 0, words, 0, 0, 0, kind << 1 | 1, 0];
        bytes.extend(&rest[0].to_be_bytes()[2..]);
        rest[1..].iter().for_each(|number| bytes.extend(number.to_be_bytes()));
        bytes.extend([0; 4]);
        bytes
    };
    play(
        protocol::DCCP,
        &[
            (Client, dccp(0, 5, &[1 << 40])),
            (Server, dccp(1, 7, &[7 << 40, 1 << 40])),
            (Client, dccp(3, 7, &[1, 7 << 40])),
            (Server, dccp(2, 5, &[2])),
        ],
    );
    records
}

/// A connection of TCP, or of UDP, with each helper, and one that the SYN proxy has opened.
fn with_more_beside() -> Vec<ConnectionRecord> {
    let mut lab = Lab::new();
    lab.track(&tcp(Family::V4, (1, 4000), (2, 80), 2, (1, 0)));
    lab.track(&udp(Family::V4, (1, 5000), (2, 53)));
    let plain = lab.records();
    let mut records = Vec::new();
    for kind in Kind::ALL.iter().chain(&[Kind::H245]) {
        for record in &plain {
            let helper = RecordedHelper::of(&kind.start());
            if helper.suits(record.original.key.protocol) {
                records.push(ConnectionRecord { helper: Some(helper), ..record.clone() });
            }
        }
    }
    let is_tcp = |it: &&ConnectionRecord| it.original.key.protocol == protocol::TCP;
    let mut proxied = plain.iter().find(is_tcp).unwrap().clone();
    // Numbers, a promise of all options, timestamps, an adjustment: the layout of the SYN proxy.
    let shift = [0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3];
    let numbers = [0, 0, 0, 9, 0, 0, 0, 8, 5, 0xb4, 0, 64];
    let promise = [1, 5, 0xb4, 1, 7, 1, 1, 0, 1];
    let timestamps = [1, 0, 0, 0, 4, 0, 0, 0, 5];
    let adjustment = [&[1], &shift[..], &shift, &[0, 0, 0, 6, 0, 0, 0, 7, 7, 2, 0, 7]].concat();
    let bytes = [&numbers[..], &promise, &timestamps, &adjustment].concat();
    let mut from = Reader::new(&bytes);
    proxied.proxied = Some(Box::new(Proxied::read(&mut from).unwrap()));
    assert!(from.is_empty());
    records.push(proxied);
    records
}

static ALL: LazyLock<Vec<ConnectionRecord>> =
    LazyLock::new(|| [of_networks(), of_dialogues(), with_more_beside()].concat());

#[test]
fn all_kinds_of_connections_are_there() {
    let numbers: std::collections::BTreeSet<u8> = ALL.iter().map(|it| it.state.number()).collect();
    // 9 is a call that was announced: `calls_tests` take those over.
    assert_eq!(numbers.into_iter().collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6, 7, 8, 10]);
    assert!(ALL.iter().any(|it| it.proxied.is_some()));
    let helpers = ALL.iter().filter(|it| it.helper.is_some()).count();
    assert!(helpers > Kind::ALL.len());
}

#[test]
fn each_is_read_as_it_was_written_and_refused_where_it_is_cut() {
    for record in ALL.iter() {
        let bytes = bytes_of(record);
        assert_eq!(ConnectionRecord::decode(&bytes).as_ref(), Ok(record));
        for end in 0..bytes.len() {
            // A cut between two fields leaves a shorter record, which has lost them.
            match ConnectionRecord::decode(&bytes[..end]) {
                Ok(shorter) => assert_ne!(&shorter, record),
                Err(error) => assert_eq!(error, DecodeError::Cut, "{record:?} at {end}"),
            }
        }
    }
}

#[test]
fn no_state_is_that_of_another_protocol() {
    for (at, record) in ALL.iter().enumerate() {
        for other in ALL.iter() {
            let mut mixed = record.clone();
            mixed.state = other.state.clone();
            let suits = mixed.state.suits(&record.original.key, false);
            let read = ConnectionRecord::decode(&bytes_of(&mixed));
            assert_eq!(read.is_ok(), suits, "{at}: {mixed:?}");
        }
    }
}

/// Imports what is possible, and lets it see a packet each way and expire: nothing panics.
fn live_through(record: &ConnectionRecord) {
    let mut lab = Lab::new();
    let importing = crate::Importing {
        hash: &|key| key.hash(crate::testing::SECRET),
        interfaces: &crate::testing::NumberedInterfaces,
        map_epoch: 0,
        needs_addresses: true,
    };
    let imported = lab.run(|table, context| table.import(record, importing, context));
    if imported.is_err() {
        return;
    }
    assert_eq!(lab.records().len(), 1);
    let KeyedPacket { key, sender } = record.original;
    let [from, to] = [sender, sender.opposite()].map(|side| key.endpoint(side));
    if key.protocol == protocol::TCP {
        for (source, destination) in [(from, to), (to, from)] {
            for flags in [16, 2, 18, 4, 17] {
                let mut segment =
                    tcp(key.family, (1, source.port), (2, destination.port), flags, (9, 9));
                (segment.source, segment.destination) = (source.address, destination.address);
                lab.track(&segment);
            }
        }
    }
    lab.wait(std::time::Duration::from_secs(u64::from(u32::MAX) + 9));
    lab.run(|table, context| table.expire(usize::MAX, context));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    /// A record that is read of changed bytes is written as it was read, so nothing has two
    /// forms, and it makes a connection that goes on.
    #[test]
    fn a_changed_record_is_refused_or_is_another(
        which: prop::sample::Index,
        flips in flips(),
    ) {
        let mut bytes = bytes_of(which.get(&ALL));
        flip(&mut bytes, &flips);
        if let Ok(read) = ConnectionRecord::decode(&bytes) {
            check_one_form(&bytes, &read)?;
            live_through(&read);
        }
    }

    /// Any state behind the head of a record of any protocol.
    #[test]
    fn any_state_is_read_or_refused(
        which: prop::sample::Index,
        rest in prop::collection::vec(prop_oneof![0..4_u8, any::<u8>()], 0..80),
    ) {
        let record = which.get(&ALL);
        let ends = if record.original.key.family == Family::V4 { 13 } else { 37 };
        let bytes = [&bytes_of(record)[..4 + ends], &[1], &rest[..]].concat();
        if let Ok(read) = ConnectionRecord::decode(&bytes) {
            check_one_form(&bytes, &read)?;
            live_through(&read);
        }
    }
}
