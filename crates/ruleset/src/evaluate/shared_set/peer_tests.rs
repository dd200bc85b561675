use std::collections::BTreeSet;
use std::time::Duration;

use flow::Tallied;
use proptest::prelude::*;

use super::*;
use crate::contents::ElementChange;
use crate::evaluate::dynamic::{Joining, Meeting};
use crate::evaluate::shared_set::NamedElement;
use crate::hook::TableFamily;
use crate::kind::Kind;
use crate::model::{Data, Rate, Update, UpdateOp};

const RATE: Rate =
    Rate { amount: 2, period: Duration::from_secs(1), burst: 4, over: false, in_bytes: false };
const ROOM: u32 = 500;

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_secs(5000 + seconds)
}

fn banned(parts: &[Part]) -> Set {
    Set {
        family: TableFamily::Inet,
        table: "filter".to_owned(),
        name: Some("banned".to_owned()),
        position: None,
        key: vec![Kind::Ipv4],
        data: Data::None,
        dynamic: true,
        timeout: Some(Duration::from_secs(60)),
        size: ROOM,
        parts: parts.to_vec(),
        declares_parts: true,
        elements: crate::elements::Elements::new(&[Kind::Ipv4], &Data::None),
    }
}

fn key(value: u32) -> PackedKey {
    let mut key = PackedKey::EMPTY;
    key.push(value.into(), 1);
    key
}

/// The same set at two gateways, which have other secrets.
struct Pair {
    set: Set,
    nodes: [SharedSet; 2],
}

impl Pair {
    fn new(parts: &[Part]) -> Self {
        let set = banned(parts);
        let nodes = [7, 99].map(|seed| SharedSet::new(&set, seed, at(0)));
        nodes.iter().for_each(|node| node.follow(true, false));
        Self { set, nodes }
    }

    /// A packet of a rule that changes the set.
    fn packet(&self, node: usize, op: UpdateOp, value: u32, now: Timestamp) {
        drop(self.joined(node, op, value, now));
    }

    /// As [`packet`](Self::packet). Its connection counts as long as the result lives.
    fn joined(&self, node: usize, op: UpdateOp, value: u32, now: Timestamp) -> Vec<Tallied> {
        let key_of = crate::model::Key { loads: Vec::new() };
        let update = Update { set: crate::SetId(0), op, key: key_of, timeout: None };
        let mut joined = Vec::new();
        let connection = Joining { details: None, joined: &mut joined };
        let mut meeting = Meeting { bytes: 100, now, connection };
        self.nodes[node].update(&update, &key(value), &mut meeting);
        joined
    }

    fn operator(&self, node: usize, change: ElementChange, value: u32, now: Timestamp) {
        let comment = Some("by hand".to_owned());
        // As if rules gave the statements.
        let is_bare = !self.set.parts.is_empty();
        let element = NamedElement { key: key(value), timeout: None, left: None, is_bare, comment };
        let _ = self.nodes[node].change(change, &[element], now);
    }

    /// Tells the other node all that a node has to tell. Returns how many changes there were, and
    /// whether ends were lost.
    fn tell(&self, from: usize, prevails: bool, now: Timestamp) -> (usize, bool) {
        let (mut told, mut has_lost) = (Vec::new(), false);
        while self.nodes[from].has_news() {
            has_lost |=
                self.nodes[from].take_changes(&self.set, &mut 3, now, &mut |it| told.push(it));
        }
        let count = told.len();
        told.into_iter().for_each(|change| self.apply(1 - from, &change, prevails, now));
        (count, has_lost)
    }

    fn apply(&self, at: usize, change: &Told<ElementRecord>, prevails: bool, now: Timestamp) {
        let node = &self.nodes[at];
        match change {
            Told::State { is_copy, record, .. } => {
                let origin = if *is_copy { Origin::News } else { Origin::Owner { prevails } };
                let mut bytes = Vec::new();
                record.encode(&mut bytes);
                let record = ElementRecord::decode(&bytes).unwrap();
                node.import(&self.set, &record, origin, now).unwrap();
            }
            Told::End { is_copy, name, .. } => {
                assert_eq!(name.name(), *name, "a name is its own name");
                node.end_named(&self.set, name, !is_copy);
            }
        }
    }

    /// Both tell each other until neither has anything to tell.
    fn settle(&self, prevails: usize, now: Timestamp) {
        for round in 0.. {
            let told = self.tell(0, prevails == 0, now).0 + self.tell(1, prevails == 1, now).0;
            if told == 0 {
                return;
            }
            assert!(round < 5, "they tell each other the same in a circle");
        }
    }

    fn records(&self, node: usize, now: Timestamp) -> Vec<ElementRecord> {
        let mut records = Vec::new();
        for shard in 0..self.nodes[node].shards() {
            self.nodes[node].records_in(&self.set, shard, now, &mut |it| records.push(it));
        }
        records.sort_by_cached_key(|it| format!("{it:?}"));
        records
    }

    fn is_bare(&self, node: usize, value: u32, now: Timestamp) -> Option<bool> {
        let mut bare = None;
        self.nodes[node].list(now, |listed, _, element| {
            if listed.slice() == key(value).slice() {
                bare = Some(element.is_bare);
            }
        });
        bare
    }

    fn has(&self, node: usize, value: u32, now: Timestamp) -> bool {
        let (hash, key) = (self.nodes[node].hash(&key(value)), key(value));
        self.nodes[node].read(hash).find(hash, &key, now).is_some()
    }

    fn all(&self, node: usize, now: Timestamp) -> Vec<Told<ElementRecord>> {
        let mut told = Vec::new();
        for shard in 0..self.nodes[node].shards() {
            let mut next = Some(0);
            while let Some(from) = next {
                let each = &mut |it| told.push(it);
                next = self.nodes[node].tell_places(&self.set, (shard, from), 2, now, each);
            }
        }
        told
    }
}

#[test]
fn a_ban_and_its_end_reach_the_other_node_and_do_not_come_back() {
    let pair = Pair::new(&[]);
    pair.packet(0, UpdateOp::Add, 1, at(0));
    pair.operator(0, ElementChange::Add, 2, at(0));
    assert_eq!(pair.tell(0, false, at(0)), (2, false));
    assert_eq!(pair.records(1, at(0)), pair.records(0, at(0)));
    assert_eq!(pair.tell(1, false, at(0)), (0, false), "what came by sync is told to nobody");
    pair.operator(0, ElementChange::Delete, 1, at(1));
    pair.packet(0, UpdateOp::Delete, 2, at(1));
    pair.settle(0, at(1));
    assert_eq!(pair.records(1, at(1)), []);
}

/// The bug of news that a transfer of all swallowed when it began: nothing else told the owner of them.
#[test]
fn news_that_wait_when_another_transfer_begins_reach_the_owner() {
    let pair = Pair::new(&[]);
    for value in 1..=3 {
        pair.operator(0, ElementChange::Add, value, at(0));
    }
    pair.settle(0, at(0));
    pair.packet(1, UpdateOp::Refresh, 1, at(50));
    pair.operator(1, ElementChange::Delete, 2, at(50));
    pair.packet(1, UpdateOp::Add, 4, at(50));
    pair.nodes[1].follow(true, false);
    assert_eq!(pair.tell(1, false, at(50)), (2, false), "not that of its own, which is read");
    assert_eq!([1, 2, 3].map(|value| pair.has(0, value, at(70))), [true, false, false]);
    pair.settle(0, at(70));
    assert!(!pair.nodes[1].has_news());
}

#[test]
fn an_element_that_is_put_off_all_the_time_is_told_every_ten_seconds_and_never_ends() {
    let pair = Pair::new(&[]);
    let mut told = 0;
    for tenth in 0..3000 {
        let now = at(0).after(Duration::from_millis(100 * tenth));
        pair.packet(0, UpdateOp::Refresh, 1, now);
        told += pair.tell(0, false, now).0;
        assert!(pair.has(1, 1, now));
    }
    assert!((28..=32).contains(&told), "told {told} times in 300 seconds");
}

#[test]
fn an_element_is_told_in_time_also_if_its_timeout_is_short() {
    let pair = Pair::new(&[]);
    let nine = Update {
        set: crate::SetId(0),
        op: UpdateOp::Refresh,
        key: crate::model::Key { loads: Vec::new() },
        timeout: Some(Duration::from_secs(3)),
    };
    for tenth in 0..300 {
        let now = at(0).after(Duration::from_millis(100 * tenth));
        let mut joined = Vec::new();
        let connection = Joining { details: None, joined: &mut joined };
        let mut meeting = Meeting { bytes: 100, now, connection };
        pair.nodes[0].update(&nine, &key(1), &mut meeting);
        pair.tell(0, false, now);
        assert!(pair.has(1, 1, now.after(Duration::from_secs(1))));
    }
}

#[test]
fn counts_and_rates_of_elements_are_told_every_ten_seconds() {
    let pair = Pair::new(&[Part::Counter, Part::Limit(RATE)]);
    let mut told = 0;
    for second in 0..50 {
        pair.packet(0, UpdateOp::Refresh, 1, at(second));
        told += pair.tell(0, false, at(second)).0;
    }
    assert!((5..=7).contains(&told), "told {told} times in 50 seconds");
    let all = pair.all(0, at(50));
    all.iter().for_each(|change| pair.apply(1, change, false, at(50)));
    assert_eq!(pair.records(1, at(50)), pair.records(0, at(50)));
}

#[test]
fn packets_that_reach_the_other_node_make_news_for_the_owner() {
    let pair = Pair::new(&[Part::Counter]);
    pair.packet(0, UpdateOp::Add, 1, at(0));
    pair.packet(0, UpdateOp::Add, 2, at(0));
    pair.settle(0, at(0));
    pair.packet(1, UpdateOp::Refresh, 1, at(30));
    pair.packet(1, UpdateOp::Delete, 2, at(30));
    pair.settle(0, at(30));
    assert!(pair.has(0, 1, at(80)) && !pair.has(0, 2, at(30)));
    assert_eq!(pair.records(1, at(31)), pair.records(0, at(31)));
    // It still is the owner's, so the other one does not tell of it in a bulk transfer.
    assert_eq!((pair.all(0, at(31)).len(), pair.all(1, at(31)).len()), (1, 0));
}

/// The bug of a standby that needs room, and has its owner end what that has put off.
#[test]
fn a_copy_that_has_expired_leaves_its_room_and_its_owner_hears_nothing() {
    let pair = Pair::new(&[]);
    pair.packet(0, UpdateOp::Add, 1, at(0));
    pair.settle(0, at(0));
    pair.packet(0, UpdateOp::Refresh, 1, at(50));
    // The standby has not heard of that.
    pair.operator(1, ElementChange::Add, 2, at(70));
    assert!(!pair.has(1, 1, at(70)));
    pair.tell(1, false, at(70));
    assert!(pair.has(0, 1, at(70)));
    pair.settle(0, at(70));
    assert!(pair.has(1, 1, at(70)));
}

#[test]
fn who_takes_over_tells_of_all_and_who_gives_away_of_none() {
    let pair = Pair::new(&[]);
    for value in 0..300 {
        pair.packet(0, UpdateOp::Add, value, at(0));
    }
    pair.settle(0, at(0));
    assert_eq!((pair.all(0, at(0)).len(), pair.all(1, at(0)).len()), (300, 0));
    let mut given = 0;
    for shard in 0..pair.nodes[0].shards() {
        let mut next = Some(0);
        while let Some(from) = next {
            let each = &mut |_| given += 1;
            next = pair.nodes[0].give_places(&pair.set, (shard, from), 7, at(0), each);
        }
    }
    pair.nodes[1].adopt();
    assert_eq!((given, pair.all(0, at(0)).len(), pair.all(1, at(0)).len()), (300, 0, 300));
    assert_eq!(pair.tell(1, false, at(0)).0, 300);
    assert_eq!(pair.tell(0, false, at(0)).0, 0);
}

#[test]
fn of_two_owners_the_one_whose_claim_prevails_remains() {
    for prevails in [0, 1] {
        let pair = Pair::new(&[]);
        pair.packet(0, UpdateOp::Add, 1, at(0));
        pair.packet(1, UpdateOp::Add, 1, at(5));
        pair.settle(prevails, at(5));
        assert_eq!(pair.records(1, at(5)), pair.records(0, at(5)));
        let owned = [0, 1].map(|node| pair.all(node, at(5)).len());
        assert_eq!(owned[prevails], 1);
        assert_eq!(owned[1 - prevails], 0);
    }
}

#[test]
fn a_flushed_set_is_told_whole_or_as_lost() {
    let pair = Pair::new(&[]);
    for value in 0..300 {
        pair.packet(0, UpdateOp::Add, value, at(0));
    }
    pair.settle(0, at(0));
    pair.nodes[0].change(ElementChange::Flush, &[], at(1)).unwrap();
    let (_, has_lost) = pair.tell(0, false, at(1));
    assert!(has_lost || pair.records(1, at(1)).is_empty());
}

#[test]
fn elements_without_the_statements_of_others_stay_so_at_the_other_node() {
    let pair = Pair::new(&[Part::Quota { bytes: 50, over: true }]);
    pair.operator(0, ElementChange::Add, 1, at(1));
    pair.packet(0, UpdateOp::Add, 1, at(2));
    pair.packet(0, UpdateOp::Add, 2, at(2));
    pair.settle(0, at(3));
    for node in [0, 1] {
        assert_eq!(pair.is_bare(node, 1, at(4)), Some(true));
        assert_eq!(pair.is_bare(node, 2, at(4)), Some(false));
    }
    assert_eq!(pair.records(0, at(4)), pair.records(1, at(4)));
    // An element that comes again by a packet has them.
    pair.operator(0, ElementChange::Delete, 1, at(5));
    pair.packet(0, UpdateOp::Add, 1, at(6));
    pair.settle(0, at(7));
    for node in [0, 1] {
        assert_eq!(pair.is_bare(node, 1, at(8)), Some(false));
    }
}

#[test]
fn elements_that_count_connections_are_not_told() {
    let bound = crate::model::Bound { most: 1, over: true };
    let pair = Pair::new(&[Part::Connections(bound)]);
    pair.packet(0, UpdateOp::Add, 1, at(0));
    pair.packet(0, UpdateOp::Delete, 1, at(0));
    let _counts = pair.joined(0, UpdateOp::Add, 2, at(0));
    assert!(pair.has(0, 2, at(0)));
    assert_eq!(pair.tell(0, false, at(0)), (0, false));
    for shard in 0..pair.nodes[0].shards() {
        let each = &mut |it| panic!("{it:?} is given away");
        pair.nodes[0].give_places(&pair.set, (shard, 0), usize::from(u16::MAX), at(0), each);
    }
}

/// Memory for changes is bounded while nobody takes them.
#[test]
fn an_element_that_comes_and_goes_is_on_the_list_once() {
    let pair = Pair::new(&[]);
    for _ in 0..1000 {
        pair.packet(0, UpdateOp::Add, 1, at(0));
        pair.packet(0, UpdateOp::Delete, 1, at(0));
    }
    pair.packet(0, UpdateOp::Add, 1, at(0));
    let (told, has_lost) = pair.tell(0, false, at(0));
    assert!(has_lost && told < 300, "{told}");
    assert!(pair.has(1, 1, at(0)));
}

#[derive(Clone, Debug)]
enum Act {
    Packet(usize, UpdateOp, u32),
    Operator(usize, ElementChange, u32),
    Wait(u64),
    Tell(usize),
}

fn act() -> impl Strategy<Value = Act> {
    let op = prop_oneof![
        4 => Just(UpdateOp::Add), 2 => Just(UpdateOp::Refresh), 2 => Just(UpdateOp::Delete),
    ];
    let change = prop_oneof![Just(ElementChange::Add), Just(ElementChange::Delete)];
    prop_oneof![
        6 => (0..2_usize, op, 0..20_u32).prop_map(|(node, op, value)| Act::Packet(node, op, value)),
        2 => (0..2_usize, change, 0..20_u32)
            .prop_map(|(node, change, value)| Act::Operator(node, change, value)),
        1 => (1..90_u64).prop_map(Act::Wait),
        2 => (0..2_usize).prop_map(Act::Tell),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// In the end both have the same elements, whenever they tell each other, but for those that end
    /// soon. While packets come to both, an element that one of them deletes while the other one adds
    /// it may stay at either.
    #[test]
    fn a_standby_ends_up_with_what_the_active_node_has(
        acts in prop::collection::vec(act(), 1..80),
        both in any::<bool>(),
    ) {
        let pair = Pair::new(&[]);
        let (mut now, mut told_at, mut silence) = (0, 0, 0);
        for act in acts {
            let node = |node: usize| if both { node } else { 0 };
            match act {
                Act::Packet(it, op, value) => pair.packet(node(it), op, value, at(now)),
                Act::Operator(it, change, value) => {
                    pair.operator(node(it), change, value, at(now));
                }
                Act::Wait(seconds) => now += seconds,
                Act::Tell(it) => {
                    if it == 0 {
                        silence = silence.max(now - told_at);
                        told_at = now;
                    }
                    pair.tell(it, it == 0, at(now));
                }
            }
        }
        pair.settle(0, at(now));
        if !both {
            // An end that is put off within ten seconds after the last news is not told, and that
            // news may have been as old as the silence before it. So much earlier a copy may end.
            let told_by = at(now + 10 + silence);
            let names = |node: usize, lives_at: Timestamp| {
                let of = |it: &ElementRecord| format!("{:?}", it.name());
                pair.records(node, lives_at).iter().map(of).collect::<BTreeSet<_>>()
            };
            let (owned, copied) = (names(0, at(now)), names(1, at(now)));
            prop_assert!(copied.is_subset(&owned), "{copied:?}, but {owned:?}");
            let lasting = names(0, told_by);
            prop_assert!(lasting.is_subset(&copied), "{lasting:?}, but {copied:?}");
            prop_assert_eq!(pair.all(1, at(now)), vec![]);
        }
    }
}
