//! Recognizes a listing of a set that lacks elements.
//!
//! While the kernel makes room for many new elements, a listing of their set meets some of them twice
//! and others not at all. The number of elements is right: each part of the listing begins behind as
//! many as came before. So a listing without repeated elements is whole.

use std::collections::HashSet;

use ruleset::{each_object, listing};
use serde_json::Value;

/// A set or map with an element that a ruleset in nft's JSON lists twice, in words.
pub fn repeated_element(json: &[u8]) -> Option<String> {
    let mut repeated = None;
    each_object(json, |value| {
        let Some((kind, object)) = value.as_object().and_then(|it| it.iter().next()) else {
            return;
        };
        if repeated.is_some() || !matches!(kind.as_str(), "set" | "map") {
            return;
        }
        let mut keys = HashSet::new();
        let elements = object.get("elem").and_then(Value::as_array);
        let twice = elements.into_iter().flatten().find(|it| !keys.insert(key(it).to_string()));
        if let Some(element) = twice {
            let text = |key: &str| object.get(key).and_then(Value::as_str).unwrap_or_default();
            let (family, table, name) = (text("family"), text("table"), text("name"));
            let element = listing::element_text(element);
            repeated = Some(format!("{kind} {family} {table} {name} has {element} twice"));
        }
    });
    repeated
}

/// The key of an element of a set or map.
fn key(element: &Value) -> &Value {
    let key = match element {
        Value::Array(pair) => pair.first().unwrap_or(element),
        key => key,
    };
    key.get("elem").and_then(|inside| inside.get("val")).unwrap_or(key)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn found(kind: &str, elements: Value) -> Option<String> {
        let set = json!({"family": "inet", "table": "t", "name": "s", "elem": elements});
        repeated_element(json!({"nftables": [{ kind: set }]}).to_string().as_bytes())
    }

    #[test]
    fn an_element_that_is_listed_twice_is_found() {
        assert_eq!(found("set", json!(["192.0.2.1", "192.0.2.2"])), None);
        let ends = |left: u32| json!({"elem": {"val": "192.0.2.1", "expires": left}});
        let twice = found("set", json!([ends(2), "192.0.2.2", ends(1)])).unwrap();
        assert!(twice.starts_with("set inet t s has 192.0.2.1"), "{twice}");
        assert_eq!(found("map", json!([[1, 3], [2, 3]])), None);
        assert!(found("map", json!([[1, 3], [{"elem": {"val": 1}}, 4]])).is_some());
    }
}
