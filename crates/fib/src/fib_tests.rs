use std::collections::BTreeMap;

use ipnet::IpNet;
use proptest::prelude::*;

use super::*;
use crate::{Hops, LinkSelector, RouteCache, Selector};

/// Few addresses, so that prefixes, rules and packets meet: the top bits of a byte count.
fn address(v6: bool, byte: u8) -> IpAddr {
    if v6 {
        IpAddr::from([0x20, 1, 0xd, 0xb8, byte, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1])
    } else {
        IpAddr::from([192, 0, 2, byte])
    }
}

/// A prefix of that network; with 0 bits it covers everything.
fn prefix(v6: bool, byte: u8, bits: u8) -> IpNet {
    let network = if v6 { 32 } else { 24 };
    IpNet::new(address(v6, byte), if bits == 0 { 0 } else { network + bits }).unwrap().trunc()
}

fn actions() -> impl Strategy<Value = Action> {
    let hop = (1u32..4, any::<bool>(), 1u32..4).prop_map(|(link, alive, weight)| NextHop {
        alive,
        weight,
        ..NextHop::new(LinkId(link), None)
    });
    prop_oneof![
        6 => prop::collection::vec(hop, 1..3).prop_map(|hops| {
            Action::Forward(Hops::several(hops).expect("at least one"))
        }),
        1 => Just(Action::Local),
        1 => Just(Action::Blackhole),
        1 => Just(Action::Unreachable),
        1 => Just(Action::Prohibit),
        1 => Just(Action::Throw),
    ]
}

fn routes(v6: bool) -> impl Strategy<Value = Route> {
    let source = prop::option::weighted(0.2, (any::<u8>(), 0u8..4));
    (any::<u8>(), 0u8..5, source, prop::sample::select(vec![0u8, 0, 0, 0x10]), 0u32..3, actions())
        .prop_map(move |(byte, bits, source, tos, metric, action)| Route {
            source: source.filter(|_| v6).map(|(byte, bits)| prefix(v6, byte, bits)),
            tos: if v6 { 0 } else { tos },
            metric,
            ..Route::new(prefix(v6, byte, bits), action)
        })
}

fn rules(v6: bool) -> impl Strategy<Value = Rule> {
    let net = move || prop::option::weighted(0.3, (any::<u8>(), 0u8..3));
    let selector = (
        net(),
        net(),
        prop::option::weighted(0.2, 0u32..3),
        prop::option::weighted(0.2, 0u32..4),
        prop::option::weighted(0.1, Just(17u8)),
        prop::option::weighted(0.1, 0u16..3),
    )
        .prop_map(move |(source, destination, link, mark, protocol, port)| Selector {
            source: source.map(|(byte, bits)| prefix(v6, byte, bits)),
            destination: destination.map(|(byte, bits)| prefix(v6, byte, bits)),
            link: match link {
                None => LinkSelector::Any,
                Some(0) => LinkSelector::Absent,
                Some(link) => LinkSelector::Is(LinkId(link)),
            },
            mark: mark.map(|mark| (mark, 3)),
            protocol,
            destination_port: port.map(|port| port..=port + 1),
            ..Selector::default()
        });
    let action = prop_oneof![
        6 => (0u32..3, prop::option::weighted(0.2, 0u8..32)).prop_map(|(table, suppress)| {
            RuleAction::Ask { table: TableId(table), suppress }
        }),
        1 => (0u32..8).prop_map(RuleAction::Goto),
        1 => Just(RuleAction::Nop),
        1 => Just(RuleAction::Prohibit),
    ];
    (0u32..8, selector, prop::bool::weighted(0.1), action).prop_map(
        |(priority, selector, invert, action)| Rule { priority, selector, invert, action },
    )
}

fn queries(v6: bool) -> impl Strategy<Value = Query> {
    (any::<[u8; 2]>(), 1u32..3, 0u32..4, prop::bool::ANY, 0u16..4, any::<u32>()).prop_map(
        move |([source, destination], link, mark, marked, port, flow_hash)| Query {
            mark,
            traffic_class: if marked { 0xf3 } else { 0 },
            protocol: if marked { 17 } else { 6 },
            ports: (port < 3).then_some((9, port)),
            flow_hash,
            ..Query::new(address(v6, source), address(v6, destination), LinkId(link))
        },
    )
}

/// The behaviour in the manual pages, step by step over plain lists. Of several hops it allows
/// any.
struct Model {
    rules: Vec<Rule>,
    tables: BTreeMap<TableId, Vec<Route>>,
}

impl Model {
    fn agrees(&self, query: &Query, result: RouteResult) -> bool {
        let mut from = 0;
        for (index, rule) in self.rules.iter().enumerate() {
            if index < from || selects(&rule.selector, query) == rule.invert {
                continue;
            }
            match rule.action {
                RuleAction::Ask { table, suppress } => match self.route(table, query) {
                    None | Some(Route { action: Action::Throw, .. }) => {}
                    Some(route) => {
                        let ends = match route.action {
                            Action::Blackhole => Some(RouteResult::Blackhole),
                            Action::Unreachable => Some(RouteResult::Unreachable),
                            Action::Prohibit => Some(RouteResult::Prohibited),
                            _ => None,
                        };
                        if let Some(ends) = ends {
                            return result == ends;
                        }
                        if suppress.is_some_and(|bits| route.destination.prefix_len() <= bits) {
                            continue;
                        }
                        return match (&route.action, result) {
                            (Action::Forward(hops), RouteResult::Forward(hop)) => {
                                hop.alive && hops.all().contains(&hop)
                            }
                            (Action::Local, result) => result == RouteResult::Local,
                            _ => false,
                        };
                    }
                },
                RuleAction::Goto(priority) => {
                    let target = self.rules.iter().position(|rule| rule.priority == priority);
                    from = target.unwrap_or(0);
                }
                RuleAction::Prohibit => return result == RouteResult::Prohibited,
                _ => {}
            }
        }
        result == RouteResult::NoRoute
    }

    fn route(&self, table: TableId, query: &Query) -> Option<&Route> {
        let fits = |route: &&Route| {
            route.destination.contains(&query.destination)
                && route.source.is_none_or(|source| source.contains(&query.source))
                && (route.tos == 0 || route.tos == query.traffic_class & 0x1c)
                && match &route.action {
                    Action::Forward(hops) => hops.all().iter().any(|hop| hop.alive),
                    _ => true,
                }
        };
        let best = |route: &&Route| {
            let source = route.source.map_or(0, |source| source.prefix_len());
            let lengths = (255 - route.destination.prefix_len(), 255 - source);
            (lengths, 255 - route.tos, route.metric)
        };
        // The first of several that are alike.
        self.tables.get(&table)?.iter().filter(fits).min_by_key(best)
    }
}

fn selects(selector: &Selector, query: &Query) -> bool {
    let within = |net: Option<IpNet>, address| net.is_none_or(|net| net.contains(&address));
    let link = match selector.link {
        LinkSelector::Any => true,
        LinkSelector::Is(link) => link == query.link,
        LinkSelector::Absent => false,
    };
    let port = match (&selector.destination_port, query.ports) {
        (None, _) => true,
        (Some(range), Some((_, port))) => range.contains(&port),
        (Some(_), None) => false,
    };
    within(selector.source, query.source)
        && within(selector.destination, query.destination)
        && link
        && port
        && selector.mark.is_none_or(|(bits, mask)| bits & mask == query.mark & mask)
        && selector.protocol.is_none_or(|protocol| protocol == query.protocol)
}

/// Rules and tables of one family, the routes that are removed again, and packets.
#[derive(Clone, Debug)]
struct World {
    v6: bool,
    rules: Vec<Rule>,
    routes: Vec<(u32, Route)>,
    removed: Vec<usize>,
    queries: Vec<Query>,
}

fn worlds() -> impl Strategy<Value = World> {
    any::<bool>().prop_flat_map(|v6| {
        (
            prop::collection::vec(rules(v6), 0..6),
            prop::collection::vec((0u32..3, routes(v6)), 0..24),
            prop::collection::vec(0usize..24, 0..6),
            prop::collection::vec(queries(v6), 24),
        )
            .prop_map(move |(rules, routes, removed, queries)| World {
                v6,
                rules,
                routes,
                removed,
                queries,
            })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn the_destination_decides_alone_where_nothing_else_is_looked_at(
        world in worlds(),
        asks_rules: bool,
    ) {
        let World { v6, rules, routes, queries, .. } = world;
        let mut fib = Fib::default();
        if asks_rules {
            fib.set_rules(v6, rules.into_iter().take(1).collect());
        }
        let tables = [TableId(0), TableId(1), TableId::MAIN];
        for (table, route) in routes.into_iter().take(3) {
            fib.insert(tables[table as usize], route);
        }
        for query in queries.iter().filter(|_| fib.goes_by_destination(v6)) {
            let plain = Query::new(query.destination, query.destination, LinkId(0));
            prop_assert_eq!(fib.look_up(query), fib.look_up(&plain));
        }
    }

    #[test]
    fn packets_go_where_rules_and_routes_say(world in worlds()) {
        let World { v6, rules, routes, removed, queries } = world;
        let mut fib = Fib::default();
        fib.set_rules(v6, rules.clone());
        let mut model = Model { rules, tables: BTreeMap::new() };
        model.rules.sort_by_key(|rule| rule.priority);
        for (table, route) in &routes {
            fib.insert(TableId(*table), route.clone());
            let known = model.tables.entry(TableId(*table)).or_default();
            match known.iter_mut().find(|known| known.is_the_same(route)) {
                Some(known) => *known = route.clone(),
                None => known.push(route.clone()),
            }
        }
        let snapshot = fib.clone();
        let answers = |fib: &Fib| queries.iter().map(|query| format!("{:?}", fib.look_up(query))).collect::<Vec<_>>();
        let before = answers(&snapshot);
        for query in &queries {
            prop_assert!(model.agrees(query, fib.look_up(query)), "{query:?}: {:?}", fib.look_up(query));
        }
        // A cache of routes gives the same answers, whether there is a place for each or not.
        let mut remembered = RouteCache::new(4);
        for query in queries.iter().chain(&queries) {
            prop_assert_eq!(remembered.look_up(&fib, query), fib.look_up(query), "{:?}", query);
        }
        for index in removed {
            let Some((table, route)) = routes.get(index) else { continue };
            let known = model.tables.entry(TableId(*table)).or_default();
            let at = known.iter().position(|known| known == route);
            // A route that is removed must exist; of two that differ only in the liveness or
            // weight of their hops either may go.
            let Some(at) = at else { continue };
            let twins = known.iter().filter(|known| known.is_for_the_same(route)).count();
            if twins == 1 {
                known.remove(at);
                prop_assert!(fib.remove(TableId(*table), route));
            }
        }
        remembered.forget();
        for query in &queries {
            prop_assert!(model.agrees(query, fib.look_up(query)), "{query:?}: {:?}", fib.look_up(query));
            prop_assert_eq!(remembered.look_up(&fib, query), fib.look_up(query), "{:?}", query);
        }
        // Later changes do not reach a clone.
        prop_assert_eq!(answers(&snapshot), before);
    }
}

#[test]
fn several_hops_share_the_flows_by_weight_and_the_dead_have_none() {
    let hop = |link, weight, alive| NextHop { weight, alive, ..NextHop::new(LinkId(link), None) };
    let hops = Hops::several(vec![hop(1, 1, true), hop(2, 5, false), hop(3, 3, true)]).unwrap();
    let mut flows = BTreeMap::new();
    for flow in 0..4000u32 {
        let hop = hops.choose(flow.wrapping_mul(0x9e37_79b1)).unwrap();
        *flows.entry(hop.link.0).or_insert(0) += 1;
    }
    assert_eq!(flows.keys().collect::<Vec<_>>(), [&1, &3]);
    assert!((900..1100).contains(&flows[&1]), "{flows:?}");
    assert_eq!(Hops::several(vec![hop(1, 1, false)]).unwrap().choose(7), None);
}

#[test]
fn a_replaced_route_is_one_route() {
    let mut fib = Fib::default();
    let route = |link| {
        let hop = NextHop::new(LinkId(link), None);
        Route::new("192.0.2.0/24".parse().unwrap(), Action::Forward(Hops::one(hop)))
    };
    fib.replace(TableId::MAIN, route(1));
    fib.replace(TableId::MAIN, route(2));
    fib.insert(TableId::MAIN, route(3));
    let query = Query::new(address(false, 1), address(false, 9), LinkId(9));
    assert_eq!(fib.look_up(&query), RouteResult::Forward(NextHop::new(LinkId(2), None)));
    assert!(fib.remove(TableId::MAIN, &route(2)));
    assert_eq!(fib.look_up(&query), RouteResult::Forward(NextHop::new(LinkId(3), None)));
    assert!(!fib.remove(TableId::MAIN, &route(2)));
    fib.clear(false);
    assert_eq!(fib.look_up(&query), RouteResult::NoRoute);
}

#[test]
fn goto_never_goes_back() {
    let mut fib = Fib::default();
    let rule = |priority, action| Rule { action, ..Rule::ask(priority, TableId::MAIN) };
    fib.set_rules(false, vec![rule(1, RuleAction::Goto(1)), rule(2, RuleAction::Prohibit)]);
    let query = Query::new(address(false, 1), address(false, 9), LinkId(9));
    assert_eq!(fib.look_up(&query), RouteResult::Prohibited);
}
