//! Rules in nft's syntax, and the ways to give them to a gateway that runs.

use std::fmt::Write;

use lab::{Lab, Result, Stateway};
use serde_json::Value;

use super::stateway;

/// Forwards nothing.
pub const CLOSED: &str = "
table inet filter {
    chain forward {
        type filter hook forward priority filter; policy drop;
    }
}
";

/// Rules that translate at the edge of a network. The `masquerade` is that of the sources which
/// leave by `wan0`. A forward has packets that come in there, and the port of the client to which
/// they go, such as `("tcp dport 8080", ":8000")`; without the port it stays as it is.
pub fn nat_rules(forwards: &[(&str, &str)], masquerade: &str) -> String {
    let forward = |(packets, port): &(&str, &str)| {
        ["ip to 192.0.2.1", "ip6 to [2001:db8:1::1]"]
            .map(|to| format!("iifname \"wan0\" {packets} dnat {to}{port}\n"))
            .concat()
    };
    let forwards: String = forwards.iter().map(forward).collect();
    format!(
        "table inet t {{
            chain in {{
                type nat hook prerouting priority dstnat; policy accept;
                {forwards}
            }}
            chain out {{
                type nat hook postrouting priority srcnat; policy accept;
                oifname \"wan0\" {masquerade}
            }}
        }}"
    )
}

/// Writes a file with a ruleset in the gateway's namespace. nft runs in another one, because the
/// gateway may have its own table.
pub fn ruleset_file(lab: &Lab, name: &str, rules: &str) -> Result<String> {
    let json = lab.server().printed_rules(rules)?;
    lab.gateway().write_file(name, json.as_bytes())
}

/// Has the running gateway exchange its rules for these.
pub fn load(lab: &Lab, rules: &str) -> Result<()> {
    load_of(lab, stateway(lab), rules)
}

/// As [`load`], for a gateway that was started later in the lab.
pub fn load_of(lab: &Lab, stateway: &Stateway, rules: &str) -> Result<()> {
    let file = ruleset_file(lab, "loaded.json", rules)?;
    stateway.command(&["rules", "load", &file]).check().map(drop)
}

/// The packets that each counter of a listing has counted, in the order of the rules.
pub fn counted(listed: &Value) -> Vec<u64> {
    let rules = listed["nftables"].as_array().into_iter().flatten();
    let statements = rules.filter_map(|object| object["rule"]["expr"].as_array()).flatten();
    statements.filter_map(|statement| statement["counter"]["packets"].as_u64()).collect()
}

/// The differences between two listings, object by object, without the parts that depend on time.
pub fn different_objects(ours: &Value, theirs: &Value) -> String {
    let mut found = String::new();
    assert_eq!(objects(ours).count(), objects(theirs).count(), "objects are listed");
    for (ours, theirs) in objects(ours).zip(objects(theirs)) {
        let (ours, theirs) = (comparable(ours), comparable(theirs));
        if ours != theirs {
            writeln!(found, "kernel {theirs}\nours   {ours}").unwrap();
        }
    }
    found
}

/// All but rules about what comes for the host: only the kernel counts there.
fn objects(document: &Value) -> impl Iterator<Item = &Value> {
    let all = document["nftables"].as_array().expect("a list of objects").iter();
    all.filter(|object| object["rule"]["chain"] != "input")
}

/// An object without the parts that depend on time and without the order of elements.
fn comparable(object: &Value) -> Value {
    let mut object = object.clone();
    strip(&mut object);
    // The kernel also counts the packet that exceeded the quota.
    if let Some(Value::Object(quota)) = object.get_mut("quota") {
        quota.remove("used");
    }
    for kind in ["set", "map"] {
        if let Some(Value::Array(elements)) =
            object.get_mut(kind).and_then(|set| set.get_mut("elem"))
        {
            for element in elements.iter_mut() {
                if let Some(value) = element.get("elem").and_then(|it| it.get("val")).cloned() {
                    *element = value;
                }
            }
            elements.sort_by_key(Value::to_string);
        }
    }
    object
}

fn strip(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.remove("expires");
            if fields.contains_key("val_unit") {
                fields.remove("used");
                fields.remove("used_unit");
            }
            if fields.contains_key("val") && !fields.contains_key("stmt") {
                fields.retain(|name, _| name == "val");
            }
            fields.values_mut().for_each(strip);
        }
        Value::Array(list) => list.iter_mut().for_each(strip),
        _ => {}
    }
}
