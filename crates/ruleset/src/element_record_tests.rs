use std::time::Duration;

use flow::replica::{Origin, Taken};
use proptest::prelude::*;

use super::*;
use crate::evaluate::dynamic::{Joining, Meeting};
use crate::evaluate::shared_set::SharedSet;
use crate::model::{Data, Rate, Update, UpdateOp};

fn now() -> Timestamp {
    Timestamp::from_secs(5000)
}

const RATE: Rate =
    Rate { amount: 2, period: Duration::from_secs(1), burst: 4, over: false, in_bytes: false };

fn set(key: &[Kind], size: u32, parts: &[Part]) -> Set {
    Set {
        family: TableFamily::Inet,
        table: "filter".to_owned(),
        name: Some("seen".to_owned()),
        position: None,
        key: key.to_vec(),
        data: Data::None,
        dynamic: true,
        timeout: Some(Duration::from_secs(60)),
        size,
        parts: parts.to_vec(),
        declares_parts: true,
        elements: crate::elements::Elements::new(key, &Data::None),
    }
}

/// A packet of this length meets the element of a key.
fn meet(shared: &SharedSet, value: u32, bytes: u64, timeout: Option<u64>, now: Timestamp) {
    let mut key = PackedKey::EMPTY;
    key.push(value.into(), 1);
    let timeout = timeout.map(Duration::from_secs);
    let key_of = crate::model::Key { loads: Vec::new() };
    let update = Update { set: crate::SetId(0), op: UpdateOp::Add, key: key_of, timeout };
    let mut joined = Vec::new();
    let connection = Joining { details: None, joined: &mut joined };
    shared.update(&update, &key, &mut Meeting { bytes, now, connection });
}

fn records(shared: &SharedSet, set: &Set, now: Timestamp) -> Vec<ElementRecord> {
    let mut records = Vec::new();
    let mut at = 0;
    while shared.records_in(set, at, now, &mut |record| records.push(record)) {
        at += 1;
    }
    records.sort_by_key(|it| it.key[0].1);
    records
}

fn bytes_of(record: &ElementRecord) -> Vec<u8> {
    let mut bytes = Vec::new();
    record.encode(&mut bytes);
    bytes
}

fn some_record() -> ElementRecord {
    let set = set(&[Kind::Ipv4], 100, &[Part::Counter, Part::Limit(RATE)]);
    let shared = SharedSet::new(&set, 7, now());
    meet(&shared, 0xc000_0207, 300, Some(90), now());
    records(&shared, &set, now().after(Duration::from_secs(10))).remove(0)
}

/// Written by hand from the layout.
#[test]
fn the_bytes_of_version_1() {
    let golden = [
        "01 30 00",
        // "filter", "seen"
        "06 66696c746572 04 7365656e",
        // One part, IPv4: 192.0.2.7
        "01 00 c0000207",
        // 90 s, of which 80 are left
        "01 90bf05 80f104",
        // A packet of 300 bytes; the whole burst, 2 s, is there again
        "02 00 01 ac02  01 80a8d6b907",
        "00",
    ];
    let golden: String = golden.concat().split_whitespace().collect();
    let bytes = bytes_of(&some_record());
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, golden);
    assert_eq!(ElementRecord::decode(&bytes), Ok(some_record()));
    for end in 0..bytes.len() {
        assert_eq!(ElementRecord::decode(&bytes[..end]), Err(DecodeError::Cut), "at {end}");
    }
}

#[test]
fn another_gateway_goes_on_with_all_elements_and_their_states() {
    let set =
        set(&[Kind::Ipv4], 1000, &[Part::Limit(RATE), Part::Quota { bytes: 5000, over: false }]);
    let shared = SharedSet::new(&set, 7, now());
    for value in 0..500 {
        for packet in 0..value % 7 {
            meet(&shared, value, 100 + u64::from(packet), (value % 3 == 0).then_some(9), now());
        }
    }
    let then = now().after(Duration::from_millis(700));
    let records = records(&shared, &set, then);
    assert_eq!(records.len(), (0..500).filter(|it| it % 7 != 0).count());
    // Another secret and another clock.
    let new = SharedSet::new(&set, 99, Timestamp::from_secs(3));
    let there = Timestamp::from_secs(77);
    for record in &records {
        let read = ElementRecord::decode(&bytes_of(record)).unwrap();
        assert_eq!(new.import(&set, &read, Origin::File, there), Ok(Taken::Made));
        assert_eq!(new.import(&set, &read, Origin::File, there), Err(ElementRefusal::Known));
    }
    assert_eq!(self::records(&new, &set, there), records);
    // Both let the same packets pass from now on.
    let mut joined = Vec::new();
    for step in 0..20 {
        let pause = Duration::from_millis(200 * step);
        for value in 0..500_u32 {
            let mut key = PackedKey::EMPTY;
            key.push(value.into(), 1);
            let mut meets = |shared: &SharedSet, now: Timestamp| {
                let connection = Joining { details: None, joined: &mut joined };
                shared.meet(&key, &mut Meeting { bytes: 90, now, connection }, true)
            };
            let (old, new) = (meets(&shared, then.after(pause)), meets(&new, there.after(pause)));
            assert_eq!(old, new, "{value} after {pause:?}");
        }
    }
}

#[test]
fn a_set_takes_only_what_fits_it() {
    let (parts, record) = ([Part::Counter, Part::Limit(RATE)], some_record());
    let import = |set: &Set| {
        let shared = SharedSet::new(set, 7, now());
        shared.import(set, &record, Origin::File, now())
    };
    assert_eq!(import(&set(&[Kind::Ipv4], 1, &parts)), Ok(Taken::Made));
    let others = [
        set(&[Kind::Mark], 1, &parts),
        set(&[Kind::Ipv4, Kind::Port], 1, &parts),
        set(&[Kind::Ipv4], 1, &[Part::Counter]),
        set(&[Kind::Ipv4], 1, &[Part::Limit(RATE), Part::Counter]),
    ];
    for other in others {
        assert_eq!(import(&other), Err(ElementRefusal::OtherSet), "{other:?}");
    }
    // A full set keeps what it has, and lets what has expired go.
    let set = set(&[Kind::Ipv4], 1, &parts);
    let shared = SharedSet::new(&set, 7, now());
    meet(&shared, 1, 100, Some(5), now());
    assert_eq!(shared.import(&set, &record, Origin::File, now()), Err(ElementRefusal::Full));
    let later = now().after(Duration::from_secs(6));
    assert_eq!(shared.import(&set, &record, Origin::File, later), Ok(Taken::Made));
    assert_eq!(shared.len(later), 1);
    // A rate that is smaller here keeps its bound.
    let huge = ElementRecord {
        statements: vec![
            Statement::Counter { packets: 1, bytes: 1 },
            Statement::Rate { credit: u64::MAX },
        ],
        ..record.clone()
    };
    let shared = SharedSet::new(&set, 7, now());
    assert_eq!(shared.import(&set, &huge, Origin::File, now()), Ok(Taken::Made));
    let credit = Statement::Rate { credit: 2_000_000_000 };
    assert_eq!(records(&shared, &set, now())[0].statements[1], credit);
}

#[test]
fn elements_that_count_connections_stay() {
    let bound = crate::model::Bound { most: 3, over: true };
    let set = set(&[Kind::Ipv4], 10, &[Part::Connections(bound)]);
    let shared = SharedSet::new(&set, 7, now());
    meet(&shared, 1, 100, None, now());
    assert_eq!(records(&shared, &set, now()), vec![]);
}

#[test]
fn impossible_elements_are_refused() {
    let record = some_record();
    let decode = |record: &ElementRecord| ElementRecord::decode(&bytes_of(record));
    let none = Millis::default();
    let records = [
        ElementRecord { table: String::new(), ..record.clone() },
        ElementRecord { set: "x".repeat(LONGEST_TEXT + 1), ..record.clone() },
        ElementRecord { key: vec![], ..record.clone() },
        ElementRecord { key: vec![(Kind::Integer(0), 0)], ..record.clone() },
        ElementRecord { times: Some((Millis::new(5), none)), ..record.clone() },
        ElementRecord { times: Some((Millis::new(5), Millis::new(6))), ..record.clone() },
    ];
    for record in records {
        assert!(matches!(decode(&record), Err(DecodeError::Impossible(_))), "{record:?}");
    }
    let mut long = bytes_of(&record);
    long.push(0);
    assert!(ElementRecord::decode(&long).is_err());
}

fn statement() -> impl Strategy<Value = Statement> {
    prop_oneof![
        any::<(u64, u64)>().prop_map(|(packets, bytes)| Statement::Counter { packets, bytes }),
        any::<u64>().prop_map(|credit| Statement::Rate { credit }),
        any::<u64>().prop_map(|bytes| Statement::Quota { bytes }),
    ]
}

fn part() -> impl Strategy<Value = (Kind, u128)> {
    let kind =
        prop_oneof![prop::sample::select(KINDS.to_vec()), (1..=128_u8).prop_map(Kind::Integer),];
    (kind, any::<u128>()).prop_map(|(kind, value)| {
        let bits = 32 * kind.words() as u32;
        (kind, value >> (128 - bits))
    })
}

fn record() -> impl Strategy<Value = ElementRecord> {
    let times = prop::option::of((1..10_000_u64, 0..10_000_u64));
    let texts = ("[a-z]{1,9}", "[a-z]{1,9}", prop::option::of("\\PC{0,20}"));
    let lists = (prop::collection::vec(part(), 1..4), prop::collection::vec(statement(), 0..4));
    (texts, lists, times).prop_map(|((table, set, comment), (key, statements), times)| {
        let times = times.map(|(left, more)| (Millis::new(left + more), Millis::new(left)));
        ElementRecord { family: TableFamily::Ip6, table, set, key, times, statements, comment }
    })
}

proptest! {
    #[test]
    fn each_record_is_read_as_it_was_written(record in record()) {
        prop_assert_eq!(ElementRecord::decode(&bytes_of(&record)), Ok(record));
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = ElementRecord::decode(&bytes);
    }

    /// A record that is read of changed bytes is written as it was read, so nothing has two forms.
    #[test]
    fn a_changed_record_is_refused_or_is_another(
        record in record(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = bytes_of(&record);
        for (at, byte) in flips {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(read) = ElementRecord::decode(&bytes) {
            prop_assert_eq!(bytes_of(&read), bytes);
        }
    }
}
