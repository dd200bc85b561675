use serde_json::{Value, json};

use crate::hook::Hook;
use crate::testing::{ETHER, Surroundings, matches};

/// Types of links (`linux/if_arp.h`).
const TUN: u16 = 0xfffe;
const PPP: u16 = 512;

/// True if a packet from one link to another matches the condition in forward.
fn matches_between(condition: &Value, links: (u16, u16)) -> bool {
    matches(condition, &Surroundings { links, ..Surroundings::default() })
}

fn compares(left: Value, operator: &str, right: Value) -> Value {
    json!({"match": {"op": operator, "left": left, "right": right}})
}

#[test]
fn links_have_the_types_of_their_interfaces() {
    let meta = |key: &str| json!({"meta": {"key": key}});
    let bare = (TUN, PPP);
    assert!(matches_between(&compares(meta("iiftype"), "==", json!(65534)), bare));
    assert!(matches_between(&compares(meta("oiftype"), "==", json!("ppp")), bare));
    assert!(!matches_between(&compares(meta("iiftype"), "==", json!("ether")), bare));
    assert!(matches_between(&compares(meta("iiftype"), "!=", json!("ether")), bare));
    assert!(!matches_between(&compares(meta("iiftype"), "==", json!("@types")), bare));
    assert!(matches_between(&compares(meta("oiftype"), "==", json!("@types")), bare));
    assert!(matches_between(&compares(meta("iiftype"), "==", json!("ether")), (ETHER, PPP)));
}

#[test]
fn a_packet_from_a_link_without_link_headers_has_no_hardware_address() {
    let field = |name: &str| json!({"payload": {"protocol": "ether", "field": name}});
    let raw = json!({"payload": {"base": "ll", "offset": 96, "len": 16}});
    let other = json!("00:00:5e:00:53:77");
    for (from, has_header) in [(ETHER, true), (TUN, false), (PPP, false)] {
        // Even "is not" does not match a value that is not there.
        let not = compares(field("saddr"), "!=", other.clone());
        assert_eq!(matches_between(&not, (from, ETHER)), has_header, "{from}");
        let kind = compares(field("type"), "==", json!("ip"));
        assert_eq!(matches_between(&kind, (from, ETHER)), has_header, "{from}");
        assert_eq!(
            matches_between(&compares(raw.clone(), "==", json!(0x800)), (from, ETHER)),
            has_header
        );
        let set = json!({"set": [other.clone()]});
        assert_eq!(
            matches_between(&compares(field("daddr"), "!=", set), (from, ETHER)),
            has_header
        );
    }
    // The link that it came in by counts.
    assert!(matches_between(&compares(field("type"), "==", json!("ip")), (ETHER, TUN)));
}

#[test]
fn in_postrouting_a_packet_is_at_its_output_as_in_the_kernel() {
    let matches = |condition: Value, links| {
        let hook = Hook::Postrouting;
        matches(&condition, &Surroundings { hook, links, ..Surroundings::default() })
    };
    let input = |right: Value| compares(json!({"meta": {"key": "iiftype"}}), "==", right);
    assert!(
        matches(input(json!(65534)), (ETHER, TUN)) && !matches(input(json!("ether")), (ETHER, TUN))
    );
    assert!(matches(input(json!("ether")), (TUN, ETHER)));
    let named = json!({"payload": {"protocol": "ether", "field": "type"}});
    let named = || compares(named.clone(), "==", json!("ip"));
    let raw = json!({"payload": {"base": "ll", "offset": 96, "len": 16}});
    let raw = || compares(raw.clone(), "==", json!(0x800));
    assert!(matches(named(), (ETHER, ETHER)) && matches(raw(), (ETHER, ETHER)));
    assert!(!matches(named(), (ETHER, TUN)) && matches(raw(), (ETHER, TUN)));
    assert!(!matches(named(), (TUN, ETHER)) && !matches(raw(), (TUN, ETHER)));
}
