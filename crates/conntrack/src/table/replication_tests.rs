use std::time::Duration;

use flow::NoPrefetch;
use proptest::prelude::*;
use wire::{Family, TcpFlags};

use super::*;
use crate::testing::{Lab, NumberedInterfaces, SECRET, tcp, udp};
use crate::{Changes, ENDS_MAX};

const SYN: u8 = TcpFlags::SYN.0;
const ACK: u8 = TcpFlags::ACK.0;
const RST: u8 = TcpFlags::RST.0;

/// A table whose changes somebody follows.
fn followed() -> Lab {
    let mut lab = Lab::new();
    lab.replication.begin_turn(Some(Duration::ZERO));
    lab
}

fn take(lab: &mut Lab, budget: usize) -> (Vec<Change>, bool) {
    let mut changes = Vec::new();
    let has_lost = lab.run(|table, context| {
        table.take_changes(budget, &NumberedInterfaces, NoPrefetch, context, |it| changes.push(it))
    });
    (changes, has_lost)
}

fn ask(lab: &mut Lab, port: u16) {
    lab.track(&udp(Family::V4, (1, port), (9, 53)));
}

fn delete_all(lab: &mut Lab) {
    lab.run(|table, context| table.flush(Cursor::default(), u32::MAX, |_| true, context));
}

fn port_of(change: &Change) -> (u16, bool) {
    let (original, is_end) = match change {
        Change::State { record, .. } => (record.original(), false),
        Change::End { original, .. } => (*original, true),
    };
    (original.key.endpoint(original.sender).port, is_end)
}

#[test]
fn nothing_is_collected_while_nobody_follows() {
    let mut lab = Lab::new();
    (1..100).for_each(|port| ask(&mut lab, port));
    delete_all(&mut lab);
    assert!(!lab.replication.has_tables());
    assert_eq!(take(&mut lab, 1000), (Vec::new(), false));
}

#[test]
fn many_changes_of_a_connection_are_told_once() {
    let mut lab = followed();
    let (client, server) = ((1, 1000), (9, 80));
    lab.track(&tcp(Family::V4, client, server, SYN, (1, 0)));
    lab.track(&tcp(Family::V4, server, client, SYN | ACK, (7, 2)));
    lab.track(&tcp(Family::V4, client, server, ACK, (2, 8)));
    let (changes, _) = take(&mut lab, 100);
    assert_eq!(changes.iter().map(port_of).collect::<Vec<_>>(), [(1000, false)]);
    assert_eq!(take(&mut lab, 100).0, []);
    // The state that is told is the last one.
    let [Change::State { record, .. }] = &changes[..] else { panic!("{changes:?}") };
    assert_eq!(lab.records(), std::slice::from_ref(record));
    assert!(!lab.replication.has_tables() || lab.replication.next_table().is_some());
}

#[test]
fn connections_that_are_due_wait_for_others_and_not_for_long() {
    let mut lab = followed();
    let look = |lab: &mut Lab| {
        let changes = take(lab, 1000).0;
        while lab.replication.next_table().is_some() {}
        changes.len()
    };
    (1..=64).for_each(|port| ask(&mut lab, port));
    assert!(lab.replication.has_news(), "a new connection is urgent");
    assert_eq!(look(&mut lab), 64);
    let later = Duration::from_secs(20);
    lab.replication.begin_turn(Some(later));
    ask(&mut lab, 1);
    assert!(lab.replication.has_tables() && !lab.replication.has_news());
    lab.replication.begin_turn(Some(later + Duration::from_millis(9)));
    assert!(!lab.replication.has_news());
    lab.replication.begin_turn(Some(later + Duration::from_millis(10)));
    assert!(lab.replication.has_news());
    assert_eq!(look(&mut lab), 1);
    (2..64).for_each(|port| ask(&mut lab, port));
    assert!(!lab.replication.has_news());
    ask(&mut lab, 64);
    assert!(!lab.replication.has_news(), "63 are due");
    ask(&mut lab, 100);
    assert!(lab.replication.has_news(), "a new one brings the others along");
    assert_eq!(look(&mut lab), 64);
    lab.replication.begin_turn(Some(2 * later));
    (1..=64).for_each(|port| ask(&mut lab, port));
    assert!(lab.replication.has_news(), "64 are due");
    // Another peer begins to follow while one is due.
    look(&mut lab);
    lab.replication.begin_turn(Some(3 * later));
    ask(&mut lab, 1);
    assert!(!lab.replication.has_news());
    lab.replication.begin_turn(None);
    lab.replication.begin_turn(Some(Duration::ZERO));
    assert!(lab.replication.has_news());
}

#[test]
fn connections_from_before_the_peer_are_told_once_although_they_speak() {
    let mut lab = Lab::new();
    (1..=100).for_each(|port| ask(&mut lab, port));
    lab.replication.begin_turn(Some(Duration::ZERO));
    (1..=100).for_each(|port| ask(&mut lab, port));
    assert_eq!(take(&mut lab, 1000).0, []);
    let mut told = 0;
    lab.run(|table, context| {
        let from = Cursor::default();
        table.tell_all_from(from, u32::MAX, &NumberedInterfaces, context, |_| told += 1)
    });
    assert_eq!(told, 100);
    (1..=100).for_each(|port| ask(&mut lab, port));
    assert_eq!(take(&mut lab, 1000).0, []);
    // From now on they are told from time to time.
    lab.replication.begin_turn(Some(Duration::from_secs(20)));
    (1..=100).for_each(|port| ask(&mut lab, port));
    assert_eq!(take(&mut lab, 1000).0.len(), 100);
}

#[test]
fn a_connection_that_came_and_went_is_not_told() {
    let mut lab = followed();
    (1..50).for_each(|port| ask(&mut lab, port));
    delete_all(&mut lab);
    assert_eq!(take(&mut lab, 1000), (Vec::new(), false));
}

#[test]
fn a_slot_that_is_used_again_is_told_again_and_stays_on_its_list_once() {
    let mut lab = followed();
    for _ in 0..1000 {
        ask(&mut lab, 7);
        delete_all(&mut lab);
    }
    ask(&mut lab, 8);
    let (changes, _) = take(&mut lab, 1000);
    assert_eq!(changes.iter().map(port_of).collect::<Vec<_>>(), [(8, false)]);
    assert!(lab.table.slab.dirty.memory_bytes() < 4096);
}

#[test]
fn an_end_is_told_before_the_next_connection_and_has_a_lower_stamp() {
    let mut lab = followed();
    let syn = tcp(Family::V4, (1, 5), (9, 80), SYN, (1, 0));
    lab.track(&syn);
    take(&mut lab, 10);
    lab.track(&tcp(Family::V4, (9, 80), (1, 5), RST | ACK, (0, 2)));
    delete_all(&mut lab);
    lab.track(&syn);
    let (changes, _) = take(&mut lab, 10);
    let stamp = |change: &Change| match change {
        Change::State { stamp, .. } | Change::End { stamp, .. } => *stamp,
    };
    assert_eq!(changes.iter().map(port_of).collect::<Vec<_>>(), [(5, true), (5, false)]);
    assert!(stamp(&changes[0]) < stamp(&changes[1]));
}

#[test]
fn ends_beyond_the_limit_are_told_as_lost() {
    let mut lab = followed();
    let ports = 1..=ENDS_MAX as u16 + 1;
    ports.clone().for_each(|port| ask(&mut lab, port));
    assert_eq!(take(&mut lab, usize::MAX).0.len(), ports.len());
    delete_all(&mut lab);
    let (changes, has_lost) = take(&mut lab, usize::MAX);
    assert_eq!((changes.len(), has_lost), (ENDS_MAX, true));
    assert_eq!(take(&mut lab, 10), (Vec::new(), false), "it is said once");
}

#[test]
fn marks_labels_and_timeouts_are_changes() {
    let mut lab = followed();
    ask(&mut lab, 7);
    take(&mut lab, 10);
    for changes in [
        Changes { mark: Some((5, u32::MAX)), ..Changes::default() },
        Changes { timeout_s: Some(77), ..Changes::default() },
        Changes { add_labels: crate::Labels::of_bits(1 << 5), ..Changes::default() },
    ] {
        let key = lab.records()[0].original().key;
        lab.run(|table, context| table.update(&key, key.hash(SECRET), changes, context));
        assert_eq!(take(&mut lab, 10).0.len(), 1, "{changes:?}");
    }
}

#[test]
fn a_copy_stays_until_its_owner_ends_it_and_ends_in_time_after_it_is_adopted() {
    let mut lab = Lab::new();
    ask(&mut lab, 7);
    let keyed = lab.records()[0].original();
    let hash = keyed.key.hash(SECRET);
    let slot = lab.table.slot_of(&keyed.key, hash).unwrap();
    lab.run(|table, context| table.set_copy(ConnectionId(slot), context));
    for _ in 0..100 {
        lab.wait(Duration::from_secs(60));
        lab.run(|table, context| table.expire(1000, context));
        assert_eq!(lab.table.len(), 1);
    }
    // The first packet finds it, also if the timer has not been there.
    lab.wait(Duration::from_secs(3600));
    ask(&mut lab, 7);
    assert_eq!((lab.counters.insert, lab.table.len()), (1, 1));
    lab.run(|table, context| table.adopt_from(Cursor::default(), u32::MAX, context));
    lab.wait(Duration::from_secs(31));
    lab.run(|table, context| table.expire(1000, context));
    assert_eq!(lab.table.len(), 0);
    let _ = lab.table.prefetch_entry(hash, NoPrefetch);
}

/// A copy of a connection from this port.
fn copied(lab: &mut Lab, port: u16) -> (KeyedPacket, u64) {
    ask(lab, port);
    let original = lab
        .records()
        .iter()
        .map(crate::ConnectionRecord::original)
        .find(|it| it.key.endpoint(it.sender).port == port);
    let original = original.unwrap();
    let hash = original.key.hash(SECRET);
    let slot = lab.table.slot_of(&original.key, hash).unwrap();
    lab.run(|table, context| table.set_copy(ConnectionId(slot), context));
    (original, hash)
}

#[test]
fn the_owner_hears_at_once_of_a_packet_that_came_here_and_then_from_time_to_time() {
    let mut lab = followed();
    let (original, hash) = copied(&mut lab, 7);
    take(&mut lab, 10);
    assert_eq!(lab.table.owner_of(&original, hash), Some(Owner::Peer));
    for news in [1, 0, 0] {
        ask(&mut lab, 7);
        let (changes, _) = take(&mut lab, 10);
        assert_eq!(changes.len(), news);
        assert!(changes.iter().all(|it| matches!(it, Change::State { is_copy: true, .. })));
    }
    // When the owner has spoken, the next packet is news again.
    copied(&mut lab, 7);
    ask(&mut lab, 7);
    assert_eq!(take(&mut lab, 10).0.len(), 1);
    // It also hears of an end, unless it has said so itself.
    delete_all(&mut lab);
    let (changes, _) = take(&mut lab, 10);
    assert!(matches!(changes[..], [Change::End { is_copy: true, .. }]), "{changes:?}");
    let (original, hash) = copied(&mut lab, 8);
    take(&mut lab, 10);
    assert!(lab.run(|table, context| table.end_copy(&original, hash, context)));
    assert_eq!(take(&mut lab, 10).0, []);
    // It does not end what this node owns.
    ask(&mut lab, 9);
    let original = lab.records()[0].original();
    let hash = original.key.hash(SECRET);
    assert!(!lab.run(|table, context| table.end_copy(&original, hash, context)));
    assert_eq!(lab.table.len(), 1);
}

#[test]
fn nobody_evicts_what_the_peer_owns() {
    let mut lab = Lab::with_room_for(3);
    lab.replication.begin_turn(Some(Duration::ZERO));
    copied(&mut lab, 7);
    copied(&mut lab, 8);
    for port in 10..20 {
        ask(&mut lab, port);
        let ports: Vec<_> = lab
            .records()
            .iter()
            .map(|it| it.original().key)
            .map(|key| key.low.port.max(key.high.port).min(key.low.port + key.high.port - 53))
            .collect();
        assert!(ports.contains(&7) && ports.contains(&8), "{ports:?}");
        assert_eq!(ports.len(), 3);
    }
    // When this node owns them, they give way like others.
    lab.run(|table, context| table.adopt_from(Cursor::default(), u32::MAX, context));
    (20..23).for_each(|port| ask(&mut lab, port));
    assert_eq!(lab.records().len(), 3);
    assert!(
        lab.records()
            .iter()
            .all(|it| it.original().key.low.port + it.original().key.high.port >= 73)
    );
}

#[test]
fn what_is_given_away_has_another_owner_and_is_told_by_nobody() {
    let mut lab = followed();
    (1..5).for_each(|port| ask(&mut lab, port));
    copied(&mut lab, 9);
    take(&mut lab, 100);
    let mut given = Vec::new();
    lab.run(|table, context| {
        table.give_away_from(Cursor::default(), u32::MAX, context, |it| given.push(it))
    });
    assert_eq!(given.len(), 4);
    let mut count = 0;
    lab.run(|table, context| {
        table.tell_all_from(Cursor::default(), u32::MAX, &NumberedInterfaces, context, |_| {
            count += 1
        })
    });
    assert_eq!((count, take(&mut lab, 100).0.len()), (0, 0));
    // They come back, and the peer hears of all.
    lab.run(|table, context| table.adopt_from(Cursor::default(), u32::MAX, context));
    let (changes, _) = take(&mut lab, 100);
    assert_eq!(changes.len(), 5);
    assert!(changes.iter().all(|it| matches!(it, Change::State { is_copy: false, .. })));
}

#[test]
fn news_do_not_take_a_connection_back() {
    let mut lab = followed();
    let (client, server) = ((1, 5), (9, 80));
    lab.track(&tcp(Family::V4, client, server, SYN, (1, 0)));
    let before = lab.records().remove(0);
    lab.track(&tcp(Family::V4, server, client, SYN | ACK, (7, 10)));
    lab.track(&tcp(Family::V4, client, server, ACK, (10, 16)));
    let importing = crate::Importing {
        hash: &|key| key.hash(SECRET),
        interfaces: &NumberedInterfaces,
        map_epoch: 0,
        needs_addresses: false,
    };
    let state = |lab: &Lab| lab.listed()[0].state;
    let deadline = |lab: &Lab| lab.listed()[0].timeout_s;
    let left = deadline(&lab);
    lab.run(|table, context| table.amend(&before, importing, context)).unwrap();
    assert_eq!((state(&lab), deadline(&lab)), (Some("ESTABLISHED"), left));
    // The owner's word counts for a copy of which no packet has come here.
    let original = before.original();
    let slot = lab.table.slot_of(&original.key, original.key.hash(SECRET)).unwrap();
    lab.run(|table, context| table.set_copy(ConnectionId(slot), context));
    lab.run(|table, context| table.amend(&before, importing, context)).unwrap();
    assert_eq!(state(&lab), Some("SYN_SENT"));
}

#[derive(Clone, Debug)]
enum Step {
    Ask(u16),
    Answer(u16),
    Delete,
    Wait(u64),
    Take(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (1..30_u16).prop_map(Step::Ask),
        4 => (1..30_u16).prop_map(Step::Answer),
        1 => Just(Step::Delete),
        2 => (0..20_000_u64).prop_map(Step::Wait),
        4 => (0..10_usize).prop_map(Step::Take),
    ]
}

proptest! {
    /// Somebody who follows all changes knows which connections there are, and their stamps grow.
    #[test]
    fn who_follows_the_changes_knows_the_connections(
        steps in prop::collection::vec(step(), 1..200),
    ) {
        let mut lab = followed();
        let (mut known, mut last, begin) = (std::collections::BTreeSet::new(), 0, lab.now);
        for step in steps.into_iter().chain([Step::Take(usize::MAX)]) {
            match step {
                Step::Ask(port) => ask(&mut lab, port),
                Step::Answer(port) => {
                    lab.track(&udp(Family::V4, (9, 53), (1, port)));
                }
                Step::Delete => delete_all(&mut lab),
                Step::Wait(ms) => {
                    lab.wait(Duration::from_millis(ms));
                    let followed = lab.now.since(begin);
                    lab.replication.begin_turn(Some(followed));
                    lab.run(|table, context| table.expire(1000, context));
                }
                Step::Take(budget) => {
                    let (changes, has_lost) = take(&mut lab, budget);
                    prop_assert!(!has_lost);
                    for change in changes {
                        let (stamp, original, is_end) = match change {
                            Change::State { stamp, record, .. } => (stamp, record.original(), false),
                            Change::End { stamp, original, .. } => (stamp, original, true),
                        };
                        // Ends are told first, so only the stamps of one kind grow here.
                        prop_assert!(is_end || stamp > last);
                        last = if is_end { last } else { stamp };
                        let name = (original.key, original.sender.index());
                        if is_end { known.remove(&name) } else { known.insert(name) };
                    }
                }
            }
        }
        let there: std::collections::BTreeSet<_> = lab
            .records()
            .iter()
            .map(|it| (it.original().key, it.original().sender.index()))
            .collect();
        // One whose time is over is no record, and its end comes with the timer.
        prop_assert!(there.is_subset(&known), "{there:?} {known:?}");
        lab.wait(Duration::from_secs(1000));
        lab.run(|table, context| table.expire(1000, context));
        for change in take(&mut lab, usize::MAX).0 {
            let Change::End { original, .. } = change else { panic!("{change:?}") };
            known.remove(&(original.key, original.sender.index()));
        }
        prop_assert!(known.is_empty(), "{known:?}");
    }
}

/// For a new process on the same machine: when all changes were told, the records that were told last are
/// those of the table.
#[test]
fn nothing_differs_when_all_changes_were_told_exactly() {
    let mut lab = followed();
    lab.replication.set_exact(true);
    let mut told: Vec<Change> = Vec::new();
    for round in 0..5 {
        for port in 1..=20 {
            // Each packet moves the timer of its connection.
            if (port + round) % 3 == 0 || round == 0 {
                ask(&mut lab, port);
            }
        }
        lab.replication.hurry();
        assert!(lab.replication.has_news(), "round {round}");
        let changes = take(&mut lab, 1000).0;
        for change in changes {
            let port = port_of(&change);
            told.retain(|before| port_of(before) != port);
            told.push(change);
        }
        let mut records: Vec<_> = told
            .iter()
            .map(|change| match change {
                Change::State { record, .. } => record.clone(),
                Change::End { .. } => panic!("none has ended"),
            })
            .collect();
        let place = |record: &crate::ConnectionRecord| {
            record.original().key.endpoint(record.original().sender).port
        };
        records.sort_by_key(place);
        let mut own = lab.records();
        own.sort_by_key(place);
        assert_eq!(records, own, "round {round}");
    }
    // Not so for a peer, which hears of timers later.
    lab.replication.set_exact(false);
    ask(&mut lab, 1);
    assert_eq!(take(&mut lab, 1000).0.len(), 1, "it was still due at once");
    ask(&mut lab, 1);
    assert_eq!(take(&mut lab, 1000).0, []);
}
