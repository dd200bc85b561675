use super::pair::*;
use super::*;
use crate::record::{RECORD_BYTES_MAX, Record};

#[test]
fn changes_arrive_and_the_status_tells_how_stale_the_peer_is() {
    let mut pair = following();
    let offered = pair.now;
    pair.ends[0].offer(pair.now, &record(1)).unwrap();
    pair.now = pair.now.after(Duration::from_micros(300));
    let status = pair.status(0);
    assert_eq!(
        (status.staleness, status.unacknowledged_records),
        (Some(Duration::from_micros(300)), 1)
    );
    pair.wait(Duration::from_millis(2));
    let status = pair.status(0);
    assert_eq!((status.staleness, status.unacknowledged_records), (Some(Duration::ZERO), 0));
    let [Event::Records(batch)] = &pair.events[1][..] else { panic!("{:?}", pair.events[1]) };
    assert_eq!(batch.records().collect::<Vec<_>>(), [record(1)]);
    assert_eq!(batch.time(), offered, "the sender's clock");
}

#[test]
fn a_full_queue_is_told_and_given_up_only_when_the_peer_is_away() {
    let mut pair = following();
    let mut version = 0;
    let refused = loop {
        version += 1;
        if let Err(refused) = pair.ends[0].offer(pair.now, &record(version)) {
            break refused;
        }
    };
    assert_eq!(refused, NotTaken::Full);
    assert!(pair.ends[0].room() < 200);
    assert!(pair.status(0).queue_bytes <= 16 * 1024);
    // Nothing reaches the peer, which counts as away only later.
    pair.now = pair.now.after(AWAY_AFTER - Duration::from_millis(50));
    assert_eq!(pair.ends[0].offer(pair.now, &record(version)), Err(NotTaken::Full));
    pair.now = pair.now.after(AWAY_AFTER);
    assert!(matches!(pair.status(0).presence, Presence::Away(_)));
    assert_eq!(pair.ends[0].offer(pair.now, &record(version)), Err(NotTaken::NotFollowed));
    let status = pair.status(0);
    assert_eq!((status.outflow, status.queue_bytes), (Outflow::Unfollowed, 0));
    assert_eq!(status.counters.forgotten_queues, 1);
    assert_eq!(status.counters.forgotten_records, u64::from(version - 1));
    // It comes back, and asks for all.
    pair.events = Default::default();
    pair.wait(Duration::from_secs(1));
    let Outflow::Asked(bulk) = pair.status(0).outflow else { panic!("asked again") };
    assert_eq!(pair.status(1).inflow, Inflow::Asked(bulk));
    assert!(pair.events[0].contains(&Event::BulkAsked));
    assert!(!pair.events[1].iter().any(|it| matches!(it, Event::Joined { .. })));
}

/// Offers changes until there is no room. Returns how many were taken in.
fn fill(pair: &mut Pair) -> u32 {
    let taken = (1..).take_while(|version| pair.ends[0].offer(pair.now, &record(*version)).is_ok());
    taken.count() as u32
}

#[test]
fn room_is_what_offers_find() {
    let mut pair = joined([config(1), config(2)]);
    // Nobody follows, so nothing keeps the owner from offering.
    assert_eq!(pair.ends[0].room(), 16 * 1024);
    assert_eq!(pair.ends[0].offer(pair.now, &record(1)), Err(NotTaken::NotFollowed));
    pair = following();
    for version in 1.. {
        let fits = pair.ends[0].room() >= RECORD_COST_BYTES + record(version).body.len();
        assert_eq!(pair.ends[0].offer(pair.now, &record(version)).is_ok(), fits);
        assert!(pair.status(0).queue_bytes <= 16 * 1024);
        if !fits {
            break;
        }
    }
}

#[test]
fn a_full_queue_is_given_up_if_a_peer_that_speaks_acknowledges_nothing() {
    let mut pair = following();
    let taken = fill(&mut pair);
    let filled = pair.now;
    // The second node says that it is there, and loses all that it is sent.
    for _ in 0..50 {
        pair.now = pair.now.after(Duration::from_millis(20));
        let at_second = pair.now;
        let mut datagram = Vec::new();
        while pair.ends[0].poll_transmit(pair.now, &mut datagram) {}
        while pair.ends[1].poll_transmit(at_second, &mut datagram) {
            pair.ends[0].handle(pair.now, &datagram).unwrap();
        }
        assert_eq!(pair.status(0).presence, Presence::There);
        let is_over = pair.now >= filled.after(AWAY_AFTER);
        assert_eq!(pair.status(0).counters.forgotten_queues, u64::from(is_over));
    }
    let status = pair.status(0);
    assert_eq!((status.outflow, status.staleness), (Outflow::Unfollowed, None));
    assert_eq!(status.counters.forgotten_records, u64::from(taken));
    pair.wait(Duration::from_millis(10));
    assert!(matches!(pair.status(0).outflow, Outflow::Asked(_)));
}

#[test]
fn the_owner_is_called_when_a_full_queue_is_to_be_given_up() {
    let mut pair = following();
    fill(&mut pair);
    pair.sent(0);
    let mut steps = 0;
    while pair.status(0).counters.forgotten_queues == 0 {
        pair.now = pair.ends[0].next_timeout();
        let mut datagram = Vec::new();
        while pair.ends[0].poll_transmit(pair.now, &mut datagram) {}
        steps += 1;
        assert!(steps < 50);
    }
}

#[test]
fn staleness_is_known_only_while_the_peer_lacks_nothing_else() {
    let mut pair = joined([config(1), config(2)]);
    assert_eq!(pair.status(0).staleness, None, "asked");
    pair.ends[0].begin_bulk(pair.now, 1).unwrap();
    pair.ends[0].offer_bulk(pair.now, &record(1)).unwrap();
    assert_eq!(pair.status(0).staleness, None, "bulk");
    pair.ends[0].end_bulk(pair.now).unwrap();
    assert!(matches!(pair.status(0).outflow, Outflow::Live(_)));
    assert_eq!(pair.status(0).staleness, None, "the bulk has not arrived");
    pair.wait(Duration::from_millis(10));
    assert_eq!(pair.status(0).staleness, Some(Duration::ZERO));
    pair.ends[0].lost_change();
    assert_eq!(pair.status(0).staleness, None, "a change is lost");
}

#[test]
fn a_lost_change_leads_to_another_bulk_transfer() {
    let mut pair = following();
    pair.ends[0].lost_change();
    assert_eq!(pair.ends[0].offer(pair.now, &record(1)), Err(NotTaken::NotFollowed));
    pair.wait(Duration::from_millis(10));
    let Outflow::Asked(first) = pair.status(0).outflow else { panic!("asked again") };
    pair.ends[0].begin_bulk(pair.now, 1).unwrap();
    pair.ends[0].offer_bulk(pair.now, &record(1)).unwrap();
    // One that is lost meanwhile does not stop the transfer.
    pair.ends[0].lost_change();
    pair.ends[0].end_bulk(pair.now).unwrap();
    pair.wait(Duration::from_millis(10));
    assert!(pair.events[1].contains(&Event::BulkEnded(first)));
    let Outflow::Asked(second) = pair.status(0).outflow else { panic!("asked again") };
    assert_ne!(first, second);
    // That transfer makes it good.
    pair.ends[0].begin_bulk(pair.now, 0).unwrap();
    pair.ends[0].end_bulk(pair.now).unwrap();
    pair.wait(Duration::from_millis(10));
    assert_eq!(pair.status(0).staleness, Some(Duration::ZERO));
    assert_eq!(pair.status(0).counters.lost_changes, 2);
}

#[test]
fn a_bulk_transfer_is_not_begun_twice() {
    let mut pair = joined([config(1), config(2)]);
    pair.ends[0].begin_bulk(pair.now, 1).unwrap();
    pair.ends[0].offer_bulk(pair.now, &record(1)).unwrap();
    assert_eq!(pair.ends[0].begin_bulk(pair.now, 1), Err(NotTaken::NotFollowed));
}

#[test]
fn a_bulk_transfer_that_lacks_records_ends_nothing() {
    let mut pair = joined([config(1), config(2)]);
    pair.ends[0].begin_bulk(pair.now, 2).unwrap();
    pair.ends[0].offer_bulk(pair.now, &record(1)).unwrap();
    // The sender counts one that it does not send.
    pair.ends[0].outflow(OutflowInput::Sent(1));
    pair.ends[0].end_bulk(pair.now).unwrap();
    pair.wait(Duration::from_millis(10));
    assert!(!pair.events[1].iter().any(|event| matches!(event, Event::BulkEnded(_))));
    let status = pair.status(1);
    assert_eq!((status.counters.bulks_incomplete, status.counters.bulks_received), (1, 0));
    assert!(matches!(status.inflow, Inflow::Asked(_)), "it is asked for again");
    assert!(matches!(pair.status(0).outflow, Outflow::Asked(_)));
}

#[test]
fn changes_on_their_way_are_applied_although_a_bulk_transfer_is_asked_for() {
    let mut pair = following();
    pair.ends[0].offer(pair.now, &record(1)).unwrap();
    let change = pair.sent(0);
    pair.ends[1].ask_again();
    pair.ends[1].handle(pair.now, &change).unwrap();
    let Some(Event::Records(batch)) = pair.ends[1].poll_event(pair.now) else { panic!("applied") };
    assert_eq!(batch.records().collect::<Vec<_>>(), [record(1)]);
    assert_eq!(pair.status(1).counters.unwanted_records, 0);
}

#[test]
fn batches_are_acknowledged_when_they_are_applied_if_the_owner_wants_that() {
    let mut pair = following();
    pair.ends[1].set_acknowledges_applied(pair.now, true);
    let offered = pair.now;
    for version in 1..=3 {
        pair.ends[0].offer(pair.now, &record(version)).unwrap();
        pair.wait(Duration::from_millis(5));
    }
    let marks = std::mem::take(&mut pair.events[1]).into_iter().map(|event| match event {
        Event::Records(batch) => batch.mark(),
        other => panic!("{other:?}"),
    });
    let [_, second, third] = marks.collect::<Vec<_>>()[..] else { panic!("three batches") };
    pair.wait(Duration::from_secs(3));
    let status = pair.status(0);
    assert_eq!((status.unacknowledged_records, status.counters.resent_frames), (3, 0));
    assert_eq!(status.staleness, Some(pair.now.since(offered)));
    // Their bytes need not be kept for another try.
    assert!(status.queue_bytes < 3 * record(1).body.len(), "{status:?}");
    pair.ends[1].applied(pair.now, second);
    pair.wait(Duration::from_millis(5));
    assert_eq!(pair.status(0).unacknowledged_records, 1);
    // Marks of another stream name nothing.
    let stream = third.place.stream + 1;
    let other = Mark { place: Place { stream, ..third.place }, ..third };
    for mark in [second, other, Mark { bond: None, ..third }] {
        pair.ends[1].applied(pair.now, mark);
        pair.wait(Duration::from_millis(5));
        assert_eq!(pair.status(0).unacknowledged_records, 1);
    }
    pair.ends[1].applied(pair.now, third);
    pair.wait(Duration::from_millis(5));
    assert_eq!(pair.status(0).staleness, Some(Duration::ZERO));
    // An owner that does not want it any more need not name what it has.
    pair.ends[0].offer(pair.now, &record(4)).unwrap();
    pair.wait(Duration::from_millis(5));
    assert_eq!(pair.status(0).unacknowledged_records, 1);
    pair.ends[1].set_acknowledges_applied(pair.now, false);
    pair.wait(Duration::from_millis(5));
    assert_eq!(pair.status(0).unacknowledged_records, 0);
}

#[test]
fn a_record_that_is_too_long_is_told() {
    let mut pair = following();
    let record = |body| Record { body, ..record(1) };
    // The queue is short, so the longest record is a quarter of it.
    let long = vec![0; 4097];
    assert_eq!(pair.ends[0].offer(pair.now, &record(&long)), Err(NotTaken::TooLong));
    pair.ends[0].offer(pair.now, &record(&long[1..])).unwrap();
    pair.ends[0].settings = Settings::default();
    let long = vec![0; RECORD_BYTES_MAX + 1];
    assert_eq!(pair.ends[0].offer(pair.now, &record(&long)), Err(NotTaken::TooLong));
}

#[test]
fn a_long_record_has_a_datagram_of_its_own_and_no_other_is_longer_than_it_should_be() {
    let mut pair = following();
    let settings = Settings { datagram_bytes: 0, ..Settings::default() }.bounded();
    pair.ends[0].settings = settings;
    let long = vec![0; RECORD_BYTES_MAX];
    let lengths = [100, RECORD_BYTES_MAX, 100, 100, 900, 100].map(|length| &long[..length]);
    for body in lengths {
        pair.ends[0].offer(pair.now, &Record { body, ..record(1) }).unwrap();
    }
    pair.wait(Duration::from_millis(20));
    let batches = pair.events[1].iter().map(|event| match event {
        Event::Records(batch) => batch.records().map(|it| it.body.len()).collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    });
    let wanted = [vec![100], vec![RECORD_BYTES_MAX], vec![100, 100], vec![900], vec![100]];
    assert_eq!(batches.collect::<Vec<_>>(), wanted);
    let sent = pair.seen.iter().filter(|(to, _)| *to == 1).map(|(_, datagram)| datagram.len());
    let long = sent.clone().filter(|length| *length > Settings::DATAGRAM_BYTES_MIN).count();
    assert_eq!(long, 2);
    assert!(sent.max() < Some(RECORD_BYTES_MAX + 200));
}
