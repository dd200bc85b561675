use super::*;
use crate::message::Message;
use crate::record::{Identity, RECORD_BYTES_MAX, Record, RecordKind};
use crate::refusal::Refusal;

const SECRET: &[u8] = b"the same secret!";

fn likeness() -> Likeness {
    Likeness {
        hash_kind: "sip".into(),
        hash_secret: HashSecret::new([1; 16]),
        buckets: 256,
        translating_links: Default::default(),
        fragment_mode: "reassemble".into(),
        tunnel_mode: "inside".into(),
        zones: Vec::new(),
        rules: Vec::new(),
    }
}

fn config(node: u16) -> Config {
    Config {
        node: NodeId(node.try_into().unwrap()),
        name: NodeName::new(&format!("node{node}")).unwrap(),
        peer: None,
        follows: true,
        secret_role: SecretRole::Keeps,
        likeness: likeness(),
        settings: Settings { queue_bytes: 16 * 1024, ..Settings::default() },
        faults: Faults::default(),
    }
}

fn session_with(config: Config, seed: u8, secret: &[u8]) -> Session {
    let seed = Seed::new([seed; 32]);
    Session::new(Timestamp::ZERO, config, PreSharedKey::new(secret).unwrap(), seed)
}

fn session(config: Config) -> Session {
    let seed = config.node.0.get() as u8;
    session_with(config, seed, SECRET)
}

/// Two sessions on a perfect link without delay.
struct Pair {
    now: Timestamp,
    ends: [Session; 2],
    events: [Vec<Event>; 2],
    /// All datagrams, with their receivers.
    seen: Vec<(usize, Vec<u8>)>,
}

impl Pair {
    fn new(configs: [Config; 2]) -> Self {
        let ends = configs.map(session);
        Self { now: Timestamp::ZERO, ends, events: Default::default(), seen: Vec::new() }
    }

    /// Exchanges datagrams until both have nothing more to say now.
    fn settle(&mut self) {
        let mut is_busy = true;
        let mut datagram = Vec::new();
        while is_busy {
            is_busy = false;
            for at in [0, 1] {
                while self.ends[at].poll_transmit(self.now, &mut datagram) {
                    is_busy = true;
                    self.seen.push((1 - at, datagram.clone()));
                    let _ = self.ends[1 - at].handle(self.now, &datagram);
                }
                while let Some(event) = self.ends[1 - at].poll_event(self.now) {
                    self.events[1 - at].push(event);
                }
            }
        }
    }

    fn wait(&mut self, time: Duration) {
        let end = self.now.after(time);
        while self.now < end {
            self.now = self.now.after(Duration::from_millis(1)).min(end);
            self.settle();
        }
    }

    /// The next datagram of an end, which nobody gets.
    fn sent(&mut self, at: usize) -> Vec<u8> {
        let mut datagram = Vec::new();
        assert!(self.ends[at].poll_transmit(self.now, &mut datagram));
        datagram
    }

    /// The next datagram of an end arrives.
    fn carry(&mut self, from: usize) -> Result<(), Refusal> {
        let datagram = self.sent(from);
        self.ends[1 - from].handle(self.now, &datagram)
    }

    fn status(&self, at: usize) -> Status {
        self.ends[at].status(self.now)
    }
}

fn joined(configs: [Config; 2]) -> Pair {
    let mut pair = Pair::new(configs);
    pair.wait(Duration::from_millis(300));
    pair
}

/// A pair in which the first node sends changes to the second.
fn following() -> Pair {
    let mut pair = joined([config(1), config(2)]);
    pair.ends[0].begin_bulk(pair.now, 0).unwrap();
    pair.ends[0].end_bulk(pair.now).unwrap();
    pair.wait(Duration::from_millis(10));
    assert!(matches!(pair.status(1).inflow, Inflow::Level(_)));
    pair.events = Default::default();
    pair
}

fn record(version: u32) -> Record<'static> {
    let identity = Identity { key: 1, incarnation: 1, version };
    Record { identity, kind: RecordKind::Change, body: &[7; 100] }
}

#[test]
fn both_ends_join_compare_and_ask() {
    let pair = joined([config(1), config(2)]);
    for at in [0, 1] {
        let status = pair.status(at);
        assert_eq!(status.presence, Presence::There);
        assert_eq!(status.agreement, Agreement::Together(vec![]));
        let Outflow::Asked(bulk) = status.outflow else { panic!("{status:?}") };
        assert_eq!(pair.status(1 - at).inflow, Inflow::Asked(bulk));
        let node = pair.ends[1 - at].greeter.host.node;
        let name = NodeName::new(&format!("node{node}")).unwrap();
        let joined = Event::Joined { node, name, is_other_process: false };
        let expected = [joined, Event::Compared, Event::BulkAsked];
        assert_eq!(pair.events[at], expected);
    }
}

#[test]
fn nodes_that_would_use_other_buckets_stay_apart_by_name() {
    let other =
        Config { likeness: Likeness { buckets: 512, rules: vec![1], ..likeness() }, ..config(2) };
    let mut pair = joined([config(1), other]);
    let Agreement::Apart(found) = pair.status(0).agreement else { panic!("they are apart") };
    let names: Vec<_> = found.iter().map(|it| (it.aspect.name(), &*it.here, &*it.there)).collect();
    assert_eq!(names, [("buckets", "256", "512"), ("rules", "", "")]);
    assert_eq!(pair.status(0).inflow, Inflow::Apart);
    assert_eq!(pair.status(0).outflow, Outflow::Unfollowed);
    assert_eq!(pair.ends[0].offer(pair.now, &record(1)), Err(NotTaken::NotFollowed));
    // The operator corrects one of them; the other difference warns.
    pair.ends[1].set_likeness(Likeness { rules: vec![1], ..likeness() });
    pair.wait(Duration::from_millis(10));
    let Agreement::Together(found) = pair.status(0).agreement else { panic!("together") };
    assert_eq!(found.iter().map(|it| it.aspect).collect::<Vec<_>>(), [Aspect::Rules]);
    assert!(matches!(pair.status(0).outflow, Outflow::Asked(_)));
}

#[test]
fn the_standby_gets_the_hash_secret_inside_the_session() {
    let active = Config { secret_role: SecretRole::Gives, ..config(1) };
    let own = HashSecret::new([9; 16]);
    let standby = Config {
        secret_role: SecretRole::Takes,
        likeness: Likeness { hash_secret: own, ..likeness() },
        ..config(2)
    };
    let mut pair = joined([active, standby]);
    assert!(matches!(pair.status(1).agreement, Agreement::Apart(_)));
    let secret = HashSecret::new([1; 16]);
    assert_eq!(pair.events[1].last(), Some(&Event::Secret(secret)));
    assert!(!pair.events[0].iter().any(|it| matches!(it, Event::Secret(_))));
    pair.ends[1].set_likeness(likeness());
    pair.wait(Duration::from_millis(10));
    assert_eq!(pair.status(1).agreement, Agreement::Together(vec![]));
    let in_clear = |(_, datagram): &(usize, Vec<u8>)| {
        datagram.windows(16).any(|window| window == [1; 16] || window == [9; 16])
    };
    assert!(!pair.seen.iter().any(in_clear));
}

#[test]
fn a_secret_that_nobody_takes_or_gives_stays_where_it_is() {
    let other = Likeness { hash_secret: HashSecret::new([9; 16]), ..likeness() };
    for roles in [[SecretRole::Keeps, SecretRole::Takes], [SecretRole::Gives, SecretRole::Keeps]] {
        let [first, second] = roles;
        let one = Config { secret_role: first, ..config(1) };
        let two = Config { secret_role: second, likeness: other.clone(), ..config(2) };
        let mut pair = joined([one, two]);
        assert!(!pair.events.iter().flatten().any(|it| matches!(it, Event::Secret(_))));
        // Another role is enough.
        pair.ends[0].set_secret_role(SecretRole::Gives);
        pair.ends[1].set_secret_role(SecretRole::Takes);
        pair.wait(Duration::from_millis(10));
        assert!(pair.events[1].iter().any(|it| matches!(it, Event::Secret(_))));
    }
}

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
    pair.ends[1].set_acknowledges_applied(true);
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
}

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
    assert_eq!(end.handle(pair.now, &[2, 4]), Err(Refusal::WrongVersion));
    assert_eq!(end.handle(pair.now, &[1, 4, 0]), Err(Refusal::Malformed));
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
    let mut datagram = Vec::new();
    let epoch = pair.ends[0].current.as_mut().unwrap();
    epoch.begin(&mut datagram);
    crate::packet::Ack::default().encode(&mut datagram);
    Place { stream: 100, number }.encode(&mut datagram);
    datagram.extend_from_slice(message);
    epoch.seal(&mut datagram);
    pair.ends[1].handle(pair.now, &datagram)
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

#[test]
fn keys_are_replaced_while_records_flow() {
    let settings = Settings { rekey_after_frames: 50, ..config(1).settings };
    let mut pair = joined([1, 2].map(|node| Config { settings, ..config(node) }));
    pair.ends[0].begin_bulk(pair.now, 0).unwrap();
    pair.ends[0].end_bulk(pair.now).unwrap();
    for version in 1..=1_000 {
        pair.ends[0].offer(pair.now, &record(version)).unwrap();
        pair.wait(Duration::from_millis(1));
    }
    let batches = pair.events[1].iter().filter_map(|event| match event {
        Event::Records(batch) => Some(batch),
        _ => None,
    });
    let versions = batches.flat_map(Batch::records).map(|record| record.identity.version);
    assert!(versions.eq(1..=1_000));
    let status = pair.status(1);
    assert!(status.counters.keys_agreed > 10, "{status:?}");
    assert_eq!(status.refusals.total() - status.refusals.of(Refusal::Crossed), 0, "{status:?}");
}

#[test]
fn no_key_seals_more_than_its_limit() {
    let settings = Settings { rekey_after_frames: u64::MAX, ..config(1).settings };
    let mut pair = joined([1, 2].map(|node| Config { settings, ..config(node) }));
    let agreed = pair.status(0).counters.keys_agreed;
    let sealed = |pair: &mut Pair, sealed| pair.ends[0].current.as_mut().unwrap().sealed = sealed;
    sealed(&mut pair, crate::KEY_FRAMES_MAX / 2);
    pair.wait(Duration::from_millis(10));
    assert_eq!(pair.status(0).counters.keys_agreed, agreed + 1);
    // Nobody answers the greeting, so nothing is sealed.
    sealed(&mut pair, crate::KEY_FRAMES_MAX);
    let mut datagram = Vec::new();
    for _ in 0..2_000 {
        pair.now = pair.now.after(Duration::from_millis(10));
        while pair.ends[0].poll_transmit(pair.now, &mut datagram) {
            assert_eq!(datagram[1], 1, "a greeting");
        }
        assert!(pair.ends[0].next_timeout() > pair.now);
    }
    pair.wait(Duration::from_secs(3));
    assert_eq!(pair.status(0).counters.keys_agreed, agreed + 2);
}

#[test]
fn a_process_that_comes_back_after_another_one_of_its_node_is_followed_again() {
    let mut pair = following();
    let mut twin = session_with(config(2), 77, SECRET);
    std::mem::swap(&mut pair.ends[1], &mut twin);
    pair.wait(Duration::from_secs(2));
    assert!(matches!(pair.status(1).inflow, Inflow::Asked(_)));
    std::mem::swap(&mut pair.ends[1], &mut twin);
    pair.wait(Duration::from_secs(4));
    for at in [0, 1] {
        pair.ends[at].begin_bulk(pair.now, 0).unwrap();
        pair.ends[at].end_bulk(pair.now).unwrap();
    }
    pair.wait(Duration::from_millis(10));
    for at in [0, 1] {
        assert!(matches!(pair.status(at).inflow, Inflow::Level(_)), "{:?}", pair.status(at));
    }
}

#[test]
fn a_confirm_is_void_when_keys_came_into_force_in_another_way() {
    let mut pair = Pair::new([config(1), config(2)]);
    // The second node says hello, and its confirm is late.
    pair.carry(1).unwrap();
    pair.carry(0).unwrap();
    let late = pair.sent(1);
    // Meanwhile the first node says hello, is answered and confirms, and hears the keys used.
    (0..2).for_each(|_| [0, 1].iter().for_each(|from| pair.carry(*from).unwrap()));
    assert_eq!(pair.status(0).counters.keys_agreed, 1);
    assert_eq!(pair.ends[0].handle(pair.now, &late), Err(Refusal::StaleGreeting));
}

#[test]
fn confirms_that_cross_lead_to_the_same_keys() {
    let mut pair = Pair::new([config(1), config(2)]);
    // Each node has answered the other, and confirms.
    pair.carry(1).unwrap();
    pair.carry(0).unwrap();
    let second = pair.sent(1);
    pair.carry(0).unwrap();
    pair.carry(1).unwrap();
    let late = [pair.sent(0), second];
    assert_eq!(late.each_ref().map(|datagram| datagram[1]), [3, 3], "two confirms");
    assert_eq!(pair.ends[1].handle(pair.now, &late[0]), Ok(()));
    assert_eq!(pair.ends[0].handle(pair.now, &late[1]), Err(Refusal::Crossed));
    pair.settle();
    for at in [0, 1] {
        let status = pair.status(at);
        assert_eq!(status.agreement, Agreement::Together(vec![]));
        assert_eq!((status.counters.keys_agreed, status.refusals.of(Refusal::UnknownKey)), (1, 0));
    }
}

#[test]
fn a_record_that_is_too_long_is_told() {
    let mut pair = following();
    let long = vec![0; RECORD_BYTES_MAX + 1];
    let record = |body| Record { body, ..record(1) };
    assert_eq!(pair.ends[0].offer(pair.now, &record(&long)), Err(NotTaken::TooLong));
    let settings = Settings { datagram_bytes: 0, ..pair.ends[0].settings };
    pair.ends[0].settings = settings.bounded();
    pair.ends[0].offer(pair.now, &record(&long[1..])).unwrap();
    pair.wait(Duration::from_millis(2));
    assert_eq!(pair.events[1].len(), 1);
    let longest = pair.seen.iter().map(|(_, datagram)| datagram.len()).max();
    assert!(longest <= Some(Settings::DATAGRAM_BYTES_MIN));
}
