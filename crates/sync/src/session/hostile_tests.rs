//! Datagrams that are cut, changed, repeated, reordered, forged or meant to harm.

use std::collections::BTreeSet;

use proptest::prelude::*;
use proptest::sample::Index;

use super::pair::*;
use super::*;
use crate::message::Message;
use crate::packet::{Ack, Place, VERSION};
use crate::record::Part;
use crate::refusal::Refusal;

#[test]
fn nothing_of_another_key_or_of_this_node_is_taken() {
    let mut pair = following();
    let mut stranger = session_with(config(3), 3, b"another secret!!");
    let mut datagram = Vec::new();
    assert!(stranger.poll_transmit(pair.now, &mut datagram));
    let before = pair.status(0);
    let end = &mut pair.ends[0];
    assert_eq!(end.handle(pair.now, &datagram), Err(Refusal::Forged));
    for (to, datagram) in &pair.seen {
        let again = end.handle(pair.now, datagram);
        match (to, datagram[1]) {
            // An old hello is answered: that changes nothing here.
            (0, 1) => assert_eq!(again, Ok(())),
            (0, _) => assert!(again.is_err()),
            (_, 1..4) => assert!(matches!(again, Err(Refusal::OwnNode | Refusal::StaleGreeting))),
            (_, _) => assert_eq!(again, Err(Refusal::OwnNode)),
        }
    }
    assert_eq!(end.handle(pair.now, &[]), Err(Refusal::Malformed));
    assert_eq!(end.handle(pair.now, &[VERSION + 1, 4]), Err(Refusal::WrongVersion));
    assert_eq!(end.handle(pair.now, &[VERSION, 4, 0]), Err(Refusal::Malformed));
    let mut after = pair.status(0);
    assert!(after.refusals.of(Refusal::OwnNode) > 0);
    after.refusals = before.refusals.clone();
    after.counters.received_datagrams = before.counters.received_datagrams;
    assert_eq!(after, before);
}

#[test]
fn a_datagram_that_is_cut_or_changed_anywhere_changes_nothing() {
    let mut pair = following();
    pair.ends[0].offer(pair.now, &record(1)).unwrap();
    let mut datagram = Vec::new();
    assert!(pair.ends[0].poll_transmit(pair.now, &mut datagram));
    let before = pair.status(1);
    for length in 0..datagram.len() {
        assert!(pair.ends[1].handle(pair.now, &datagram[..length]).is_err(), "{length} bytes");
    }
    for bit in 0..datagram.len() * 8 {
        let mut changed = datagram.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        assert!(pair.ends[1].handle(pair.now, &changed).is_err(), "bit {bit}");
    }
    let after = pair.status(1);
    let refused = datagram.len() as u64 * 9;
    assert_eq!(after.refusals.total(), before.refusals.total() + refused, "each is counted once");
    assert_eq!(Status { refusals: before.refusals.clone(), ..after }, before);
    assert_eq!(pair.ends[1].poll_event(pair.now), None);
    assert_eq!(pair.ends[1].handle(pair.now, &datagram), Ok(()));
    assert!(matches!(pair.ends[1].poll_event(pair.now), Some(Event::Records(_))));
}

/// Seals a frame of the first node as if it said anything at all.
fn say(pair: &mut Pair, number: u64, message: &[u8]) -> Result<(), Refusal> {
    let mut content = Vec::new();
    Ack::default().encode(&mut content);
    Place { stream: 100, number }.encode(&mut content);
    put_message(message, &mut content);
    let datagram = seal(pair, &content);
    pair.ends[1].handle(pair.now, &datagram)
}

/// Appends a message behind its length.
fn put_message(message: &[u8], content: &mut Vec<u8>) {
    content.extend_from_slice(&(message.len() as u16).to_be_bytes());
    content.extend_from_slice(message);
}

#[test]
fn a_peer_that_has_the_key_can_say_nothing_that_harms() {
    let mut pair = following();
    assert_eq!(say(&mut pair, 0, b"\xff?"), Err(Refusal::Malformed));
    assert_eq!(say(&mut pair, 5_000, &[3]), Err(Refusal::BeyondWindow));
    assert!(matches!(pair.status(1).inflow, Inflow::Level(_)), "nothing of that was applied");
    // Messages that are right and out of place.
    let messages = [
        Message::Follow(Some(BulkId(9))),
        Message::Secret(HashSecret::new([3; 16])),
        Message::AskSecret,
        Message::BeginBulk(BulkId(77), u64::MAX),
        Message::EndBulk(BulkId(77), 0),
    ];
    for (number, message) in (0..).zip(&messages) {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        assert_eq!(say(&mut pair, number, &bytes), Ok(()));
    }
    assert_eq!(pair.ends[1].poll_event(pair.now), None);
    assert_eq!(pair.status(1).counters.out_of_place, messages.len() as u64);
    // Questions without end, of which no answer is ever acknowledged.
    let proof = likeness().prove(&pair.ends[0].greeter.likeness_key(&pair.ends[1].greeter.host));
    let questions = [Message::Likeness(Box::new(proof)), Message::Follow(Some(BulkId(1)))];
    for number in 5..3_000 {
        let mut bytes = Vec::new();
        questions[number as usize % 2].encode(&mut bytes);
        assert_eq!(say(&mut pair, number, &bytes), Ok(()));
        while pair.ends[1].poll_event(pair.now).is_some() {}
        let mut datagram = Vec::new();
        while pair.ends[1].poll_transmit(pair.now, &mut datagram) {}
    }
    assert!(pair.status(1).queue_bytes < 16 * 1024, "{:?}", pair.status(1));
}

/// The end takes a datagram whole, or refuses it, counts it once, and is as it was before.
fn deliver(pair: &mut Pair, to: usize, datagram: &[u8]) -> Result<(), Refusal> {
    let before = pair.status(to);
    let result = pair.ends[to].handle(pair.now, datagram);
    let mut after = pair.status(to);
    if result.is_err() {
        assert_eq!(after.refusals.total(), before.refusals.total() + 1);
        assert_eq!(pair.ends[to].poll_event(pair.now), None);
        after.refusals = before.refusals.clone();
        assert_eq!(after, before);
    }
    assert!(after.queue_bytes <= 2 * 16 * 1024, "{after:?}");
    assert!(after.held_bytes <= crate::inbox::HELD_BYTES_MAX + 1400, "{after:?}");
    result
}

/// Applies the news of both ends, and does what they ask for. Returns the versions of the records
/// that the second one got.
fn take_news(pair: &mut Pair) -> Vec<u32> {
    let mut versions = Vec::new();
    for at in [0, 1] {
        while let Some(event) = pair.ends[at].poll_event(pair.now) {
            pair.events[at].push(event);
        }
        for event in std::mem::take(&mut pair.events[at]) {
            match event {
                // The peers may have come apart since.
                Event::BulkAsked if pair.ends[at].begin_bulk(pair.now, 0).is_ok() => {
                    pair.ends[at].end_bulk(pair.now).unwrap();
                }
                Event::Records(batch) if at == 1 => {
                    versions.extend(batch.records().map(|record| record.identity.version));
                }
                _ => {}
            }
        }
    }
    versions
}

/// The link is well again, and the ends must be level without any help.
fn heal(pair: &mut Pair, version: u32) {
    for _ in 0..60 {
        pair.wait(Duration::from_millis(100));
        take_news(pair);
    }
    pair.wait(Duration::from_millis(100));
    for at in [0, 1] {
        let status = pair.status(at);
        assert!(matches!(status.inflow, Inflow::Level(_)), "{at}: {status:?}");
        assert_eq!(status.staleness, Some(Duration::ZERO), "{at}: {status:?}");
    }
    pair.ends[0].offer(pair.now, &record(version)).unwrap();
    pair.wait(Duration::from_millis(10));
    assert_eq!(take_news(pair), [version]);
}

#[derive(Clone, Debug)]
enum Change {
    None,
    Cut(Index),
    Flip(Index),
    Splice(Index, Index),
    Extend(Vec<u8>),
}

impl Change {
    fn any() -> impl Strategy<Value = Self> {
        let index = any::<Index>;
        prop_oneof![
            Just(Self::None),
            index().prop_map(Self::Cut),
            index().prop_map(Self::Flip),
            (index(), index()).prop_map(|(other, at)| Self::Splice(other, at)),
            prop::collection::vec(any::<u8>(), 1..40).prop_map(Self::Extend),
        ]
    }

    fn make(&self, bytes: &mut Vec<u8>, others: &[(usize, Vec<u8>)]) {
        match self {
            Self::None => {}
            Self::Cut(at) => bytes.truncate(at.index(bytes.len() + 1)),
            Self::Flip(_) if bytes.is_empty() => {}
            Self::Flip(bit) => {
                let bit = bit.index(bytes.len() * 8);
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            Self::Splice(other, at) => {
                let (_, other) = &others[other.index(others.len())];
                let at = at.index(bytes.len().min(other.len()) + 1);
                bytes.truncate(at);
                bytes.extend_from_slice(&other[at..]);
            }
            Self::Extend(more) => bytes.extend_from_slice(more),
        }
    }
}

/// An act of somebody without the key on the link, or something that happens meanwhile.
#[derive(Clone, Debug)]
enum Step {
    /// A datagram that waits on the link arrives, in any order, or is lost.
    Arrive(Index),
    Lose(Index),
    /// An old one comes again, changed or not, to one of the ends.
    Again(Index, usize, Change),
    /// Bytes that look like a datagram of some kind.
    Invent(usize, u8, Vec<u8>),
    Offer,
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let index = any::<Index>;
    prop_oneof![
        8 => index().prop_map(Step::Arrive),
        1 => index().prop_map(Step::Lose),
        4 => (index(), 0..2usize, Change::any()).prop_map(|(at, to, it)| Step::Again(at, to, it)),
        1 => (0..2usize, 0..6u8, prop::collection::vec(any::<u8>(), 0..200))
            .prop_map(|(to, kind, bytes)| Step::Invent(to, kind, bytes)),
        2 => Just(Step::Offer),
        2 => (1..400u64).prop_map(Step::Wait),
    ]
}

proptest! {
    /// Whatever somebody without the key does, an end takes nothing but what the other one has
    /// sent to it, and afterwards all is well.
    #[test]
    fn nobody_without_the_key_can_do_more_than_a_bad_link(
        steps in prop::collection::vec(step(), 1..250),
        is_fresh: bool,
    ) {
        let settings = Settings { rekey_after_frames: 40, ..config(1).settings };
        let configs = [1, 2].map(|node| Config { settings, ..config(node) });
        let mut pair = if is_fresh { Pair::new(configs) } else { joined(configs) };
        let (mut waiting, mut offered, mut newest) = (Vec::new(), 0, 0);
        let mut taken = BTreeSet::new();
        let mut take = |pair: &mut Pair, to, datagram: &[u8]| {
            let result = deliver(pair, to, datagram);
            // A hello may come from anybody, and leads to an answer only.
            let is_once = result.is_err() || datagram[1] == 1 || taken.insert(datagram.to_vec());
            assert!(is_once, "taken twice");
            result
        };
        for step in &steps {
            match step {
                Step::Arrive(at) if !waiting.is_empty() => {
                    let (to, datagram): (usize, Vec<u8>) =
                        waiting.swap_remove(at.index(waiting.len()));
                    let _ = take(&mut pair, to, &datagram);
                }
                Step::Lose(at) if !waiting.is_empty() => {
                    waiting.swap_remove(at.index(waiting.len()));
                }
                Step::Again(at, to, change) if !pair.seen.is_empty() => {
                    let (_, mut datagram) = pair.seen[at.index(pair.seen.len())].clone();
                    change.make(&mut datagram, &pair.seen);
                    let result = take(&mut pair, *to, &datagram);
                    let is_sent = pair.seen.contains(&(*to, datagram));
                    prop_assert!(result.is_err() || is_sent, "{result:?}");
                }
                Step::Invent(to, kind, bytes) => {
                    let datagram = [&[VERSION, *kind], &bytes[..]].concat();
                    prop_assert!(take(&mut pair, *to, &datagram).is_err());
                }
                Step::Offer => {
                    offered += 1;
                    let _ = pair.ends[0].offer(pair.now, &record(offered));
                }
                Step::Wait(ms) => pair.now = pair.now.after(Duration::from_millis(*ms)),
                Step::Arrive(_) | Step::Lose(_) | Step::Again(..) => {}
            }
            for version in take_news(&mut pair) {
                prop_assert!(version > newest, "{version} after {newest}");
                newest = version;
            }
            for at in [0, 1] {
                let mut datagram = Vec::new();
                while pair.ends[at].poll_transmit(pair.now, &mut datagram) {
                    waiting.push((1 - at, datagram.clone()));
                    pair.seen.push((1 - at, datagram.clone()));
                }
            }
        }
        heal(&mut pair, offered + 1);
    }

    /// A peer that has the key and says anything at all harms nobody but itself, and a process
    /// that replaces it is followed.
    #[test]
    fn a_faulty_peer_harms_nobody_else(
        sayings in prop::collection::vec(saying(), 1..120),
    ) {
        let mut pair = following();
        let others = messages().into_iter().map(|message| (0, message)).collect::<Vec<_>>();
        for Saying { ack, place, message, changes } in &sayings {
            let mut content = Vec::new();
            ack.encode(&mut content);
            if let Some(place) = place {
                place.encode(&mut content);
                let (_, bytes) = &others[message.index(others.len())];
                let mut bytes = bytes.clone();
                changes[0].make(&mut bytes, &others);
                put_message(&bytes, &mut content);
            }
            changes[1].make(&mut content, &others);
            let datagram = seal(&mut pair, &content);
            let _ = deliver(&mut pair, 1, &datagram);
            take_news(&mut pair);
            let mut datagram = Vec::new();
            while pair.ends[1].poll_transmit(pair.now, &mut datagram) {}
            pair.now = pair.now.after(Duration::from_millis(1));
        }
        pair.ends[0] = session_with(config(1), 99, SECRET);
        heal(&mut pair, 1);
    }
}

/// Something that a faulty peer says.
#[derive(Clone, Debug)]
struct Saying {
    ack: Ack,
    place: Option<Place>,
    message: Index,
    /// Of the message, and of all.
    changes: [Change; 2],
}

fn saying() -> impl Strategy<Value = Saying> {
    let stream = || prop_oneof![8 => 0..6u32, 1 => Just(u32::MAX)];
    let number = || prop_oneof![8 => 0..40u64, 1 => 0..5_000u64, 1 => Just(u64::MAX)];
    let range = (0..5u16, 1..5u16);
    let ack = (stream(), number(), prop::collection::vec(range, 0..4));
    let ack = ack.prop_map(|(stream, next, ranges)| Ack { stream, next, ranges });
    let place = (stream(), number()).prop_map(|(stream, number)| Place { stream, number });
    let change = || prop_oneof![3 => Just(Change::None), 1 => Change::any()];
    (ack, prop::option::weighted(0.9, place), any::<Index>(), [change(), change()])
        .prop_map(|(ack, place, message, changes)| Saying { ack, place, message, changes })
}

/// Messages of each kind.
fn messages() -> Vec<Vec<u8>> {
    let pair = joined([config(1), config(2)]);
    let Inflow::Asked(bulk) = pair.status(1).inflow else { panic!("asked") };
    let key = pair.ends[0].greeter.likeness_key(&pair.ends[1].greeter.host);
    let records = |part| {
        let mut bytes = Vec::new();
        crate::message::begin_records(part, pair.now, &mut bytes);
        let at = bytes.len() - 2;
        bytes[at..].copy_from_slice(&[0, 2]);
        (1..3).for_each(|version| record(version).encode(&mut bytes));
        Message::decode(&bytes).unwrap()
    };
    let all = [
        Message::Likeness(Box::new(likeness().prove(&key))),
        Message::Follow(None),
        Message::Follow(Some(bulk)),
        Message::AskSecret,
        Message::Secret(HashSecret::new([3; 16])),
        Message::BeginBulk(bulk, 7),
        Message::EndBulk(bulk, 0),
        records(Part::Live),
        records(Part::Bulk(bulk)),
    ];
    let encoded = all.iter().map(|message| {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        bytes
    });
    encoded.collect()
}

/// A datagram of the first node with any content.
fn seal(pair: &mut Pair, content: &[u8]) -> Vec<u8> {
    let mut datagram = Vec::new();
    let epoch = pair.ends[0].current.as_mut().unwrap();
    epoch.begin(&mut datagram);
    datagram.extend_from_slice(content);
    epoch.seal(&mut datagram);
    datagram
}

#[test]
fn a_greeting_that_is_cut_anywhere_changes_nothing() {
    let mut pair = Pair::new([config(1), config(2)]);
    for from in [1, 0, 1] {
        let greeting = pair.sent(from);
        for length in 0..greeting.len() {
            let cut = deliver(&mut pair, 1 - from, &greeting[..length]);
            assert_eq!(cut, Err(Refusal::Malformed), "{length} bytes");
        }
        assert_eq!(deliver(&mut pair, 1 - from, &greeting), Ok(()));
    }
    assert_eq!(pair.status(0).counters.keys_agreed, 1);
}

/// The peer itself has cut them, so each is authentic.
#[test]
fn a_content_that_is_cut_anywhere_changes_nothing() {
    for message in messages() {
        let mut pair = following();
        let mut content = Vec::new();
        Ack { stream: 0, next: 3, ranges: vec![(1, 2), (3, 4)] }.encode(&mut content);
        let acknowledgment = content.len();
        Place { stream: 100, number: 0 }.encode(&mut content);
        put_message(&message, &mut content);
        for length in 0..content.len() {
            let datagram = seal(&mut pair, &content[..length]);
            let expected = match length == acknowledgment {
                true => Ok(()),
                false => Err(Refusal::Malformed),
            };
            assert_eq!(deliver(&mut pair, 1, &datagram), expected, "{length} bytes");
        }
        let datagram = seal(&mut pair, &[&content[..], &[0, 1]].concat());
        assert_eq!(deliver(&mut pair, 1, &datagram), Err(Refusal::Malformed), "padding");
        let datagram = seal(&mut pair, &[&content[..], &[0, 0]].concat());
        assert_eq!(deliver(&mut pair, 1, &datagram), Ok(()));
    }
}
