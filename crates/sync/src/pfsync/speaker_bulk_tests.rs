//! Bulk updates between two speakers.

use super::super::ends::{Ends, HERE, THERE, creator_of, id_of};
use super::super::*;
use super::tests::{SECOND, V6, ends, established, with_shared_state};
use super::*;

/// Two ends, of which the second has asked the first for all of its states.
fn asking(dialect: Dialect, states: u64, change: impl Fn(&mut Config)) -> Ends {
    let mut ends = Ends::new(dialect, |_, config| change(config));
    for id in 0..states {
        ends.offer(HERE, established(id_of(HERE, id), id as u32));
    }
    ends.wait(SECOND);
    ends.packets(HERE);
    ends.ends[THERE].request_bulk(ends.now);
    ends
}

#[test]
fn a_gateway_that_joins_gets_all_states() {
    for dialect in Dialect::ALL {
        let mut ends = asking(dialect, 500, |config| config.packet_bytes = 1_400);
        ends.run(SECOND);
        assert_eq!(ends.ends[THERE].bulk_in(), BulkIn::Level);
        assert_eq!(ends.ends[HERE].bulk_out(), BulkOut::Idle);
        for id in 0..500 {
            let id = id_of(HERE, id);
            assert_eq!(ends.peers(THERE, id), ends.peers(HERE, id));
        }
    }
}

#[test]
fn a_bulk_update_keeps_its_rate() {
    let mut ends = asking(V6, 3_000, |config| config.bulk_states_per_s = 1_000);
    ends.run(SECOND * 2);
    let states = ends.ends[THERE].states().count();
    assert!((1_900..=2_100).contains(&states), "{states}");
    ends.run(SECOND * 2);
    assert_eq!(ends.ends[THERE].bulk_in(), BulkIn::Level);
}

/// A peer asks for all states again and again while they are on their way.
#[test]
fn nobody_keeps_a_bulk_update_from_its_end_by_asking() {
    let mut ends = asking(V6, 3_000, |config| config.bulk_states_per_s = 1_000);
    for _ in 0..20 {
        ends.ends[HERE].apply(ends.now, Message::UpdateRequest(Request::All));
        ends.run(SECOND / 5);
    }
    assert_eq!(ends.ends[THERE].bulk_in(), BulkIn::Level);
    // Others follow, for those that have asked meanwhile.
    assert!(matches!(ends.ends[HERE].bulk_out(), BulkOut::Queueing { .. }));
    ends.run(SECOND * 8);
    assert_eq!(ends.ends[HERE].bulk_out(), BulkOut::Idle);
}

/// Every message that says an end is lost.
#[test]
fn a_lost_end_of_a_bulk_update_leaves_nobody_waiting() {
    let mut ends = ends(V6);
    ends.offer(HERE, established(id_of(HERE, 1), 1));
    ends.wait(SECOND);
    ends.packets(HERE);
    ends.ends[THERE].request_bulk(ends.now);
    let start = ends.now;
    while ends.ends[THERE].bulk_in().is_waiting() {
        for end in [THERE, HERE] {
            for packet in ends.packets(end) {
                let messages = Packet::decode(V6, &packet).unwrap().messages;
                let is_end = |it: &Message| {
                    matches!(it, Message::BulkStatus(BulkStatus { edge: BulkEdge::End, .. }))
                };
                if !messages.iter().any(is_end) {
                    ends.deliver(1 - end, &packet);
                }
            }
        }
        ends.wait(Duration::from_millis(100));
        assert!(ends.now.since(start) < BULK_TIME_MAX, "{:?}", ends.ends[THERE].bulk_in());
    }
    assert!(ends.peers(THERE, id_of(HERE, 1)).is_some());
}

#[test]
fn a_copy_that_a_bulk_update_does_not_name_is_asked_for() {
    let (mut ends, id) = with_shared_state(V6);
    let other = id_of(HERE, 2);
    ends.offer(HERE, established(other, 1));
    ends.run(SECOND);
    ends.end(HERE, id);
    ends.wait(SECOND);
    ends.packets(HERE);
    ends.events(THERE);
    ends.ends[THERE].request_bulk(ends.now);
    ends.run(SECOND);
    assert_eq!(ends.events(THERE), [Event::Ended(id)]);
    assert!(ends.peers(THERE, other).is_some());
}

/// A gateway that has restarted under its old number gets its states back.
#[test]
fn a_gateway_that_asks_for_all_states_believes_in_its_own() {
    let (mut ends, id) = with_shared_state(V6);
    ends.ends[HERE] = Speaker::new(ends.now, Config::new(V6, creator_of(HERE)));
    ends.run(SECOND);
    assert_eq!(ends.events(HERE), [Event::Inserted(id)]);
    assert_eq!(ends.ends[HERE].bulk_in(), BulkIn::Level);
    assert!(ends.peers(THERE, id).is_some());
}
