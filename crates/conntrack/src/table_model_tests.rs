//! The table against a map that does the same in the plainest way.

use std::collections::HashMap;

use flow::Side;
use proptest::prelude::*;

use super::tests::{Lab, SECRET, keyed, network, tcp, udp};
use super::*;
use wire::{Family, IcmpQuery, Network, QueryKind, protocol};

struct Known {
    originator: Side,
    seen_reply: bool,
    assured: bool,
    deadline: Timestamp,
    state: State,
}

/// What the table must do, with the same protocol trackers.
#[derive(Default)]
struct Model {
    known: HashMap<FlowKey, Known>,
}

impl Model {
    fn track(&mut self, network: &Network, lab: &Lab) -> Class {
        let keyed = keyed(network);
        let (now, settings) = (lab.now, &lab.settings);
        let input = Input { now, network, frame: &[], settings };
        self.known.retain(|_, known| known.deadline > now);
        let Some(known) = self.known.get_mut(&keyed.key) else {
            return self.open(&input, keyed.key, keyed.sender);
        };
        let direction =
            if keyed.sender == known.originator { Direction::Original } else { Direction::Reply };
        let before = Before { direction, seen_reply: known.seen_reply, assured: known.assured };
        let replied = known.seen_reply || direction == Direction::Reply;
        let class = if replied { Class::Established } else { Class::New };
        match known.state.advance(&input, before) {
            Step::Accept { timeout, assure, .. } => {
                known.seen_reply = replied;
                known.assured |= assure;
                known.deadline = deadline(now, timeout);
                class
            }
            Step::Pass => {
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
                self.open(&input, keyed.key, keyed.sender)
            }
        }
    }

    fn open(&mut self, input: &Input<'_>, key: FlowKey, originator: Side) -> Class {
        match State::open(input) {
            Ok((state, timeout)) => {
                let deadline = deadline(input.now, timeout);
                let known =
                    Known { originator, seen_reply: false, assured: false, deadline, state };
                self.known.insert(key, known);
                Class::New
            }
            Err(why) => Class::Invalid(why.reason()),
        }
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
        let mut model = Model::default();
        for action in actions {
            match action {
                Action::Packet(network) => {
                    let expected = model.track(&network, &lab);
                    prop_assert_eq!(lab.track(&network).class, expected, "{:?}", network);
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
                prop_assert_eq!(connection.timeout_s, known.deadline.since(now).as_secs());
            }
            prop_assert_eq!(lab.lease.used(), lab.table.len() as u64);
        }
        lab.wait(std::time::Duration::from_secs(1_000_000));
        while lab.run(|table, context| table.expire(7, context)) > 0 {}
        prop_assert_eq!((lab.table.len(), lab.lease.used()), (0, 0));
        let counters = lab.counters;
        prop_assert_eq!(counters.insert, counters.delete);
    }
}
