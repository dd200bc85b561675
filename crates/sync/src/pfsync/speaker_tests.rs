use super::super::ends::{ARRIVAL, Ends, HERE, THERE, creator_of, id_of, tcp, udp};
use super::super::*;
use super::*;

pub(super) const V6: Dialect = Dialect::Version6;
pub(super) const SECOND: Duration = Duration::from_secs(1);

pub(super) fn ends(dialect: Dialect) -> Ends {
    Ends::new(dialect, |_, _| {})
}

pub(super) fn established(id: StateId, sequence: u32) -> State {
    tcp(id, TcpState::Established, [sequence, 0])
}

/// Two ends, of which both know a state of the first.
pub(super) fn with_shared_state(dialect: Dialect) -> (Ends, StateId) {
    let mut ends = ends(dialect);
    let id = id_of(HERE, 1);
    ends.offer(HERE, established(id, 10));
    ends.run(SECOND);
    assert_eq!(ends.events(THERE), [Event::Inserted(id)]);
    // Nobody has touched it for a while.
    ends.wait(SECOND * 5);
    (ends, id)
}

/// Numbers of a state's messages by kind.
fn kinds(messages: &[Message], dialect: Dialect) -> Vec<u8> {
    messages.iter().map(|message| message.number(dialect)).collect()
}

#[test]
fn updates_of_a_state_share_one_message() {
    for dialect in Dialect::ALL {
        let (mut ends, id) = with_shared_state(dialect);
        for sequence in 11..100 {
            ends.offer(HERE, established(id, sequence));
        }
        assert_eq!(ends.messages(HERE), [], "a message waits for a second");
        ends.wait(SECOND);
        let packets = ends.packets(HERE);
        assert_eq!(packets.len(), 1);
        ends.deliver(THERE, &packets[0]);
        assert_eq!(ends.peers(THERE, id), ends.peers(HERE, id));
        assert_eq!(kinds(&ends.messages(THERE), dialect), [0; 0]);
    }
}

#[test]
fn an_insert_that_waits_tells_the_latest() {
    let mut ends = ends(V6);
    let id = id_of(HERE, 1);
    for sequence in 0..50 {
        ends.offer(HERE, established(id, sequence));
    }
    ends.wait(SECOND);
    let messages = ends.messages(HERE);
    let [Message::Insert(state)] = &messages[..] else { panic!("{messages:?}") };
    assert_eq!(state.parts().peers, established(id, 49).parts().peers);
    assert_eq!(state.parts().updates, 49);
}

#[test]
fn a_state_that_ends_before_anybody_has_heard_of_it_is_never_told() {
    let mut ends = ends(V6);
    ends.offer(HERE, established(id_of(HERE, 1), 1));
    ends.end(HERE, id_of(HERE, 1));
    ends.wait(SECOND * 2);
    assert_eq!(ends.messages(HERE), []);
    assert_eq!(ends.ends[HERE].states().count(), 0);
}

#[test]
fn ends_are_told_before_inserts() {
    let (mut ends, id) = with_shared_state(V6);
    ends.offer(HERE, established(id_of(HERE, 2), 1));
    ends.end(HERE, id);
    ends.wait(SECOND);
    assert_eq!(kinds(&ends.messages(HERE), V6), [7, 13]);
}

#[test]
fn many_updates_of_tcp_are_sent_at_once() {
    let (mut ends, id) = with_shared_state(V6);
    for sequence in 0..127 {
        ends.offer(HERE, established(id, 100 + sequence));
    }
    assert_eq!(ends.messages(HERE), []);
    ends.offer(HERE, established(id, 300));
    assert_eq!(kinds(&ends.messages(HERE), V6), [4]);
    // Updates of other protocols tell little.
    let id = id_of(HERE, 2);
    for _ in 0..300 {
        ends.offer(HERE, udp(id, [FlowState::Multiple; 2]));
    }
    assert_eq!(ends.messages(HERE), []);
}

#[test]
fn a_state_that_both_ends_see_is_sent_at_once() {
    let (mut ends, id) = with_shared_state(V6);
    ends.offer(THERE, tcp(id, TcpState::Established, [10, 7]));
    ends.wait(SECOND);
    ends.carry();
    ends.wait(TOUCH_TIME - Duration::from_millis(1));
    ends.offer(HERE, tcp(id, TcpState::Established, [11, 7]));
    assert_eq!(kinds(&ends.messages(HERE), V6), [4]);
    ends.wait(TOUCH_TIME);
    ends.offer(HERE, tcp(id, TcpState::Established, [12, 7]));
    assert_eq!(ends.messages(HERE), []);
}

#[test]
fn a_full_packet_is_sent_at_once() {
    let mut ends = ends(V6);
    for id in 0..18 {
        ends.offer(HERE, established(id_of(HERE, id), 10));
    }
    ends.run(SECOND);
    ends.wait(SECOND * 5);
    for id in 0..17 {
        ends.offer(HERE, established(id_of(HERE, id), 11));
    }
    assert_eq!(ends.messages(HERE), []);
    ends.offer(HERE, established(id_of(HERE, 17), 11));
    assert_eq!(kinds(&ends.messages(HERE), V6), [4; 17]);
    ends.wait(SECOND - Duration::from_millis(1));
    assert_eq!(ends.messages(HERE), []);
    ends.wait(Duration::from_millis(1));
    assert_eq!(kinds(&ends.messages(HERE), V6), [4]);
}

#[test]
fn a_packet_waits_until_a_peer_has_its_state() {
    for dialect in Dialect::ALL {
        let mut ends = Ends::new(dialect, |_, config| config.defers = true);
        let id = id_of(HERE, 1);
        assert_eq!(ends.offer(HERE, established(id, 1)), Passage::AfterRelease);
        assert_eq!(ends.offer(HERE, established(id, 2)), Passage::Now, "a later packet");
        let packets = ends.packets(HERE);
        let message = &Packet::decode(dialect, &packets[0]).unwrap().messages[0];
        let Message::Insert(state) = message else { panic!("{message:?}") };
        assert!(state.parts().flags.has(StateFlags::ACK_WANTED));
        ends.deliver(THERE, &packets[0]);
        assert_eq!(ends.events(HERE), []);
        ends.carry();
        assert_eq!(ends.events(HERE), [Event::Released(id)]);
        ends.wait(DEFER_TIME);
        ends.carry();
        assert_eq!(ends.events(HERE), []);
        // The wish was for the insert alone.
        let kept = ends.ends[THERE].state(id).unwrap().parts().flags;
        assert!(!kept.has(StateFlags::ACK_WANTED));
    }
}

#[test]
fn a_packet_waits_no_longer_than_20_ms_and_few_wait() {
    let mut ends = Ends::new(V6, |_, config| config.defers = true);
    for id in 0..=DEFERRED_MAX as u64 {
        ends.offer(HERE, established(id_of(HERE, id), 1));
    }
    assert_eq!(ends.events(HERE), [Event::Released(id_of(HERE, 0))]);
    ends.packets(HERE);
    assert_eq!(ends.ends[HERE].next_timeout(), Some(ends.now.after(DEFER_TIME)));
    ends.wait(DEFER_TIME);
    ends.packets(HERE);
    assert_eq!(ends.events(HERE).len(), DEFERRED_MAX);
}

#[test]
fn an_unknown_state_is_asked_for_once() {
    let (mut ends, id) = with_shared_state(V6);
    let mut third = ends_of(Config::new(V6, creator_of(2)));
    ends.offer(HERE, established(id, 20));
    ends.wait(SECOND);
    let update = ends.packets(HERE).remove(0);
    for _ in 0..3 {
        third.handle(ends.now, &ARRIVAL, &update).unwrap();
    }
    let question = third.poll_transmit(ends.now).unwrap();
    let asked = Packet::decode(V6, &question).unwrap().messages;
    assert_eq!(asked, [Message::UpdateRequest(Request::One(id))]);
    assert_eq!(third.poll_transmit(ends.now), None);
    assert_eq!((third.counters().unknown, third.counters().requests), (3, 1));
    // Any gateway that knows the state answers, and the state keeps its name.
    ends.deliver(THERE, &question);
    let answer = ends.packets(THERE).remove(0);
    third.handle(ends.now, &ARRIVAL, &answer).unwrap();
    assert_eq!(third.state(id).unwrap().id(), id);
}

fn ends_of(mut config: Config) -> Speaker {
    config.wants_bulk = false;
    Speaker::new(Timestamp::from_secs(100), config)
}

#[test]
fn questions_have_a_rate() {
    let mut asker = ends_of(Config::new(V6, creator_of(2)));
    let now = Timestamp::from_secs(200);
    let mut ends = ends(V6);
    for id in 0..2_000 {
        ends.offer(HERE, established(id_of(HERE, id), 1));
    }
    ends.run(SECOND * 5);
    for id in 0..2_000 {
        ends.offer(HERE, established(id_of(HERE, id), 2));
    }
    for packet in ends.packets(HERE) {
        asker.handle(now, &ARRIVAL, &packet).unwrap();
    }
    let counters = asker.counters();
    // As many as come in 10 ms may be asked for at once.
    assert!((100..=102).contains(&counters.requests), "{counters:?}");
    assert_eq!(counters.requests + counters.requests_omitted, counters.unknown);
}

#[test]
fn a_stale_update_is_answered_and_not_applied() {
    for dialect in Dialect::ALL {
        let mut ends = ends(dialect);
        let id = id_of(HERE, 1);
        ends.offer(HERE, established(id, 3_016_208_802));
        ends.run(SECOND);
        // The copy misses an update, and then tells what it knows.
        ends.offer(HERE, established(id, 3_016_315_118));
        ends.wait(SECOND);
        ends.packets(HERE);
        ends.wait(SECOND * 5);
        ends.offer(THERE, established(id, 3_016_208_802));
        ends.wait(SECOND);
        let stale = ends.packets(THERE).remove(0);
        ends.deliver(HERE, &stale);
        assert_eq!(ends.peers(HERE, id), Some(established(id, 3_016_315_118).parts().peers));
        assert_eq!(ends.ends[HERE].counters().stale, 1);
        ends.carry();
        assert_eq!(ends.peers(THERE, id), ends.peers(HERE, id));
    }
}

#[test]
fn only_the_owner_ends_a_state() {
    let (mut ends, id) = with_shared_state(V6);
    assert_eq!(ends.ends[THERE].end(ends.now, id), Err(NotTaken::NotOwned));
    // A peer that does not keep to this is not believed, and gets the state again.
    let mut packet = PacketWriter::new(V6, 1_480);
    packet.push(&Message::DeleteCompressed(id)).unwrap();
    ends.deliver(HERE, &packet.finish());
    assert!(ends.peers(HERE, id).is_some());
    assert_eq!(kinds(&ends.messages(HERE), V6), [14]);
    // The owner goes, and the other one takes over.
    ends.ends[THERE].take_over();
    ends.end(THERE, id);
    ends.ends[HERE].give_up(ends.now);
    ends.wait(SECOND);
    ends.carry();
    assert_eq!(ends.events(HERE), [Event::Ended(id)]);
    assert_eq!(ends.peers(HERE, id), None);
}

#[test]
fn a_copy_stays_while_its_owner_is_silent() {
    let (mut ends, id) = with_shared_state(V6);
    let mut now = ends.now;
    for _ in 0..100 {
        now = ends.ends[THERE].next_timeout().unwrap().max(now);
        while ends.ends[THERE].poll_transmit(now).is_some() {}
    }
    assert!(now > ends.now.after(SECOND * 100));
    assert_eq!(ends.events(THERE), []);
    assert!(ends.peers(THERE, id).is_some());
}

#[test]
fn a_copy_stays_while_its_owner_knows_it_and_goes_when_it_does_not() {
    let (mut ends, id) = with_shared_state(V6);
    ends.run(SECOND * 200);
    assert!(ends.peers(THERE, id).is_some());
    // The message about its end is lost.
    ends.end(HERE, id);
    ends.wait(SECOND);
    ends.packets(HERE);
    ends.run(SECOND * 100);
    assert_eq!(ends.events(THERE), [Event::Ended(id)]);
    assert_eq!(ends.ends[THERE].counters().forgotten, 0, "its owner has said so");
}

#[test]
fn a_copy_that_nobody_knows_is_forgotten_although_nobody_says_so() {
    let (mut ends, id) = with_shared_state(V6);
    // Another gateway goes on with other states.
    ends.ends[HERE] = ends_of(Config::new(V6, creator_of(2)));
    for at in 0..200 {
        let id = StateId { id: at, creator: creator_of(2) };
        ends.offer(HERE, established(id, 1));
        ends.run(SECOND);
    }
    assert!(ends.events(THERE).contains(&Event::Ended(id)));
    assert_eq!(ends.ends[THERE].counters().forgotten, 1);
}

#[test]
fn an_insert_behind_the_end_brings_nothing_back() {
    let mut ends = ends(V6);
    let id = id_of(HERE, 1);
    ends.offer(HERE, established(id, 1));
    ends.wait(SECOND);
    let insert = ends.packets(HERE).remove(0);
    ends.end(HERE, id);
    ends.wait(SECOND);
    let end = ends.packets(HERE).remove(0);
    for packet in [&end, &insert, &end, &insert] {
        ends.deliver(THERE, packet);
    }
    assert_eq!(ends.events(THERE), []);
    assert_eq!(ends.ends[THERE].counters().buried, 2);
}

#[test]
fn an_end_is_told_again_to_a_peer_that_has_missed_it() {
    let (mut ends, id) = with_shared_state(V6);
    ends.end(HERE, id);
    ends.wait(SECOND);
    ends.packets(HERE);
    ends.offer(THERE, established(id, 11));
    ends.run(SECOND);
    assert_eq!(ends.events(THERE), [Event::Ended(id)]);
    assert_eq!((ends.events(HERE), ends.ends[HERE].counters().ends_retold), (vec![], 1));
}

#[test]
fn states_of_a_creator_are_cleared() {
    for dialect in Dialect::ALL {
        let (mut ends, id) = with_shared_state(dialect);
        let own = id_of(THERE, 9);
        ends.offer(THERE, established(own, 1));
        ends.wait(SECOND);
        ends.carry();
        ends.ends[HERE].clear(ends.now, InterfaceName::default());
        ends.carry();
        assert_eq!(ends.events(THERE), [Event::Ended(id)]);
        for end in [HERE, THERE] {
            assert_eq!((ends.peers(end, id), ends.peers(end, own).is_some()), (None, true));
        }
    }
}

#[test]
fn messages_that_clear_nothing_cost_little() {
    let (mut ends, id) = with_shared_state(V6);
    let interface = InterfaceName::ANY;
    let nobody = Message::Clear { interface, creator: CreatorId::new(9).unwrap() };
    for _ in 0..1_000 {
        ends.ends[THERE].apply(ends.now, nobody.clone());
    }
    assert!(ends.ends[THERE].counters().clears_omitted >= 990);
    ends.wait(SECOND);
    ends.ends[THERE].apply(ends.now, Message::Clear { interface, creator: creator_of(HERE) });
    assert_eq!(ends.events(THERE), [Event::Ended(id)]);
}

#[test]
fn a_packet_is_applied_whole_or_not_at_all() {
    let (mut ends, id) = with_shared_state(V6);
    let peer = |state| RawPeer { state, numbers: Numbers::default() };
    let update = |id, state| {
        Message::UpdateCompressed(Box::new(CompressedUpdate {
            id,
            peers: [peer(4), peer(state)],
            left: 0,
            timeout: Timeout::TcpEstablished,
            flags: StateFlags::default(),
        }))
    };
    let fresh = id_of(HERE, 7);
    let insert = Message::Insert(Box::new(udp(fresh, [FlowState::Single; 2])));
    // The state that a message inserts decides about a later one in the same packet.
    for (messages, is_right) in [
        (vec![insert.clone(), update(id, 99)], false),
        (vec![insert.clone(), update(fresh, 4)], false),
        (vec![update(id_of(HERE, 55), 99)], true),
        (vec![insert.clone(), update(id, 5)], true),
    ] {
        let before: Vec<_> = ends.ends[THERE].states().map(|(state, _)| *state).collect();
        let mut packet = PacketWriter::new(V6, 1_480);
        messages.iter().for_each(|it| packet.push(it).unwrap());
        let taken = ends.ends[THERE].handle(ends.now, &ARRIVAL, &packet.finish());
        assert_eq!(taken, if is_right { Ok(()) } else { Err(Refusal::UnknownState) });
        let after: Vec<_> = ends.ends[THERE].states().map(|(state, _)| *state).collect();
        assert!(is_right || before == after);
    }
    assert_eq!(ends.ends[THERE].refusals().of(Refusal::UnknownState), 2);
}

#[test]
fn packets_from_elsewhere_are_refused_and_counted() {
    let mut ends = Ends::new(V6, |end, config| {
        config.peer = Some(ARRIVAL.source).filter(|_| end == THERE);
    });
    ends.offer(HERE, established(id_of(HERE, 1), 1));
    ends.wait(SECOND);
    let packet = ends.packets(HERE).remove(0);
    let far = std::net::Ipv4Addr::new(203, 0, 113, 1).into();
    for (arrival, reason) in [
        (Arrival { ttl: 254, ..ARRIVAL }, Refusal::LowTtl),
        (Arrival { is_by_sync_link: false, ..ARRIVAL }, Refusal::WrongInterface),
        (Arrival { source: far, ..ARRIVAL }, Refusal::WrongSource),
    ] {
        assert_eq!(ends.ends[THERE].handle(ends.now, &arrival, &packet), Err(reason));
        assert_eq!(ends.ends[THERE].refusals().of(reason), 1);
    }
    assert_eq!(ends.ends[THERE].states().count(), 0);
    assert_eq!(ends.ends[THERE].refusals().total(), 3);
    ends.deliver(THERE, &packet);
    assert_eq!(ends.ends[THERE].states().count(), 1);
}

#[test]
fn a_peer_fills_no_more_than_there_is_room() {
    let mut ends = Ends::new(V6, |end, config| {
        config.states_max = if end == THERE { 10 } else { 1_000 };
    });
    let own = id_of(THERE, 1);
    ends.offer(THERE, established(own, 1));
    for id in 0..100 {
        ends.offer(HERE, established(id_of(HERE, id), 1));
    }
    ends.run(SECOND);
    assert_eq!(ends.ends[THERE].states().count(), 10);
    assert!(ends.peers(THERE, own).is_some());
    assert_eq!(ends.ends[THERE].counters().full, 91);
    let more = established(id_of(THERE, 2), 1);
    assert_eq!(ends.ends[THERE].offer(ends.now, more), Err(NotTaken::Full));
}

#[test]
fn an_owner_that_takes_no_events_gets_no_packets() {
    let mut ends = ends(V6);
    let mut now = ends.now;
    let mut id = 0;
    let refused = loop {
        let mut packet = PacketWriter::new(V6, 60_000);
        for _ in 0..200 {
            id += 1;
            let state = established(id_of(HERE, id), 1);
            packet.push(&Message::Insert(Box::new(state))).unwrap();
        }
        now = now.after(SECOND);
        if let Err(refused) = ends.ends[THERE].handle(now, &ARRIVAL, &packet.finish()) {
            break refused;
        }
    };
    assert_eq!(refused, Refusal::Busy);
    assert!(ends.events(THERE).len() <= EVENTS_MAX + 200);
}

#[test]
fn an_offer_that_can_not_be_is_refused() {
    let (mut ends, id) = with_shared_state(V6);
    let now = ends.now;
    let here = &mut ends.ends[HERE];
    let other = udp(id, [FlowState::Single; 2]);
    assert_eq!(here.offer(now, other), Err(NotTaken::OtherConnection));
    let foreign = established(id_of(THERE, 5), 1);
    assert_eq!(here.offer(now, foreign), Err(NotTaken::Unknown));
    let secret = established(id_of(HERE, 5), 1).with_flags(StateFlags::NOT_SYNCED);
    assert_eq!(here.offer(now, secret), Err(NotTaken::NotSynced));
    here.end(now, id).unwrap();
    assert_eq!(here.offer(now, established(id, 11)), Err(NotTaken::Ended));
    assert_eq!(here.end(now, id), Err(NotTaken::Unknown));
}

#[test]
fn versions_of_freebsd_understand_each_others_states() {
    for (from, to) in [
        (Dialect::Version1500, Dialect::Version1301),
        (Dialect::Version1301, Dialect::Version1500),
        (Dialect::Version1400, Dialect::Version1301),
    ] {
        let mut sender = ends_of(Config::new(from, creator_of(HERE)));
        let mut receiver = ends_of(Config::new(to, creator_of(THERE)));
        let now = Timestamp::from_secs(100);
        let id = id_of(HERE, 1);
        sender.offer(now, established(id, 1)).unwrap();
        let packet = sender.poll_transmit(now.after(SECOND)).unwrap();
        receiver.handle(now, &ARRIVAL, &packet).unwrap();
        assert_eq!(receiver.poll_event(), Some(Event::Inserted(id)));
    }
}

#[test]
fn times_are_told_as_they_are_when_a_message_leaves() {
    let mut ends = ends(V6);
    let id = id_of(HERE, 1);
    ends.offer(HERE, established(id, 1));
    ends.wait(SECOND * 20);
    ends.carry();
    let parts = *ends.ends[THERE].state(id).unwrap().parts();
    assert_eq!((parts.age, parts.left), (20, 40));
}
