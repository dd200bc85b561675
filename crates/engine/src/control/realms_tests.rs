use fib::{Action, Hops, NextHop, Route, TableId};
use netlink::Picture;
use ruleset::{Options, import};

use super::*;
use crate::testing::router::{picture_with, routing_of};

const LAN: fib::LinkId = LinkId(10);
const WAN: fib::LinkId = LinkId(11);

fn is(key: &str, op: &str, right: &str) -> String {
    format!(r#"{{"match":{{"op":"{op}","left":{{"meta":{{"key":"{key}"}}}},"right":{right}}}}}"#)
}

fn from(network: &str, length: u8) -> String {
    format!(
        r#"{{"match":{{"op":"==","left":{{"payload":{{"protocol":"ip","field":"saddr"}}}},
            "right":{{"prefix":{{"addr":"{network}","len":{length}}}}}}}}}"#
    )
}

/// The translations of rules with these conditions, each of which masquerades.
fn translations(rules: &[&[String]]) -> Translations {
    let rule = |conditions: &&[String]| {
        let masquerade = [r#"{"masquerade":null}"#.to_owned()];
        let expr = [*conditions, &masquerade].concat().join(",");
        format!(
            r#",{{"rule":{{"family":"ip","table":"t","chain":"out","handle":3,"expr":[{expr}]}}}}"#
        )
    };
    let rules: String = rules.iter().map(rule).collect();
    let text = format!(
        r#"{{"nftables":[{{"table":{{"family":"ip","name":"t","handle":1}}}},
        {{"chain":{{"family":"ip","table":"t","name":"out","handle":2,"type":"nat",
            "hook":"postrouting","prio":100,"policy":"accept"}}}}{rules}]}}"#
    );
    let imported = import(text.as_bytes(), Options::default());
    imported.unwrap_or_else(|refused| panic!("{refused}")).ruleset.translations()
}

/// 192.0.2.0/24 by `lan0`; 198.51.100.0/24 and the default route by `wan0`; and these networks.
fn routing(more: &[(&str, LinkId)]) -> Routing {
    let mut picture: Picture = picture_with("198.51.100.254");
    for (network, link) in more {
        let hops = Hops::one(NextHop::new(*link, None));
        let route = Route::new(network.parse().unwrap(), Action::Forward(hops));
        picture.fib.insert(TableId::MAIN, route);
    }
    routing_of(&picture)
}

fn realms(rules: &[&[String]], routing: &Routing) -> Realms {
    let own = mapped("198.51.100.254".parse().unwrap());
    let names = ["lan0", "wan0"].map(str::to_owned);
    Realms::of(&translations(rules), &AddressSet::new([own..=own]), Some(routing), &names)
}

/// The addresses of these that are inside.
fn inside<'a>(set: &AddressSet, asked: &[&'a str]) -> Vec<&'a str> {
    let is_inside = |text: &&&str| set.contains(&mapped(text.parse().unwrap()), wire::Family::V4);
    asked.iter().filter(is_inside).copied().collect()
}

const ASKED: [&str; 7] = [
    "192.0.2.1",
    "192.0.2.254",
    "198.51.100.254",
    "198.51.100.1",
    "203.0.113.1",
    "10.1.2.3",
    "10.1.200.1",
];

#[test]
fn networks_behind_interfaces_without_translation_are_inside() {
    let behind = routing(&[("10.1.0.0/16", LAN), ("10.1.200.0/24", WAN)]);
    let expected = ["192.0.2.1", "192.0.2.254", "198.51.100.254", "10.1.2.3"];
    let rules: [&[String]; 5] = [
        &[is("oifname", "==", r#""wan0""#)],
        &[is("oifname", "==", r#""wan*""#)],
        &[is("oifname", "==", r#"{"set":["wan0","dsl0"]}"#)],
        &[is("oifname", "!=", r#""lan0""#)],
        &[is("oifname", "!=", r#"{"set":["lan0","lan1"]}"#)],
    ];
    for rule in rules {
        assert_eq!(inside(&realms(&[rule], &behind).inside, &ASKED), expected, "{rule:?}");
    }
    // A rule for everything is for the interface of the default route.
    assert_eq!(inside(&realms(&[&[]], &behind).inside, &ASKED), expected);
    // So is one whose conditions are with the rule that jumps to it.
    let tcp = is("l4proto", "==", r#""tcp""#);
    assert_eq!(inside(&realms(&[&[tcp]], &behind).inside, &ASKED), expected);
}

#[test]
fn sources_that_rules_name_are_inside_wherever_they_are() {
    let behind = routing(&[("10.1.0.0/16", WAN)]);
    let named = [from("10.1.0.0", 16)];
    let own = ["192.0.2.254", "198.51.100.254", "10.1.2.3", "10.1.200.1"];
    assert_eq!(inside(&realms(&[&named], &behind).inside, &ASKED), own);
    // Beside a rule for an interface, as with a masquerade for hairpins.
    let [lan, wan] = ["lan0", "wan0"].map(|name| is("oifname", "==", &format!("\"{name}\"")));
    let hairpin: [&[String]; 2] = [&[lan, from("192.0.2.0", 24)], &[wan]];
    let expected = ["192.0.2.1", "192.0.2.254", "198.51.100.254"];
    assert_eq!(inside(&realms(&hairpin, &behind).inside, &ASKED), expected);
    // Interfaces that packets come in by, although a rule is for those that they leave by.
    let both = [is("iifname", "==", r#""lan0""#), is("oifname", "==", r#""wan0""#)];
    assert_eq!(inside(&realms(&[&both], &behind).inside, &ASKED), expected);
}

#[test]
fn without_rules_that_translate_nothing_is_inside() {
    let realms = realms(&[], &routing(&[]));
    assert!(realms.inside.is_empty() && realms.outside.is_empty());
}

#[test]
fn a_network_stays_inside_until_a_route_says_otherwise() {
    let rule: [&[String]; 1] = [&[is("oifname", "==", r#""wan0""#)]];
    let before = realms(&rule, &routing(&[("10.1.0.0/16", LAN)])).inside;
    let there = ["10.1.2.3", "10.1.200.1"];
    assert_eq!(inside(&before, &there), there);
    // Its route is gone, so the default route has it.
    let gone = realms(&rule, &routing(&[]));
    assert_eq!(inside(&gone.inside, &there), [""; 0]);
    let stays = gone.after(&before).inside;
    assert_eq!(stays, before, "nothing has to be steered anew");
    let moved = realms(&rule, &routing(&[("10.1.200.0/24", WAN)])).after(&stays).inside;
    assert_eq!(inside(&moved, &there), ["10.1.2.3"]);
}
