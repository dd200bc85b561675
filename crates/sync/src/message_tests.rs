use proptest::prelude::*;

use super::*;
use crate::keys::PreSharedKey;
use crate::likeness::Likeness;
use crate::record::{Identity, RECORD_BYTES_MAX, Record, RecordKind};

fn encoded(message: &Message) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.encode(&mut bytes);
    bytes
}

fn proof() -> impl Strategy<Value = Message> {
    ("[a-z]{0,80}", any::<[u8; 16]>(), any::<u32>(), "[ -~]{0,70}").prop_map(
        |(name, secret, buckets, mode)| {
            let likeness = Likeness {
                hash_kind: name.clone(),
                hash_secret: HashSecret::new(secret),
                buckets,
                translating_links: [name].into(),
                fragment_mode: mode,
                tunnel_mode: String::new(),
                zones: secret.to_vec(),
                rules: Vec::new(),
            };
            let key = PreSharedKey::new(&secret).unwrap().derive(b"", "test");
            Message::Likeness(Box::new(likeness.prove(&key)))
        },
    )
}

type Fields = (u64, u64, u32, u8, Vec<u8>);

fn batch() -> impl Strategy<Value = (Part, Vec<Fields>)> {
    let part = prop_oneof![Just(Part::Live), any::<u32>().prop_map(|it| Part::Bulk(BulkId(it)))];
    let body = prop::collection::vec(any::<u8>(), 0..100);
    let fields = (any::<u64>(), any::<u64>(), any::<u32>(), 0u8..5, body);
    (part, prop::collection::vec(fields, 1..20))
}

fn record((key, incarnation, version, kind, body): &Fields) -> Record<'_> {
    let kind = RecordKind::ALL[usize::from(*kind)];
    let identity = Identity { key: *key, incarnation: *incarnation, version: *version };
    Record { identity, kind, body }
}

fn frame((part, records): &(Part, Vec<Fields>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    begin_records(*part, Timestamp::from_secs(records.len() as u64), &mut bytes);
    let at = bytes.len() - 2;
    bytes[at..].copy_from_slice(&(records.len() as u16).to_be_bytes());
    records.iter().for_each(|fields| record(fields).encode(&mut bytes));
    bytes
}

fn other() -> impl Strategy<Value = Message> {
    let bulk = any::<u32>().prop_map(BulkId);
    prop_oneof![
        prop::option::of(bulk.clone()).prop_map(Message::Follow),
        Just(Message::AskSecret),
        any::<[u8; 16]>().prop_map(|secret| Message::Secret(HashSecret::new(secret))),
        (bulk.clone(), any::<u64>()).prop_map(|(id, count)| Message::BeginBulk(id, count)),
        (bulk, any::<u64>()).prop_map(|(id, count)| Message::EndBulk(id, count)),
        prop::collection::vec(any::<u8>(), 1..WORDS_BYTES_MAX + 1).prop_map(Message::Words),
        proof(),
    ]
}

proptest! {
    #[test]
    fn a_message_comes_back_whole_or_not_at_all(message in other()) {
        let bytes = encoded(&message);
        prop_assert_eq!(Message::decode(&bytes), Some(message));
        for length in 0..bytes.len() {
            prop_assert_eq!(Message::decode(&bytes[..length]), None, "{} bytes", length);
        }
        prop_assert_eq!(Message::decode(&[&bytes[..], &[0]].concat()), None, "a byte too many");
    }

    #[test]
    fn records_come_back_whole_or_not_at_all(given in batch()) {
        let bytes = frame(&given);
        let Some(Message::Records(batch)) = Message::decode(&bytes) else { panic!("records") };
        prop_assert_eq!(batch.part(), given.0);
        let expected = given.1.iter().map(record).collect::<Vec<_>>();
        prop_assert_eq!(batch.records().collect::<Vec<_>>(), expected);
        prop_assert_eq!(encoded(&Message::Records(batch)), bytes.clone());
        for length in 0..bytes.len() {
            prop_assert_eq!(Message::decode(&bytes[..length]), None, "{} bytes", length);
        }
    }

    /// Anything that can be read has one form, so nothing is read past or guessed.
    #[test]
    fn any_bytes_are_refused_or_come_back(
        kind in 0u8..10, rest in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let bytes = [&[kind][..], &rest].concat();
        if let Some(message) = Message::decode(&bytes) {
            prop_assert_eq!(encoded(&message), bytes);
        }
    }

    #[test]
    fn a_changed_byte_is_refused_or_means_something_else(
        given in batch(), at: prop::sample::Index, flip in 1u8..,
    ) {
        let mut bytes = frame(&given);
        let whole = Message::decode(&bytes);
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        if let Some(message) = Message::decode(&bytes) {
            prop_assert_ne!(Some(&message), whole.as_ref());
            prop_assert_eq!(encoded(&message), bytes);
        }
    }
}

#[test]
fn fields_that_can_not_be_are_refused() {
    let long = vec![0; RECORD_BYTES_MAX + 1];
    let fields = |kind, body: &[u8]| (Part::Live, vec![(1, 1, 1, kind, body.to_vec())]);
    assert!(Message::decode(&frame(&fields(0, &long[1..]))).is_some());
    assert_eq!(Message::decode(&frame(&fields(0, &long))), None, "a record that is too long");
    assert_eq!(Message::decode(&frame(&(Part::Live, vec![]))), None, "no records");
    assert_eq!(Message::decode(&[0]), None, "no such message");
    assert_eq!(Message::decode(&[2, 0, 0, 0, 0, 1]), None, "a bulk that nobody wants");
    let mut unknown_kind = frame(&fields(2, b""));
    unknown_kind[3 + 8 + 8] = 5;
    assert_eq!(Message::decode(&unknown_kind), None);
}
