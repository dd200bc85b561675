use serde_json::json;

use crate::{Options, import_value};

#[test]
fn an_address_of_a_connection_is_of_the_family_of_the_table() {
    let load = |family: &str, key: &str, address: &str| {
        let left = json!({"ct": {"key": key, "dir": "original"}});
        let document = json!({"nftables": [
            {"table": {"family": family, "name": "t"}},
            {"chain": {"family": family, "table": "t", "name": "f", "type": "filter",
                "hook": "forward", "prio": 0, "policy": "drop"}},
            {"rule": {"family": family, "table": "t", "chain": "f", "expr": [
                {"match": {"op": "==", "left": left, "right": address}}, {"accept": null}]}},
        ]});
        let imported = import_value(&document, Options::default());
        imported.map(|it| it.ruleset.rules[0].items.clone()).map_err(|it| it.to_string())
    };
    for (family, address) in [("ip", "192.0.2.1"), ("ip6", "2001:db8::1")] {
        for end in ["saddr", "daddr"] {
            let alone = load(family, end, address).unwrap();
            assert_eq!(alone, load(family, &format!("{family} {end}"), address).unwrap());
        }
    }
    assert!(load("inet", "saddr", "192.0.2.1").unwrap_err().contains("unsupported: `ct saddr`"));
    // nft prints 192.0.2.0/24 and 2001:db8::/32 so.
    for (family, printed) in [("ip", "0.192.0.2"), ("ip6", "::32.1.13.184")] {
        let refused = load(family, "saddr", printed).unwrap_err();
        assert!(refused.contains("write the family"), "{refused}");
    }
}
