//! Filters compared with a scan of the full listing.

use flow::{FlowKey, Zone};
use proptest::prelude::*;
use wire::{Family, TcpFlags, protocol};

use super::*;
use crate::Label;
use crate::testing::{Lab, SECRET, keyed, tcp, udp};

fn any_filter() -> impl Strategy<Value = Filter> {
    let prefix = || {
        const TEXTS: [&str; 5] =
            ["192.0.2.1", "192.0.2.0/30", "192.0.2.2/31", "0.0.0.0/0", "2001:db8::/64"];
        prop::option::of(prop::sample::select(&TEXTS[..]).prop_map(|text| text.parse().unwrap()))
    };
    let protocols = prop::option::of(prop::sample::select(&[protocol::TCP, protocol::UDP, 1][..]));
    let family = prop::option::of(prop::sample::select(&[Family::V4, Family::V6][..]));
    let ports = (prop::option::of(1u16..4), prop::option::of(1u16..4));
    let rest = (prop::option::of(0u16..2), prop::option::of(any::<bool>()), labels());
    (prefix(), prefix(), protocols, family, ports, rest).prop_map(
        |(source, destination, protocol, family, (source_port, destination_port), rest)| Filter {
            family,
            protocol,
            zone: rest.0,
            labels: rest.2,
            source,
            destination,
            source_port,
            destination_port,
            seen_reply: rest.1,
            ..Filter::default()
        },
    )
}

/// Few labels, so that filters meet them.
fn labels() -> impl Strategy<Value = Labels> {
    let label = prop::sample::select(&[0, 1, 64, 127][..]).prop_map(|bit| Label::new(bit).unwrap());
    prop::collection::vec(label, 0..3).prop_map(|labels| labels.into_iter().collect())
}

/// Few ends, so that filters meet them.
fn filled(ends: &[(bool, u8, u8, u16, u16, bool)]) -> Lab {
    let mut lab = Lab::new();
    for &(six, from, to, source, destination, is_tcp) in ends {
        let family = if six { Family::V6 } else { Family::V4 };
        let (from, to) = ((from, source), (to, destination));
        let packet = match is_tcp {
            true => tcp(family, from, to, TcpFlags::SYN.0, (0, 0)),
            false => udp(family, from, to),
        };
        lab.track(&packet);
    }
    lab
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn a_filter_chooses_what_it_matches_in_pieces_of_any_size(
        ends in prop::collection::vec(
            (any::<bool>(), 1u8..4, 1u8..4, 1u16..4, 1u16..4, any::<bool>()), 1..60),
        labelled in prop::collection::vec((any_filter(), labels()), 0..4),
        filter in any_filter(),
        budget in 1u32..100,
    ) {
        let mut lab = filled(&ends);
        for (filter, add_labels) in labelled {
            let changes = Changes { add_labels, ..Changes::default() };
            let whole = (Cursor::default(), u32::MAX);
            lab.run(|table, context| table.select(&filter, Action::Update(changes), whole, context));
        }
        let mut wanted = lab.listed();
        wanted.retain(|connection| filter.matches(connection));
        let (mut found, mut cursor) = (Vec::new(), Some(Cursor::default()));
        while let Some(from) = cursor {
            cursor = lab.run(|table, context| {
                let mut show = |connection| found.push(connection);
                table.select(&filter, Action::Show(&mut show), (from, budget), context).1
            });
        }
        prop_assert_eq!(&found, &wanted);
        if let Some(keys) = filter.flows(Zone(0)) {
            // None of them is chosen if the filter names another zone.
            let chosen = lab.run(|table, context| {
                keys.iter().any(|key| {
                    table.select_flow(key, key.hash(SECRET), &filter, Action::Delete, context)
                })
            });
            prop_assert!(keys.len() <= 1);
            prop_assert_eq!(chosen, !wanted.is_empty());
            prop_assert!(wanted.len() <= 1);
        }
        let whole = (Cursor::default(), u32::MAX);
        let changes = Changes { mark: Some((9, u32::MAX)), timeout_s: Some(7), ..Changes::default() };
        let changed = lab.run(|table, context| table.select(&filter, Action::Update(changes), whole, context).0);
        let marked: Vec<FlowKey> = lab.listed().iter().filter(|c| (c.mark, c.timeout_s) == (9, 7)).map(|c| c.key).collect();
        prop_assert_eq!(marked.len() as u64, changed);
        // A change without an effect is not reported.
        let changes = Changes { timeout_s: None, ..changes };
        lab.events.clear();
        let again = lab.run(|table, context| table.select(&filter, Action::Update(changes), whole, context).0);
        prop_assert_eq!((again, lab.events.len()), (0, 0));
        let ended = lab.run(|table, context| table.select(&filter, Action::Delete, whole, context).0);
        prop_assert_eq!(ended, changed);
        prop_assert!(lab.listed().iter().all(|connection| !filter.matches(connection)));
    }
}

/// A step in the life of connections with labels.
#[derive(Clone, Debug)]
enum Step {
    Open(u8),
    End(u8),
    Change(u8, Labels, Labels),
}

proptest! {
    /// The model is a map. Slots are used again by connections without labels.
    #[test]
    fn labels_belong_to_one_connection_until_it_ends(
        steps in prop::collection::vec(
            prop_oneof![
                (0u8..40).prop_map(Step::Open),
                (0u8..40).prop_map(Step::End),
                (0u8..40, labels(), labels()).prop_map(|(i, drop, add)| Step::Change(i, drop, add)),
            ],
            1..120,
        ),
    ) {
        // The same steps without labels.
        let mut bare = Lab::new();
        let mut lab = Lab::new();
        let mut model = std::collections::BTreeMap::new();
        let packet = |i: u8| udp(Family::V4, (1, i.into()), (2, 53));
        let key = |i| keyed(&packet(i)).key;
        for step in steps {
            match step {
                Step::Open(i) => {
                    lab.track(&packet(i));
                    bare.track(&packet(i));
                    model.entry(i).or_insert(Labels::NONE);
                }
                Step::End(i) => {
                    for lab in [&mut lab, &mut bare] {
                        lab.run(|table, context| table.delete(&key(i), key(i).hash(SECRET), context));
                    }
                    model.remove(&i);
                }
                Step::Change(i, drop_labels, add_labels) => {
                    let changes = Changes { drop_labels, add_labels, ..Changes::default() };
                    let hash = key(i).hash(SECRET);
                    let known = lab.run(|table, context| table.update(&key(i), hash, changes, context));
                    prop_assert_eq!(known, model.contains_key(&i));
                    let kept = |labels: Labels| labels & !drop_labels | add_labels;
                    model.entry(i).and_modify(|labels| *labels = kept(*labels));
                    if !known { model.remove(&i); }
                }
            }
            let mut listed: Vec<_> = lab.listed().iter().map(|c| (c.key, c.labels)).collect();
            let mut wanted: Vec<_> = model.iter().map(|(&i, &labels)| (key(i), labels)).collect();
            listed.sort_by_key(|&(key, _)| key);
            wanted.sort_by_key(|&(key, _)| key);
            prop_assert_eq!(listed, wanted);
        }
        for i in 0..40 {
            let changes = Changes { drop_labels: Labels::ALL, ..Changes::default() };
            lab.run(|table, context| table.update(&key(i), key(i).hash(SECRET), changes, context));
        }
        // No memory of labels remains.
        prop_assert_eq!(lab.table.memory_bytes(), bare.table.memory_bytes());
        prop_assert!(lab.listed().iter().all(|connection| connection.labels.is_empty()));
    }
}

#[test]
fn replies_and_facts_choose_too() {
    let mut lab = Lab::new();
    let there = udp(Family::V4, (1, 1000), (2, 53));
    lab.track(&there);
    lab.track(&udp(Family::V4, (2, 53), (1, 1000)));
    lab.track(&udp(Family::V4, (1, 1001), (3, 53)));
    let chosen = |filter: Filter| {
        let listed = lab.listed();
        listed.iter().filter(|connection| filter.matches(connection)).count()
    };
    let end = |text: &str| Some(text.parse().unwrap());
    let none = Filter::default;
    assert_eq!(chosen(Filter { reply_source: end("192.0.2.2"), ..none() }), 1);
    assert_eq!(chosen(Filter { reply_destination: end("192.0.2.1"), ..none() }), 2);
    assert_eq!(chosen(Filter { reply_destination: end("192.0.2.2"), ..none() }), 0);
    assert_eq!(chosen(Filter { reply_source_port: Some(53), ..none() }), 2);
    assert_eq!(chosen(Filter { reply_destination_port: Some(1001), ..none() }), 1);
    assert_eq!(chosen(Filter { icmp_id: Some(0), ..none() }), 0);
    assert_eq!(chosen(Filter { seen_reply: Some(true), ..none() }), 1);
    assert_eq!(chosen(Filter { expected: Some(true), ..none() }), 0);
}
