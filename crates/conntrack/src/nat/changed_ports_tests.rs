use std::collections::HashMap;

use flow::{FlowKey, Zone};
use proptest::prelude::*;
use wire::{Family, mapped, protocol};

use super::*;

/// A packet from a port of 192.0.2.1 to a host, which leaves with another port.
fn change(from: u16, host: u8, port: u16) -> PortChange {
    let end = |address: [u8; 4], port| Endpoint { address: mapped(address.into()), port };
    let (source, destination) = (end([192, 0, 2, 1], from), end([198, 51, 100, host], 53));
    let original = FlowKey::of_ports(Family::V4, protocol::UDP, Zone(0), source, destination);
    PortChange { original, port }
}

fn ports() -> ChangedPorts {
    ChangedPorts::new().keyed(HashKey(1, 2))
}

#[test]
fn a_source_has_its_port_towards_all_hosts_until_its_last_connection_ends() {
    let ports = ports();
    let known = |from| ports.of_source(&change(from, 9, 0).original);
    ports.enter(&change(5, 1, 7000));
    ports.enter(&change(5, 2, 7000));
    ports.enter(&change(5, 3, 8000));
    assert_eq!((known(5), known(6)), (Some(7000), None));
    ports.leave(&change(5, 3, 8000));
    ports.leave(&change(5, 1, 7000));
    assert_eq!(known(5), Some(7000));
    ports.leave(&change(5, 2, 7000));
    assert_eq!(known(5), None);
    assert_eq!(ports.len(), 0);
    // It is the first one now.
    ports.enter(&change(5, 3, 8000));
    assert_eq!(known(5), Some(8000));
}

#[test]
fn a_port_that_stays_is_none() {
    let PortChange { original, .. } = change(5, 1, 7000);
    assert_eq!(PortChange::of(original, &original), None);
    let leaves_as = change(7000, 1, 0).original;
    assert_eq!(PortChange::of(original, &leaves_as), Some(PortChange { original, port: 7000 }));
}

#[test]
fn a_full_line_remembers_no_more_and_loses_nothing() {
    let ports = ports();
    for from in 1..=u16::MAX {
        ports.enter(&change(from, 1, 7000));
    }
    let remembered = |port: u16| {
        (1..=u16::MAX)
            .filter(|it| ports.of_source(&change(*it, 1, 0).original) == Some(port))
            .count()
    };
    assert!((32_000..40_000).contains(&remembered(7000)), "{}", remembered(7000));
    for from in 1..=u16::MAX {
        ports.leave(&change(from, 1, 7000));
    }
    assert_eq!(remembered(7000), 0);
    assert!(
        ports
            .shared
            .lines
            .iter()
            .flat_map(|line| &line.0)
            .all(|it| it.load(Ordering::Relaxed) == 0)
    );
}

proptest! {
    /// Agrees with a map from sources to their first port.
    #[test]
    fn agrees_with_a_map(steps in prop::collection::vec((1..6_u16, 1..4_u16, any::<bool>()), 0..200)) {
        let ports = ports();
        let mut open: Vec<(u16, u16)> = Vec::new();
        let mut first: HashMap<u16, (u16, usize)> = HashMap::new();
        for (from, port, opens) in steps {
            if opens {
                open.push((from, port));
                ports.enter(&change(from, 1, port));
                let known = first.entry(from).or_insert((port, 0));
                known.1 += usize::from(known.0 == port);
            } else if let Some(at) = open.iter().position(|it| *it == (from, port)) {
                open.swap_remove(at);
                ports.leave(&change(from, 1, port));
                if let Some(known) = first.get_mut(&from).filter(|known| known.0 == port) {
                    known.1 = known.1.saturating_sub(1);
                    if known.1 == 0 {
                        first.remove(&from);
                    }
                }
            }
            let expected = first.get(&from).map(|known| known.0);
            prop_assert_eq!(ports.of_source(&change(from, 2, 0).original), expected);
        }
    }
}
