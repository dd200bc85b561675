use std::net::IpAddr;

use flow::Endpoint;
use proptest::prelude::*;
use wire::protocol;

use super::*;
use crate::testing::records::{flip, flips};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// The client's packets of a control connection from 192.0.2.1 port 40000.
fn control(port: u16) -> KeyedPacket {
    let end = |text: &str, port| Endpoint { address: wire::mapped(ip(text)), port };
    let key = FlowKey {
        low: end("192.0.2.1", 40_000),
        high: end("198.51.100.2", port),
        zone: Zone(0),
        protocol: protocol::TCP,
        kind: 0,
        family: Family::V4,
    };
    KeyedPacket { key, sender: Side::Low }
}

/// A port that a client has announced, behind an address of the gateway.
fn expectation() -> ExpectationRecord {
    let master = Master { flow: control(21), helper: Kind::Ftp, mark: 7, zone: Zone(0) };
    let follow = ExpectedTranslation {
        destination: Some((ip("192.0.2.1"), 5000)),
        source: None,
        source_port: None,
        interface: None,
    };
    let announced = Announced {
        source: Some(ip("198.51.100.2")),
        follow: Some(follow),
        ..Announced::new(protocol::TCP, ip("203.0.113.9"), 5000)
    };
    let interface = InterfaceName::new("wan0");
    ExpectationRecord { master, announced, interface, left: Millis::new(299_000) }
}

fn call() -> Announcement {
    let master = control(1723).key;
    let Endpoint { address: from, .. } = master.low;
    let Endpoint { address: to, .. } = master.high;
    let call = |id| {
        let end = |address, port| Endpoint { address, port };
        FlowKey::of_call(Family::V4, Zone(0), end(from, id), end(to, 9))
    };
    let way = |from, to| Way { zone: Zone(0), from, to };
    let names = [(way(from, to), 9), (way(to, from), 5)];
    let open = OpenCall { master, real: call(5), names };
    Announcement::Call { call: call(6), open, is_over: false }
}

fn call_id() -> Announcement {
    let master = control(1723).key;
    let way = Way { zone: Zone(0), from: master.high.address, to: master.low.address };
    let id = CallId { end: Direction::Reply, own: 5, known: 6, way };
    Announcement::CallId { master, id }
}

fn media() -> Announcement {
    let place = (Zone(3), protocol::UDP, (ip("192.0.2.1"), 4000), ip("203.0.113.9"));
    Announcement::Media { place, port: 4002 }
}

fn all() -> Vec<AnnouncementRecord> {
    let expectation = Announcement::Expectation(Box::new(expectation()));
    [expectation, call(), call_id(), media()].map(AnnouncementRecord).into()
}

fn bytes_of(record: &AnnouncementRecord) -> Vec<u8> {
    let mut bytes = Vec::new();
    record.encode(&mut bytes);
    bytes
}

/// Written by hand from the layout, so that no change of the code changes it unseen.
#[test]
fn the_bytes_of_version_1() {
    let tcp = |port: &str| format!("00 06 c0000201 9c40 c6336402 {port} 00 0000");
    let expectation = [
        "01 20",
        &tcp("0015"),
        // The zone of the replies, the mark, "ftp", 299 s
        "0000 00000007 03 667470 f89f12",
        // Class, call, facts, TCP, 203.0.113.9 port 5000
        "00 00 00 06 04 cb007109 1388",
        // From 198.51.100.2, any network, any port; no helper, no pair
        "01 04 c6336402 00 00 00 00",
        // Translated to 192.0.2.1 port 5000, with the address of wan0
        "01 01 04 c0000201 1388 00 00 01 04 77616e30",
    ]
    .concat();
    let gre = |id: &str| format!("00 2f c0000201 {id} c6336402 0009 {KIND_OF_CALL} 0000");
    let [from, to] = ["c0000201", "c6336402"].map(|it| format!("00000000000000000000ffff{it}"));
    let call = [
        "01 21".to_owned(),
        gre("0006"),
        "00".to_owned(),
        gre("0005"),
        tcp("06bb"),
        format!("0000 {from} {to} 0009 0000 {to} {from} 0005"),
    ]
    .concat();
    let call_id = format!("01 22 {} 01 0005 0006 0000 {to} {from}", tcp("06bb"));
    let media = "01 23 0003 11 04 c0000201 0fa0 04 cb007109 0fa2".to_owned();
    for (record, golden) in all().iter().zip([expectation, call, call_id, media]) {
        let golden: String = golden.split_whitespace().collect();
        let hex: String = bytes_of(record).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, golden);
    }
}

/// [`FlowKey::kind`] of a call.
const KIND_OF_CALL: &str = "02";

#[test]
fn a_record_that_is_cut_anywhere_or_too_long_is_refused() {
    for record in all() {
        let mut bytes = bytes_of(&record);
        assert!(AnnouncementRecord::is_kind_of(&bytes));
        assert!(crate::ConnectionRecord::decode(&bytes).is_err());
        assert_eq!(AnnouncementRecord::decode(&bytes), Ok(record));
        for end in 0..bytes.len() {
            let error = AnnouncementRecord::decode(&bytes[..end]);
            assert_eq!(error, Err(DecodeError::Cut), "at {end}");
        }
        bytes.push(0);
        assert!(matches!(AnnouncementRecord::decode(&bytes), Err(DecodeError::Impossible(_))));
        bytes[0] = 2;
        assert_eq!(AnnouncementRecord::decode(&bytes), Err(DecodeError::Version(2)));
        bytes[..2].copy_from_slice(&[1, 36]);
        assert!(!AnnouncementRecord::is_kind_of(&bytes));
        assert_eq!(AnnouncementRecord::decode(&bytes), Err(DecodeError::Kind(36)));
    }
}

#[test]
fn no_expectation_contradicts_itself() {
    type Change = fn(&mut ExpectationRecord);
    let changes: [Change; 14] = [
        |it| it.left = Millis::default(),
        |it| it.master.flow.key.protocol = protocol::UDP,
        |it| it.master.flow.key.kind = 1,
        |it| {
            let key = &mut it.master.flow.key;
            std::mem::swap(&mut key.low, &mut key.high);
        },
        |it| it.announced.class = 9,
        |it| it.announced.protocol = protocol::GRE,
        |it| it.announced.protocol = protocol::SCTP,
        |it| it.announced.destination = ip("::ffff:203.0.113.9"),
        |it| it.announced.source = Some(ip("2001:db8::1")),
        |it| it.announced.follow.as_mut().unwrap().source = Some(ip("2001:db8::1")),
        |it| it.announced.follow.as_mut().unwrap().destination = None,
        |it| it.announced.helper = Some(Kind::Tftp),
        |it| it.master.helper = Kind::Pptp,
        |it| it.master.helper = Kind::Snmp,
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let mut record = expectation();
        change(&mut record);
        let record = AnnouncementRecord(Announcement::Expectation(Box::new(record)));
        let read = AnnouncementRecord::decode(&bytes_of(&record));
        assert!(matches!(read, Err(DecodeError::Impossible(_))), "change {number}: {read:?}");
    }
}

#[test]
fn no_call_and_no_media_contradict_themselves() {
    let with = |announcement: &Announcement, change: &dyn Fn(&mut Announcement)| {
        let mut announcement = announcement.clone();
        change(&mut announcement);
        let read = AnnouncementRecord::decode(&bytes_of(&AnnouncementRecord(announcement)));
        assert!(matches!(read, Err(DecodeError::Impossible(_))), "{read:?}");
    };
    with(&call(), &|it| {
        let Announcement::Call { call, .. } = it else { return };
        call.protocol = protocol::TCP;
    });
    with(&call(), &|it| {
        let Announcement::Call { call, .. } = it else { return };
        call.zone = Zone(4);
    });
    with(&call(), &|it| {
        let Announcement::Call { open, .. } = it else { return };
        open.master = open.real;
    });
    with(&call(), &|it| {
        let Announcement::Call { open, .. } = it else { return };
        open.names[1].0.zone = Zone(4);
    });
    with(&call_id(), &|it| {
        let Announcement::CallId { master, .. } = it else { return };
        master.protocol = protocol::UDP;
    });
    with(&call_id(), &|it| {
        let Announcement::CallId { id, .. } = it else { return };
        id.way.zone = Zone(4);
    });
    with(&media(), &|it| {
        let Announcement::Media { port, .. } = it else { return };
        *port += 1;
    });
    with(&media(), &|it| {
        let Announcement::Media { place, .. } = it else { return };
        place.2.1 += 1;
    });
    with(&media(), &|it| {
        let Announcement::Media { place, .. } = it else { return };
        place.3 = ip("2001:db8::1");
    });
    with(&media(), &|it| {
        let Announcement::Media { place, .. } = it else { return };
        place.1 = protocol::GRE;
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]
    #[test]
    fn any_bytes_are_read_or_refused(
        kind in FIRST_KIND..FIRST_KIND + 5,
        bytes in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let _ = AnnouncementRecord::decode(&bytes);
        let _ = AnnouncementRecord::decode(&[&[VERSION, kind], &bytes[..]].concat());
    }

    /// A record that is read of changed bytes is written as it was read, so nothing has two
    /// forms.
    #[test]
    fn a_changed_record_is_refused_or_is_another(
        which in 0..4_usize,
        flips in flips(),
    ) {
        let mut bytes = bytes_of(&all()[which]);
        flip(&mut bytes, &flips);
        if let Ok(read) = AnnouncementRecord::decode(&bytes) {
            prop_assert_eq!(bytes_of(&read), bytes);
        }
    }
}
