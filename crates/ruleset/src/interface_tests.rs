use flow::Timestamp;
use serde_json::{Value, json};
use wire::build::PacketBuilder;
use wire::dissect;

use super::*;
use crate::evaluate::{Decision, SharedState, evaluate};
use crate::hook::Hook;
use crate::import::import_value;
use crate::{CompileOptions, Options, Program, name_bits};

/// Types of links (`linux/if_arp.h`).
const TUN: u16 = 0xfffe;
const PPP: u16 = 512;

/// True if a packet from one link to another meets the condition in forward.
fn is_met(condition: &Value, links: (u16, u16)) -> bool {
    is_met_in(Hook::Forward, "forward", condition, links)
}

fn is_met_in(hook: Hook, name: &str, condition: &Value, (from, to): (u16, u16)) -> bool {
    let document = json!({"nftables": [
        {"table": {"family": "inet", "name": "t"}},
        {"set": {"family": "inet", "table": "t", "name": "types", "type": "iface_type",
            "elem": ["ether", "ppp"]}},
        {"chain": {"family": "inet", "table": "t", "name": "c", "type": "filter",
            "hook": name, "prio": 0, "policy": "accept"}},
        {"rule": {"family": "inet", "table": "t", "chain": "c", "handle": 4,
            "expr": [condition, {"drop": null}]}},
    ]});
    let imported = import_value(&document, Options::default()).expect("it is right");
    let options = CompileOptions { index: false, seed: 3 };
    let program = Program::compile(imported.ruleset, options).expect("it is small");
    let shared = SharedState::new(&program, Timestamp::ZERO);
    let mut state = RuleState::new(&program, &shared, Timestamp::ZERO);
    let bits = |text| name_bits(text).expect("a name");
    let interface = |(text, link_type)| Interface { link_type, ..Interface::ethernet(bits(text)) };
    state.set_interfaces([("in0", from), ("out0", to)].map(interface).into());
    let mut bytes = Vec::new();
    PacketBuilder::v4([192, 0, 2, 1], [198, 51, 100, 2]).udp(1000, 53, b"x", &mut bytes);
    let network = dissect(&bytes).expect("it is right").network.expect("it is IP");
    let view = PacketView {
        input: bits("in0"),
        output: bits("out0"),
        ..PacketView::untracked(&bytes, &network)
    };
    let outcome = evaluate(&program, hook, &view, &mut state, Timestamp::ZERO);
    outcome.decision == Decision::Drop
}

fn compares(left: Value, operator: &str, right: Value) -> Value {
    json!({"match": {"op": operator, "left": left, "right": right}})
}

#[test]
fn links_have_the_types_of_their_interfaces() {
    let meta = |key: &str| json!({"meta": {"key": key}});
    let bare = (TUN, PPP);
    assert!(is_met(&compares(meta("iiftype"), "==", json!(65534)), bare));
    assert!(is_met(&compares(meta("oiftype"), "==", json!("ppp")), bare));
    assert!(!is_met(&compares(meta("iiftype"), "==", json!("ether")), bare));
    assert!(is_met(&compares(meta("iiftype"), "!=", json!("ether")), bare));
    assert!(!is_met(&compares(meta("iiftype"), "==", json!("@types")), bare));
    assert!(is_met(&compares(meta("oiftype"), "==", json!("@types")), bare));
    assert!(is_met(&compares(meta("iiftype"), "==", json!("ether")), (1, PPP)));
}

#[test]
fn a_packet_from_a_link_without_link_headers_has_no_hardware_address() {
    let field = |name: &str| json!({"payload": {"protocol": "ether", "field": name}});
    let raw = json!({"payload": {"base": "ll", "offset": 96, "len": 16}});
    let other = json!("00:00:5e:00:53:77");
    for (from, has_header) in [(1, true), (TUN, false), (PPP, false)] {
        // Even "is not" does not match a value that is not there.
        let not = compares(field("saddr"), "!=", other.clone());
        assert_eq!(is_met(&not, (from, 1)), has_header, "{from}");
        let kind = compares(field("type"), "==", json!("ip"));
        assert_eq!(is_met(&kind, (from, 1)), has_header, "{from}");
        assert_eq!(is_met(&compares(raw.clone(), "==", json!(0x800)), (from, 1)), has_header);
        let set = json!({"set": [other.clone()]});
        assert_eq!(is_met(&compares(field("daddr"), "!=", set), (from, 1)), has_header);
    }
    // The link that it came in by counts.
    assert!(is_met(&compares(field("type"), "==", json!("ip")), (1, TUN)));
}

#[test]
fn in_postrouting_a_packet_is_at_its_output_as_in_the_kernel() {
    let is_met =
        |condition: Value, links| is_met_in(Hook::Postrouting, "postrouting", &condition, links);
    let input = |right: Value| compares(json!({"meta": {"key": "iiftype"}}), "==", right);
    assert!(is_met(input(json!(65534)), (1, TUN)) && !is_met(input(json!("ether")), (1, TUN)));
    assert!(is_met(input(json!("ether")), (TUN, 1)));
    let named = json!({"payload": {"protocol": "ether", "field": "type"}});
    let named = || compares(named.clone(), "==", json!("ip"));
    let raw = json!({"payload": {"base": "ll", "offset": 96, "len": 16}});
    let raw = || compares(raw.clone(), "==", json!(0x800));
    assert!(is_met(named(), (1, 1)) && is_met(raw(), (1, 1)));
    assert!(!is_met(named(), (1, TUN)) && is_met(raw(), (1, TUN)));
    assert!(!is_met(named(), (TUN, 1)) && !is_met(raw(), (TUN, 1)));
}
