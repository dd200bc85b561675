use serde_json::{Value, json};
use wire::protocol::{TCP, UDP};

use super::*;
use crate::{Options, import_value};

fn translations(rules: &[Value]) -> Translations {
    let mut all = vec![json!({"table": {"family": "inet", "name": "t", "handle": 1}})];
    for (name, hook, prio) in [("in", "prerouting", -100), ("out", "postrouting", 100)] {
        all.push(json!({"chain": {"family": "inet", "table": "t", "name": name, "handle": 2,
            "type": "nat", "hook": hook, "prio": prio, "policy": "accept"}}));
    }
    for rule in rules {
        let destination = rule.as_array().unwrap().iter().any(|statement| {
            statement.get("dnat").is_some() || statement.get("redirect").is_some()
        });
        let chain = if destination { "in" } else { "out" };
        all.push(json!({"rule": {"family": "inet", "table": "t", "chain": chain, "handle": 9,
            "expr": rule}}));
    }
    let imported = import_value(&json!({ "nftables": all }), Options::default());
    imported.unwrap_or_else(|refused| panic!("{refused}")).ruleset.translations()
}

fn is(protocol: &str, field: &str, right: &Value) -> Value {
    json!({"match": {"op": "==", "left": {"payload": {"protocol": protocol, "field": field}},
        "right": right}})
}

fn v4(text: &str) -> u128 {
    text.parse::<std::net::Ipv4Addr>().unwrap().to_bits().into()
}

#[test]
fn sources_are_all_addresses_that_rules_name() {
    let found = translations(&[
        json!([{"snat": {"family": "ip", "addr": {"range": ["203.0.113.1", "203.0.113.4"]}}}]),
        json!([{"snat": {"family": "ip6", "addr": "2001:db8::1"}}]),
        json!([{"snat": {"family": "ip", "addr": {"map": {
            "key": {"payload": {"protocol": "ip", "field": "saddr"}},
            "data": {"set": [["192.0.2.1", "203.0.113.9"], ["192.0.2.2", "203.0.113.8"]]}}}}}]),
    ]);
    let mut sources = found.sources.clone();
    sources.sort();
    let v6 = "2001:db8::1".parse::<std::net::Ipv6Addr>().unwrap().to_bits();
    let one = |text| (Family::V4, Interval::one(v4(text)));
    assert_eq!(
        sources,
        [
            (Family::V4, Interval { low: v4("203.0.113.1"), high: v4("203.0.113.4") }),
            one("203.0.113.8"),
            one("203.0.113.9"),
            (Family::V6, Interval::one(v6)),
        ]
    );
    assert!(!found.masquerades && found.destinations.is_empty());
    assert_eq!(found.source_ports, []);
    let tcp = json!({"match": {"op": "==", "left": {"meta": {"key": "l4proto"}}, "right": "tcp"}});
    let found = translations(&[
        json!([tcp, {"snat": {"family": "ip", "addr": "203.0.113.1", "port": 40000}}]),
        json!([tcp, {"masquerade": {"port": {"range": [50000, 50010]}}}]),
        json!([tcp, {"snat": {"family": "ip", "addr": {"map": {
            "key": {"payload": {"protocol": "ip", "field": "saddr"}},
            "data": {"set": [["192.0.2.1", {"concat": ["203.0.113.9", 7]}]]}}}}}]),
    ]);
    assert_eq!(found.source_ports, [(40000, 40000), (50000, 50010), (7, 7)]);
    assert!(translations(&[json!([{"masquerade": null}])]).masquerades);
    assert!(translations(&[json!([{"accept": null}])]).is_empty());
}

#[test]
fn destinations_are_known_by_address_protocol_and_port() {
    let to = json!({"dnat": {"family": "ip", "addr": "192.0.2.10", "port": 80}});
    let forwarded = |statements: Value| translations(&[statements]).destinations;
    let any = Forwarded { family: Some(Family::V4), ..Forwarded::default() };
    let web = Forwarded { protocol: Some(TCP), ports: Some((8080, 8080)), ..any };
    assert_eq!(forwarded(json!([is("tcp", "dport", &json!(8080)), to])), [web]);
    let addresses = Some((Family::V4, Interval::one(v4("198.51.100.1"))));
    let address = is("ip", "daddr", &json!("198.51.100.1"));
    let here = Forwarded { addresses, ..web };
    assert_eq!(forwarded(json!([address, is("tcp", "dport", &json!(8080)), to])), [here]);
    assert_eq!(forwarded(json!([address, to])), [Forwarded { addresses, ..any }]);
    assert_eq!(forwarded(json!([to])), [any]);
    let wan = json!({"match": {"op": "==", "left": {"meta": {"key": "iifname"}}, "right": "wan0"}});
    let from = is("ip", "saddr", &json!("192.0.2.0"));
    let named = Forwarded {
        interfaces: Some(Interval::one(crate::name_bits("wan0").unwrap())),
        sources: Some((Family::V4, Interval::one(v4("192.0.2.0")))),
        ..any
    };
    assert_eq!(forwarded(json!([wan, from, to])), [named]);
    let set = json!({"set": [53, {"range": [5000, 5009]}]});
    let mut found = forwarded(json!([is("udp", "dport", &set), to]));
    found.sort_by_key(|it| it.ports);
    let udp = |ports| Forwarded { protocol: Some(UDP), ports: Some(ports), ..any };
    assert_eq!(found, [udp((53, 53)), udp((5000, 5009))]);
    // A key that the map does not hold is not translated.
    let mapped = json!({"dnat": {"family": "ip", "addr": {"map": {
        "key": {"payload": {"protocol": "tcp", "field": "dport"}},
        "data": {"set": [[8080, "192.0.2.10"]]}}}}});
    assert_eq!(forwarded(json!([mapped])), [web]);
}

#[test]
fn a_rule_that_names_no_address_and_no_port_is_told_only_if_it_takes_all() {
    let to = json!({"dnat": {"family": "ip", "addr": "192.0.2.10"}});
    let wan = json!({"match": {"op": "==", "left": {"meta": {"key": "iifname"}}, "right": "wan0"}});
    let marked = json!({"match": {"op": "==", "left": {"meta": {"key": "length"}}, "right": 70}});
    let not_lan =
        json!({"match": {"op": "!=", "left": {"meta": {"key": "iifname"}}, "right": "lan0"}});
    let summary = |rules: &[Value]| {
        let found = translations(rules);
        (found.destinations.len(), found.vague)
    };
    assert_eq!(summary(&[json!([to])]), (1, vec![]));
    assert_eq!(summary(&[json!([wan, {"counter": null}, to])]), (1, vec![]));
    assert_eq!(summary(&[json!([wan, marked, to])]), (0, vec![0]));
    assert_eq!(summary(&[json!([not_lan, to])]), (0, vec![0]));
    // A service is described, whatever other conditions the rule has.
    assert_eq!(summary(&[json!([marked, is("tcp", "dport", &json!(80)), to])]), (1, vec![]));
    // A rule is vague if a rule before it takes packets away.
    let chain = |name: &str, base: bool| {
        let mut chain = json!({"family": "inet", "table": "t", "name": name, "handle": 2});
        if base {
            let hook = json!({"type": "nat", "hook": "prerouting", "prio": -100,
                "policy": "accept"});
            chain.as_object_mut().unwrap().extend(hook.as_object().unwrap().clone());
        }
        json!({ "chain": chain })
    };
    let rule = |chain: &str, expr: Value| {
        json!({"rule": {"family": "inet", "table": "t", "chain": chain, "handle": 9,
            "expr": expr}})
    };
    let table = json!({"table": {"family": "inet", "name": "t", "handle": 1}});
    let summary = |objects: Vec<Value>| {
        let imported = import_value(&json!({ "nftables": objects }), Options::default());
        let found = imported.unwrap_or_else(|refused| panic!("{refused}")).ruleset.translations();
        (found.destinations.len(), found.vague)
    };
    let ssh = json!([is("tcp", "dport", &json!(22)), {"accept": null}]);
    let objects = vec![table.clone(), chain("in", true), rule("in", ssh), rule("in", json!([to]))];
    assert_eq!(summary(objects), (0, vec![1]));
    let jump = json!([marked, {"jump": {"target": "other"}}]);
    let base = [table, chain("other", false), chain("in", true), rule("other", json!([to]))];
    assert_eq!(summary(base.into_iter().chain([rule("in", jump)]).collect()).0, 0);
}

#[test]
fn translations_that_may_end_at_the_host_are_known_in_advance() {
    let own = |text: &'static str| {
        move |_: Family, interval: Interval| (interval.low..=interval.high).contains(&v4(text))
    };
    let left = |rules: &[Value]| translations(rules).left_to_host(own("192.0.2.254"));
    let any = Forwarded::default();
    let web = Forwarded { protocol: Some(TCP), ports: Some((80, 80)), ..any };
    let port = is("tcp", "dport", &json!(80));
    let marked = json!({"match": {"op": "==", "left": {"meta": {"key": "mark"}}, "right": 7}});
    let redirect = json!({"redirect": {"port": 3128}});
    assert_eq!(left(&[json!([port, marked, redirect])]), [web]);
    // The host answers these packets, so they are not kept from it and need no warning.
    let found = translations(&[json!([marked, redirect])]);
    assert!(found.destinations.is_empty() && found.vague.is_empty() && !found.is_empty());
    assert_eq!(found.left_to_host(own("192.0.2.254")), [any]);
    // Two rules for one kind of packets give it once.
    assert_eq!(left(&[json!([port, redirect]), json!([port, marked, redirect])]), [web]);
    let v4_web = Forwarded { family: Some(Family::V4), ..web };
    for (to, ends_here) in [
        (json!({"addr": "192.0.2.254", "port": 8080}), true),
        (json!({"addr": "192.0.2.253", "port": 8080}), false),
        // The kernel may choose another address of a range than the gateway; a network leaves no
        // choice.
        (json!({"addr": {"range": ["192.0.2.250", "192.0.2.255"]}}), false),
        (json!({"addr": {"prefix": {"addr": "192.0.2.0", "len": 24}}, "flags": "netmap"}), true),
        (
            json!({"addr": {"map": {"key": {"payload": {"protocol": "ip", "field": "saddr"}},
            "data": {"set": [["192.0.2.1", "192.0.2.7"], ["192.0.2.2", "192.0.2.254"]]}}}}),
            true,
        ),
    ] {
        let mut to = to;
        to["family"] = json!("ip");
        let is_mapped = to["addr"].get("map").is_some();
        let found = left(&[json!([port, {"dnat": to}])]);
        if is_mapped {
            let sources: Vec<_> = found.iter().map(|it| it.sources.unwrap().1.low).collect();
            assert_eq!(sources.len(), 2);
        } else {
            assert_eq!(found, if ends_here { vec![v4_web] } else { vec![] });
        }
    }
    // A port alone leaves the address as it is.
    let to_port = json!({"dnat": {"port": 8080}});
    let daddr = |text: &str| is("ip", "daddr", &json!(text));
    assert_eq!(left(&[json!([port, to_port])]), [web]);
    assert_eq!(left(&[json!([daddr("192.0.2.254"), port, to_port])]).len(), 1);
    assert_eq!(left(&[json!([daddr("198.51.100.1"), port, to_port])]), []);
    // A set of many elements is not split.
    let many: Vec<Value> =
        (0..1000).map(|n| json!(format!("198.51.{}.{}", n / 250, n % 250))).collect();
    let many = is("ip", "daddr", &json!({"set": many}));
    let found = left(&[json!([many, port, redirect])]);
    assert_eq!(found, [Forwarded { family: None, ..web }]);
}
