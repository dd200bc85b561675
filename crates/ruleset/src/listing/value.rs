//! Values in nft's JSON.

use std::borrow::Cow;
use std::net::{Ipv4Addr, Ipv6Addr};

use flow::{Shown, is_harmless};
use serde_json::{Value, json};

use crate::kind::Kind;

/// A value with its texts escaped for people.
pub(super) fn shown(value: &Value) -> Cow<'_, Value> {
    // A ruleset may have millions of texts, of which hardly any needs a change.
    if is_shown(value) { Cow::Borrowed(value) } else { Cow::Owned(escaped(value)) }
}

fn is_shown(value: &Value) -> bool {
    match value {
        Value::String(text) => is_harmless(text),
        Value::Array(values) => values.iter().all(is_shown),
        Value::Object(fields) => {
            fields.iter().all(|(name, value)| is_harmless(name) && is_shown(value))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => true,
    }
}

fn escaped(value: &Value) -> Value {
    match value {
        Value::String(text) => Value::String(Shown(text).to_string()),
        Value::Array(values) => values.iter().map(escaped).collect(),
        Value::Object(fields) => {
            let escape = |(name, value)| (Shown(name).to_string(), escaped(value));
            Value::Object(fields.iter().map(escape).collect())
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}

/// A value of a type.
pub(crate) fn json_of(kind: Kind, value: u128) -> Value {
    match kind {
        Kind::Ipv4 => Value::from(Ipv4Addr::from(value as u32).to_string()),
        Kind::Ipv6 => Value::from(Ipv6Addr::from(value).to_string()),
        Kind::Ether => {
            let bytes = value.to_be_bytes();
            let parts: Vec<String> = bytes[10..].iter().map(|byte| format!("{byte:02x}")).collect();
            Value::from(parts.join(":"))
        }
        Kind::Interface | Kind::Helper => {
            let bytes = value.to_be_bytes();
            let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
            Value::from(String::from_utf8_lossy(&bytes[..end]).into_owned())
        }
        Kind::Priority => Value::from(format!("{:x}:{:x}", value >> 16, value & 0xffff)),
        // The value is in milliseconds, the text in seconds.
        Kind::Time => Value::from((value / 1000) as u64),
        Kind::Boolean => Value::from(value != 0),
        Kind::CtLabel => {
            let bits: Vec<Value> =
                (0..128).filter(|bit| value >> bit & 1 == 1).map(Value::from).collect();
            union(bits)
        }
        kind => {
            let names = kind.names();
            let number = value as u64;
            if let Some((name, _)) = names.iter().find(|(_, known)| *known == number) {
                return Value::from(*name);
            }
            if kind.is_bits() && number != 0 {
                let set = names.iter().filter(|(_, bit)| number & bit != 0);
                return union(set.map(|(name, _)| Value::from(*name)).collect());
            }
            match u64::try_from(value) {
                Ok(number) => Value::from(number),
                Err(_) => Value::from(format!("{value:#x}")),
            }
        }
    }
}

/// A union of bits.
fn union(mut bits: Vec<Value>) -> Value {
    match bits.len() {
        1 => bits.remove(0),
        _ => json!({ "|": bits }),
    }
}

/// The key of a set.
pub(super) fn json_of_key(kinds: &[Kind], values: &[u128]) -> Value {
    let mut parts: Vec<Value> =
        kinds.iter().zip(values).map(|(kind, value)| json_of(*kind, *value)).collect();
    match parts.len() {
        1 => parts.remove(0),
        _ => json!({ "concat": parts }),
    }
}
