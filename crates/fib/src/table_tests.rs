use std::net::Ipv6Addr;

use proptest::prelude::*;

use super::*;
use crate::{Hops, LinkId};

/// Addresses with few different bits in all places that decide the part, so that prefixes of
/// every length cover some of them.
fn addresses() -> impl Strategy<Value = IpAddr> {
    let bits = prop::collection::vec(prop::sample::select(vec![0u8, 1, 0x80, 0xff]), 16);
    (any::<bool>(), bits).prop_map(|(v6, bits)| match v6 {
        true => IpAddr::from(<[u8; 16]>::try_from(bits).expect("they are 16")),
        false => IpAddr::from([bits[0], bits[1], bits[2], bits[3]]),
    })
}

fn routes() -> impl Strategy<Value = Route> {
    (addresses(), 0u8..=128, 1u32..4).prop_map(|(address, length, link)| {
        let length = if address.is_ipv4() { length.min(32) } else { length };
        let prefix = IpNet::new(address, length).expect("it is no longer than an address");
        Route::new(prefix, Action::Forward(Hops::one(NextHop::new(LinkId(link), None))))
    })
}

/// The answer of the longest matching prefix, by a search through all.
fn longest<'a>(routes: &'a [Route], query: &Query) -> Option<(u8, &'a NextHop)> {
    let covers = |route: &&Route| route.destination.contains(&query.destination);
    // Among the routes of one prefix the first counts; `max_by_key` takes the last.
    let route = routes.iter().rev().filter(covers).max_by_key(|it| it.destination.prefix_len())?;
    let Action::Forward(hops) = &route.action else { return None };
    Some((route.destination.prefix_len(), &hops.all()[0]))
}

proptest! {
    /// The table finds prefixes of every length, in every part, as a search through all does.
    #[test]
    fn the_longest_prefix_is_found_wherever_it_lies(
        routes in prop::collection::vec(routes(), 0..40),
        removed in prop::collection::vec(any::<prop::sample::Index>(), 0..10),
        asked in prop::collection::vec(addresses(), 1..40),
    ) {
        let mut table = Table::default();
        let mut known: Vec<Route> = Vec::new();
        for route in &routes {
            table.insert(route.clone(), InsertMode::Append);
            if !known.iter().any(|other| other.is_the_same(route)) {
                known.push(route.clone());
            }
        }
        for index in removed {
            if known.is_empty() {
                break;
            }
            let route = known.remove(index.index(known.len()));
            prop_assert!(table.remove(&route));
            prop_assert!(!table.remove(&route));
        }
        for destination in asked {
            let query = Query::new(destination, destination, LinkId(1));
            let found = table.ask(&query).map(|(length, answer)| match answer {
                Answer::Forward(hop, _) => (length, hop),
                Answer::Ends(action) => panic!("{action:?}"),
            });
            prop_assert_eq!(found, longest(&known, &query));
        }
        let mut prefixes: Vec<IpNet> = known.iter().map(|route| route.destination).collect();
        prefixes.sort();
        prefixes.dedup();
        prop_assert_eq!(table.len(), prefixes.len());
        prop_assert_eq!(table.routes().count(), known.len());
    }
}

/// Number of parts that two tables do not share.
fn not_shared<P: Divided>(old: &Sheaf<P>, new: &Sheaf<P>) -> usize {
    std::iter::zip(&old.parts, &new.parts).filter(|(old, new)| !Arc::ptr_eq(old, new)).count()
}

#[test]
fn a_change_copies_one_part() {
    let mut table = Table::default();
    for first in 1..=200u8 {
        let v4 = IpNet::new(IpAddr::from([first, 2, 0, 0]), 16).expect("a prefix");
        let v6 = Ipv6Addr::new(0x2001, u16::from(first) << 8, 0, 0, 0, 0, 0, 0);
        let v6 = IpNet::new(v6.into(), 32).expect("a prefix");
        table.insert(Route::new(v4, Action::Blackhole), InsertMode::Append);
        table.insert(Route::new(v6, Action::Blackhole), InsertMode::Append);
    }
    let before = table.clone();
    table.insert(
        Route::new("9.9.0.0/16".parse().expect("a prefix"), Action::Blackhole),
        InsertMode::Append,
    );
    table.insert(
        Route::new("2001:db8::/32".parse().expect("a prefix"), Action::Throw),
        InsertMode::Append,
    );
    assert_eq!(not_shared(&before.v4, &table.v4), 1);
    assert_eq!(not_shared(&before.v6, &table.v6), 1);
    assert!(Arc::ptr_eq(&before.v4.short, &table.v4.short));
    let parts: std::collections::BTreeSet<usize> = before.v6.parts().map(|it| it.len()).collect();
    assert!(parts.iter().max() <= Some(&4), "the prefixes of IPv6 are spread: {parts:?}");
}
