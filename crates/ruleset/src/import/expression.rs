//! Expressions: the values that a rule reads of a packet.

use serde_json::Value;

use crate::field::{self, Field};
use crate::kind::{Kind, only, outline};
use crate::limits::{MAX_EXPRESSION_DEPTH, MAX_KEY_BYTES, MAX_KEY_FIELDS};
use crate::model::{Key, Load, TypedKey, plain};
use crate::problem::{Parsed, Path};

/// A field of an object that has to be a text.
fn text<'v>(value: &'v Value, key: &str, path: &Path<'_>) -> Parsed<&'v str> {
    let found = value.get(key).and_then(Value::as_str);
    found.ok_or_else(|| path.invalid(format!("no `{key}`")))
}

/// One value of a packet with its type.
pub(crate) fn load(value: &Value, path: &Path<'_>) -> Parsed<(Load, Kind)> {
    if path.depth() > MAX_EXPRESSION_DEPTH {
        return Err(path.unsupported("expressions are nested too deep"));
    }
    let Some((form, inside)) = only(value) else {
        return Err(path.invalid(format!("{} in place of an expression", outline(value))));
    };
    let path = path.key(form);
    match form {
        "payload" => payload(inside, &path),
        "meta" => {
            let key = text(inside, "key", &path)?;
            let known = field::meta(key).map(plain);
            known.ok_or_else(|| path.unsupported(format!("`meta {}`", shown(key))))
        }
        "ct" => connection(inside, &path),
        "tcp option" => {
            let named = |key| inside.get(key).and_then(Value::as_str);
            match (named("name"), named("field")) {
                (Some("maxseg"), Some("size")) => {
                    Ok(plain((Field::SegmentSize, Kind::Integer(16))))
                }
                (name, _) => {
                    let name = shown(name.unwrap_or_default());
                    Err(path.unsupported(format!("`tcp option {name}`")))
                }
            }
        }
        "&" | "|" | "^" => combined(form, inside, &path),
        "<<" | ">>" => Err(path.unsupported("shifts")),
        "concat" => Err(path.invalid("a concatenation where one value is read")),
        other => Err(path.unsupported(format!("`{}`", shown(other)))),
    }
}

fn shown(text: &str) -> String {
    text.chars().take(40).collect()
}

fn payload(value: &Value, path: &Path<'_>) -> Parsed<(Load, Kind)> {
    if value.get("base").is_some() {
        let number = |key| value.get(key).and_then(Value::as_u64);
        let (base, offset, bits) = (text(value, "base", path)?, number("offset"), number("len"));
        let (Some(offset), Some(bits)) = (offset, bits) else {
            return Err(path.invalid("no `offset` or `len`"));
        };
        let raw = field::raw(base, offset, bits).map(plain);
        return raw.ok_or_else(|| {
            path.unsupported(format!("{bits} bits at {offset} of `{}`", shown(base)))
        });
    }
    let (header, name) = (text(value, "protocol", path)?, text(value, "field", path)?);
    let known = field::payload(header, name).map(plain);
    known.ok_or_else(|| path.unsupported(format!("`{} {}`", shown(header), shown(name))))
}

fn connection(value: &Value, path: &Path<'_>) -> Parsed<(Load, Kind)> {
    let key = text(value, "key", path)?;
    let reply = match value.get("dir").and_then(Value::as_str) {
        None => None,
        Some("original") => Some(false),
        Some("reply") => Some(true),
        Some(other) => return Err(path.invalid(format!("direction `{}`", shown(other)))),
    };
    let known = field::ct(key, reply).map(plain);
    known.ok_or_else(|| path.unsupported(format!("`ct {}`", shown(key))))
}

/// A value and constants, bit by bit.
fn combined(operator: &str, value: &Value, path: &Path<'_>) -> Parsed<(Load, Kind)> {
    let Some([first, constants @ ..]) = value.as_array().map(Vec::as_slice) else {
        return Err(path.invalid("no operands"));
    };
    let (mut combined, kind) = load(first, &path.index(0))?;
    for (at, constant) in constants.iter().enumerate() {
        let path = path.index(at + 1);
        if let Some(("payload" | "meta" | "ct" | "&" | "|" | "^" | "<<" | ">>", _)) = only(constant)
            && !kind.is_bits()
        {
            return Err(path.unsupported("two values of a packet combined bit by bit"));
        }
        let constant = kind.constant(constant, &path)?;
        match operator {
            "&" => {
                combined.and &= constant;
                combined.xor &= constant;
            }
            "|" => {
                combined.and &= !constant;
                combined.xor = (combined.xor & !constant) | constant;
            }
            _ => combined.xor ^= constant,
        }
    }
    Ok((combined, kind))
}

/// One value, or a concatenation of them.
pub(crate) fn key(value: &Value, path: &Path<'_>) -> Parsed<TypedKey> {
    let Some(("concat", parts)) = only(value) else {
        return Ok(vec![load(value, path)?]);
    };
    let path = path.key("concat");
    let parts = parts.as_array().ok_or_else(|| path.invalid("no list"))?;
    if parts.is_empty() || parts.len() > MAX_KEY_FIELDS {
        return Err(path.unsupported(format!("a concatenation of {} values", parts.len())));
    }
    let parts = parts.iter().enumerate();
    let key: TypedKey =
        parts.map(|(at, part)| load(part, &path.index(at))).collect::<Parsed<_>>()?;
    if key.iter().map(|(_, kind)| 4 * kind.words()).sum::<usize>() > MAX_KEY_BYTES {
        return Err(path.invalid(format!("a key of more than {MAX_KEY_BYTES} bytes")));
    }
    Ok(key)
}

/// The types of a key.
pub(crate) fn kinds(key: &TypedKey) -> Vec<Kind> {
    key.iter().map(|(_, kind)| *kind).collect()
}

/// A key without its types.
pub(crate) fn bare(key: &TypedKey) -> Key {
    Key { loads: key.iter().map(|(load, _)| *load).collect() }
}
