//! What a filter chooses, against the list of everything.

use flow::{FlowKey, Zone};
use proptest::prelude::*;
use wire::{Family, TcpFlags, protocol};

use super::*;
use crate::table::tests::{Lab, SECRET, tcp, udp};

fn any_filter() -> impl Strategy<Value = Filter> {
    let prefix = || {
        const TEXTS: [&str; 5] =
            ["192.0.2.1", "192.0.2.0/30", "192.0.2.2/31", "0.0.0.0/0", "2001:db8::/64"];
        prop::option::of(prop::sample::select(&TEXTS[..]).prop_map(|text| text.parse().unwrap()))
    };
    let protocols = prop::option::of(prop::sample::select(&[protocol::TCP, protocol::UDP, 1][..]));
    let family = prop::option::of(prop::sample::select(&[Family::V4, Family::V6][..]));
    let ports = (prop::option::of(1u16..4), prop::option::of(1u16..4));
    let rest = (prop::option::of(0u16..2), prop::option::of(any::<bool>()));
    (prefix(), prefix(), protocols, family, ports, rest).prop_map(
        |(source, destination, protocol, family, (source_port, destination_port), rest)| Filter {
            family,
            protocol,
            zone: rest.0,
            source,
            destination,
            source_port,
            destination_port,
            seen_reply: rest.1,
            ..Filter::default()
        },
    )
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
        filter in any_filter(),
        budget in 1u32..100,
    ) {
        let mut lab = filled(&ends);
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
        if let Some(key) = filter.flow(Zone(0)) {
            let chosen = lab.run(|table, context| {
                table.select_flow(&key, key.hash(SECRET), &filter, Action::Delete, context)
            });
            prop_assert_eq!(chosen, !wanted.is_empty());
            prop_assert!(wanted.len() <= 1);
        }
        let whole = (Cursor::default(), u32::MAX);
        let changes = Changes { mark: Some(9), timeout_s: Some(7) };
        let changed = lab.run(|table, context| table.select(&filter, Action::Update(changes), whole, context).0);
        let marked: Vec<FlowKey> = lab.listed().iter().filter(|c| (c.mark, c.timeout_s) == (9, 7)).map(|c| c.key).collect();
        prop_assert_eq!(marked.len() as u64, changed);
        let ended = lab.run(|table, context| table.select(&filter, Action::Delete, whole, context).0);
        prop_assert_eq!(ended, changed);
        prop_assert!(lab.listed().iter().all(|connection| !filter.matches(connection)));
    }
}
