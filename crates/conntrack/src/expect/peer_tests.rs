use std::net::IpAddr;
use std::time::Duration;

use flow::replica::{Origin, Taken};
use flow::{Endpoint, HashKey, KeyedPacket, Zone};
use proptest::prelude::*;
use wire::{Family, mapped, protocol};

use super::super::record::{Announcement, NotTaken};
use super::super::{ExpectationRecord, Master};
use super::*;
use crate::helper::{Announced, Announcements, Kind};
use crate::{Direction, NoInterfaces};

const CLIENT: &str = "192.0.2.1";
const SERVER: &str = "198.51.100.2";
const LIMIT: u64 = 1000;

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_secs(1000 + seconds)
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn master(port: u16) -> Master {
    let end = |text, port| Endpoint { address: mapped(address(text)), port };
    let (from, to) = (end(CLIENT, port), end(SERVER, 5060));
    let flow = FlowKey::of_ports(Family::V4, protocol::UDP, Zone(0), from, to);
    Master { flow, helper: Kind::Sip, mark: 7, zone: Zone(0) }
}

/// A control connection of PPTP.
fn control(port: u16) -> FlowKey {
    let end = |text, port| Endpoint { address: mapped(address(text)), port };
    let (from, to) = (end(CLIENT, port), end(SERVER, 1723));
    FlowKey::of_ports(Family::V4, protocol::TCP, Zone(0), from, to).key
}

fn media(port: u16) -> Announced {
    Announced { class: 1, ..Announced::new(protocol::UDP, address(CLIENT), port) }
}

/// Media whose place gets a port of this node.
fn place(port: u16) -> Announced {
    let follow = crate::nat::ExpectedTranslation {
        destination: Some((address("203.0.113.9"), port)),
        source: None,
        source_port: None,
        interface: None,
    };
    Announced { pair_of: Some(port), follow: Some(follow), ..media(port) }
}

fn packet_to(port: u16) -> KeyedPacket {
    let end = |text, port| Endpoint { address: mapped(address(text)), port };
    let (from, to) = (end(SERVER, 9000), end(CLIENT, port));
    FlowKey::of_ports(Family::V4, protocol::UDP, Zone(0), from, to)
}

/// Two gateways.
struct Pair([Expectations; 2]);

impl Pair {
    fn new() -> Self {
        let nodes = [Expectations::new(HashKey(1, 2)), Expectations::new(HashKey(3, 4))];
        nodes.iter().for_each(|node| node.follow_changes(true));
        Self(nodes)
    }

    fn announce(&self, node: usize, master_port: u16, announced: Announced, now: Timestamp) {
        self.0[node].announce(master(master_port), announced, LIMIT, now, &mut None).unwrap();
    }

    /// Tells the other node all that a node has to tell. Returns how many changes there were.
    fn tell(&self, from: usize, prevails: bool, now: Timestamp) -> usize {
        let mut told = Vec::new();
        while self.0[from].has_changes() {
            let has_lost =
                self.0[from].take_changes(3, &NoInterfaces, now, |change| told.push(change));
            assert!(!has_lost);
        }
        let mut last = 0;
        let to = &self.0[1 - from];
        let count = told.len();
        for change in told {
            let (Told::State { stamp, .. } | Told::End { stamp, .. }) = &change;
            assert!(*stamp > last, "later changes have higher stamps");
            last = *stamp;
            match change {
                Told::State { is_copy, record, .. } => {
                    let origin = if is_copy { Origin::News } else { Origin::Owner { prevails } };
                    let _ = to.import(&record, None, (LIMIT, origin), now, &mut None);
                }
                Told::End { is_copy, name, .. } => {
                    to.end_named(&name, !is_copy, now, &mut None);
                }
            }
        }
        count
    }

    /// Lets both tell each other until neither has anything to tell.
    fn settle(&self, prevails: usize, now: Timestamp) {
        for round in 0.. {
            let told = self.tell(0, prevails == 0, now) + self.tell(1, prevails == 1, now);
            if told == 0 {
                return;
            }
            assert!(round < 10, "they tell each other the same in a circle");
        }
    }

    fn records(&self, node: usize, now: Timestamp) -> Vec<AnnouncementRecord> {
        let mut records = Vec::new();
        let mut next = Some(AnnouncementCursor::default());
        while let Some(from) = next {
            let each = |record| records.push(record);
            next = self.0[node].records_from(from, 3, &NoInterfaces, now, each);
        }
        records
    }

    /// The names of all that a node has, in an order of their own.
    fn names(&self, node: usize, now: Timestamp) -> Vec<Vec<u8>> {
        let bytes = |record: AnnouncementRecord| {
            let mut bytes = Vec::new();
            record.name().encode(&mut bytes);
            let read = AnnouncementRecord::decode(&bytes).unwrap();
            assert_eq!(read.name(), read, "a name is its own name");
            bytes
        };
        let mut names: Vec<_> = self.records(node, now).into_iter().map(bytes).collect();
        names.sort();
        names
    }

    fn finds(&self, node: usize, port: u16, now: Timestamp) -> bool {
        let claim = self.0[node].claim(&packet_to(port), now, &mut None);
        claim.as_ref().inspect(|claim| self.0[node].release(claim)).is_some()
    }
}

#[test]
fn an_announcement_is_made_changed_and_ended_at_the_other_node() {
    let pair = Pair::new();
    let waiting = Announced { waits: true, ..media(6000) };
    pair.announce(0, 1, waiting, at(0));
    assert_eq!(pair.tell(0, false, at(0)), 1);
    assert_eq!(pair.records(1, at(0)), pair.records(0, at(0)));
    assert!(!pair.finds(1, 6000, at(0)), "it waits for its confirmation");

    pair.0[0].confirm(&master(1).flow.key, 1, 500, at(1), &mut None);
    assert_eq!(pair.tell(0, false, at(1)), 1);
    assert_eq!(pair.records(1, at(2)), pair.records(0, at(2)));
    assert!(pair.finds(1, 6000, at(2)));

    let claim = pair.0[0].claim(&packet_to(6000), at(3), &mut None).unwrap();
    pair.0[0].fulfil(&claim, at(3), &mut None);
    pair.settle(0, at(3));
    assert_eq!(pair.records(1, at(3)), []);
}

/// The bug of a standby that ends what its owner has put off.
#[test]
fn a_copy_outlives_its_time_until_its_owner_ends_it() {
    let pair = Pair::new();
    pair.announce(0, 1, media(6000), at(0));
    pair.settle(0, at(0));
    let over = at(100_000);
    assert!(pair.finds(1, 6000, over), "its owner may have put it off");
    pair.0[1].expire(over, &mut None);
    assert_eq!(pair.0[1].len(), 1);

    // The owner ends it.
    pair.0[0].expire(over, &mut None);
    pair.settle(0, over);
    assert_eq!(pair.0[1].len(), 0);
}

#[test]
fn what_was_taken_over_has_ten_seconds_left_and_ends() {
    let pair = Pair::new();
    pair.announce(0, 1, media(6000), at(0));
    pair.settle(0, at(0));
    let over = at(100_000);
    pair.0[1].adopt(over);
    assert!(pair.finds(1, 6000, over.after(Duration::from_secs(9))));
    let end = over.after(Duration::from_secs(10));
    assert!(!pair.finds(1, 6000, end));
    pair.0[1].expire(end, &mut None);
    assert_eq!(pair.0[1].len(), 0);
}

#[test]
fn packets_that_reach_the_other_node_make_news_for_the_owner() {
    let pair = Pair::new();
    for port in [6000, 6002] {
        pair.announce(0, 1, media(port), at(0));
    }
    pair.settle(0, at(0));
    let claim = pair.0[1].claim(&packet_to(6000), at(1), &mut None).unwrap();
    pair.0[1].fulfil(&claim, at(1), &mut None);
    pair.0[1].confirm(&master(1).flow.key, 1, 5000, at(1), &mut None);
    pair.settle(0, at(1));
    assert!(!pair.finds(0, 6000, at(1)) && !pair.finds(1, 6000, at(1)));
    assert!(pair.finds(0, 6002, at(4000)), "the owner has put it off");
    // It still is the owner's.
    pair.0[0].expire(at(6000), &mut None);
    pair.settle(0, at(6000));
    assert_eq!(pair.0[1].len(), 0);
}

#[test]
fn the_end_of_a_connection_is_not_told_again_by_those_who_follow_it() {
    let pair = Pair::new();
    pair.announce(0, 1, media(6000), at(0));
    pair.settle(0, at(0));
    // The copy of the connection ends first.
    pair.0[1].forget(&master(1).flow.key, at(1), &mut None);
    assert_eq!((pair.0[1].len(), pair.tell(1, false, at(1))), (0, 0));
    pair.0[0].forget(&master(1).flow.key, at(1), &mut None);
    assert_eq!(pair.tell(0, false, at(1)), 1, "so that the peer forgets its name");
}

#[test]
fn of_two_owners_the_one_whose_claim_prevails_remains() {
    for prevails in [0, 1] {
        let pair = Pair::new();
        for node in [0, 1] {
            pair.announce(node, 1, media(6000), at(node as u64));
        }
        pair.settle(prevails, at(1));
        let left = |node: usize| match &pair.records(node, at(1))[..] {
            [AnnouncementRecord(Announcement::Expectation(it))] => it.left,
            others => panic!("{others:?}"),
        };
        assert_eq!(left(0), left(1));
        // Only the owner ends it.
        pair.0[1 - prevails].expire(at(50_000), &mut None);
        assert_eq!(pair.0[1 - prevails].len(), 1);
        pair.0[prevails].expire(at(50_000), &mut None);
        pair.settle(prevails, at(50_000));
        assert_eq!(pair.0[1 - prevails].len(), 0);
    }
}

#[test]
fn a_record_is_filed_anew_if_its_destination_has_another_zone() {
    let pair = Pair::new();
    pair.announce(0, 1, media(6000), at(0));
    pair.settle(0, at(0));
    let [AnnouncementRecord(Announcement::Expectation(it))] = &pair.records(0, at(0))[..] else {
        panic!("one expectation")
    };
    let elsewhere = Master { zone: Zone(7), ..it.master };
    let record = ExpectationRecord { master: elsewhere, ..(**it).clone() };
    let record = AnnouncementRecord(Announcement::Expectation(Box::new(record)));
    let origin = Origin::Owner { prevails: false };
    let taken = pair.0[1].import(&record, None, (LIMIT, origin), at(0), &mut None);
    assert_eq!(taken, Ok(Taken::Changed));
    assert!(!pair.finds(1, 6000, at(0)) && pair.0[1].len() == 1);
    pair.0[1].forget(&master(1).flow.key, at(0), &mut None);
    assert_eq!(pair.0[1].len(), 0);
}

#[test]
fn a_copy_never_passes_a_limit() {
    let pair = Pair::new();
    for port in [6000, 6002] {
        pair.announce(0, port, media(port), at(0));
    }
    let mut told = Vec::new();
    pair.0[0].take_changes(10, &NoInterfaces, at(0), |change| told.push(change));
    let import = |change: &Told<AnnouncementRecord>| {
        let Told::State { record, .. } = change else { panic!("{change:?}") };
        let origin = Origin::Owner { prevails: true };
        pair.0[1].import(record, None, (1, origin), at(0), &mut None)
    };
    assert_eq!(import(&told[0]), Ok(Taken::Made));
    assert_eq!(import(&told[1]), Err(NotTaken::Full));
    assert_eq!(import(&told[0]), Ok(Taken::Changed), "it has its place already");
}

#[test]
fn a_bulk_transfer_has_what_a_node_owns() {
    let pair = Pair::new();
    pair.0[0].follow_changes(false);
    pair.announce(0, 1, media(6000), at(0));
    let way = Way { zone: Zone(0), from: mapped(address(SERVER)), to: mapped(address(CLIENT)) };
    pair.0[0].give_call_id(&control(1), (Direction::Original, 5), way);
    assert!(!pair.0[0].has_changes(), "nobody follows");
    let all = |node: usize| {
        let (mut told, mut next) = (Vec::new(), Some(AnnouncementCursor::default()));
        while let Some(from) = next {
            let each = |change| told.push(change);
            next = pair.0[node].tell_all_from(from, 1, &NoInterfaces, at(0), each);
        }
        told
    };
    let told = all(0);
    assert_eq!(told.len(), 2);
    for change in told {
        let Told::State { is_copy: false, record, .. } = change else { panic!("{change:?}") };
        let origin = Origin::Owner { prevails: false };
        pair.0[1].import(&record, None, (LIMIT, origin), at(0), &mut None).unwrap();
    }
    assert_eq!(pair.names(1, at(0)), pair.names(0, at(0)));
    assert_eq!(all(1), [], "they are the peer's");
    pair.0[1].adopt(at(0));
    assert_eq!(all(1).len(), 2);

    // The other way round.
    let mut given = Vec::new();
    let mut each = |record| given.push(record);
    let mut next = Some(AnnouncementCursor::default());
    while let Some(from) = next {
        next = pair.0[0].give_away_from(from, 1, &NoInterfaces, at(0), &mut each);
    }
    assert_eq!((given.len(), all(0)), (2, vec![]));
}

#[test]
fn a_bulk_transfer_has_every_place_although_others_are_forgotten_meanwhile() {
    let Pair([node, _]) = Pair::new();
    for port in [6000, 6002, 6004] {
        node.choose_port(&master(1), &place(port), 1024..1030).unwrap();
    }
    let mut told = Vec::new();
    let mut next = Some(AnnouncementCursor::default());
    while let Some(from) = next {
        next = node.records_from(from, 1, &NoInterfaces, at(0), |record| told.push(record));
        let book = &mut node.book();
        if told.len() == 1 && book.media.ports.len() == 3 {
            let first = book.media.order[0];
            assert!(book.media.forget(&first));
        }
    }
    assert_eq!(told.len(), 3, "{told:?}");
}

/// An operation at one of two nodes.
#[derive(Clone, Debug)]
enum Op {
    Announce(usize, u16, u16, bool),
    Take(usize, u16),
    Confirm(usize, u16),
    EndMaster(u16),
    CallId(usize, u16, u16),
    Place(usize, u16),
    Expire(usize),
    Pass,
    Tell(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let (node, master, port) = (0..2_usize, 1..4_u16, (0..6_u16).prop_map(|it| 6000 + 2 * it));
    prop_oneof![
        4 => (node.clone(), master.clone(), port.clone(), any::<bool>())
            .prop_map(|(node, master, port, waits)| Op::Announce(node, master, port, waits)),
        2 => (node.clone(), port.clone()).prop_map(|(node, port)| Op::Take(node, port)),
        1 => (node.clone(), master.clone()).prop_map(|(node, master)| Op::Confirm(node, master)),
        1 => master.clone().prop_map(Op::EndMaster),
        2 => (node.clone(), master, 0..9_u16).prop_map(|(node, it, id)| Op::CallId(node, it, id)),
        1 => (node.clone(), port).prop_map(|(node, port)| Op::Place(node, port)),
        1 => node.clone().prop_map(Op::Expire),
        1 => Just(Op::Pass),
        3 => node.prop_map(Op::Tell),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever happens at one node, and whenever it tells the other one, in the end both have the
    /// same, and nothing goes in a circle.
    #[test]
    fn a_standby_ends_up_with_what_the_active_node_has(
        ops in prop::collection::vec(op(), 1..60),
        both in any::<bool>(),
    ) {
        let pair = Pair::new();
        let mut now = at(0);
        for op in ops {
            // Half of all cases have packets at one node only.
            let node = |node: usize| if both { node } else { 0 };
            match op {
                Op::Announce(it, master, port, waits) => {
                    let waits = waits && !both;
                    pair.announce(node(it), master, Announced { waits, ..media(port) }, now);
                }
                Op::Take(it, port) => {
                    let it = &pair.0[node(it)];
                    if let Some(claim) = it.claim(&packet_to(port), now, &mut None) {
                        it.fulfil(&claim, now, &mut None);
                    }
                }
                Op::Confirm(it, port) => {
                    pair.0[node(it)].confirm(&master(port).flow.key, 1, 99, now, &mut None);
                }
                Op::EndMaster(port) => {
                    // Each node hears of it by the connection itself.
                    for it in &pair.0 {
                        it.forget(&master(port).flow.key, now, &mut None);
                        it.forget(&control(port), now, &mut None);
                    }
                }
                Op::CallId(it, port, own) => {
                    let (from, to) = (mapped(address(SERVER)), mapped(address(CLIENT)));
                    let way = Way { zone: Zone(0), from, to };
                    let end = (Direction::Original, own);
                    let _ = pair.0[node(it)].give_call_id(&control(port), end, way);
                }
                Op::Place(it, port) => {
                    let _ = pair.0[node(it)].choose_port(&master(1), &place(port), 1024..1030);
                }
                Op::Expire(it) => drop(pair.0[node(it)].expire(now, &mut None)),
                Op::Pass => now = now.after(Duration::from_secs(100)),
                Op::Tell(it) => drop(pair.tell(it, it == 0, now)),
            }
        }
        pair.settle(0, now);
        for it in [0, 1] {
            while pair.0[it].expire(now, &mut None) {}
        }
        pair.settle(0, now);
        if !both {
            prop_assert_eq!(pair.names(1, now), pair.names(0, now));
        }
    }
}
