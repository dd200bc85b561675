use super::pair::*;
use super::*;
use crate::refusal::Refusal;

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
    let is_other_process =
        |event: &Event| matches!(event, Event::Joined { is_other_process: true, .. });
    assert!(pair.events[0].iter().any(is_other_process));
    assert!(!pair.events[1].iter().any(is_other_process));
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
