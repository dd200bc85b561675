//! First packets of connections that wait for the peer.

use std::time::Duration;

use flow::DeferralCounters;
use steer::{BucketId, WorkerId};
use wire::TcpFlags;

use super::*;
use crate::path::deferred::{DEFERRED_BYTES_MAX, DEFERRED_MAX};
use crate::testing::pair::Pair;

const MILLISECOND: Duration = Duration::from_millis(1);
const LIMIT: Duration = Duration::from_millis(20);
/// Longer than a change takes to the peer and its acknowledgment back.
const SOON: Duration = Duration::from_millis(5);

/// A pair in which both forward, and first packets wait if they are to.
fn pair(defers: bool) -> Pair {
    let mut pair = Pair::new();
    for node in &mut pair.nodes {
        node.gateway.set_defers(defers.then_some(LIMIT));
        node.peer.set_role(&node.gateway, Role::Active).unwrap();
    }
    pair.pass(100 * MILLISECOND);
    pair
}

fn counters(pair: &Pair) -> DeferralCounters {
    pair.nodes[0].gateway.status().unwrap().totals().deferral
}

/// Lengths of the datagrams that have left for the server, in their order.
fn lengths(pair: &Pair) -> Vec<usize> {
    pair.nodes[0].wan.output.take_all().iter().map(|frame| frame.len()).collect()
}

#[test]
fn the_first_packet_leaves_when_the_peer_has_its_connection() {
    let mut pair = pair(true);
    pair.udp(0, 2001, false);
    assert_eq!((pair.forwarded(0), pair.nodes[1].connections().len()), (0, 0));
    pair.pass(SOON);
    assert_eq!((pair.forwarded(0), pair.nodes[1].connections().len()), (1, 1));
    // Later packets do not wait.
    pair.udp(1, 2001, true);
    pair.udp(0, 2001, false);
    assert_eq!((pair.forwarded(0), pair.forwarded(1)), (1, 1));
    let counted = DeferralCounters { deferred: 1, acknowledged: 1, ..Default::default() };
    assert_eq!(counters(&pair), counted);
}

/// Sends a segment through a node. Returns true if it leaves within some milliseconds, and not before
/// the next look at the peer if `waits`.
fn passes(pair: &mut Pair, through: usize, is_reply: bool, flags: TcpFlags, waits: bool) -> bool {
    pair.segment(through, 2001, is_reply, flags);
    let at_once = pair.forwarded(through);
    let has_left = |pair: &mut Pair| {
        pair.pass(MILLISECOND / 2);
        pair.forwarded(through) == 1
    };
    match waits {
        true => at_once == 0 && (0..10).any(|_| has_left(pair)),
        false => at_once == 1,
    }
}

#[test]
fn asymmetric_handshakes_pass_strict_gateways_only_if_packets_wait() {
    let synack = TcpFlags::SYN.with(TcpFlags::ACK);
    for waits in [false, true] {
        let mut pair = pair(waits);
        let invalid = |pair: &Pair| {
            let of = |node: usize| pair.nodes[node].gateway.status().unwrap().totals().classes[3];
            [of(0), of(1)]
        };
        assert!(passes(&mut pair, 0, false, TcpFlags::SYN, waits));
        // The server answers at once, by the other gateway, and then the client does.
        assert_eq!(passes(&mut pair, 1, true, synack, waits), waits);
        assert_eq!(passes(&mut pair, 0, false, TcpFlags::ACK, false), waits);
        assert_eq!(invalid(&pair), if waits { [0, 0] } else { [1, 1] });
        pair.pass(SOON);
        let state = |pair: &Pair, node: usize| pair.nodes[node].connections()[0].state;
        if waits {
            assert_eq!([0, 1].map(|node| state(&pair, node)), [Some("ESTABLISHED"); 2]);
        }
    }
}

#[test]
fn packets_of_a_sender_wait_in_their_order_and_others_do_not_wait() {
    let mut pair = pair(true);
    pair.udp(0, 2001, false);
    pair.pass(SOON);
    pair.forwarded(0);
    for length in 1..=3 {
        pair.datagram(0, 2002, false, &vec![0; 100 * length]);
    }
    assert_eq!(pair.forwarded(0), 0);
    pair.udp(0, 2001, false);
    assert_eq!(pair.forwarded(0), 1);
    pair.pass(SOON);
    let lengths = lengths(&pair);
    assert_eq!(lengths.len(), 3);
    assert!(lengths.is_sorted(), "{lengths:?}");
}

#[test]
fn a_flow_does_not_wait_for_connections_that_others_open() {
    let mut pair = pair(true);
    pair.udp(0, 2001, false);
    let mut waits = Vec::new();
    for opened in 0..40 {
        // The other packets of the flow come behind connections that open all the time.
        pair.udp(0, 3000 + opened, false);
        pair.datagram(0, 2001, false, &[0; 900]);
        let is_of_flow = |length: &&usize| **length > 900;
        waits.push(lengths(&pair).iter().filter(is_of_flow).count());
        pair.pass(MILLISECOND / 2);
    }
    let late = &waits[20..];
    assert!(late.iter().all(|left| *left == 1), "{waits:?}");
}

#[test]
fn no_packet_takes_the_fast_path_past_one_that_waits() {
    let mut pair = pair(true);
    pair.udp(0, 2001, false);
    // The other end speaks by itself, so packets of the flow are established ones.
    pair.udp(0, 2001, true);
    assert_eq!(pair.forwarded(0), 1);
    for _ in 0..3 {
        pair.udp(0, 2001, false);
    }
    assert_eq!(pair.forwarded(0), 0);
    pair.pass(SOON);
    assert_eq!(pair.forwarded(0), 4);
}

#[test]
fn a_packet_waits_for_a_short_time_only() {
    let mut pair = pair(true);
    pair.loses = 1;
    pair.udp(0, 2001, false);
    pair.pass(LIMIT - MILLISECOND);
    assert_eq!(pair.forwarded(0), 0);
    pair.pass(2 * MILLISECOND);
    assert_eq!(pair.forwarded(0), 1);
    assert_eq!(counters(&pair).timed_out, 1);
    // Nobody waits for a peer that is away.
    pair.pass(2000 * MILLISECOND);
    pair.udp(0, 2002, false);
    assert_eq!(pair.forwarded(0), 1);
    // It comes back.
    pair.loses = 0;
    pair.pass(5000 * MILLISECOND);
    pair.udp(0, 2003, false);
    assert_eq!(pair.forwarded(0), 0);
    pair.pass(SOON);
    assert_eq!(pair.forwarded(0), 1);
}

#[test]
fn no_more_than_a_number_of_packets_wait() {
    let mut pair = pair(true);
    // There are two workers.
    let sent = 2 * DEFERRED_MAX as u16 + 100;
    (1..=sent).for_each(|flow| pair.udp(0, flow, false));
    let at_once = pair.forwarded(0);
    assert!(at_once >= 100);
    let DeferralCounters { deferred, not_deferred, .. } = counters(&pair);
    assert_eq!((deferred, not_deferred), (u64::from(sent) - at_once as u64, at_once as u64));
    pair.pass(50 * MILLISECOND);
    assert_eq!(pair.nodes[1].connections().len(), usize::from(sent));
    assert_eq!(pair.forwarded(0) as u64, deferred);
}

#[test]
fn no_more_than_a_number_of_bytes_wait_and_order_stays_where_no_more_do() {
    let mut pair = pair(true);
    for length in 1..=1000 {
        pair.datagram(0, 2001, false, &vec![0; length]);
    }
    assert!(counters(&pair).not_deferred > 0);
    for length in 1001..=1400 {
        pair.datagram(0, 2001, false, &vec![0; length]);
    }
    let mut all = lengths(&pair);
    pair.pass(SOON);
    all.extend(lengths(&pair));
    assert_eq!(all.len(), 1400);
    assert!(all.is_sorted(), "{all:?}");
    let frames = (2 * DEFERRED_BYTES_MAX / 60_000) as u16;
    (1..=frames).for_each(|flow| pair.datagram(0, flow, false, &vec![0; 60_000]));
    assert!(pair.forwarded(0) > 0);
}

#[test]
fn packets_that_wait_leave_before_their_bucket_does() {
    let mut pair = pair(true);
    (1..=100).for_each(|flow| pair.datagram(0, flow, false, &[0; 100]));
    assert_eq!(pair.forwarded(0), 0);
    for bucket in 0..256 {
        let _ = pair.nodes[0].gateway.move_bucket(BucketId(bucket), WorkerId(1));
    }
    let left = pair.forwarded(0);
    assert!((20..80).contains(&left), "{left} packets left before the buckets of one worker");
    (1..=100).for_each(|flow| pair.datagram(0, flow, false, &[0; 200]));
    // Where nothing waits, nothing waits behind it.
    assert_eq!(pair.forwarded(0), left);
    pair.pass(SOON);
    assert_eq!(pair.forwarded(0), 2 * (100 - left));
}

#[test]
fn packets_that_wait_leave_when_nobody_reads_changes_any_more_or_the_gateway_stops() {
    let mut pair = pair(true);
    pair.udp(0, 2001, false);
    pair.nodes[0].gateway.unfollow_changes().unwrap();
    pair.pass(MILLISECOND);
    assert_eq!(pair.forwarded(0), 1);
    let mut pair = self::pair(true);
    pair.udp(0, 2001, false);
    assert_eq!(pair.forwarded(0), 0);
    let [node, _] = pair.nodes;
    node.gateway.stop().unwrap();
    assert_eq!(node.wan.output.take_all().len(), 1);
}

#[test]
fn nothing_waits_unless_it_is_wanted() {
    let mut pair = pair(false);
    pair.udp(0, 2001, false);
    assert_eq!(pair.forwarded(0), 1);
    assert_eq!(counters(&pair), DeferralCounters::default());
}
