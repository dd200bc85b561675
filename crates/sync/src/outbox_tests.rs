use proptest::prelude::*;

use super::*;
use crate::inbox::{Arrival, Inbox};
use crate::message::BulkId;
use crate::record::{Identity, RecordKind};

const LIMIT: usize = 200;

fn at(ms: u64) -> Timestamp {
    Timestamp::from_nanos(ms * 1_000_000)
}

fn push(outbox: &mut Outbox, now: Timestamp, version: u32, part: Part) {
    let identity = Identity { key: 1, incarnation: 1, version };
    let body = vec![0; version as usize % 120];
    let record = Record { identity, kind: RecordKind::Change, body: &body };
    outbox.push_record(now, part, &record, LIMIT);
}

/// Hands over what may be sent now, without what `is_lost` says.
fn carry(
    now: Timestamp,
    outbox: &mut Outbox,
    inbox: &mut Inbox,
    mut is_lost: impl FnMut() -> bool,
) -> Vec<u32> {
    let mut versions = Vec::new();
    while let Some((place, bytes)) = outbox.next(now) {
        if is_lost() {
            continue;
        }
        let message = Message::decode(bytes).unwrap();
        assert!(bytes.len() <= LIMIT);
        inbox.check(place, bytes.len()).unwrap();
        inbox.insert(now, place, (bytes.len(), message));
        while let Some((_, Message::Records(batch))) = inbox.take(now) {
            versions.extend(batch.records().map(|record| record.identity.version));
        }
    }
    versions
}

proptest! {
    /// Whatever is lost, in both directions, all records come once and in order, and afterwards
    /// nothing is kept.
    #[test]
    fn all_records_come_once_and_in_order(
        losses in prop::collection::vec(any::<bool>(), 0..300), records in 1u32..400,
    ) {
        let (mut outbox, mut inbox) = (Outbox::default(), Inbox::default());
        let mut losses = losses.into_iter();
        let mut is_lost = || losses.next().unwrap_or(false);
        let (mut received, mut offered) = (Vec::new(), 0);
        for ms in 0..60_000 {
            let now = at(ms);
            if offered < records {
                let part = if offered % 7 < 4 { Part::Live } else { Part::Bulk(BulkId(1)) };
                push(&mut outbox, now, offered, part);
                offered += 1;
            }
            outbox.expire(now);
            received.extend(carry(now, &mut outbox, &mut inbox, &mut is_lost));
            if inbox.acks_at() <= now && !is_lost() {
                let ack = inbox.acknowledge();
                prop_assert_eq!(outbox.check(&ack), Ok(()));
                outbox.acknowledge(now, &ack);
            }
            if received.len() == records as usize && outbox.records() == 0 {
                break;
            }
        }
        prop_assert_eq!(received, (0..records).collect::<Vec<_>>());
        prop_assert_eq!((outbox.bytes(), outbox.records(), outbox.flying), (0, 0, 0));
        prop_assert_eq!(outbox.deadline(), Timestamp::NEVER);
    }
}

#[test]
fn a_sender_waits_for_the_owner_of_the_peer() {
    let (mut outbox, mut inbox) = (Outbox::default(), Inbox::default());
    let frames = 2 * WINDOW_FRAMES as u32;
    for version in 0..frames {
        // Each part begins a frame of its own.
        push(&mut outbox, at(0), version, Part::Bulk(BulkId(version)));
    }
    let mut taken = 0;
    for ms in 0..1000 {
        let now = at(ms);
        outbox.expire(now);
        while let Some((place, bytes)) = outbox.next(now) {
            assert_eq!(inbox.check(place, bytes.len()), Ok(()), "{place:?}, {taken} taken");
            inbox.insert(now, place, (bytes.len(), Message::decode(bytes).unwrap()));
        }
        assert_eq!(outbox.records(), u64::from(frames - taken));
        // The owner is slow at first.
        let count = if ms < 500 { 1 } else { 100 };
        taken += (0..count).filter(|_| inbox.take(now).is_some()).count() as u32;
        outbox.acknowledge(now, &inbox.acknowledge());
    }
    assert_eq!((taken, outbox.records(), outbox.resent()), (frames, 0, 0));
}

#[test]
fn an_acknowledgment_of_frames_that_were_never_sent_is_refused() {
    let mut outbox = Outbox::default();
    push(&mut outbox, at(0), 1, Part::Live);
    let ack = |next, ranges| Ack { stream: 1, next, ranges };
    assert_eq!(outbox.check(&ack(1, vec![])), Err(Refusal::ImpossibleAck), "not sent yet");
    outbox.next(at(0)).unwrap();
    assert_eq!(outbox.check(&ack(1, vec![])), Ok(()));
    assert_eq!(outbox.check(&ack(0, vec![(1, 1)])), Err(Refusal::ImpossibleAck));
    let later = Ack { stream: 2, ..Ack::default() };
    assert_eq!(outbox.check(&later), Err(Refusal::ImpossibleAck));
    assert_eq!(outbox.check(&Ack::default()), Ok(()), "of the stream before");
}

#[test]
fn a_frame_that_others_have_overtaken_is_sent_again_before_the_time_out() {
    let mut outbox = Outbox::default();
    for ms in 0..10 {
        push(&mut outbox, at(ms), ms as u32, Part::Live);
        assert_eq!(outbox.next(at(ms)).map(|(place, _)| place.number), Some(ms));
    }
    // The second frame is missing.
    let ack = |there| Ack { stream: 1, next: 1, ranges: vec![(1, there)] };
    outbox.acknowledge(at(10), &ack(1));
    assert_eq!(outbox.next(at(10)), None, "it may have been overtaken");
    outbox.acknowledge(at(10), &ack(8));
    assert_eq!(outbox.next(at(10)).map(|(place, _)| place.number), Some(1));
    assert_eq!((outbox.resent(), outbox.next(at(10))), (1, None));
    // Its acknowledgment lets all go.
    outbox.acknowledge(at(11), &Ack { stream: 1, next: 10, ranges: vec![] });
    assert_eq!((outbox.bytes(), outbox.flying, outbox.lost), (0, 0, 0));
}

#[test]
fn repetition_becomes_slow_and_never_ends() {
    let mut outbox = Outbox::default();
    for version in 0..200 {
        push(&mut outbox, at(0), version, Part::Live);
    }
    let (mut sent, mut last) = (Vec::new(), 0);
    for ms in 0..100_000 {
        outbox.expire(at(ms));
        let mut frames = 0;
        while outbox.next(at(ms)).is_some() {
            frames += 1;
        }
        if frames > 0 {
            sent.push((ms - last, frames));
            last = ms;
        }
    }
    assert_eq!(sent[..6], [(0, 32), (50, 2), (100, 2), (200, 2), (400, 2), (800, 2)]);
    assert!(sent[6..].iter().all(|it| *it == (1000, 2)), "{sent:?}");
    assert_eq!(outbox.records(), 200);
}

#[test]
fn frames_take_about_the_memory_that_is_charged_for_them() {
    let mut outbox = Outbox::default();
    for version in 0..200 {
        // Each frame holds one record, though a frame has room for many.
        let part = Part::Bulk(BulkId(version % 2));
        let identity = Identity { key: 1, incarnation: 1, version };
        let record = Record { identity, kind: RecordKind::Change, body: &[0; 10] };
        outbox.push_record(at(0), part, &record, 60_000);
    }
    let taken: usize = outbox.frames.iter().map(|frame| frame.bytes.capacity()).sum();
    assert!(taken <= 2 * outbox.bytes(), "{taken} bytes for {}", outbox.bytes());
}

#[test]
fn frames_that_are_not_applied_keep_the_window_where_it_is() {
    let mut inbox = Inbox::default();
    let place = |number| Place { stream: 1, number };
    for number in 0..WINDOW_FRAMES {
        assert_eq!(inbox.check(place(number), 1), Ok(()));
        inbox.insert(at(0), place(number), (1, Message::AskSecret));
        assert_eq!(inbox.take(at(0)).map(|(place, _)| place.number), Some(number));
        inbox.await_applied();
    }
    // A peer that sends on can not fill the queues of this node.
    assert_eq!(inbox.check(place(WINDOW_FRAMES), 1), Err(Refusal::BeyondWindow));
    let ack = inbox.acknowledge();
    assert_eq!((ack.next, &ack.ranges[..]), (0, &[(0, WINDOW_FRAMES as u16)][..]));
    inbox.applied(at(0), place(9));
    assert_eq!(inbox.check(place(WINDOW_FRAMES + 9), 1), Ok(()));
    assert_eq!(inbox.check(place(WINDOW_FRAMES + 10), 1), Err(Refusal::BeyondWindow));
}

#[test]
fn frames_far_ahead_and_of_streams_that_were_given_up_are_refused() {
    let mut inbox = Inbox::default();
    let place = |stream, number| Place { stream, number };
    let message = || (1, Message::AskSecret);
    assert_eq!(inbox.check(place(0, 0), 1), Err(Refusal::PastStream));
    assert_eq!(inbox.check(place(1, WINDOW_FRAMES), 1), Err(Refusal::BeyondWindow));
    assert_eq!(inbox.check(place(1, WINDOW_FRAMES - 1), 1), Ok(()));
    assert_eq!(inbox.insert(at(0), place(1, 5), message()), Arrival::Restarted);
    assert_eq!(inbox.insert(at(0), place(1, 5), message()), Arrival::Repeated);
    assert_eq!(inbox.insert(at(0), place(3, 1), message()), Arrival::Restarted);
    assert_eq!(inbox.check(place(2, 0), 1), Err(Refusal::PastStream));
    assert_eq!(inbox.take(at(0)), None, "the first frame of stream 3 is missing");
    assert_eq!(inbox.acknowledge().ranges, [(1, 1)]);
    let most = crate::inbox::HELD_BYTES_MAX;
    assert_eq!(inbox.check(place(3, 2), most), Err(Refusal::BeyondWindow));
    assert_eq!(inbox.check(place(3, 0), most), Ok(()), "all others wait for this one");
}
