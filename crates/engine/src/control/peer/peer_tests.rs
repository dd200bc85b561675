use std::time::Duration;

use flow::Zone;
use proptest::prelude::*;
use steer::{BucketId, WorkerId};
use sync::{Agreement, Aspect, Inflow, Outflow, Settings};

use super::*;
use crate::ZoneConfig;
use crate::rings::link::Wakeup;
use crate::testing::pair::{FIRST_OF_SIP, Pair};

const MILLISECOND: Duration = Duration::from_millis(1);

/// A pair whose peers have met.
fn level() -> Pair {
    let mut pair = Pair::new();
    pair.pass(100 * MILLISECOND);
    assert!(matches!(inflow(&pair), Inflow::Level(_)), "{:?}", inflow(&pair));
    pair
}

fn inflow(pair: &Pair) -> Inflow {
    pair.nodes[1].peer.status(Timestamp::ZERO).inflow
}

fn assert_alike(pair: &Pair) {
    assert_eq!(pair.nodes[1].connections(), pair.nodes[0].connections());
}

#[test]
fn a_standby_gets_what_was_there_before_it_came_and_what_comes_later() {
    let mut pair = Pair::new();
    pair.open(0, 2001);
    pair.udp(0, 2002, false);
    pair.pass(100 * MILLISECOND);
    assert_eq!(pair.nodes[1].connections().len(), 2);
    assert_alike(&pair);
    pair.open(0, 2003);
    pair.udp(0, 2002, true);
    pair.pass(3 * MILLISECOND);
    assert_eq!(pair.nodes[1].connections().len(), 3);
    assert_alike(&pair);
    // It is neither counted nor reported as new.
    let status = pair.nodes[1].gateway.status().unwrap();
    let counted = |count: fn(&flow::ConntrackCounters) -> u64| {
        status.workers.iter().map(|it| count(&it.counters.conntrack)).sum::<u64>()
    };
    assert_eq!((counted(|it| it.insert), counted(|it| it.imported)), (0, 3));
}

#[test]
fn a_peer_gets_all_connections_once_more_when_ends_were_lost() {
    let mut pair = level();
    pair.open(0, 2001);
    let bulks = |pair: &Pair| pair.nodes[1].peer.status(Timestamp::ZERO).counters.bulks_received;
    let before = bulks(&pair);
    let mut worker = {
        let coordinator = pair.nodes[0].gateway.shared.lock();
        let wakeup = Wakeup::new(netio::Waker::new().unwrap());
        coordinator.replication.tap.as_ref().unwrap().connect(&wakeup).unwrap()
    };
    let mut lost = Some(true);
    worker.send_from(|_, _| lost.take());
    pair.pass(100 * MILLISECOND);
    assert_eq!(bulks(&pair), before + 1);
    assert_eq!(pair.nodes[0].peer.supply_counters().lost_ends, 1);
    assert_alike(&pair);
}

#[test]
fn a_connection_that_ends_ends_at_the_standby_too() {
    let mut pair = level();
    pair.open(0, 2001);
    pair.udp(0, 2002, false);
    pair.pass(5 * MILLISECOND);
    assert_eq!(pair.nodes[1].connections().len(), 2);
    assert_eq!(pair.delete_all(0), 2);
    pair.pass(5 * MILLISECOND);
    assert_eq!(pair.nodes[1].connections(), []);
}

#[test]
fn ports_that_are_used_again_at_once_belong_to_the_new_connection() {
    let mut pair = level();
    for _ in 0..20 {
        pair.open(0, 2001);
        pair.data(0, 2001, false);
        pair.reset(0, 2001);
    }
    pair.open(0, 2001);
    pair.pass(5 * MILLISECOND);
    let counters = pair.nodes[1].peer.copy_counters();
    assert_eq!(pair.nodes[1].connections().len(), 1, "{counters:?}");
    assert_alike(&pair);
}

#[test]
fn a_connection_that_nobody_was_told_of_leaves_no_trace() {
    let mut pair = level();
    let records = |pair: &Pair| pair.nodes[0].peer.status(Timestamp::ZERO).counters.sent_records;
    let before = records(&pair);
    pair.nodes[0].gateway.unfollow_changes().unwrap();
    pair.udp(0, 2001, false);
    pair.delete_all(0);
    pair.pass(5 * MILLISECOND);
    assert_eq!(records(&pair), before);
}

#[test]
fn windows_and_timers_are_told_every_ten_seconds_or_a_third_of_the_timeout() {
    let mut pair = level();
    pair.open(0, 2001);
    pair.pass(5 * MILLISECOND);
    let records = |pair: &Pair| pair.nodes[0].peer.status(Timestamp::ZERO).counters.sent_records;
    let before = records(&pair);
    for _ in 0..60 {
        pair.data(0, 2001, false);
        pair.data(0, 2001, true);
        pair.pass(500 * MILLISECOND);
    }
    let count = records(&pair) - before;
    assert!((2..=4).contains(&count), "told {count} times in 30 seconds");
    // An unanswered UDP flow lives 30 seconds.
    pair.udp(0, 2002, false);
    pair.pass(5 * MILLISECOND);
    let before = records(&pair);
    for _ in 0..20 {
        pair.udp(0, 2002, false);
        pair.pass(1000 * MILLISECOND);
    }
    let count = records(&pair) - before;
    assert!((1..=3).contains(&count), "told {count} times in 20 seconds");
}

#[test]
fn a_standby_keeps_what_its_owner_keeps() {
    let mut pair = level();
    pair.udp(0, 2001, false);
    pair.pass(5 * MILLISECOND);
    // The link is cut, and the owner goes on.
    pair.loses = 1;
    for _ in 0..20 {
        pair.udp(0, 2001, false);
        pair.pass(10_000 * MILLISECOND);
    }
    assert_eq!(pair.nodes[1].connections().len(), 1);
    assert_alike(&pair);
    // It takes over, and the connection goes on or ends in its own time.
    let Pair { nodes: [_, node], .. } = &mut pair;
    node.peer.set_role(&node.gateway, Role::Active).unwrap();
    pair.pass(60_000 * MILLISECOND);
    assert_eq!(pair.nodes[1].connections(), []);
}

#[test]
fn a_connection_goes_on_through_the_standby() {
    let mut pair = level();
    pair.open(0, 2001);
    pair.data(0, 2001, false);
    pair.data(0, 2001, true);
    pair.pass(5 * MILLISECOND);
    pair.forwarded(1);
    // More has passed than the standby knows of.
    for _ in 0..200 {
        pair.data(0, 2001, false);
        pair.data(0, 2001, true);
    }
    let Pair { nodes: [_, node], .. } = &mut pair;
    node.peer.set_role(&node.gateway, Role::Active).unwrap();
    for _ in 0..10 {
        pair.data(1, 2001, true);
        pair.data(1, 2001, false);
    }
    assert_eq!(pair.forwarded(1), 20);
    let connections = pair.nodes[1].connections();
    assert_eq!(connections.len(), 1);
    assert_eq!(connections[0].state, Some("ESTABLISHED"));
}

#[test]
fn a_bridge_on_standby_forwards_nothing() {
    let mut pair = level();
    pair.udp(0, 2001, false);
    pair.udp(1, 2002, false);
    assert_eq!((pair.forwarded(0), pair.forwarded(1)), (1, 0));
    let status = pair.nodes[1].gateway.status().unwrap();
    assert_eq!(status.totals().dropped(flow::DropReason::Standby), 1);
    let Pair { nodes: [_, node], .. } = &mut pair;
    node.peer.set_role(&node.gateway, Role::Active).unwrap();
    pair.udp(1, 2002, false);
    assert_eq!(pair.forwarded(1), 1);
}

#[test]
fn a_gateway_that_starts_anew_is_followed_although_its_clock_is_behind() {
    let mut pair = level();
    pair.open(0, 2001);
    pair.udp(0, 2002, false);
    pair.pass(5 * MILLISECOND);
    assert_eq!(pair.nodes[1].connections().len(), 2);
    pair.restart(0, Role::Active);
    pair.udp(0, 2002, false);
    pair.pass(3000 * MILLISECOND);
    pair.udp(0, 2003, false);
    pair.pass(5 * MILLISECOND);
    assert_eq!(pair.nodes[1].connections().len(), 3, "those of before go on");
    assert_alike(&pair);
}

#[test]
fn a_gateway_that_starts_anew_on_standby_ends_no_copies() {
    let mut pair = level();
    pair.open(0, 2001);
    pair.pass(5 * MILLISECOND);
    pair.restart(0, Role::Standby);
    pair.pass(5000 * MILLISECOND);
    assert_eq!(pair.nodes[1].connections().len(), 1);
    // The other one takes over, and the connection goes on.
    let Pair { nodes: [_, node], .. } = &mut pair;
    node.peer.set_role(&node.gateway, Role::Active).unwrap();
    pair.pass(1000 * MILLISECOND);
    assert_eq!(pair.nodes[0].connections().len(), 1);
    assert_alike(&pair);
}

#[test]
fn a_peer_that_follows_two_standbys_misses_nothing_when_one_is_active_again() {
    let mut pair = level();
    pair.udp(0, 2001, false);
    pair.pass(5 * MILLISECOND);
    let role = |pair: &mut Pair, role| {
        let node = &mut pair.nodes[0];
        node.peer.set_role(&node.gateway, role).unwrap();
    };
    role(&mut pair, Role::Standby);
    pair.pass(100 * MILLISECOND);
    role(&mut pair, Role::Active);
    pair.udp(0, 2002, false);
    pair.pass(1000 * MILLISECOND);
    assert_eq!(pair.nodes[1].connections().len(), 2);
    assert_alike(&pair);
}

#[test]
fn a_standby_gets_more_connections_than_a_window_holds() {
    let mut pair = level();
    for flow in 1..=40_000 {
        pair.udp(0, flow, false);
    }
    pair.pass(1000 * MILLISECOND);
    assert_eq!(pair.nodes[1].connections().len(), 40_000);
    pair.restart(1, Role::Standby);
    pair.pass(3000 * MILLISECOND);
    assert_eq!(pair.nodes[1].connections().len(), 40_000);
    let status = pair.nodes[0].peer.status(Timestamp::ZERO);
    assert_eq!((status.unacknowledged_records, status.counters.resent_frames), (0, 0));
}

#[test]
fn connections_of_a_zone_come_when_it_is_configured_later() {
    let mut pair = level();
    let configure = |pair: &Pair, at: usize| {
        let mut book = pair.nodes[at].gateway.zones();
        book.zones = vec![ZoneConfig::new(Zone(7))];
        pair.nodes[at].gateway.set_zones(book).unwrap();
    };
    configure(&pair, 0);
    pair.udp(0, 2001, false);
    pair.pass(100 * MILLISECOND);
    assert_eq!(pair.nodes[1].connections(), []);
    let refused = pair.nodes[1].peer.copy_counters().refused;
    assert_eq!(refused, [(conntrack::ImportRefusal::Zone, 1)].into());
    configure(&pair, 1);
    pair.pass(1000 * MILLISECOND);
    assert_eq!(pair.nodes[1].connections().len(), 1);
    assert_alike(&pair);
}

#[test]
fn a_standby_that_starts_anew_gets_all() {
    let mut pair = level();
    pair.open(0, 2001);
    pair.restart(1, Role::Standby);
    pair.pass(3000 * MILLISECOND);
    assert_eq!(pair.nodes[1].connections().len(), 1);
    assert_alike(&pair);
}

#[test]
fn roles_change_and_change_back() {
    let mut pair = level();
    for round in 0..4_u16 {
        let (active, standby) = (usize::from(round % 2), usize::from(1 - round % 2));
        pair.open(active, 3000 + round);
        pair.udp(active, 4000, false);
        pair.pass(1000 * MILLISECOND);
        assert_eq!(pair.nodes[1].connections(), pair.nodes[0].connections());
        for (at, role) in [(standby, Role::Active), (active, Role::Standby)] {
            let node = &mut pair.nodes[at];
            node.peer.set_role(&node.gateway, role).unwrap();
        }
        pair.pass(1000 * MILLISECOND);
    }
    assert_eq!(pair.nodes[0].connections().len(), 5);
    assert_eq!(pair.nodes[1].connections(), pair.nodes[0].connections());
}

#[test]
fn nobody_collects_changes_for_a_peer_that_is_gone() {
    let mut pair = Pair::with(Settings { queue_bytes: 1 << 18, ..Settings::default() });
    pair.pass(100 * MILLISECOND);
    assert!(pair.nodes[0].peer.is_followed());
    pair.loses = 1;
    let mut flow = 0_u16;
    while pair.nodes[0].peer.is_followed() {
        for _ in 0..500 {
            flow = flow.checked_add(1).expect("the queue is given up");
            pair.udp(0, flow, false);
        }
        pair.pass(100 * MILLISECOND);
    }
    let status = pair.nodes[0].peer.status(Timestamp::ZERO);
    assert_eq!((status.outflow, status.unacknowledged_records), (Outflow::Unfollowed, 0));
    pair.loses = 0;
    pair.pass(5000 * MILLISECOND);
    assert_alike(&pair);
}

#[test]
fn a_connection_is_copied_while_its_helper_keeps_the_beginning_of_a_long_message() {
    let mut pair = level();
    pair.open(0, FIRST_OF_SIP);
    let mut text = b"INVITE sip:somebody@192.0.2.1 SIP/2.0\r\nSubject: ".to_vec();
    text.resize(7000, b'x');
    pair.text(0, FIRST_OF_SIP, false, &text);
    let lengths = |pair: &Pair| {
        assert_eq!(pair.nodes[0].peer.supply_counters().too_long, 0);
        assert_eq!(pair.nodes[1].peer.copy_counters().malformed, 0);
        [0, 1].map(|at| {
            let mut length = 0;
            let mut each = |record: conntrack::ConnectionRecord| {
                let mut bytes = Vec::new();
                record.encode(&mut bytes);
                length += bytes.len();
                std::ops::ControlFlow::Continue(())
            };
            pair.nodes[at].gateway.export_connections(&mut each).unwrap();
            length
        })
    };
    // It is told of with the numbers of the connection, and in a bulk transfer.
    pair.pass(11_000 * MILLISECOND);
    pair.text(0, FIRST_OF_SIP, false, b"xxx");
    pair.pass(50 * MILLISECOND);
    let [own, copied] = lengths(&pair);
    assert!(own > 7000 && copied > 7000, "{own} bytes, {copied} at the peer");
    pair.restart(1, Role::Standby);
    assert_eq!(lengths(&pair)[1], 0);
    pair.pass(3000 * MILLISECOND);
    assert!(lengths(&pair)[1] > 7000);
}

#[test]
fn a_peer_that_has_other_rules_tells_so_while_both_run() {
    let mut pair = level();
    let differ = |pair: &mut Pair, rules: [Option<u128>; 2], differ: bool| {
        for (node, rules) in pair.nodes.iter_mut().zip(rules) {
            node.peer.set_rules(rules);
        }
        pair.pass(20 * MILLISECOND);
        for node in &pair.nodes {
            let Agreement::Together(found) = node.peer.status(Timestamp::ZERO).agreement else {
                panic!("rules keep nobody apart");
            };
            let found: Vec<_> = found.iter().map(|it| it.aspect).collect();
            assert_eq!(found, if differ { vec![Aspect::Rules] } else { vec![] });
        }
    };
    differ(&mut pair, [Some(1), None], true);
    differ(&mut pair, [Some(1), Some(1)], false);
    differ(&mut pair, [Some(2), Some(1)], true);
    differ(&mut pair, [None, None], false);
}

#[derive(Clone, Debug)]
enum Step {
    Open(u16),
    Data(u16, bool),
    Reset(u16),
    Udp(u16, bool),
    Delete,
    Pass(u64),
    Jump(u64),
    Move(usize, u16, u16),
    Workers(usize, usize),
    Lose(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let flow = || 1..20_u16;
    prop_oneof![
        8 => flow().prop_map(Step::Open),
        8 => (flow(), any::<bool>()).prop_map(|(flow, back)| Step::Data(flow, back)),
        3 => flow().prop_map(Step::Reset),
        8 => (20..40_u16, any::<bool>()).prop_map(|(flow, back)| Step::Udp(flow, back)),
        1 => Just(Step::Delete),
        8 => (1..20_u64).prop_map(Step::Pass),
        1 => (1..40_000_u64).prop_map(Step::Jump),
        4 => (0..2_usize, 0..256_u16, 0..2_u16).prop_map(|(at, it, to)| Step::Move(at, it, to)),
        1 => (0..2_usize, 1..=3_usize).prop_map(|(at, count)| Step::Workers(at, count)),
        1 => prop_oneof![Just(0), 1..6_u64].prop_map(Step::Lose),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Buckets move and workers come and go at both gateways, and datagrams are lost. After quiet
    /// the standby has what the active gateway has.
    #[test]
    fn tables_are_equal_after_quiet(steps in prop::collection::vec(step(), 1..150)) {
        let mut pair = Pair::new();
        for step in steps {
            match step {
                Step::Open(flow) => pair.open(0, flow),
                Step::Data(flow, is_reply) => pair.data(0, flow, is_reply),
                Step::Reset(flow) => pair.reset(0, flow),
                Step::Udp(flow, is_reply) => pair.udp(0, flow, is_reply),
                Step::Delete => {
                    pair.delete_all(0);
                }
                Step::Pass(ms) => pair.pass(Duration::from_millis(ms)),
                Step::Jump(ms) => pair.jump(Duration::from_millis(ms)),
                Step::Move(at, bucket, to) => {
                    let gateway = &pair.nodes[at].gateway;
                    let workers = gateway.status().unwrap().workers.len() as u16;
                    gateway.move_bucket(BucketId(bucket), WorkerId(to % workers)).unwrap();
                }
                Step::Workers(at, count) => {
                    pair.nodes[at].gateway.set_workers(count).unwrap();
                }
                Step::Lose(loses) => pair.loses = loses,
            }
        }
        pair.loses = 0;
        pair.pass(Duration::from_secs(2));
        prop_assert!(
            pair.becomes_alike(),
            "{:?}\n{:?}", pair.nodes[1].connections(), pair.nodes[0].connections()
        );
    }
}
