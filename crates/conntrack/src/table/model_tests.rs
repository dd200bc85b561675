//! The table against a map that does the same in the simplest way.

use std::collections::HashMap;

use flow::{FlowKey, Side};
use proptest::prelude::*;

use super::*;
use crate::testing::{Lab, SECRET, keyed, network, tcp, udp};
use wire::{Family, IcmpQuery, Network, QueryKind, protocol};

struct Known {
    originator: Side,
    seen_reply: bool,
    assured: bool,
    deadline: Timestamp,
    state: State,
    /// Its place in the order of eviction, with the step at which it got there.
    place: Option<(u8, u64)>,
}

impl Known {
    /// Unreplied, unassured, or closing; others are not evicted.
    fn rank(&self) -> Option<u8> {
        match (self.assured, self.seen_reply) {
            (false, seen_reply) => Some(u8::from(seen_reply)),
            (true, _) => self.state.is_closing().then_some(2),
        }
    }
}

/// The expected behaviour of the table, with the same protocol trackers.
struct Model {
    known: HashMap<FlowKey, Known>,
    room: usize,
    evicted: u64,
    steps: u64,
}

impl Model {
    fn with_room_for(room: usize) -> Self {
        Self { known: HashMap::new(), room, evicted: 0, steps: 0 }
    }

    /// The class, or `None` if the packet is refused.
    fn track(&mut self, network: &Network, lab: &Lab) -> Option<Class> {
        self.steps += 1;
        let class = self.classify(network, lab);
        for known in self.known.values_mut() {
            let rank = known.rank();
            if rank != known.place.map(|(rank, _)| rank) {
                known.place = rank.map(|rank| (rank, self.steps));
            }
        }
        class
    }

    fn classify(&mut self, network: &Network, lab: &Lab) -> Option<Class> {
        let keyed = keyed(network);
        let (now, settings) = (lab.now, &lab.settings);
        let input = Input {
            now,
            network,
            frame: &[],
            timeouts: &settings.timeouts,
            tcp: &settings.tcp,
            dccp_loose: settings.dccp_loose,
            policy: None,
        };
        self.known.retain(|_, known| known.deadline > now);
        let Some(known) = self.known.get_mut(&keyed.key) else {
            return self.open(&input, keyed.key, keyed.sender);
        };
        let direction =
            if keyed.sender == known.originator { Direction::Original } else { Direction::Reply };
        let before = Before { direction, seen_reply: known.seen_reply, assured: known.assured };
        let replied = known.seen_reply || direction == Direction::Reply;
        let class = if replied { Class::Established } else { Class::New };
        Some(match known.state.advance(&input, before) {
            Step::Accept { timeout, assure, .. } => {
                known.seen_reply = replied;
                known.assured |= assure;
                known.deadline = deadline(now, timeout);
                class
            }
            Step::Pass | Step::Hold { .. } => {
                known.seen_reply = replied;
                class
            }
            Step::Invalid { why, cap } => {
                if let Some(cap) = cap {
                    known.deadline = known.deadline.min(deadline(now, cap));
                }
                Class::Invalid(why.reason())
            }
            Step::End => {
                self.known.remove(&keyed.key);
                class
            }
            Step::Reopen => {
                self.known.remove(&keyed.key);
                return self.open(&input, keyed.key, keyed.sender);
            }
        })
    }

    fn open(&mut self, input: &Input<'_>, key: FlowKey, originator: Side) -> Option<Class> {
        let (state, timeout) = match State::open(input) {
            Ok(opened) => opened,
            Err(why) => return Some(Class::Invalid(why.reason())),
        };
        if self.known.len() == self.room {
            let candidates = self.known.iter().filter(|(_, known)| known.place.is_some());
            // The more numerous group goes first: the unreplied or the unassured.
            let count = |rank| candidates.clone().filter(|(_, it)| it.rank() == Some(rank)).count();
            let unassured_first = count(1) > count(0);
            let order = |known: &Known| {
                let (rank, since) = known.place?;
                Some(([rank, [1, 0, 2][usize::from(rank)]][usize::from(unassured_first)], since))
            };
            let victim = *candidates.clone().min_by_key(|(_, known)| order(known))?.0;
            self.known.remove(&victim);
            self.evicted += 1;
        }
        let deadline = deadline(input.now, timeout);
        let (seen_reply, assured, place) = (false, false, None);
        self.known.insert(key, Known { originator, seen_reply, assured, deadline, state, place });
        Some(Class::New)
    }
}

#[derive(Clone, Debug)]
enum Action {
    Packet(Box<Network>),
    WaitMillis(u64),
    Expire(usize),
    Delete(Box<Network>),
}

/// Few ends, so that packets meet.
fn any_packet() -> impl Strategy<Value = Box<Network>> {
    let end = || (0u8..3, 0u16..3);
    let flags = prop::sample::select(&[0x02u8, 0x12, 0x10, 0x10, 0x10, 0x11, 0x04, 0x14, 0x00][..]);
    (any::<bool>(), end(), end(), 0u8..8, flags, (0u8..3, 0u8..3)).prop_map(
        |(six, from, to, kind, flags, numbers)| {
            let family = if six { Family::V6 } else { Family::V4 };
            Box::new(match kind {
                0..4 => tcp(family, from, to, flags, numbers),
                4..6 => udp(family, from, to),
                6 => {
                    let query = IcmpQuery {
                        kind: QueryKind::Echo,
                        reply: numbers.0 == 0,
                        icmp_type: 8,
                        code: 0,
                        id: from.1,
                    };
                    network(family, from.0, to.0, protocol::ICMP, Transport::IcmpQuery(query))
                }
                _ => network(family, from.0, to.0, 99 + flags % 2, Transport::Other),
            })
        },
    )
}

fn any_action() -> impl Strategy<Value = Action> {
    prop_oneof![
        20 => any_packet().prop_map(Action::Packet),
        4 => (0u64..4000).prop_map(Action::WaitMillis),
        1 => (0u64..500_000_000).prop_map(Action::WaitMillis),
        2 => (0usize..20).prop_map(Action::Expire),
        1 => any_packet().prop_map(Action::Delete),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]
    #[test]
    fn the_table_does_what_a_map_does(
        actions in proptest::collection::vec(any_action(), 1..250),
    ) {
        let mut lab = Lab::new();
        let mut model = Model::with_room_for(usize::MAX);
        for action in actions {
            match action {
                Action::Packet(network) => {
                    let expected = model.track(&network, &lab);
                    prop_assert_eq!(Some(lab.track(&network).class), expected, "{:?}", network);
                }
                Action::WaitMillis(millis) => {
                    lab.wait(std::time::Duration::from_millis(millis));
                }
                Action::Expire(budget) => {
                    let looked_at = lab.run(|table, context| table.expire(budget, context));
                    prop_assert!(looked_at <= budget);
                }
                Action::Delete(network) => {
                    let key = keyed(&network).key;
                    let now = lab.now;
                    let known =
                        model.known.remove(&key).is_some_and(|known| known.deadline > now);
                    let hash = key.hash(SECRET);
                    prop_assert_eq!(lab.run(|table, cx| table.delete(&key, hash, cx)), known);
                }
            }
            let now = lab.now;
            model.known.retain(|_, known| known.deadline > now);
            let listed = lab.listed();
            prop_assert_eq!(listed.len(), model.known.len());
            for connection in listed {
                let known = &model.known[&connection.key];
                prop_assert_eq!(connection.seen_reply, known.seen_reply);
                prop_assert_eq!(connection.assured, known.assured);
                prop_assert_eq!(connection.state, known.state.name());
                // To the tick of 4 ms that has begun, as with the kernel.
                let ticks = known.deadline.since(now).as_nanos().div_ceil(4_000_000) as u64;
                prop_assert_eq!(connection.timeout_s, ticks / 250);
            }
            prop_assert_eq!(lab.limits.used(), lab.table.len() as u64);
        }
        lab.wait(std::time::Duration::from_secs(1_000_000));
        while lab.run(|table, context| table.expire(7, context)) > 0 {}
        prop_assert_eq!((lab.table.len(), lab.limits.used()), (0, 0));
        let counters = lab.counters;
        prop_assert_eq!(counters.insert, counters.delete);
    }

    /// Time hardly passes, so connections end by eviction and not by expiry.
    #[test]
    fn a_full_table_gives_way_in_the_order_of_the_model(
        room in 1usize..8,
        packets in proptest::collection::vec(any_packet(), 1..250),
    ) {
        let mut lab = Lab::with_room_for(room as u64);
        let mut model = Model::with_room_for(room);
        for network in packets {
            let expected = model.track(&network, &lab);
            let tracked = lab.track(&network);
            let class = (tracked.verdict == crate::Verdict::Accept).then_some(tracked.class);
            prop_assert_eq!(class, expected, "{:?}", network);
            prop_assert_eq!(lab.counters.early_drop, model.evicted);
            let mut listed: Vec<FlowKey> = lab.listed().iter().map(|c| c.key).collect();
            listed.retain(|key| model.known.contains_key(key));
            prop_assert_eq!(listed.len(), lab.table.len());
            lab.wait(std::time::Duration::from_millis(20));
        }
    }
}
