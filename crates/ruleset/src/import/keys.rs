//! The keys that statements and expressions may have in nft's JSON. A key that is not known here may
//! change what a rule says, and newer versions of nft have such ones: without its `tunnel`, the
//! source inside a tunnel would be read as that of the tunnel.

use serde_json::Value;

use crate::problem::{Parsed, Path};

/// The keys of each form (libnftables-json(5)).
const KEYS: &[(&str, &[&str])] = &[
    ("counter", &["packets", "bytes", "map"]),
    ("ct", &["key", "dir", "family"]),
    ("ct count", &["val", "inv"]),
    ("ct helper", &["map"]),
    ("ct timeout", &["map"]),
    ("dnat", TRANSLATION),
    ("exthdr", &["name", "field"]),
    ("fib", &["flags", "result"]),
    ("flow", &["op", "flowtable"]),
    ("goto", &["target"]),
    ("ip option", &["name", "field"]),
    ("jhash", &["expr", "mod", "seed", "offset"]),
    ("jump", &["target"]),
    ("limit", &["rate", "rate_unit", "per", "burst", "burst_unit", "inv", "map"]),
    ("log", &["prefix", "group", "snaplen", "queue-threshold", "level", "flags"]),
    ("mangle", &["key", "value"]),
    ("map", &["key", "data"]),
    ("masquerade", TRANSLATION),
    ("match", &["left", "op", "right"]),
    ("meta", &["key"]),
    ("meter", &["key", "name", "size", "stmt"]),
    ("numgen", &["mode", "mod", "offset"]),
    ("payload", &["protocol", "field", "base", "offset", "len"]),
    ("quota", &["val", "val_unit", "bytes", "used", "used_unit", "inv", "map"]),
    ("redirect", TRANSLATION),
    ("reject", &["type", "expr"]),
    ("rt", &["key", "family"]),
    ("sctp chunk", &["name", "field"]),
    ("set", &["op", "elem", "set", "stmt"]),
    ("snat", TRANSLATION),
    ("symhash", &["mod", "offset"]),
    ("synproxy", &["mss", "wscale", "flags", "map"]),
    ("tcp option", &["name", "field", "base", "offset", "len"]),
    ("vmap", &["key", "data"]),
];
const TRANSLATION: &[&str] = &["family", "addr", "port", "flags", "type_flags"];

/// Refuses a statement or an expression with a key that its form does not have.
pub(super) fn check(form: &str, value: &Value, path: &Path<'_>) -> Parsed<()> {
    let (Some((_, known)), Some(fields)) =
        (KEYS.iter().find(|(name, _)| *name == form), value.as_object())
    else {
        return Ok(());
    };
    match fields.keys().find(|key| !known.contains(&key.as_str())) {
        None => Ok(()),
        Some(key) => {
            let key: String = key.chars().take(40).collect();
            Err(path.unsupported(format!("`{key}` of `{form}`")))
        }
    }
}
