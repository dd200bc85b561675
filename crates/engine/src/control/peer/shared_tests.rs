//! Announcements of connections and elements of sets, at two gateways.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::Duration;

use conntrack::{AnnouncementRecord, Expected, ImportRefusal};
use ruleset::{ElementRecord, ElementRefusal, Options, ValidRuleset, import};
use steer::{BucketId, WorkerId};

use super::*;
use crate::control::record::RecordRefusal;
use crate::testing::pair::{FIRST_OF_SIP, Pair};

const MILLISECOND: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn level() -> Pair {
    let mut pair = Pair::new();
    pair.pass(100 * MILLISECOND);
    assert!(pair.nodes[0].peer.is_followed());
    pair
}

fn set_role(pair: &mut Pair, at: usize, role: Role) {
    let node = &mut pair.nodes[at];
    node.peer.set_role(&node.gateway, role).unwrap();
}

/// A call that announces media of the client at this port.
fn invite(media: u16) -> Vec<u8> {
    let body = format!(
        "v=0\r\no=- 1 1 IN IP4 198.51.100.1\r\ns=-\r\nc=IN IP4 198.51.100.1\r\nt=0 0\r\n\
         m=audio {media} RTP/AVP 0\r\n"
    );
    let head = format!(
        "INVITE sip:b@192.0.2.1 SIP/2.0\r\nVia: SIP/2.0/TCP 198.51.100.1:60001\r\n\
         CSeq: 1 INVITE\r\nContact: <sip:a@198.51.100.1>\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    (head + &body).into_bytes()
}

/// A call through a node. Its signalling has this number.
fn call(pair: &mut Pair, through: usize, flow: u16, media: u16) {
    pair.open(through, flow);
    pair.text(through, flow, false, &invite(media));
}

/// The ports at which a node expects media.
fn expected(pair: &Pair, at: usize) -> Vec<u16> {
    let mut ports = Vec::new();
    let mut each = |it: Expected| {
        ports.push(it.destination_port);
        ControlFlow::Continue(())
    };
    pair.nodes[at].gateway.expectations(&mut each);
    ports.sort_unstable();
    ports
}

fn announcements(pair: &Pair, at: usize) -> Vec<AnnouncementRecord> {
    pair.nodes[at].gateway.export_announcements().unwrap()
}

fn counters(pair: &Pair, at: usize) -> SharedCounters {
    pair.nodes[at].peer.copy_counters().shared
}

#[test]
fn media_that_was_announced_at_the_active_gateway_passes_at_the_other_one() {
    let mut pair = level();
    call(&mut pair, 0, FIRST_OF_SIP, 7000);
    assert_eq!(expected(&pair, 0), [7000, 7001]);
    pair.pass(5 * MILLISECOND);
    assert_eq!(expected(&pair, 1), [7000, 7001]);
    assert_eq!(pair.nodes[1].peer.shared_copies(), 2);

    // An expectation that is used up ends at both.
    pair.datagram(0, 7001, true, b"control");
    pair.pass(5 * MILLISECOND);
    assert_eq!((expected(&pair, 0), expected(&pair, 1)), (vec![7000], vec![7000]));

    set_role(&mut pair, 1, Role::Active);
    set_role(&mut pair, 0, Role::Standby);
    pair.pass(SECOND);
    assert_eq!(pair.nodes.each_ref().map(|it| it.peer.shared_copies()), [1, 0]);
    pair.datagram(1, 7000, true, b"sound");
    pair.pass(5 * MILLISECOND);
    assert_eq!((expected(&pair, 0), expected(&pair, 1)), (vec![], vec![]));
    let media = |it: &&conntrack::Connection| it.expected;
    for node in &pair.nodes {
        assert_eq!(node.connections().iter().filter(media).count(), 2, "both were announced");
    }
}

#[test]
fn announcements_end_with_their_connection_and_come_in_a_bulk_transfer() {
    let mut pair = level();
    for number in 0..100 {
        call(&mut pair, 0, FIRST_OF_SIP + number, 7000 + 2 * number);
    }
    pair.pass(20 * MILLISECOND);
    assert_eq!(expected(&pair, 1), expected(&pair, 0));
    pair.restart(1, Role::Standby);
    assert_eq!(expected(&pair, 1), [0; 0]);
    pair.pass(3 * SECOND);
    assert_eq!(expected(&pair, 1).len(), 200);
    pair.reset(0, FIRST_OF_SIP);
    pair.delete_all(0);
    pair.pass(20 * MILLISECOND);
    assert_eq!((expected(&pair, 0), expected(&pair, 1)), (vec![], vec![]));
    assert_eq!(pair.nodes[1].peer.shared_copies(), 0);
}

/// The bug of an announcement that comes before its connection, or while an earlier one of the same
/// key is still here: it is filed when the connection is made.
#[test]
fn an_announcement_waits_for_its_connection() {
    let mut pair = level();
    for round in 0..20 {
        // The connection is new in the same turn, and has had another one before it.
        call(&mut pair, 0, FIRST_OF_SIP, 7000 + 2 * round);
        pair.pass(MILLISECOND / 2);
        pair.nodes[0].gateway.move_bucket(BucketId(round), WorkerId(round % 2)).unwrap();
        pair.reset(0, FIRST_OF_SIP);
        pair.delete_all(0);
        call(&mut pair, 0, FIRST_OF_SIP, 9000 + 2 * round);
        pair.pass(5 * MILLISECOND);
        assert_eq!(expected(&pair, 1), expected(&pair, 0), "round {round}");
        assert_eq!(expected(&pair, 0), [9000 + 2 * round, 9001 + 2 * round]);
        pair.delete_all(0);
    }
    assert_eq!(counters(&pair, 1).refused, BTreeMap::new());
}

#[test]
fn a_standby_keeps_what_its_owner_keeps_and_takes_it_over() {
    let mut pair = level();
    call(&mut pair, 0, FIRST_OF_SIP, 7000);
    pair.pass(5 * MILLISECOND);
    pair.loses = 1;
    pair.pass(2 * SECOND);
    // Media has three minutes.
    pair.jump(200 * SECOND);
    pair.pass(2 * SECOND);
    assert_eq!(announcements(&pair, 1).len(), 2);
    set_role(&mut pair, 1, Role::Active);
    pair.pass(2 * SECOND);
    assert_eq!(announcements(&pair, 1).len(), 2);
    pair.pass(15 * SECOND);
    assert_eq!(announcements(&pair, 1), []);
}

const BAN: &str = r#"{"set":{"op":"add","elem":{"payload":{"protocol":"ip","field":"saddr"}},
    "set":"@banned"}}"#;

/// A ruleset that puts senders into a set, with this statement in front of the rule.
fn rules(other: &str) -> ValidRuleset {
    let document = format!(
        r#"{{"nftables":[{{"table":{{"family":"inet","name":"t","handle":1}}}},
            {{"set":{{"family":"inet","table":"t","name":"banned","handle":2,"type":"ipv4_addr",
            "flags":["dynamic","timeout"],"timeout":600,"size":1000}}}},
            {{"chain":{{"family":"inet","table":"t","name":"c","handle":1,"type":"filter",
            "hook":"forward","prio":0,"policy":"accept"}}}},
            {{"rule":{{"family":"inet","table":"t","chain":"c","handle":3,
            "expr":[{other}{BAN}]}}}}]}}"#
    );
    import(document.as_bytes(), Options::default()).unwrap().ruleset
}

fn load(pair: &mut Pair, at: usize) {
    pair.nodes[at].gateway.load_rules(rules("")).unwrap();
}

fn elements(pair: &Pair, at: usize) -> Vec<ElementRecord> {
    let mut records = Vec::new();
    let mut each = |record: ElementRecord| {
        records.push(record.name());
        ControlFlow::Continue(())
    };
    pair.nodes[at].gateway.export_elements(&mut each);
    records.sort_by_cached_key(|it| format!("{it:?}"));
    records
}

#[test]
fn a_ban_holds_at_the_other_gateway() {
    let mut pair = level();
    load(&mut pair, 0);
    load(&mut pair, 1);
    pair.pass(2 * SECOND);
    pair.udp(0, 2001, false);
    pair.udp(0, 2001, true);
    assert_eq!(elements(&pair, 0).len(), 2, "each end");
    pair.pass(5 * MILLISECOND);
    assert_eq!(elements(&pair, 1), elements(&pair, 0));
    let told = pair.nodes[1].peer.status(Timestamp::ZERO).counters.sent_records;
    pair.pass(SECOND);
    let still = pair.nodes[1].peer.status(Timestamp::ZERO).counters.sent_records;
    assert_eq!(still, told, "what came by sync is not told again");

    pair.restart(1, Role::Standby);
    load(&mut pair, 1);
    pair.pass(3 * SECOND);
    assert_eq!(elements(&pair, 1), elements(&pair, 0), "in the bulk transfer");
    set_role(&mut pair, 1, Role::Active);
    set_role(&mut pair, 0, Role::Standby);
    pair.pass(SECOND);
    assert_eq!(pair.nodes.each_ref().map(|it| it.peer.shared_copies()), [2, 0]);
}

#[test]
fn an_element_of_a_set_that_the_peer_does_not_have_is_counted_and_comes_with_the_rules() {
    let mut pair = level();
    load(&mut pair, 0);
    pair.pass(2 * SECOND);
    pair.udp(0, 2001, false);
    pair.pass(5 * MILLISECOND);
    let unknown = RecordRefusal::Element(ElementRefusal::NoSet);
    assert_eq!(counters(&pair, 1).refused, [(unknown, 1)].into());
    assert_eq!(pair.nodes[1].peer.shared_copies(), 0);
    load(&mut pair, 1);
    pair.pass(2 * SECOND);
    assert_eq!(elements(&pair, 1), elements(&pair, 0));
    assert_eq!(elements(&pair, 1).len(), 1);

    // Rules that are loaded once more begin with empty sets, at both.
    load(&mut pair, 0);
    assert_eq!(elements(&pair, 0), []);
    pair.pass(2 * SECOND);
    assert_eq!(elements(&pair, 1), []);
    pair.udp(0, 2002, false);
    pair.pass(5 * MILLISECOND);
    assert_eq!(elements(&pair, 1).len(), 1);
}

#[test]
fn a_refusal_of_the_limit_is_counted_with_its_reason() {
    let mut pair = level();
    let node = &pair.nodes[1].gateway;
    node.set_tunable("nf_conntrack_expect_max", 3).unwrap();
    for number in 0..4 {
        call(&mut pair, 0, FIRST_OF_SIP + number, 7000 + 2 * number);
    }
    pair.pass(20 * MILLISECOND);
    assert_eq!((expected(&pair, 0).len(), expected(&pair, 1).len()), (8, 3));
    let full = RecordRefusal::Tracking(ImportRefusal::AnnouncementsFull);
    assert_eq!(counters(&pair, 1).refused, [(full, 5)].into());
    assert_eq!(pair.nodes[1].peer.shared_copies(), 3);
}
